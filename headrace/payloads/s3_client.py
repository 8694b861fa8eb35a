"""The client of an S3 server, with what boto raises turned into `headrace.errors`.

Needs the extra `s3` (boto3). Credentials come from boto's own chain (environment, files, the
machine's role); none of them are settings.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from headrace.config.settings import is_loopback
from headrace.errors import ConfigError, HeadraceError, StoreFull, StoreUnavailable
from headrace.payloads.store import missing

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 30
#: The same for one payload, for which a request or a model waits.
PAYLOAD_READ_TIMEOUT_S: Final = 10
#: Tries of one request, with boto's own backoff between them.
TRIES: Final = 2
#: The longest pause before a read is repeated.
_PAUSE_MAX_S: Final = 5.0
#: Codes of an `S3Failure` that are not the server's own.
NO_CREDENTIALS: Final = "no credentials"
NO_ANSWER: Final = "no answer"
#: Codes of S3 servers, which differ.
ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion"})
OUT_OF_RANGE: Final = frozenset({"InvalidRange", "416"})
#: What a server reports that has too much to do, or fails for a moment.
_BUSY: Final = frozenset({
    "SlowDown", "ServiceUnavailable", "InternalError", "Throttling", "ThrottlingException",
    "RequestLimitExceeded", "TooManyRequests", "BandwidthLimitExceeded", "RequestTimeout",
    "429", "500", "502", "503", "504",
})  # fmt: skip
_NO_ROOM: Final = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"})


def s3_client(
    endpoint_url: str | None,
    threads: int,
    tries: int = TRIES,
    read_timeout_s: int = READ_TIMEOUT_S,
    mode: Literal["standard", "adaptive"] = "standard",
) -> S3Client:
    """Return a client of an S3 server. It connects on first use; any thread may use it.

    Args:
        endpoint_url: the server; None takes AWS, or the server that boto's environment names.
        threads: how many threads will use it.
        tries: how often one request is tried.
        read_timeout_s: how long the server may send nothing.
        mode: with `adaptive`, the client sends fewer requests when the server asks for that.

    Raises:
        ConfigError: boto3 is not installed, or cannot make a client from its configuration.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise ConfigError(
            "S3 needs boto3, which is not installed", hint="pip install 'headrace[s3]'"
        ) from None
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        retries={"total_max_attempts": tries, "mode": mode},
        max_pool_connections=threads,
        # A proxy of the environment does not reach a server on this machine.
        proxies={} if is_loopback(urlsplit(endpoint_url or "").hostname or "") else None,
        # Not all servers besides AWS know the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return boto3.session.Session().client("s3", endpoint_url=endpoint_url, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(
            f"cannot make an S3 client: {error}",
            hint="Correct payload_endpoint_url, or boto's settings such as AWS_DEFAULT_REGION.",
        ) from None


class ObjectInfo(NamedTuple):
    """An object as a listing shows it."""

    key: str
    bytes: int
    etag: str


class S3Failure(NamedTuple):
    """A request that failed.

    Attributes:
        code: the server's error code, NO_CREDENTIALS or NO_ANSWER.
        text: what boto raised.
        reading: whether it only read this object, so that other objects may be readable.
    """

    key: str
    code: str
    text: str
    reading: bool


class Bucket:
    """One bucket of an S3 server. Its methods block, and any thread may call them.

    All methods raise what `error_for` returns: here `PayloadMissing`, `StoreFull` and
    `StoreUnavailable`.
    """

    #: For how long a read is repeated, while the server is busy or its answers break off. One that
    #: breaks off is repeated once in any case.
    patience_s = 0.0

    def __init__(self, name: str, client: Any) -> None:
        self.name = name
        self.client: Any = client

    def read(self, key: str, start: int = 0, length: int | None = None, *, etag: str = "") -> bytes:
        """Return bytes of an object, fewer if it ends before `start` + `length`.

        Args:
            length: how many bytes; None reads to the end.
            etag: fail unless this is still the object's ETag.
        """
        options = {"IfMatch": etag} if etag else {}
        if start or length is not None:
            last = "" if length is None else str(start + length - 1)
            options["Range"] = f"bytes={start}-{last}"
        start_s = time.monotonic()
        with self.errors(key, reading=True):
            for attempt in count():
                in_body = False
                try:
                    found = self.client.get_object(Bucket=self.name, Key=key, **options)
                    in_body = True
                    return _body(found, length)
                except _boto_errors() as error:
                    code = _failure(error, key).code
                    if not etag and code in OUT_OF_RANGE:
                        return b""
                    patient = time.monotonic() - start_s < self.patience_s
                    if not (code in _BUSY | {NO_ANSWER} and (patient or (in_body and not attempt))):
                        raise
                if self.patience_s:
                    time.sleep(random.uniform(0.5, 1) * min(_PAUSE_MAX_S, 0.1 * 2**attempt))  # noqa: S311
        raise AssertionError  # the loop has no end

    def size(self, key: str) -> int:
        """Return the length of an object in bytes."""
        with self.errors(key):
            return int(self.client.head_object(Bucket=self.name, Key=key)["ContentLength"])

    def write(self, key: str, body: bytes) -> None:
        """Write an object. It appears when it is complete."""
        with self.errors(key):
            self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        with self.errors(key):
            self.client.delete_object(Bucket=self.name, Key=key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix` and sort after `after`, by key."""
        options = {"StartAfter": after} if after else {}
        while True:
            with self.errors(prefix):
                page = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix, **options)
            for item in page.get("Contents", ()):
                yield ObjectInfo(item["Key"], item["Size"], item["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            options = {"ContinuationToken": page["NextContinuationToken"]}

    def problem(self) -> str:
        """Return what is wrong with the bucket, "" for nothing; or raise StoreUnavailable."""
        try:
            self.client.head_bucket(Bucket=self.name)
        except _boto_errors() as error:
            failure = _failure(error, "")
            if failure.code == NO_ANSWER:
                raise self.error_for(failure) from error
            return failure.text if failure.code == NO_CREDENTIALS else failure.code
        return ""

    @contextmanager
    def errors(self, key: str, *, reading: bool = False) -> Iterator[None]:
        """Turn what boto raises inside into the error that `error_for` returns."""
        try:
            yield
        except _boto_errors() as error:
            raise self.error_for(_failure(error, key, reading=reading)) from error

    def error_for(self, failure: S3Failure) -> HeadraceError:
        """Return the error of a failed request. It names no host and no bucket; the log does."""
        if failure.code in ABSENT:
            return missing(failure.key)
        if failure.code in _NO_ROOM:
            return StoreFull("the S3 server is full", hint="Make room there.")
        logger.warning("S3 request failed: %s", failure.text)
        return StoreUnavailable(
            "the S3 server does not answer as expected", hint="Try again later."
        )


def _body(answer: Any, length: int | None) -> bytes:
    stream = answer["Body"]
    if length is None or answer["ContentLength"] <= length:
        return bytes(stream.read())
    # This server ignores ranges, and its answer may have any length.
    with closing(stream):
        return bytes(stream.read(length))


def _boto_errors() -> tuple[type[Exception], ...]:
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    return BotoCoreError, ClientError, S3UploadFailedError, HTTPError, OSError


def _failure(error: Exception, key: str, *, reading: bool = False) -> S3Failure:
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

    if isinstance(error, S3UploadFailedError) and isinstance(error.__context__, ClientError):
        error = error.__context__
    code = NO_ANSWER
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
    elif isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        code = NO_CREDENTIALS
    return S3Failure(key, code, f"{type(error).__name__}: {error}", reading)
