"""`headrace runner`: leases batches and drives them, several at a time, until it is to stop."""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import ssl
import threading
import time
from typing import Any, Final

from typing_extensions import override

from headrace.access.api_key import NOBODY
from headrace.access.key_store import INTERNAL_TTL_S, internal_key
from headrace.batches.execution import BatchExecution
from headrace.batches.files.store import FileStore
from headrace.batches.store import BatchStore
from headrace.client.sync_client import Client
from headrace.config.settings import Settings
from headrace.errors import HeadraceError
from headrace.payloads.stores import PayloadStores, build_stores
from headrace.redis import keys
from headrace.redis.script_client import ScriptClient
from headrace.signals import StopSignals

logger = logging.getLogger("runner")

#: Leases are renewed, cancels heard and new batches looked for so often.
BEAT_S: Final = 1.0
#: Says for whom the jobs of a batch are submitted.
ACTS_FOR: Final = "Headrace-Acts-For"
#: How long a stop waits for what is being asked.
STOP_MAX_S: Final = 20.0


class ApiClient(Client):
    """A client of the deployment's own API.

    Where that speaks HTTPS, its certificate is the one to trust, and no other: it is for the name
    by which clients know the API, which need not be that by which a runner reaches it.
    """

    def __init__(self, url: str, settings: Settings, **options: Any) -> None:
        self._certificate = settings.tls_cert_file if url.startswith("https:") else None
        super().__init__(url, **options)

    @override
    def _open(self, options: dict[str, Any]) -> None:
        if self._certificate is not None:
            context = ssl.create_default_context(cafile=self._certificate)
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            options = {**options, "verify": context}
        super()._open(options)


class BatchRunner:
    """One runner.

    Args:
        settings: the deployment's.
        redis_url: its Redis.
        api_url: its API, over which the lines of batches become jobs.
        owner: what it is called; "" for a name of its own.
    """

    def __init__(self, settings: Settings, redis_url: str, api_url: str, owner: str = "") -> None:
        self._settings = settings
        self._api_url = api_url
        self._redis_url = redis_url
        self._api_key = ""
        self._key_until = float("-inf")
        self._owner = owner or secrets.token_hex(4)
        self._name = f"{self._owner} {socket.gethostname()} {os.getpid()}"
        self._stores: PayloadStores = build_stores(settings, redis_url)
        self._caller = ScriptClient(self._stores.client)
        self._files = FileStore(self._stores, self._caller, settings.file_ttl_s)
        self._batches = BatchStore(self._caller, settings.file_ttl_s, settings.lease_ttl_s)
        self._threads: dict[BatchExecution, threading.Thread] = {}
        self._away = False

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP; batches under way are given back.

        Raises:
            ConfigError: the payload store cannot be used.
        """
        self._stores.check()
        beat_s = min(BEAT_S, self._settings.lease_ttl_s / 4)
        with StopSignals() as stop:
            logger.info("driving up to %d batches at a time", self._settings.runner_batches)
            while not stop.requests:
                self._beat()
                if select.select([stop], [], [], beat_s)[0]:
                    stop.clear()
            self._stop()

    def _beat(self) -> None:
        for driving in [one for one in self._threads if one.done]:
            self._threads.pop(driving).join()
        for driving in self._threads:
            driving.renew()
        try:
            self._tell()
            while len(self._threads) < self._settings.runner_batches and self._claim():
                pass
        except HeadraceError as error:
            if not self._away:
                logger.warning("batches wait: %s", error.message)
            self._away = True
        else:
            self._away = False

    def _key(self) -> str:
        """A key to act for others with, which is good for longer than it is used for a claim."""
        if time.monotonic() >= self._key_until:
            self._api_key = internal_key(self._redis_url, "runner")
            self._key_until = time.monotonic() + INTERNAL_TTL_S / 2
        return self._api_key

    def _tell(self) -> None:
        """Say that this runner lives, and forget those that have not said it."""
        now_s = int(time.time())
        self._caller.execute("ZADD", keys.RUNNERS, now_s, self._name)
        self._caller.execute("ZREMRANGEBYSCORE", keys.RUNNERS, "-inf", now_s - keys.WORKER_TTL_S)
        self._caller.execute("EXPIRE", keys.RUNNERS, keys.WORKER_TTL_S)

    def _claim(self) -> bool:
        """Begin with a batch; whether there was one."""
        lease = self._batches.claim(self._owner)
        if lease is None:
            return False
        logger.info("the batch is %s", lease.batch.status, extra={"api_batch": lease.batch.id})
        owner = lease.batch.spec.owner or NOBODY
        client = ApiClient(
            self._api_url, self._settings, api_key=self._key(), headers={ACTS_FOR: owner}
        )
        driving = BatchExecution(lease, self._files, self._batches, client, self._settings)
        thread = threading.Thread(target=driving.run, name=lease.batch.id, daemon=True)
        self._threads[driving] = thread
        thread.start()
        return True

    def _stop(self) -> None:
        for driving in self._threads:
            driving.stop()
        until = time.monotonic() + STOP_MAX_S
        for driving, thread in self._threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                logger.warning(
                    "the batch is left until its lease ends", extra={"api_batch": driving.batch.id}
                )
        try:
            self._caller.execute("ZREM", keys.RUNNERS, self._name)
        except HeadraceError:
            logger.debug("the runner's own entry runs out by itself")
        self._stores.close()
