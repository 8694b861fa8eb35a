"""What the log has of loads that fail."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.model_catalog import ModelConfig
from workers.consumer.replica_manager import ReplicaManager
from workers.models.served_model import ServedModel
from workers.replicas.replica import LOAD_TOO_LONG, Replica

ERROR = "Traceback (most recent call last):\n  a frame\nValueError: words"


def logged(caplog: pytest.LogCaptureFixture, errors: list[str], *, torchserve: bool) -> list[str]:
    away: Any = None
    manager = ReplicaManager(away, away, away, away, away, torchserve=torchserve)
    replica = Replica({"device": "cpu"}, {})
    model = ServedModel(ModelConfig(name="m"), 0, [replica])
    for error in errors:
        manager.load_failed(model, replica, error)
        assert replica.error == error
    return [vars(one)["traceback"] for one in caplog.records]


def test_the_same_failure_is_logged_in_full_once(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, [ERROR] * 2, torchserve=False) == [ERROR, "ValueError: words"]


def test_with_torchserves_interfaces_each_failure_is_logged_with_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = f"The stacks of the process:\n  a frame\n{LOAD_TOO_LONG}, 5 s"
    died, again, too_slow = logged(caplog, [ERROR, ERROR, slow], torchserve=True)
    assert died == again == f"Backend worker process died.\n{ERROR}"
    assert too_slow.splitlines()[:2] == [
        "Backend worker error",
        "org.pytorch.serve.wlm.WorkerInitializationException: "
        "Backend worker did not respond in given time",
    ]
    assert too_slow.endswith(slow)
