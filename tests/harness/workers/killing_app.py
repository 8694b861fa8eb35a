"""The worker's Celery app, which is killed as soon as a result lies in the store, unsettled."""

from __future__ import annotations

import os
import signal
from typing import Any

from headrace.payloads.store import Entry
from headrace.payloads.stores import Stores
from workers.celery_app import deployed

_put = Stores.put


def _put_and_die(self: Stores, entry: Entry, body: bytes, **options: Any) -> None:
    _put(self, entry, body, **options)
    if entry.kind == "r":
        os.kill(os.getpid(), signal.SIGKILL)


Stores.put = _put_and_die  # type: ignore[method-assign] # the crash to be provoked
app = deployed()
