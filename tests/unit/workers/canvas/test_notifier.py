"""How jobs with callbacks end: they are settled after their callbacks are sent."""

from __future__ import annotations

import contextlib
import select
from typing import Any, cast

import pytest

from headrace.config.model.catalog import ModelConfig
from headrace.jobs.job import State
from headrace.redis.scripts.jobs import SEND_CALLBACKS
from workers.canvas.notifier import MALFORMED_TRIES, CanvasNotifier
from workers.canvas.sender import CanvasSender, Malformed
from workers.jobs.canvas import Canvas
from workers.jobs.leased_job import Batch, LeasedJob
from workers.jobs.settlement import Settlement
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.protocol.frames import Done

SENT_MAX_S = 30
CANVAS = Canvas("a", "a", [{"task": "next"}], [], [], None, None, None)


class Broker:
    """Sends nothing; what it is given may be what can never be sent."""

    def __init__(self, *, sends: bool) -> None:
        self._sends = sends
        self.tries = 0

    def begin(self, job_id: str, token: str) -> int:
        return SEND_CALLBACKS

    def send(self, *_: Any) -> None:
        self.tries += 1
        if not self._sends:
            raise Malformed("no signature")

    def report(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Books:
    """Leases that record the settlements."""

    def __init__(self) -> None:
        self.settled: list[Settlement] = []

    def settle(self, model: ServedModel, settlements: list[Settlement]) -> None:
        self.settled += settlements


@pytest.mark.parametrize(
    ("sends", "dropped", "state"),
    [
        (True, "", State.SUCCEEDED),
        (False, "", State.FAILED),
        (True, "cancelled", State.SUCCEEDED),
        (True, "lost", State.SUCCEEDED),
    ],
)
def test_a_job_with_callbacks_is_settled_once_they_are_sent(
    sends: bool, dropped: str, state: State
) -> None:
    model = ServedModel(ModelConfig(name="m", handler="echo"), 0, [])
    job = LeasedJob(
        id="a", token="1", message=None, created_us=0, enqueued_at=0, claimed_at=0, attempts=1,
        isolated=False, canvas=CANVAS, dispatched_at=1,
    )  # fmt: skip
    model._held["a"] = job
    model._callbacks.linked["1"] = job
    batch = Batch([job], "idle", 1, 60)
    result = Done(1, [[True, b"7", ""]], [1.0, 1.0, 1.0, 0.0])
    ended = model.batch_done(batch, result, 2)
    assert model._callbacks.hold_for_callbacks(ended[0]) == []
    job.dropped = dropped
    broker, books = Broker(sends=sends), Books()
    with contextlib.closing(CanvasNotifier(lambda: cast(CanvasSender, broker))) as notifier:
        notifier.begin(model)
        assert select.select([notifier.fileno()], [], [], SENT_MAX_S)[0], "the callbacks are sent"
        notifier.deliver(cast(LeaseManager, books))
    assert broker.tries == (1 if sends else MALFORMED_TRIES + 1)
    assert [settled.state for settled in books.settled] == [state]
    assert not model._callbacks.notifying
