"""What the log has of loads that fail."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from workers.lifecycle.replica_manager import ReplicaManager
from workers.models.served_model import ServedModel
from workers.replicas.replica import Replica

ERROR = "Traceback (most recent call last):\n  a frame\nValueError: words"


class Telling:
    """An observer that has its own text for a failed load."""

    def load_failed(self, traceback: str) -> str:
        return f"own words: {traceback}"


def logged(caplog: pytest.LogCaptureFixture, errors: list[str], *observers: Any) -> list[str]:
    away: Any = None
    manager = ReplicaManager(away, away, away, away, away, observers)
    replica = Replica({"device": "cpu"}, {})
    model = ServedModel(ModelConfig(name="m"), 0, [replica])
    for error in errors:
        manager.load_failed(model, replica, error)
        assert replica.error == error
    return [vars(record)["traceback"] for record in caplog.records]


def test_the_same_failure_is_logged_in_full_once(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, [ERROR] * 2) == [ERROR, "ValueError: words"]


def test_the_text_of_an_observer_is_logged_each_time(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, [ERROR] * 2, Telling()) == [f"own words: {ERROR}"] * 2
