r"""Every key in Redis: its type, its TTL, and what it holds.

Queues (no TTL; Celery's own layout, so that any Celery client can push and KEDA can LLEN)::

    headrace.<model>                list    priority 0..2, pushed left, taken right
    headrace.<model>\x06\x16<step>  list    priority steps 3, 6 and 9

A job (no TTL until it has ended, then result_ttl)::

    hr:job:<id>                     hash    the record, fields in `JobField`
    celery-task-meta-<id>           string  the Celery result; a channel of the same name

The other keys of a queue (no TTL; most are empty when the queue is idle)::

    hr:lease:<queue>                zset    id -> end of its lease
    hr:held:<queue>                 hash    id -> raw message while leased
    hr:delayed:<queue>              zset    id -> when it is due
    hr:parked:<queue>               hash    id -> raw message while delayed
    hr:tomb:<queue>                 hash    id -> step of a cancelled job that is still in a list
    hr:count:<queue>                hash    out<step>: messages ever taken; tomb<step>: tombstones;
                                            passed<step>: "<out> <time>" since when better jobs are
                                            taken before its oldest, if that has no time of its own
    hr:jobs:<model>                 zset    id -> created, the newest job_index_max; INDEX_TTL_S in
                                            lib/keys.lua from the last submit
    hr:dead:<queue>                 zset    dead letter -> when it was added; the oldest are trimmed
    hr:letter:<queue>:<dead letter> hash    14 days; reason, raw, at, error, and for a job its id,
                                            step, attempts, created, traceback
    hr:untold:<queue>               zset    31 days; job that a script has ended -> when a worker
                                            should send its callbacks
    hr:ends:<queue>                 hash    31 days; the same job -> its Celery result and message

Celery's own consumer listens on `headrace:control` alone, a name that no model's queue can have.

Shared::

    hr:token                        string  no TTL; the fencing token, one number per claim of a job
    hr:workers                      zset    no TTL, trimmed; owner -> last seen
    hr:worker:<owner>               hash    WORKER_TTL_S; model -> state, for /ready; ":figures" ->
                                            its host, devices and memory
                                            (headrace/observability/host_figures.py)
    hr:paused                       set     no TTL; queues from which nothing is claimed
    hr:stats:<model>                hash    no TTL; counters for /metrics, see
                                            headrace/observability/worker_report.py
    hr:stats:                       hash    no TTL; counters of no model: requests, Redis
    hr:expiring                     zset    EXPIRING_TTL_S in lib/keys.lua from the last submit; id
                                            -> when it must have started
    hr:api:<api>                    string  API_TTL_S; requests that wait in one API process
    hr:done:<api>                   channel the ended jobs that one API process waits for
    hr:ended:<id>                   channel how a job has ended, for all other waiters
    hr:news:<id>                    channel a job's record has new progress
    hr:cancel:<owner>               channel model, id and token of jobs that one worker has leased
                                            and that were cancelled
    hr:revoked                      zset    REVOKED_TTL_S; id -> until when no message of it runs

Offline runs (headrace/runs/records.py)::

    hr:runs                         zset    30 days; run -> its last report, the newest 1,000
    hr:run:<id>                     hash    30 days from its last report; `told`: JSON, at: when,
                                            cancel: its end was requested; ky: its API key

API keys (headrace/access/api_key.py)::

    hr:key:<key>                    hash    no TTL, or its end and 30 days; name, SHA-256 of the
                                            secret, scopes, limits
    hr:keys                         zset    no TTL; key -> when it was made
    hr:keys:news                    channel a key that was made or revoked
    hr:inflight                     hash    no TTL; key -> its jobs in flight, if it has any
    hr:rate:<key>                   hash    until it is full again; tokens of a key with a rate

Background tasks (workers/background/app.py)::

    headrace:errands                list    no TTL; Celery messages, pushed left, taken right
    `hr:errands:owners`             set     no TTL; background workers that may have taken some
    `hr:errands:alive:<owner>`      string  BACKGROUND_TTL_S; JSON: node and pid of one worker
    `hr:errands:taken:<owner>`      list    no TTL, empty when idle; a message that it has just
                                            taken
    `hr:errands:held:<owner>`       hash    no TTL, empty when idle; delivery tag -> message that it
                                            has not acknowledged

Webhooks (headrace/webhooks)::

    hr:hook:<id>                    hash    s, en: how and when the job last ended, if a webhook
                                            wants it; <delivery>: JSON, its state; b:<delivery>:
                                            what it sends, while that may be sent again;
                                            m:<delivery>: the background task of its next try.
                                            7 days from an end; webhook_retry_s and
                                            webhook_log_ttl_s from a try
    hr:hooks                        zset    no TTL; "<id> <delivery>" -> when it is tried again

Payloads: inputs and results that are too long for a message (headrace/payloads)::

    hr:payloads                     zset    no TTL; "<reference> <id> <model> <i|r>" -> when to
                                            check it
    hr:payloads:size                hash    no TTL; reference -> its bytes in Redis; "": their sum
    hr:payload:<name>               string  an input: until its job has ended; a result: result_ttl

Files, and batches over them (headrace/batches)::

    hr:file:<id>                    hash    the record, fields in `FileField`; while it is written
                                            14 min from its last part, then until it expires
    hr:file:<id>:parts              zset    the same; reference of a part -> where it begins
    hr:files                        zset    FILES_TTL_S from the last; ids of finished files
    hr:batch:<id>                   hash    the record, fields in `BatchField`; until its window has
                                            passed, then as long as a file
    hr:batches                      zset    FILES_TTL_S from the last; ids of batches, in order
    hr:batches:open                 zset    FILES_TTL_S from the last; batch that has not ended ->
                                            until when it is leased to a runner
    hr:runners                      zset    WORKER_TTL_S; "<owner> <host> <pid>" of a runner -> when
                                            it was last seen, in seconds

Times are integer microseconds of Redis' own clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

TASK_NAME: Final = "headrace.predict"
QUEUE_PREFIX: Final = "headrace."
#: kombu's priority steps; 0 is served first, 9 is the class `offline`.
STEPS: Final = (0, 3, 6, 9)
OFFLINE_STEP: Final = STEPS[-1]
STEP_SEPARATOR: Final = "\x06\x16"
WORKER_TTL_S: Final = 15
API_TTL_S: Final = 15
BACKGROUND_TTL_S: Final = 15
#: The TTL of a job whose record has none; the same as in lib/keys.lua.
DEFAULT_TTL_S: Final = 86_400
#: How long a worker's `revoke` of an id without a record is remembered.
REVOKED_TTL_S: Final = 86_400

#: No model can have this queue: a model's name has no colon.
BACKGROUND_TASKS: Final = "headrace:errands"
BACKGROUND_WORKERS: Final = "hr:errands:owners"

#: The waiter in the record of a quiet job, until a client listens for its end.
NO_WAITER: Final = "-"

JOB_PREFIX: Final = "hr:job:"
META_PREFIX: Final = "celery-task-meta-"
ENDED_PREFIX: Final = "hr:ended:"
PROGRESS_PREFIX: Final = "hr:news:"
TOKEN: Final = "hr:token"  # noqa: S105 - a fencing token, no secret
WORKERS: Final = "hr:workers"
PAUSED: Final = "hr:paused"
REVOKED: Final = "hr:revoked"
RUNS: Final = "hr:runs"
PAYLOADS: Final = "hr:payloads"
SHARED_STATS: Final = "hr:stats:"
PAYLOAD_SIZES: Final = "hr:payloads:size"
PAYLOAD_PREFIX: Final = "hr:payload:"
FILES: Final = "hr:files"
BATCHES: Final = "hr:batches"
OPEN_BATCHES: Final = "hr:batches:open"
RUNNERS: Final = "hr:runners"
DUE_DELIVERIES: Final = "hr:hooks"
#: Longer than a file is kept, and than a batch runs and is then kept.
FILES_TTL_S: Final = 62 * 86_400
API_KEYS: Final = "hr:keys"
API_KEY_CHANGES: Final = "hr:keys:news"
IN_FLIGHT: Final = "hr:inflight"


def queue_name(model: str) -> str:
    """Return the queue of a model, which a Celery client gives as `queue=`."""
    return QUEUE_PREFIX + model


def step_of(priority: int) -> int:
    """Return the step (0, 3, 6 or 9) of a Celery priority 0..9, rounded down as kombu does."""
    return max(step for step in STEPS if step <= priority)


def step_key(queue: str, step: int) -> str:
    """Return the list with a queue's messages of one step."""
    return queue if step == 0 else f"{queue}{STEP_SEPARATOR}{step}"


def step_keys(queue: str) -> list[str]:
    """Return the four lists of a queue, best first."""
    return [step_key(queue, step) for step in STEPS]


def job(job_id: str) -> str:
    """The record of a job."""
    return JOB_PREFIX + job_id


def meta(job_id: str) -> str:
    """The Celery result of a job, and the channel on which its end is published."""
    return META_PREFIX + job_id


def ended(job_id: str) -> str:
    """The channel of a job's end for API processes that did not submit it."""
    return ENDED_PREFIX + job_id


def progress_channel(job_id: str) -> str:
    """The channel on which new progress of a job is published."""
    return PROGRESS_PREFIX + job_id


def lease(queue: str) -> str:
    """Leases of a queue."""
    return f"hr:lease:{queue}"


def held(queue: str) -> str:
    """Raw messages of a queue's leased jobs."""
    return f"hr:held:{queue}"


def delayed(queue: str) -> str:
    """Due times of a queue's delayed jobs."""
    return f"hr:delayed:{queue}"


def parked(queue: str) -> str:
    """Raw messages of a queue's delayed jobs."""
    return f"hr:parked:{queue}"


def count(queue: str) -> str:
    """Counters of a queue."""
    return f"hr:count:{queue}"


def tomb(queue: str) -> str:
    """Cancelled jobs of a queue whose messages are still in a list."""
    return f"hr:tomb:{queue}"


def job_index(model: str) -> str:
    """A model's newest jobs by creation time, for lists."""
    return f"hr:jobs:{model}"


def dead(queue: str) -> str:
    """Dead letters of a queue."""
    return f"hr:dead:{queue}"


def dead_letter(queue: str, letter_id: str) -> str:
    """One dead dead_letter."""
    return f"hr:letter:{queue}:{letter_id}"


def orphaned(queue: str) -> str:
    """Jobs of a queue that a script has ended, and when to send their callbacks."""
    return f"hr:untold:{queue}"


def orphaned_ends(queue: str) -> str:
    """The Celery results and messages of orphaned jobs."""
    return f"hr:ends:{queue}"


def worker(owner: str) -> str:
    """The report of one worker."""
    return f"hr:worker:{owner}"


def background_alive(owner: str) -> str:
    """The heartbeat of one background worker."""
    return f"hr:errands:alive:{owner}"


def background_taken(owner: str) -> str:
    """The message that one background worker has just taken."""
    return f"hr:errands:taken:{owner}"


def background_held(owner: str) -> str:
    """The messages that one background worker has not acknowledged."""
    return f"hr:errands:held:{owner}"


def deliveries(job_id: str) -> str:
    """The webhook deliveries of one job."""
    return f"hr:hook:{job_id}"


def stats(model: str) -> str:
    """Counters of a model, summed over its workers and the API's processes."""
    return f"hr:stats:{model}"


def api(api_id: str) -> str:
    """How many requests wait in one API process."""
    return f"hr:api:{api_id}"


def api_key(key_id: str) -> str:
    """One API key."""
    return f"hr:key:{key_id}"


def rate(key_id: str) -> str:
    """The rate tokens that one API key has left."""
    return f"hr:rate:{key_id}"


def done_channel(api: str) -> str:
    """The channel of ended jobs for which one API process waits."""
    return f"hr:done:{api}"


def cancel_channel(owner: str) -> str:
    """The channel of cancelled jobs that one worker has leased."""
    return f"hr:cancel:{owner}"


def file(file_id: str) -> str:
    """The record of a file."""
    return f"hr:file:{file_id}"


def file_parts(file_id: str) -> str:
    """References of the parts of a file, by where each begins."""
    return f"hr:file:{file_id}:parts"


def batch(batch_id: str) -> str:
    """The record of a batch."""
    return f"hr:batch:{batch_id}"


def run(run_id: str) -> str:
    """The status of one offline run."""
    return f"hr:run:{run_id}"


@lru_cache(maxsize=1024)
def queue_keys(queue: str) -> tuple[str, ...]:
    """Return the KEYS of scripts on one queue, in the order of `lib/keys.lua`."""
    return (
        *step_keys(queue),
        lease(queue),
        held(queue),
        count(queue),
        delayed(queue),
        parked(queue),
        dead(queue),
        tomb(queue),
    )
