"""The worker's Celery app, which is killed as soon as a result lies in the store, unsettled."""

from __future__ import annotations

import os
import signal
from typing import Any

from headrace.payloads.store import PayloadEntry
from headrace.payloads.stores import PayloadStores
from workers.celery.app import deployed

_put = PayloadStores.put


def _put_and_die(self: PayloadStores, entry: PayloadEntry, body: bytes, **options: Any) -> None:
    _put(self, entry, body, **options)
    if entry.kind == "r":
        os.kill(os.getpid(), signal.SIGKILL)


PayloadStores.put = _put_and_die  # type: ignore[method-assign] # the crash to be provoked
app = deployed()
