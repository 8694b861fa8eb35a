"""`headrace runner`: leases batches and executes them, several at a time, until it stops."""

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

from extensions.openai.batches.execution import BatchExecution
from extensions.openai.batches.files import FileStore
from extensions.openai.batches.store import BatchStore
from extensions.openai.redis import keys as batch_keys
from headrace.access.api_key import NO_OWNER, Scope
from headrace.access.key_store import api_keys_at
from headrace.client.sync_client import Client
from headrace.config.settings import Settings
from headrace.errors import HeadraceError
from headrace.payloads.stores import PayloadStores, build_stores
from headrace.redis import keys
from headrace.redis.script_client import ScriptClient
from headrace.signals import StopSignals

logger = logging.getLogger("runner")

#: Seconds between two renewals of leases, which also find cancellations and new batches.
BEAT_S: Final = 1.0
#: The header with the API key for which the runner acts.
ACTS_FOR: Final = "Headrace-Acts-For"
#: The longest wait for running requests at a stop.
STOP_MAX_S: Final = 20.0
#: Seconds for which the runner's key is valid; it makes a new one in time.
_KEY_TTL_S: Final = 86_400


def internal_key(redis_url: str) -> str:
    """Create a key with which a runner acts for the owners of batches.

    A process with access to Redis may do everything anyway, so that it makes its own key.
    """
    with api_keys_at(redis_url) as found:
        scopes = [Scope.SUBMIT, Scope.READ]
        return found.create("runner (internal)", scopes, expires_in_s=_KEY_TTL_S, acts=True)[1]


class ApiClient(Client):
    """A client of the deployment's own API.

    With HTTPS it trusts only the API's own certificate. It does not check the host name: the
    certificate is for the name that clients use, which can differ from the runner's address.
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

    Without an `owner` it has a new name.
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
        self._client = ScriptClient(self._stores.client)
        self._files = FileStore(self._stores, self._client, settings.file_ttl_s)
        self._batches = BatchStore(self._client, settings.file_ttl_s, settings.lease_ttl_s)
        self._threads: dict[BatchExecution, threading.Thread] = {}
        self._away = False

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP; then release the batches.

        Raises:
            ConfigError: the payload store cannot be used.
        """
        self._stores.check()
        beat_s = min(BEAT_S, self._settings.lease_ttl_s / 4)
        with StopSignals() as stop:
            logger.info("executing up to %d batches at a time", self._settings.runner_batches)
            while not stop.requests:
                self._beat()
                if select.select([stop], [], [], beat_s)[0]:
                    stop.clear()
            self._stop()

    def _beat(self) -> None:
        for execution in [one for one in self._threads if one.done]:
            self._threads.pop(execution).join()
        for execution in self._threads:
            execution.renew()
        try:
            self._report()
            while len(self._threads) < self._settings.runner_batches and self._claim():
                pass
            if len(self._threads) == self._settings.runner_batches:
                self._replace_latest()
        except HeadraceError as error:
            if not self._away:
                logger.warning("Redis unavailable, batches wait: %s", error.message)
            self._away = True
        else:
            self._away = False

    def _key(self) -> str:
        """Return a key to act for others; it is renewed before it expires."""
        if time.monotonic() >= self._key_until:
            self._api_key = internal_key(self._redis_url)
            self._key_until = time.monotonic() + _KEY_TTL_S / 2
        return self._api_key

    def _report(self) -> None:
        """Report that this runner is alive, and remove runners that no longer report."""
        # By Redis' clock: a runner whose own clock is ahead would remove the others.
        seconds, _ = self._client.execute("TIME")
        now_s = int(seconds)
        self._client.execute("ZADD", batch_keys.RUNNERS, now_s, self._name)
        self._client.execute(
            "ZREMRANGEBYSCORE", batch_keys.RUNNERS, "-inf", now_s - keys.WORKER_TTL_S
        )
        self._client.execute("EXPIRE", batch_keys.RUNNERS, keys.WORKER_TTL_S)

    def _replace_latest(self) -> None:
        """Release the batch whose window ends last, if one that ends before it waits.

        Its jobs in flight go on, and it continues when a runner is free.
        """
        latest = max(self._threads, key=lambda one: one.batch.expires_at)
        if self._claim(latest.batch.expires_at):
            logger.info(
                "batch released for one whose window ends first",
                extra={"api_batch": latest.batch.id},
            )
            latest.stop()

    def _claim(self, before_s: int | None = None) -> bool:
        """Start with the next batch; return whether there was one.

        With `before_s` only one whose window ends before that time counts.
        """
        lease = self._batches.claim(self._owner, before_s)
        if lease is None:
            return False
        logger.info(
            "batch leased, status %s", lease.batch.status, extra={"api_batch": lease.batch.id}
        )
        owner = lease.batch.spec.owner or NO_OWNER
        client = ApiClient(
            self._api_url, self._settings, api_key=self._key(), headers={ACTS_FOR: owner}
        )
        execution = BatchExecution(lease, self._files, self._batches, client, self._settings)
        thread = threading.Thread(target=execution.run, name=lease.batch.id, daemon=True)
        self._threads[execution] = thread
        thread.start()
        return True

    def _stop(self) -> None:
        for execution in self._threads:
            execution.stop()
        until = time.monotonic() + STOP_MAX_S
        for execution, thread in self._threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                logger.warning(
                    "batch not released, its lease will expire",
                    extra={"api_batch": execution.batch.id},
                )
        try:
            self._client.execute("ZREM", batch_keys.RUNNERS, self._name)
        except HeadraceError:
            logger.debug("runner entry not removed, it will expire")
        self._stores.close()
