"""Names of the fields of records in Redis; the keys are in headrace/redis/keys.py."""

from __future__ import annotations

from typing import Final


class JobField:
    """Field names of a job's record; short, because each job carries them.

    Every value stays under 64 bytes where it can, so that Redis keeps the hash as one listpack.
    """

    STATE: Final = "s"  # a letter of headrace.jobs.job.State
    MODEL: Final = "m"
    VERSION: Final = "v"  # that its model has; once claimed, the version of the worker
    ASKED_VERSION: Final = "pv"  # that it asks for, if it is in the queue of that version
    CREATED: Final = "c"
    STEP: Final = "p"
    TICKET: Final = "n"  # place in its list, counted from the queue's first message
    JOINED: Final = "j"  # when it joined its list, if it was delayed before
    WAITER: Final = "w"  # API process that waits for the end, or keys.NO_WAITER
    TTL: Final = "l"  # result_ttl in seconds; without it DEFAULT_TTL_S
    TOKEN: Final = "t"  # noqa: S105 - fencing token of its last claim
    OWNER: Final = "o"  # incarnation of the worker that leased it last
    EARLIER: Final = "pa"  # of a job that began more than once: the attempts before, see claim.lua
    ATTEMPTS: Final = "a"  # claims; an orderly release undoes one
    CRASHES: Final = "k"  # model processes that crashed while it ran alone
    ALONE: Final = "x"  # was lost before: 1 runs isolated, 2 exclusively, 3 so and is withheld
    ISOLATED: Final = "xa"  # token of the claim that runs isolated; "token w": exclusively, r: soon
    LOSSES: Final = "xl"  # how often its worker was lost without a charge
    STARTED: Final = "st"  # when its attempt began in a model process; absent before
    ENDED: Final = "en"
    BATCH: Final = "b"  # how many ran together; 5+3 where 3 inputs were added to 5
    TIMINGS: Final = "tm"  # queued,hold,preprocess,inference,postprocess in ms
    DEVICE_WAIT: Final = "dw"  # the timing between hold and preprocess
    RESULT: Final = "r"  # JSON text of a quiet job's result, which has no Celery result
    RESULT_TYPE: Final = "rt"  # content type of a result that is not JSON
    ERROR: Final = "e"  # JSON {type, message, retryable, exception, where}; see failures.md
    FAILURE_GROUP: Final = "fg"  # of a failed job that is in the failures of its model
    RETRIES: Final = "rn"  # retries after such an error
    BACKOFF: Final = "rb"  # its own backoff, base and limit in us, if the client set one
    METADATA: Final = "md"
    REQUEST_HASH: Final = "h"
    DEAD: Final = "dl"
    CANCEL: Final = "cr"  # its cancellation was requested while it ran
    CANCELLED_BY: Final = "cb"  # name of the call that has cancelled it, and " asked" if it ran
    INPUT_REF: Final = "ir"  # reference of an input in the payload store
    FOLLOWED: Final = "fw"  # the token under which its callbacks are sent
    KEY: Final = "ky"  # id of the API key that it belongs to
    STAGES: Final = "sg"  # JSON: the stages of a pipeline's job
    WEBHOOK: Final = "wh"  # background task that sends the webhook of the end
    WEBHOOK_ENDS: Final = "we"  # the states in which it is sent, by their letters
    WEBHOOK_STARTED: Final = "ws"  # the same for its first start, until it is sent
    PROGRESS: Final = "pg"  # progress: token of the claim, a number, and JSON
    PIECES: Final = "pc"  # of a streaming job: token, index before this attempt, last index, run
    TRACE: Final = "tr"  # id of the trace in which it was submitted
    STAGE_JOB: Final = "so"  # 1 for a job of a pipeline's stage, whose failure is not listed
    SHADOW_OF: Final = "sh"  # the job of which this is a copy for a shadow version
    TOKENS: Final = "tk"  # of a schedule by tokens: "tokens deadline prefix", ~ and - for none
    FREED: Final = "fd"  # a stage job's result was used by its pipeline and freed
    RESULT_REF: Final = "rr"  # "reference bytes content-type" of a stored result
