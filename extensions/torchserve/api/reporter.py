"""TorchServe's metrics of one API process: its requests, in the log and in Redis.

Under load one write has the lines of many requests. The totals are written to Redis once a second,
and before a scrape.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import redis.asyncio
from typing_extensions import override

from api.http.messages import Scope
from api.observability.counters import BackgroundReporter
from extensions.torchserve.config.metrics_config import INFERENCE_REQUESTS, MetricSpec
from extensions.torchserve.logs.lines import access_text
from extensions.torchserve.metrics.recorder import (
    FLUSH_S,
    TorchServeMetrics,
    requests_of,
    version_labels,
)
from headrace.config.model.catalog import Catalog
from headrace.redis.script_client import AsyncScriptClient


class TorchServeReporter(BackgroundReporter):
    """Takes the requests of one API process. Used on its event loop only."""

    def __init__(
        self, metrics: TorchServeMetrics, client: redis.asyncio.Redis, catalog: Catalog
    ) -> None:
        super().__init__()
        self._metrics = metrics
        self._catalog = catalog
        self._scripts = AsyncScriptClient(client)
        self._flushing = False

    @property
    def specs(self) -> Mapping[str, MetricSpec]:
        """The metrics of metrics.yaml, by name."""
        return self._metrics.specs

    def answered(self, status: int) -> None:
        """Count an answer."""
        self._metrics.add(requests_of(status), 1.0)

    def admitted(self, model: str, version: str, count: int) -> None:
        """Count jobs that were enqueued; `version` is the one that they ask for, "" for none."""
        labels = version_labels(model, version)
        self._metrics.add(INFERENCE_REQUESTS, float(count), labels, model=model)

    def finished(self, scope: Scope, status: int, began: float) -> None:
        """Write the line of an answered request; `began` is of `time.perf_counter()`."""
        if not self._metrics.writes_lines:
            return
        target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        if query := scope["query_string"]:
            target = f"{target}?{query.decode('latin-1')}"
        took_ms = (time.perf_counter() - began) * 1000
        client = scope.get("client")
        self._metrics.access(access_text(client, scope["method"], target[:512], status, took_ms))
        if not self._flushing and self._metrics.flush_later():
            self._flushing = True
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    @override
    async def report(self) -> None:
        """Write the lines and the totals.

        Raises:
            BrokerError: Redis does not answer; the totals are kept.
        """
        self._metrics.flush()
        async with self._lock:
            served = {model.name for model in self._catalog.served}
            changes, command = self._metrics.totals.take(served)
            if command is None:
                return
            try:
                await self._scripts.call_once(command)
            except BaseException:
                # If only the reply was lost, they count twice, which is better than never.
                self._metrics.totals.give_back(changes)
                raise

    def _flush(self) -> None:
        self._flushing = False
        self._metrics.flush()
