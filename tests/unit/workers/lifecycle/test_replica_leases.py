"""What a worker asks for when it leases replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from workers.leases.manager import LeaseManager
from workers.lifecycle.replica_leases import ALONE_S, ReplicaLeases

#: What one model adds to the arguments of the script.
ROW = 7
M, N = ("m", "1"), ("n", "1")


class Calls:
    """Takes the place of the lease manager: keeps calls until a test replies."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[Any], Callable[[Any], None]]] = []

    def lease_replicas(
        self, _others: int, arguments: Sequence[Any], granted: Callable[[Any], None], _now: float
    ) -> None:
        self.sent.append((list(arguments), granted))

    def takes(self) -> dict[str, int]:
        """Whether each model of the last call may take replicas in its first one."""
        arguments, _ = self.sent[-1]
        return dict(zip(arguments[::ROW], arguments[ROW - 1 :: ROW], strict=True))

    def reply(self, *granted: int) -> None:
        """Reply to the last call."""
        self.sent[-1][1]([number for one in granted for number in (one, 0)])


def leases() -> tuple[ReplicaLeases, Calls]:
    calls = Calls()
    return ReplicaLeases([], cast(LeaseManager, calls)), calls


def test_a_worker_that_starts_takes_nothing_in_its_first_call() -> None:
    found, calls = leases()
    found.want({M: 2})
    found.renew(100.0)
    assert calls.takes() == {"m@1": 0}
    calls.reply(0)
    found.want({M: 2, N: 1})
    found.renew(100.0 + ALONE_S / 2)
    assert calls.takes() == {"m@1": 0, "n@1": 0}


def test_a_model_that_is_new_to_a_running_worker_takes_until_redis_has_replied() -> None:
    found, calls = leases()
    found.renew(100.0)
    found.want({M: 2})
    for at in (102.0, 103.0):  # the first call was lost
        found.renew(at)
        assert calls.takes() == {"m@1": 1}
    calls.reply(2)
    assert found.changed
    found.want({M: 3, N: 1})
    found.renew(104.0)
    assert calls.takes() == {"m@1": 0, "n@1": 1}
    calls.reply(3, 1)
    found.want({M: 3})
    found.want({M: 3, N: 1})
    found.renew(105.0)
    assert calls.takes() == {"m@1": 0, "n@1": 1}


def test_redis_is_asked_at_once_when_a_total_has_changed() -> None:
    found, _ = leases()
    assert not found.due
    for totals, due in (({M: 2}, True), ({M: 2}, False), ({M: 3}, True), ({M: 3, N: 1}, True)):
        found.want(totals)
        assert found.due is due
        found.renew(100.0)
        assert not found.due
