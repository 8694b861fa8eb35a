"""The payload stores of a deployment, by its settings: one for new payloads, all for reads.

A deployment may change payload_store while the old store still has payloads. All stores whose
settings are present are read and swept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import redis

from headrace.config.settings import Settings
from headrace.errors import ConfigError, HeadraceError, InputUnavailable
from headrace.payloads.file_store import FilePayloadStore
from headrace.payloads.index import PayloadIndex
from headrace.payloads.redis_store import RedisPayloadStore
from headrace.payloads.s3_client import PAYLOAD_READ_TIMEOUT_S, TRIES, Bucket, s3_client
from headrace.payloads.s3_store import S3PayloadStore
from headrace.payloads.store import PayloadEntry, PayloadStore, new_entry
from headrace.redis.connection import connect

logger = logging.getLogger(__name__)

#: Large payloads take longer than a command does.
SOCKET_TIMEOUT_S: Final = 30.0
#: How many payloads one process moves at a time.
THREADS: Final = 8


class PayloadStores:
    """All configured stores, and the index that they share.

    Args:
        default: the name of the store for new payloads.
        client: closed with the stores.
    """

    def __init__(
        self, index: PayloadIndex, stores: list[PayloadStore], default: str, client: redis.Redis
    ) -> None:
        self.index = index
        self._stores = {store.name: store for store in stores}
        self._default = self._stores[default]
        self.client = client

    def check(self) -> None:
        """Check at the start whether new payloads can be stored.

        Raises:
            ConfigError: they cannot, because a setting is wrong.
        """
        try:
            self._default.check()
        except ConfigError:
            raise
        except HeadraceError as error:
            logger.warning("payload store %s: %s", self._default.name, error.message)

    def new_entry(self, job_id: str, model: str, kind: str, owner: str = "") -> PayloadEntry:
        """Return an entry for a new payload; see `PayloadEntry`."""
        return new_entry(self._default.name, job_id, model, kind, owner)

    def put(
        self, entry: PayloadEntry, body: bytes, *, bounded: bool = True, spare: bool = False
    ) -> None:
        """Write a new payload; see `PayloadStore.put`."""
        self._stores[entry.store].put(entry, body, bounded=bounded, spare=spare)

    @property
    def together(self) -> bool:
        """Return whether several new payloads are written in one round trip."""
        return self._default.together

    def put_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[HeadraceError | None]:
        """Write several new payloads; see `PayloadStore.put_all`."""
        return self._default.put_all(payloads)

    def of(self, ref: str) -> PayloadStore:
        """Return the store of a reference.

        Raises:
            InputUnavailable: the store is not configured here.
        """
        kind = ref.partition(":")[0]
        store = self._stores.get(kind)
        if store is None:
            raise InputUnavailable(
                f"the payload is in the store {kind[:16]!r}, which is not configured on this server"
            )
        return store

    def drop(self, *entries: PayloadEntry) -> None:
        """Delete those of these payloads that are no longer needed.

        Raises:
            HeadraceError: a store does not answer; the sweep tries again.
        """
        self._delete(self.index.look(*entries))

    def sweep(self) -> int:
        """Delete due payloads that are not needed; return how many were checked.

        Raises:
            BrokerError: Redis does not answer.
        """
        looked, unneeded = self.index.due()
        for entry in unneeded:
            try:
                self._delete([entry])
            except HeadraceError as error:
                logger.warning(
                    "payload %s not deleted, the next sweep retries: %s", entry.ref, error.message
                )
        return looked

    def close(self) -> None:
        """Close the connection to Redis."""
        self.client.close()

    def _delete(self, entries: list[PayloadEntry]) -> None:
        for entry in entries:
            self.of(entry.ref).delete(entry.ref)
            self.index.forget(entry)


def build_stores(settings: Settings, redis_url: str, s3_tries: int = TRIES) -> PayloadStores:
    """Return the stores of the settings. They connect when they are first used.

    Args:
        s3_tries: how often one request to S3 is tried; once, if the caller tries it again itself.

    Raises:
        ConfigError: the settings of payload_store are missing.
    """
    client = connect(redis_url, socket_timeout=SOCKET_TIMEOUT_S)
    index = PayloadIndex(client, settings.max_payload_memory_bytes, settings.payload_bytes_per_key)
    stores: list[PayloadStore] = [RedisPayloadStore(index, client)]
    if settings.payload_dir is not None:
        stores.append(FilePayloadStore(index.note, settings.payload_dir))
    if settings.payload_bucket is not None:
        url = settings.payload_endpoint_url
        s3 = s3_client(url, THREADS, s3_tries, PAYLOAD_READ_TIMEOUT_S)
        bucket = Bucket(settings.payload_bucket, s3)
        stores.append(S3PayloadStore(index.note, bucket, settings.payload_prefix))
    wanted = {"file": "payload_dir", "s3": "payload_bucket"}
    if settings.payload_store not in {store.name for store in stores}:
        raise ConfigError(
            f"payload_store: {settings.payload_store} needs {wanted[settings.payload_store]}, "
            "which is not set",
            hint=f"Set it, or HEADRACE_{wanted[settings.payload_store].upper()}.",
        )
    return PayloadStores(index, stores, settings.payload_store, client)
