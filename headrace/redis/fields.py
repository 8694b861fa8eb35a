"""Names of the fields of records in Redis; the keys are drawn in headrace/redis/keys.py."""

from __future__ import annotations

from typing import Final


class F:
    """Field names of the record; short, because each job carries them.

    Every value stays under 64 bytes where it can, so that Redis keeps the hash as one listpack.
    """

    STATE: Final = "s"  # a letter of headrace.jobs.job.State
    MODEL: Final = "m"
    VERSION: Final = "v"
    CREATED: Final = "c"
    STEP: Final = "p"
    TICKET: Final = "n"  # place in its list, counted from the queue's first message
    JOINED: Final = "j"  # when it joined its list, if it was delayed before
    WAITER: Final = "w"  # API process that waits for the end; NOBODY: nobody is told of it
    TTL: Final = "l"  # result_ttl in seconds; without it DEFAULT_TTL_S
    TOKEN: Final = "t"  # noqa: S105 - the fence of its last claim
    OWNER: Final = "o"  # incarnation of the worker that leased it last
    ATTEMPTS: Final = "a"  # times that it was handed out; an orderly release is taken back
    CRASHES: Final = "k"  # model processes lost while it ran alone
    ALONE: Final = "x"  # must run alone: it was in a batch that was lost
    STARTED: Final = "st"
    ENDED: Final = "en"
    BATCH: Final = "b"  # how many ran together; 5+3 where 3 inputs were added to 5
    TIMINGS: Final = "tm"  # queued,hold,preprocess,inference,postprocess in ms
    RESULT: Final = "r"  # JSON text of a quiet job's result, which has no Celery result
    RESULT_TYPE: Final = "rt"  # content type of a result that is not JSON
    ERROR: Final = "e"  # JSON {type, message, retryable}
    RETRIES: Final = "rn"  # how often it was tried again after such an error
    BACKOFF: Final = "rb"  # its own backoff, base and most in us, where it asked for one
    METADATA: Final = "md"
    REQUEST_HASH: Final = "h"
    DEAD: Final = "dl"
    CANCEL: Final = "cr"  # asked to stop while running
    TRACEBACK: Final = "tb"
    INPUT_REF: Final = "ir"  # reference of an input that lies in the payload store
    FOLLOWED: Final = "fw"  # the token under which what follows it is told of its end
    KEY: Final = "ky"  # id of the API key that it belongs to
    STAGES: Final = "sg"  # JSON: how far the stages of a pipeline have come
    WEBHOOK: Final = "wh"  # the errand that tells a webhook of the end, whole
    WEBHOOK_ENDS: Final = "we"  # the states in which it is sent, by their letters
    WEBHOOK_STARTED: Final = "ws"  # the errand that tells of the first claim, until that is sent
    PROGRESS: Final = "pg"  # token of the claim, a number, and JSON: how far its handler has come
    FREED: Final = "fd"  # the result of a pipeline's stage: its pipeline has taken it, and freed it
    RESULT_REF: Final = "rr"  # "reference bytes content-type" of a result that lies there


class FileField:
    """Field names of a file's record."""

    STATE: Final = "s"  # w: it is being written, and is nobody's yet; p: it is whole
    NAME: Final = "n"
    PURPOSE: Final = "u"
    BYTES: Final = "b"
    CREATED: Final = "c"  # seconds since 1970
    EXPIRES: Final = "x"  # seconds since 1970
    OWNER: Final = "k"  # id of the API key whose it is; absent for nobody's


class BatchField:
    """Field names of a batch's record; times are seconds since 1970."""

    STATUS: Final = "status"
    SPEC: Final = "spec"  # JSON: what was asked for
    CREATED: Final = "created_at"
    EXPIRES: Final = "expires_at"
    TOKEN: Final = "token"  # noqa: S105 - the fence of the runner that has it
    RUNNER: Final = "runner"  # which one that is
    CANCEL: Final = "cancelling_at"  # asked to be cancelled
    TOTAL: Final = "total"
    COMPLETED: Final = "completed"
    FAILED: Final = "failed"
    ERRORS: Final = "errors"  # JSON: what validation found
    OUTPUT: Final = "output_file_id"
    ERROR: Final = "error_file_id"
    CHECKPOINT: Final = "checkpoint"  # JSON: what the files cover
