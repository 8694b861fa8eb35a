"""The payload store `s3`: objects in a bucket of an S3 server. Needs the extra `s3` (boto3).

Credentials come by boto's own chain (environment, files, the instance's role); none are settings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from headrace.errors import ConfigError, HeadraceError, StoreFull, StoreUnavailable
from headrace.payloads.store import PayloadAccount, PayloadStore, missing, name_in

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 30
#: Tries of one request, with boto's own backoff between them.
TRIES: Final = 2
#: A request costs tens of milliseconds, whatever it reads.
S3_CHUNK_BYTES: Final = 2 * 1024 * 1024
_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion"})
_NO_ROOM: Final = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"})


def s3_client(endpoint_url: str | None, threads: int, tries: int = TRIES) -> S3Client:
    """A client of an S3 server; it connects when first used, and any thread may use it.

    Args:
        endpoint_url: the server; None: AWS' own, or what boto's own environment says.
        threads: how many will use it.
        tries: of one request.

    Raises:
        ConfigError: boto3 is not installed, or cannot make a client of what it finds.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise ConfigError(
            "S3 is asked for, but boto3 is not installed", hint="pip install 'headrace[s3]'"
        ) from None
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": tries, "mode": "standard"},
        max_pool_connections=threads,
        # Servers other than AWS' own do not all know the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return boto3.session.Session().client("s3", endpoint_url=endpoint_url, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(
            f"no S3 client can be made: {error}",
            hint="Correct payload_endpoint_url, or what boto reads, such as AWS_DEFAULT_REGION.",
        ) from None


class Bucket:
    """One bucket, with what S3 says turned into our own errors.

    Args:
        client: of any S3 server.
        name: the bucket.
    """

    def __init__(self, client: S3Client, name: str) -> None:
        self._client: Any = client
        self.name = name

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object, fewer where it ends before.

        Raises:
            PayloadMissing: there is no such object.
            StoreUnavailable: no answer, or none that helps.
        """
        options = {}
        if start or length is not None:
            last = "" if length is None else str(start + length - 1)
            options["Range"] = f"bytes={start}-{last}"
        with _errors(key):
            try:
                found = self._client.get_object(Bucket=self.name, Key=key, **options)
            except self._client.exceptions.ClientError as error:
                if error_code(error) in ("InvalidRange", "416"):
                    return b""
                raise
            stream = found["Body"]
            if length is None or found["ContentLength"] <= length:
                return bytes(stream.read())
            # A server that knows no ranges; what it sends may have any length.
            with closing(stream):
                return bytes(stream.read(length))

    def size(self, key: str) -> int:
        """The length of an object in bytes; errors as for `read`."""
        with _errors(key):
            return int(self._client.head_object(Bucket=self.name, Key=key)["ContentLength"])

    def write(self, key: str, body: bytes) -> None:
        """Write an object; S3 shows it when it is whole.

        Raises:
            StoreFull, StoreUnavailable: it was not written, for all that is known.
        """
        with _errors(key):
            self._client.put_object(Bucket=self.name, Key=key, Body=body)

    def delete(self, key: str) -> None:
        """Delete an object; none is no error."""
        with _errors(key):
            self._client.delete_object(Bucket=self.name, Key=key)

    def look(self) -> str:
        """The code of what is wrong with the bucket itself; "" where nothing is.

        Raises:
            StoreUnavailable: no answer.
        """
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        try:
            self._client.head_bucket(Bucket=self.name)
        except ClientError as error:
            return error_code(error)
        except (NoCredentialsError, PartialCredentialsError) as error:
            return str(error)
        except BotoCoreError as error:
            raise _unavailable(error) from error
        return ""


@contextmanager
def _errors(key: str) -> Iterator[None]:
    """What boto raises, as our own errors."""
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        if error_code(error) in _ABSENT:
            raise missing(key) from None
        if error_code(error) in _NO_ROOM:
            raise StoreFull("the S3 server has no room", hint="Make room there.") from error
        raise _unavailable(error) from error
    except (BotoCoreError, HTTPError, OSError) as error:
        raise _unavailable(error) from error


class S3PayloadStore(PayloadStore):
    """Payloads as objects under a prefix of a bucket.

    Args:
        account: told of each payload before it is written.
        bucket: the bucket; nobody else is to write under the prefix.
        prefix: how the names of the objects begin.
    """

    name: ClassVar[str] = "s3"
    chunk_bytes: int = S3_CHUNK_BYTES

    def __init__(self, account: PayloadAccount, bucket: Bucket, prefix: str) -> None:
        super().__init__(account)
        self._bucket = bucket
        self._prefix = prefix

    @override
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        return self._bucket.read(self._key(ref), start, length)

    @override
    def size(self, ref: str) -> int:
        return self._bucket.size(self._key(ref))

    @override
    def delete(self, ref: str) -> None:
        self._bucket.delete(self._key(ref))

    @override
    def check(self) -> None:
        wrong = self._bucket.look()
        if wrong in ("404", "NoSuchBucket"):
            raise ConfigError(
                f"payload_bucket: the S3 server has no bucket {self._bucket.name}",
                hint="Create it, or correct payload_bucket and payload_endpoint_url.",
            )
        if wrong:
            raise ConfigError(
                f"payload_bucket: the bucket {self._bucket.name} cannot be used: {wrong}",
                hint="Give boto credentials that may read, write and delete in it.",
            )

    @override
    def _write(self, name: str, body: bytes) -> None:
        self._bucket.write(self._prefix + name, body)

    def _key(self, ref: str) -> str:
        return self._prefix + name_in(ref, self.name)


def error_code(error: Any) -> str:
    """What S3 calls an error that boto raises as a ClientError."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _unavailable(error: Exception) -> HeadraceError:
    # Hosts and buckets stay in the log.
    logger.warning("S3: %s: %s", type(error).__name__, error)
    return StoreUnavailable("the S3 server does not answer as it should", hint="Try again later.")
