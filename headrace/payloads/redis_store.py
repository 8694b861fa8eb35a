"""The payload store `redis`: strings in the same Redis, with a limit for their total size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import redis
from redis.exceptions import RedisError
from typing_extensions import override

from headrace.errors import BrokerError, HeadraceError, PayloadTooLarge
from headrace.payloads.index import PayloadIndex
from headrace.payloads.store import PayloadEntry, PayloadStore, missing, name_in
from headrace.redis import keys
from headrace.redis.outages import translate

#: Redis' own limit of a string (proto-max-bulk-len).
VALUE_MAX_BYTES: Final = 512 * 1024 * 1024


class RedisPayloadStore(PayloadStore):
    """Payloads in Redis."""

    name: ClassVar[str] = "redis"
    together: ClassVar[bool] = True

    def __init__(self, index: PayloadIndex, client: redis.Redis) -> None:
        super().__init__(index.note)
        self.index = index
        self._client: Any = client

    @override
    def put(
        self, entry: PayloadEntry, body: bytes, *, bounded: bool = True, spare: bool = False
    ) -> None:
        name_in(entry.ref, self.name)
        if len(body) >= VALUE_MAX_BYTES:
            raise PayloadTooLarge(
                f"a payload of {len(body)} bytes is too large for Redis ({VALUE_MAX_BYTES})",
                hint="Set payload_store to file or s3.",
            )
        self.index.note(entry, body, bounded=bounded, spare=spare)

    @override
    def put_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[HeadraceError | None]:
        try:
            written = self.index.note_all(payloads)
        except BrokerError as error:
            # One by one they would wait just as long again.
            return [error for _ in payloads]
        return [
            None if done else self._error_of(*one)
            for one, done in zip(payloads, written, strict=True)
        ]

    @override
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        if not start and length is None:
            body: bytes = self._ask(ref, "GET")  # which does not copy, as GETRANGE does
        else:
            end = -1 if length is None else start + length - 1
            body = self._ask(ref, "GETRANGE", start, end)
        if not body and not start:
            raise missing(ref)
        return body

    @override
    def size(self, ref: str) -> int:
        length = int(self._ask(ref, "STRLEN"))
        if not length:
            # Empty payloads are never stored, so this one is missing.
            raise missing(ref)
        return length

    @override
    def delete(self, ref: str) -> None:
        self._ask(ref, "UNLINK")

    @override
    def check(self) -> None:
        """Do nothing: Redis is checked before all else."""

    @override
    def _write(self, name: str, body: bytes) -> None:
        raise NotImplementedError("the index writes it")

    def _ask(self, ref: str, command: str, *arguments: int) -> Any:
        key = keys.payload(name_in(ref, self.name))
        try:
            return self._client.execute_command(command, key, *arguments)
        except RedisError as error:
            raise translate(error) from error
