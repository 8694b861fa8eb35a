"""Room for one more replica: what others still take while they load is not free."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from workers.lifecycle.replica_manager import ReplicaManager
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica

#: What each process has so far, in MiB.
HAS_MIB = 30.0


def manager(calls: list[Any]) -> ReplicaManager:
    def why_no_room(*arguments: Any) -> str:
        calls.append(arguments)
        return "no room"

    away: Any = SimpleNamespace()
    placement: Any = SimpleNamespace(
        used_mib=lambda _device, _pids: HAS_MIB, why_no_room=why_no_room
    )
    return ReplicaManager(away, away, away, away, placement)


def model(name: str, *phases: Phase, device: str = "cpu", **options: Any) -> ServedModel:
    replicas = [Replica({"device": device}, {}, state=phase) for phase in phases]
    return ServedModel(ModelConfig(name=name, **options), 0, replicas)


@pytest.mark.parametrize(
    ("others", "loading_mib"),
    [
        ([], 0),
        ([model("a", Phase.LOADING, memory_mb=100)], 70),
        ([model("a", Phase.LOADING, Phase.WARMING, Phase.READY, memory_mb=100)], 140),
        ([model("a", Phase.WARMING, memory_mb=20)], 0),  # it has more than it needs
        ([model("a", Phase.LOADING)], 0),  # nothing is known of it
        ([model("a", Phase.LOADING, device="cuda:0", memory_mb=100)], 0),
    ],
)
def test_what_replicas_that_load_still_take(
    others: Sequence[ServedModel], loading_mib: float
) -> None:
    calls: list[Any] = []
    own = model("m", Phase.RESTARTING)
    assert manager(calls)._why_no_room([*others, own], own) == "no room"
    assert calls == [(own.config, "cpu", 0.0, loading_mib)]


def test_a_start_without_room_is_a_failed_load_that_is_tried_again() -> None:
    made, own = manager([]), model("m", Phase.RESTARTING)
    (replica,) = own.replicas
    made.maintain([own], 100.0)
    assert (replica.state, replica.error) == (Phase.FAILED, "no room")
    assert 100.0 < replica.restart_at < 200.0
    assert replica.process is None
    assert made.report_due
