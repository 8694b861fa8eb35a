"""The keys of files and batches in Redis, and the fields of their records and of responses."""

from __future__ import annotations

from typing import Final

from headrace.redis.keys import Prefix

#: Longer than a file is kept, and than a batch runs and is then kept.
FILES_TTL_S: Final = 62 * 86_400

#: zset, FILES_TTL_S from the last: ids of finished files.
FILES: Final = "hr:files"
#: zset, FILES_TTL_S from the last: ids of the finished files of one API key.
files_of: Final = Prefix("hr:files:of:")
#: hash: the record, fields in `BatchField`; until its window has passed, then as long as a file.
batch: Final = Prefix("hr:batch:")
#: zset, FILES_TTL_S from the last: ids of batches, in order.
BATCHES: Final = "hr:batches"
#: zset, FILES_TTL_S from the last: ids of the batches of one API key, in order.
batches_of: Final = Prefix("hr:batches:of:")
#: zset, FILES_TTL_S from the last: batch that has not ended -> until when a runner has leased it.
OPEN_BATCHES: Final = "hr:batches:open"
#: zset, WORKER_TTL_S: "<owner> <host> <pid>" of a runner -> when it was last seen, in seconds.
RUNNERS: Final = "hr:runners"


#: Field of a job's record: the items that a response was given, as JSON by zlib.
ITEMS: Final = "oi"


class FileField:
    """Field names of a file's record."""

    STATE: Final = "s"  # w: it is being written; p: it is finished
    NAME: Final = "n"
    PURPOSE: Final = "u"
    BYTES: Final = "b"
    CREATED: Final = "c"  # seconds since 1970
    EXPIRES: Final = "x"  # seconds since 1970
    OWNER: Final = "k"  # id of the API key that owns it; absent without one


class BatchField:
    """Field names of a batch's record; times are seconds since 1970."""

    STATUS: Final = "status"
    SPEC: Final = "spec"  # JSON: what was requested
    CREATED: Final = "created_at"
    EXPIRES: Final = "expires_at"
    TOKEN: Final = "token"  # noqa: S105 - fencing token of its runner's lease
    RUNNER: Final = "runner"  # the runner that has leased it
    CANCEL: Final = "cancelling_at"  # when its cancellation was requested
    TOTAL: Final = "total"
    COMPLETED: Final = "completed"
    FAILED: Final = "failed"
    ERRORS: Final = "errors"  # JSON: what validation found
    OUTPUT: Final = "output_file_id"
    ERROR: Final = "error_file_id"
    CHECKPOINT: Final = "checkpoint"  # JSON: what the files cover
