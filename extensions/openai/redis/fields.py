"""The fields of the records of files and batches."""

from __future__ import annotations

from typing import Final


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
