"""What a worker asks for when it leases replicas."""

from __future__ import annotations

from workers.lifecycle.reconciler import Version
from workers.lifecycle.replica_leases import ALONE_S, ReplicaLeases

#: What each model adds to the arguments of the script.
ROW = 7
M, N = ("m", "1"), ("n", "1")


class Site(ReplicaLeases):
    """The leases of a worker without processes."""

    def __init__(self) -> None:
        super().__init__([])
        self.versions: list[Version] = []

    def takes(self, now: float) -> dict[str, int]:
        """Whether each model of the next call may take replicas in its first one."""
        self.versions, arguments = self.request(now)
        return dict(
            zip(map(str, arguments[::ROW]), map(int, arguments[ROW - 1 :: ROW]), strict=True)
        )

    def reply(self, *granted: int) -> bool:
        """Reply to the last call."""
        return self.replied(self.versions, [n for number in granted for n in (number, 0)])


def test_a_worker_that_starts_takes_nothing_in_its_first_call() -> None:
    leases = Site()
    leases.follow({M: 2})
    assert leases.takes(100.0) == {"m@1": 0}
    assert not leases.reply(0)
    leases.follow({M: 2, N: 1})
    assert leases.takes(100.0 + ALONE_S / 2) == {"m@1": 0, "n@1": 0}


def test_a_model_that_is_new_to_a_running_worker_takes_until_redis_has_replied() -> None:
    leases = Site()
    assert leases.takes(100.0) == {}
    leases.follow({M: 2})
    for at in (102.0, 103.0):  # the first call was lost
        assert leases.takes(at) == {"m@1": 1}
    assert leases.reply(2)
    assert leases.granted == {M: 2}
    leases.follow({M: 3, N: 1})
    assert leases.takes(104.0) == {"m@1": 0, "n@1": 1}
    leases.reply(3, 1)
    leases.follow({M: 3})
    leases.follow({M: 3, N: 1})
    assert leases.takes(105.0) == {"m@1": 0, "n@1": 1}


def test_redis_is_asked_at_once_when_a_total_has_changed() -> None:
    leases = Site()
    assert not leases.due
    for totals, due in (({M: 2}, True), ({M: 2}, False), ({M: 3}, True), ({M: 3, N: 1}, True)):
        leases.follow(totals)
        assert leases.due is due
        leases.request(100.0)
        assert not leases.due


def test_replicas_are_awaited_while_no_other_worker_has_loaded_them() -> None:
    leases = Site()
    leases.follow({M: 2, N: 0})
    assert leases.awaited == {M}
    leases.takes(100.0)
    assert leases.replied([M, N], [0, 1, 0, 0])
    assert leases.awaited == set()
    assert not leases.replied([M, N], [0, 2, 0, 0])
