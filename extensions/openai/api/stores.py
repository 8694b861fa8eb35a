"""Files and batches for the endpoints. Their stores block, so that every call runs on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from extensions.openai.batches.files import FileStore
from extensions.openai.batches.store import BatchStore
from headrace.config.settings import Settings
from headrace.payloads.stores import THREADS, build_stores
from headrace.redis.script_client import ScriptClient

P = ParamSpec("P")
T = TypeVar("T")


class FileService:
    """The files and batches, for one event loop. They connect when first used.

    Raises:
        ConfigError: the settings of the store are not valid.
    """

    def __init__(self, settings: Settings, redis_url: str) -> None:
        self._stores = build_stores(settings, redis_url)
        client = ScriptClient(self._stores.client)
        self.store = FileStore(self._stores, client, settings.file_ttl_s)
        self.batches = BatchStore(client, settings.file_ttl_s, settings.lease_ttl_s)
        self._threads = ThreadPoolExecutor(THREADS, "headrace-files")

    def close(self) -> None:
        """Start no more calls and close the stores."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stores.close()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
