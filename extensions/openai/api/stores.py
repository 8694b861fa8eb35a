"""Files and batches for the endpoints. Their stores block, so that every call runs on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from extensions.openai.batches.files import FileStore
from extensions.openai.batches.store import BatchStore
from headrace.config.settings import Settings
from headrace.payloads.stores import THREADS, PayloadStores, build_stores
from headrace.redis.script_client import ScriptClient

P = ParamSpec("P")
T = TypeVar("T")


class FileService:
    """The files and batches, for one event loop; it closes the payload stores."""

    def __init__(self, stores: PayloadStores, store: FileStore, batches: BatchStore) -> None:
        self.store = store
        self.batches = batches
        self._stores = stores
        self._threads = ThreadPoolExecutor(THREADS, "headrace-files")

    def close(self) -> None:
        """Start no more calls and close the stores."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stores.close()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))


def build_file_service(settings: Settings, redis_url: str) -> FileService:
    """Build the files and batches of one API process; they connect when first used.

    Raises:
        ConfigError: the settings of the store are not valid.
    """
    stores = build_stores(settings, redis_url)
    caller = ScriptClient(stores.client)
    files = FileStore(stores, caller, settings.file_ttl_s)
    return FileService(stores, files, BatchStore(caller, settings.file_ttl_s, settings.lease_ttl_s))
