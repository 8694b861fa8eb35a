r"""Every key of the keyspace, drawn once: its type, its TTL, and what a field of it holds.

Queues (no TTL; Celery's own layout, so that any Celery client can push and KEDA can LLEN)::

    headrace.<model>                list    priority 0..2, pushed left, taken right
    headrace.<model>\x06\x16<step>  list    priority steps 3, 6 and 9

A job (no TTL until it has ended, then result_ttl)::

    hr:job:<id>                     hash    the record, fields in `F`
    celery-task-meta-<id>           string  the Celery result; a channel of the same name

A queue's own (no TTL; all but the last three are empty when the queue is idle)::

    hr:lease:<queue>                zset    id -> end of its lease
    hr:held:<queue>                 hash    id -> raw message while leased
    hr:delayed:<queue>              zset    id -> when it is due
    hr:parked:<queue>               hash    id -> raw message while delayed
    hr:tomb:<queue>                 hash    id -> step of a cancelled job that is still listed
    hr:count:<queue>                hash    out<step>: messages ever taken; tomb<step>: in hr:tomb;
                                            passed<step>: "<out> <time>" since when better ones went
                                            before its oldest, where that has no time of its own
    hr:jobs:<model>                 zset    id -> created, the newest job_index_max; INDEX_TTL_S in
                                            lib/keys.lua from the last submit
    hr:dead:<queue>                 zset    dead letter -> when it died; the oldest trimmed
    hr:letter:<queue>:<dead letter> hash    reason, raw, at, error, and of a job its id, step,
                                            attempts, created, traceback; 14 days

    hr:untold:<queue>               zset    31 days; job that a script has ended -> when what
                                            follows it is to be told
    hr:ends:<queue>                 hash    31 days; the same job -> its Celery result and message

Celery's own consumer listens on `headrace:control` alone, which no model's queue can be called.

Shared::

    hr:token                        string  no TTL; the fence, one number per claim of a job
    hr:workers                      zset    no TTL, trimmed; owner -> last seen
    hr:worker:<owner>               hash    WORKER_TTL_S; model -> state, for /ready; ":figures" ->
                                            its host, devices and memory
                                            (headrace/observability/host_figures.py)
    hr:paused                       set     no TTL; queues from which nothing is claimed
    hr:stats:<model>                hash    no TTL; counters for /metrics, see
    headrace/observability/worker_report.py hr:stats:                       hash    no TTL; the same
    of no model: requests, Redis hr:expiring                     zset    EXPIRING_TTL_S in
    lib/keys.lua from the last submit; id
    ->
                                            by when the job must have begun, until then
    hr:api:<api>                    string  API_TTL_S; requests that wait in one API process
    hr:done:<api>                   channel the ended jobs that one API process waits for
    hr:ended:<id>                   channel how a job has ended, for whoever else waits for it
    hr:news:<id>                    channel that a job has come further; its record says how far
    hr:cancel:<owner>               channel model, id and token of jobs that one worker holds and
                                            that were cancelled
    hr:revoked                      zset    REVOKED_TTL_S; id -> until when no message of it runs

Offline runs, as they tell of themselves (headrace/runs/records.py)::

    hr:runs                         zset    30 days; run -> when it told last, the newest 1,000
    hr:run:<id>                     hash    30 days from its last word; told: JSON, at: when,
                                            cancel: its end was asked for; ky: its API key

API keys (headrace/access/api_key.py)::

    hr:key:<key>                    hash    no TTL, or its end and 30 days; name, SHA-256 of the
                                            secret, scopes, limits
    hr:keys                         zset    no TTL; key -> when it was made
    hr:keys:news                    channel a key that was made or revoked
    hr:inflight                     hash    no TTL; key -> its jobs in flight; without those of none
    hr:rate:<key>                   hash    until it is full again; tokens of a key with a rate

Errands: what is neither a model's work nor a request's (workers/background/app.py)::

    headrace:errands                list    no TTL; Celery messages, pushed left, taken right
    hr:errands:owners               set     no TTL; background workers that may hold some
    hr:errands:alive:<owner>        string  ERRANDS_TTL_S; JSON: node and pid of one
    hr:errands:taken:<owner>        list    no TTL, empty when idle; what it has taken, for a moment
    hr:errands:held:<owner>         hash    no TTL, empty when idle; delivery tag -> message that it
                                            has not acknowledged

Webhooks (headrace/webhooks)::

    hr:hook:<id>                    hash    s, en: how the job has ended last, and when, where a
                                            webhook asked for it; <delivery>: JSON, how far it is;
                                            b:<delivery>: what it sends, while that may be sent
                                            again; m:<delivery>: the errand of its next try. 7 days
                                            from an end; webhook_retry_s and webhook_log_ttl_s from
                                            a try
    hr:hooks                        zset    no TTL; "<id> <delivery>" -> when it is tried again

Payloads, of the inputs and results that are too long for a message (headrace/payloads)::

    hr:payloads                     zset    no TTL; "<reference> <id> <model> <i|r>" -> when to look
    hr:payloads:size                hash    no TTL; reference -> its bytes in Redis; "": their sum
    hr:payload:<name>               string  an input: until its job has ended; a result: result_ttl

Files, and batches over them (headrace/batches)::

    hr:file:<id>                    hash    the record, fields in `FileField`; while it is written
                                            14 min from its last part, then until it expires
    hr:file:<id>:parts              zset    the same; reference of a part -> where it begins
    hr:files                        zset    FILES_TTL_S from the last; ids of whole files, in order
    hr:batch:<id>                   hash    the record, fields in `BatchField`; until its window has
                                            passed and it was kept as long as a file
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

from headrace.redis.fields import BatchField as BatchField
from headrace.redis.fields import F as F
from headrace.redis.fields import FileField as FileField

TASK_NAME: Final = "headrace.predict"
QUEUE_PREFIX: Final = "headrace."
#: kombu's priority steps; 0 is served first, 9 is the class `offline`.
STEPS: Final = (0, 3, 6, 9)
OFFLINE_STEP: Final = STEPS[-1]
STEP_SEPARATOR: Final = "\x06\x16"
WORKER_TTL_S: Final = 15
API_TTL_S: Final = 15
ERRANDS_TTL_S: Final = 15
#: How long a job is kept whose record does not say, as lib/keys.lua has it.
DEFAULT_TTL_S: Final = 86_400
#: How long a worker's `revoke` of an id without a record is remembered.
REVOKED_TTL_S: Final = 86_400

#: No model can have this queue: a colon stands in no model's name.
ERRANDS: Final = "headrace:errands"
ERRAND_OWNERS: Final = "hr:errands:owners"

#: Of a quiet job, in place of the API process that waits; taken away once somebody listens.
NOBODY: Final = "-"

JOB_PREFIX: Final = "hr:job:"
META_PREFIX: Final = "celery-task-meta-"
ENDED_PREFIX: Final = "hr:ended:"
NEWS_PREFIX: Final = "hr:news:"
TOKEN: Final = "hr:token"  # noqa: S105 - a fence, no secret
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
HOOKS: Final = "hr:hooks"
#: Longer than a file is kept, and than a batch runs and is then kept.
FILES_TTL_S: Final = 62 * 86_400
API_KEYS: Final = "hr:keys"
API_KEY_NEWS: Final = "hr:keys:news"
IN_FLIGHT: Final = "hr:inflight"


def queue_name(model: str) -> str:
    """The queue of a model: what a Celery client gives as `queue=`."""
    return QUEUE_PREFIX + model


def step_of(priority: int) -> int:
    """The step (0, 3, 6 or 9) that serves a Celery priority 0..9, as kombu rounds it: down."""
    return max(step for step in STEPS if step <= priority)


def step_key(queue: str, step: int) -> str:
    """The list that holds a queue's messages of one step."""
    return queue if step == 0 else f"{queue}{STEP_SEPARATOR}{step}"


def step_keys(queue: str) -> list[str]:
    """The four lists of a queue, best first."""
    return [step_key(queue, step) for step in STEPS]


def job(job_id: str) -> str:
    """The record of a job."""
    return JOB_PREFIX + job_id


def meta(job_id: str) -> str:
    """The Celery result of a job, and the channel on which its end is published."""
    return META_PREFIX + job_id


def ended(job_id: str) -> str:
    """Channel on which the end of a job is published to API processes that did not submit it."""
    return ENDED_PREFIX + job_id


def news(job_id: str) -> str:
    """Channel on which API processes are told that a job has come further."""
    return NEWS_PREFIX + job_id


def lease(queue: str) -> str:
    """Leases of a queue."""
    return f"hr:lease:{queue}"


def held(queue: str) -> str:
    """Raw messages of a queue's leased jobs."""
    return f"hr:held:{queue}"


def delayed(queue: str) -> str:
    """When a queue's delayed jobs are due."""
    return f"hr:delayed:{queue}"


def parked(queue: str) -> str:
    """Raw messages of a queue's delayed jobs."""
    return f"hr:parked:{queue}"


def count(queue: str) -> str:
    """Counters of a queue."""
    return f"hr:count:{queue}"


def tomb(queue: str) -> str:
    """Cancelled jobs of a queue whose messages are still listed."""
    return f"hr:tomb:{queue}"


def job_index(model: str) -> str:
    """A model's newest jobs by when they were created, for lists."""
    return f"hr:jobs:{model}"


def dead(queue: str) -> str:
    """Dead letters of a queue."""
    return f"hr:dead:{queue}"


def letter(queue: str, letter_id: str) -> str:
    """One dead letter."""
    return f"hr:letter:{queue}:{letter_id}"


def untold(queue: str) -> str:
    """Jobs of a queue that a script has ended, and when to tell what follows them."""
    return f"hr:untold:{queue}"


def untold_ends(queue: str) -> str:
    """Of those jobs the Celery results and messages."""
    return f"hr:ends:{queue}"


def worker(owner: str) -> str:
    """What one worker says of its models."""
    return f"hr:worker:{owner}"


def errands_alive(owner: str) -> str:
    """What one background worker says of itself."""
    return f"hr:errands:alive:{owner}"


def errands_taken(owner: str) -> str:
    """The message that one background worker has taken and not yet read."""
    return f"hr:errands:taken:{owner}"


def errands_held(owner: str) -> str:
    """The messages that one background worker has not acknowledged."""
    return f"hr:errands:held:{owner}"


def hook(job_id: str) -> str:
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
    """How much of its rate one API key has left."""
    return f"hr:rate:{key_id}"


def done_channel(api: str) -> str:
    """Channel on which the ended jobs of one API process' waiters are published."""
    return f"hr:done:{api}"


def cancel_channel(owner: str) -> str:
    """Channel on which one worker is told that jobs which it holds were cancelled."""
    return f"hr:cancel:{owner}"


def file(file_id: str) -> str:
    """The record of a file."""
    return f"hr:file:{file_id}"


def file_parts(file_id: str) -> str:
    """Where the parts of a file lie, by where each begins."""
    return f"hr:file:{file_id}:parts"


def batch(batch_id: str) -> str:
    """The record of a batch."""
    return f"hr:batch:{batch_id}"


def run(run_id: str) -> str:
    """What one offline run tells of itself."""
    return f"hr:run:{run_id}"


@lru_cache(maxsize=1024)
def queue_keys(queue: str) -> tuple[str, ...]:
    """KEYS of the scripts that work on one queue, in the order that `lib/keys.lua` names them."""
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
