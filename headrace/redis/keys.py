r"""Every key in Redis: its type, what it holds, and its TTL if it has one.

A `Prefix` is called with a name and returns a key: `keys.job("7")` is `hr:job:7`. The Lua scripts
write `keys.job .. id`: the names that they use are replaced by the values here. Times are integer
microseconds of Redis' own clock. docs/architecture/queue-and-keys.md has the same as a table.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final


class Prefix(str):
    """How the keys of one kind begin."""

    __slots__ = ()

    def __call__(self, name: str) -> str:
        """Return the key with this name."""
        return self + name


TASK_NAME: Final = "headrace.predict"
#: kombu's priority steps; 0 is served first, 9 is the class `offline`.
STEPS: Final = (0, 3, 6, 9)
OFFLINE_STEP: Final = STEPS[-1]
STEP_SEPARATOR: Final = "\x06\x16"
#: Between model and version in the name of a version's queue. No model's name has it.
VERSION_SEPARATOR: Final = "@"
WORKER_TTL_S: Final = 15
#: Longer than an outage of Redis in which a worker stays drained.
DRAIN_TTL_S: Final = 86_400
API_TTL_S: Final = 15
BACKGROUND_TTL_S: Final = 15
#: Longer than any lease_ttl.
REPLICA_LEASES_TTL_S: Final = 86_400
#: Longer than a series goes back.
SERIES_TTL_S: Final = 31 * 86_400
#: The TTL of a job whose record has none.
DEFAULT_TTL_S: Final = 86_400
#: How long a worker's `revoke` of an id without a record is remembered.
REVOKED_TTL_S: Final = 86_400
#: Longer than most jobs run.
EXCLUSIVE_TTL_S: Final = 86_400
#: Longer than an attempt of a streaming job takes.
PIECES_TTL_S: Final = 86_400
#: How many entries the log of a streaming job keeps, about.
PIECES_MAX: Final = 10_000
#: The waiter in the record of a quiet job, until a client listens for its end.
NO_WAITER: Final = "-"

# A model's own queue has the jobs that ask for no version. Each version that jobs ask for has a
# queue too, with the same keys under its name. The four lists of a queue have Celery's own layout,
# so that any Celery client can push and KEDA can LLEN. Most of its other keys are empty when it is
# idle.

#: list: messages of step 0, pushed left, taken right; see `step_key` for the other steps.
queue_name: Final = Prefix("headrace.")
#: zset: id -> end of its lease.
lease: Final = Prefix("hr:lease:")
#: hash: id -> raw message while it is leased.
held: Final = Prefix("hr:held:")
#: zset: id -> when it is due.
delayed: Final = Prefix("hr:delayed:")
#: hash: id -> raw message while it is delayed.
parked: Final = Prefix("hr:parked:")
#: hash: id -> step of a cancelled job whose message is still in a list.
tomb: Final = Prefix("hr:tomb:")
#: hash: out<step>: messages ever taken; tomb<step>: tombstones; passed<step>: "<out> <time>" since
#: when better jobs are taken before its oldest, if that has no time of its own; tokens: those of
#: jobs that have not ended; pace: tokens that have ended lately; to<step>, fair<step>, turn<step>:
#: see queues/arrange.lua.
count: Final = Prefix("hr:count:")
#: zset of a list: "<deadline> <API key> <prefix> <place> <id>" of its jobs with tokens -> 0.
order: Final = Prefix("hr:order:")
#: zset of a list, 1 day: API key -> until which virtual time it has used its share.
shares: Final = Prefix("hr:shares:")
#: zset: dead letter -> when it was added; the oldest are trimmed.
dead: Final = Prefix("hr:dead:")
#: hash <key>:<dead letter>, 14 days: reason, raw, at, error, and for a job its id, step, attempts,
#: created, traceback.
letters: Final = Prefix("hr:letter:")
#: zset, 31 days: job that a script has ended -> when a worker should send its callbacks.
orphaned: Final = Prefix("hr:untold:")
#: hash, 31 days: the same job -> its Celery result and message.
orphaned_ends: Final = Prefix("hr:ends:")
#: zset, 62 days from the last submit: id of a model's job -> created, the newest job_index_max.
job_index: Final = Prefix("hr:jobs:")
#: zset, failed_ttl_s from the last failure: "<group> <created> <API key or -> <id>" of a model's
#: failed job -> when it failed, the newest failures_max.
failures: Final = Prefix("hr:failures:")
#: string, as the record: the message of a failed job, for a retry.
failed: Final = Prefix("hr:failed:")
#: zset, 62 days: version of a model that jobs have asked for -> when they last did, in us.
versions: Final = Prefix("hr:versions:")
#: set: queues from which nothing is claimed; a model's own queue means all its queues.
PAUSED: Final = "hr:paused"

# A job. Its record has no TTL until it has ended, and then result_ttl.

#: hash: the record, fields in `JobField`.
job: Final = Prefix("hr:job:")
#: string, and a channel of the same name: the Celery result, published at the end.
meta: Final = Prefix("celery-task-meta-")
#: string: the fencing token, one number per claim of a job.
TOKEN: Final = "hr:token"  # noqa: S105 - a fencing token, no secret
#: zset, 62 days from the last submit: id -> when it must have started.
EXPIRING: Final = "hr:expiring"
#: string, EXCLUSIVE_TTL_S: the job that ran exclusively on this host last; see jobs/isolate.lua.
exclusive: Final = Prefix("hr:alone:")
#: zset, REVOKED_TTL_S: id -> until when no message of it runs.
REVOKED: Final = "hr:revoked"
#: channel: the ended jobs for which one API process waits.
done_channel: Final = Prefix("hr:done:")
#: channel: how a job has ended, for API processes that did not submit it.
ended: Final = Prefix("hr:ended:")
#: channel: a job's record has new progress.
progress_channel: Final = Prefix("hr:news:")
#: stream, PIECES_TTL_S while the job runs, then as long as its record: the log of a streaming job.
#: An entry's id is the index of its last piece; `p`: a JSON array of pieces, or "" for a restart;
#: `t`: a JSON array of a generator's tokens.
pieces: Final = Prefix("hr:pieces:")
#: channel: ids of one model's jobs whose logs have grown.
piece_channel: Final = Prefix("hr:pieces:new:")
#: channel: model, id and token of cancelled jobs that one worker has leased.
cancel_channel: Final = Prefix("hr:cancel:")

#: zset: a job and the copy of it for a shadow version, as JSON -> when to compare them, in seconds.
SHADOW: Final = "hr:shadow"

# Payloads: inputs and results that are too long for a message.

#: zset: "<reference> <id> <model> <i|r|f>" -> when to check it.
PAYLOADS: Final = "hr:payloads"
#: hash: reference -> its bytes in Redis; "": their sum.
PAYLOAD_SIZES: Final = "hr:payloads:size"
#: string: an input, until its job has ended; a result, for result_ttl.
payload: Final = Prefix("hr:payload:")

# Processes and counters.

#: zset, trimmed: owner -> last seen.
WORKERS: Final = "hr:workers"
#: hash, WORKER_TTL_S: model -> state, for /ready; ":figures" -> its host, devices and memory
#: (headrace/observability/worker_report.py).
worker: Final = Prefix("hr:worker:")
#: string, DRAIN_TTL_S from the worker's last report: when an operator drained it.
drain: Final = Prefix("hr:drain:")
#: hash <model>@<version>, REPLICA_LEASES_TTL_S: owner -> how many replicas it may run; see
#: workers/lease_replicas.lua.
replica_leases: Final = Prefix("hr:replicas:")
#: string, API_TTL_S: requests that wait in one API process.
api: Final = Prefix("hr:api:")
#: string, SERIES_TTL_S: a model by minute and by hour (headrace/observability/series.py).
series: Final = Prefix("hr:series:")
#: hash: counters of a model for /metrics; of no model under SHARED_STATS (worker_report.py).
stats: Final = Prefix("hr:stats:")
SHARED_STATS: Final = stats("")

# API keys (headrace/access/api_key.py).

#: hash, until its end and 30 days: name, SHA-256 of the secret, scopes, limits.
api_key: Final = Prefix("hr:key:")
#: zset: key -> when it was made.
API_KEYS: Final = "hr:keys"
#: hash: key -> when it was last used, in seconds, to about a minute.
API_KEYS_USED: Final = "hr:keys:used"
#: channel: a key that was made or revoked.
API_KEY_CHANGES: Final = "hr:keys:news"
#: hash: key -> its jobs in flight, if it has any.
IN_FLIGHT: Final = "hr:inflight"
#: string, until it is full again: the rate tokens that a key has left.
rate: Final = Prefix("hr:rate:")
#: string, until it is full again: the tokens of a minute that the jobs of a key have left.
token_rate: Final = Prefix("hr:tokens:")

# Background tasks (workers/background/app.py). Celery's own consumer listens on `headrace:control`
# alone. No model can have these queues: a model's name has no colon.

#: list: Celery messages, pushed left, taken right.
BACKGROUND_TASKS: Final = "headrace:background"
#: zset: background tasks behind the first of the list, which share its places -> their turn.
WAITING_TASKS: Final = "hr:background:waiting"
#: hash, while tasks wait there: API key -> the turn of its next task; ":now": the present turn.
TASK_TURNS: Final = "hr:background:turns"
#: set: background workers that may have taken some.
BACKGROUND_WORKERS: Final = "hr:background:owners"
#: string, BACKGROUND_TTL_S: JSON: node and pid of one worker.
background_alive: Final = Prefix("hr:background:alive:")
#: list: a message that one worker has just taken.
background_taken: Final = Prefix("hr:background:taken:")
#: hash: delivery tag -> message that one worker has not acknowledged.
background_held: Final = Prefix("hr:background:held:")
#: set, 1 h: "<id> <delivery>" of the webhooks that one worker sends now.
background_sending: Final = Prefix("hr:background:sending:")

# Webhooks (headrace/webhooks).

#: hash, 7 days from an end, webhook_retry_s and webhook_log_ttl_s from a try:
#: e:<key>: how and when the job of an API key last ended, if a webhook wants it;
#: <delivery>: JSON, its state; b:<delivery>: what it sends, while that may be sent again;
#: m:<delivery>: the background task of its next try.
deliveries: Final = Prefix("hr:hook:")
#: How many deliveries each list of all jobs' deliveries has.
DELIVERIES_LISTED: Final = 1_000
#: zsets, as long as the newest delivery of each: "<id> <delivery>" -> when it was saved, the newest
#: DELIVERIES_LISTED. Those whose last try failed, and the others.
FAILING_DELIVERIES: Final = "hr:hooks:failing"
RECENT_DELIVERIES: Final = "hr:hooks:recent"
#: zset: "<id> <delivery>" -> when it is tried again.
DUE_DELIVERIES: Final = "hr:hooks"

# Files, whose parts are payloads (extensions/openai/batches), and offline runs
# (headrace/runs/records.py).

#: hash: the record, fields in `FileField`; while it is written 14 min from its last part, then
#: until it expires. The zset <key>:parts lives as long: reference of a part -> where it begins.
file: Final = Prefix("hr:file:")
#: zset, 30 days: run -> its last report, the newest 1,000.
RUNS: Final = "hr:runs"
#: zset, 30 days: run of one API key (-: of none) -> its last report; older ones are deleted.
runs_of: Final = Prefix("hr:runs:")
#: hash, 30 days from its last report: that report as JSON; `at`, its time; `cancel`, if its end was
#: requested; `ky`, its API key.
run: Final = Prefix("hr:run:")

# The registry of models (headrace/registry).

#: hash: name -> its generation, a space, and msgpack of its `RegisteredModel`.
MODELS: Final = "hr:models"
#: hash: generation: how often it was changed; change: the id of the newest change; file: SHA-256
#: of the models file applied last; profile: the id of the profile that was requested last.
REGISTRY: Final = "hr:registry"
#: stream, the newest 1,000: JSON of each change, with the key that made it.
MODEL_LOG: Final = "hr:models:log"
#: zset, 1 h: id of a profile -> when it was requested or saved, the newest 8.
PROFILES: Final = "hr:profiles"
#: hash, 1 h: request (JSON), of (model@version), state, at, until, owner, error, file:<name>.
profile: Final = Prefix("hr:profile:")
#: stream, about the newest 5,000: JSON of each change, without those in MODEL_LOG.
AUDIT: Final = "hr:audit"
#: channel: the generation of the registry after a change.
MODEL_CHANGES: Final = "hr:models:changes"


def version_queue(model: str, version: str) -> str:
    """Return the queue of the jobs that ask for this version of a model."""
    return f"{queue_name(model)}{VERSION_SEPARATOR}{version}"


def model_of(queue: str) -> tuple[str, str]:
    """Return the model of a queue, and its version; "" for the model's own queue."""
    model, _, version = queue.removeprefix(queue_name).partition(VERSION_SEPARATOR)
    return model, version


def step_key(queue: str, step: int) -> str:
    """Return the list with a queue's messages of one step."""
    return queue if step == 0 else f"{queue}{STEP_SEPARATOR}{step}"


def step_keys(queue: str) -> list[str]:
    """Return the four lists of a queue, best first."""
    return [step_key(queue, step) for step in STEPS]


def dead_letter(queue: str, name: str) -> str:
    """Return the key of a dead letter."""
    return f"{letters(queue)}:{name}"


def file_parts(file_id: str) -> str:
    """Return the key of a file's parts; see `file`."""
    return f"{file(file_id)}:parts"


@lru_cache(maxsize=1024)
def queue_keys(queue: str) -> tuple[str, ...]:
    """Return the KEYS of scripts on one queue, in the order of `lib/keys.lua`."""
    named = (lease, held, count, delayed, parked, dead, tomb)
    return (*step_keys(queue), *(key(queue) for key in named))
