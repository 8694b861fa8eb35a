"""The worker's Celery app, which is killed while it reads, fetches or stores what asks for it.

A text in the input asks for it: `die-read`, `die-fetch` or `die-store`. `die-fetch` is in a stored
input, and `die-store` in a result that is long enough to be stored.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import workers.jobs.settlement
from headrace.jobs.message import Message, decode_message
from headrace.payloads.store import PayloadEntry
from headrace.payloads.stores import PayloadStores
from workers.celery.app import deployed
from workers.consumer.payload_transfer import PayloadTransfer
from workers.jobs.leased_job import LeasedJob

_decode, _fetch, _put = decode_message, PayloadTransfer._fetch, PayloadStores.put


def _die_of(what: bytes, text: bytes) -> None:
    if b"die-%s" % what in text:
        os.kill(os.getpid(), signal.SIGKILL)


def _decode_and_die(raw: bytes) -> Message:
    message = _decode(raw)
    _die_of(b"read", message.input)
    return message


def _fetch_and_die(self: PayloadTransfer, job: LeasedJob) -> bytes:
    body = _fetch(self, job)
    _die_of(b"fetch", body)
    return body


def _put_and_die(self: PayloadStores, entry: PayloadEntry, body: bytes, **options: Any) -> None:
    _die_of(b"store", body)
    _put(self, entry, body, **options)


# The crashes to be provoked.
workers.jobs.settlement.decode_message = _decode_and_die  # type: ignore[attr-defined]
PayloadTransfer._fetch = _fetch_and_die  # type: ignore[method-assign]
PayloadStores.put = _put_and_die  # type: ignore[method-assign]
app = deployed()
