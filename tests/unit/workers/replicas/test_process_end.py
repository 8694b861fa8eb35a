"""How the end of a model process is described, and who may have caused it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from workers.replicas import process_end
from workers.replicas.process_end import OomKills, ProcessEnd


@pytest.mark.parametrize(
    ("status", "how", "by_itself"),
    [
        (0, "with exit status 0", True),
        (9, "with exit status 9", True),
        (-signal.SIGSEGV, "by SIGSEGV", True),
        (-signal.SIGABRT, "by SIGABRT", True),
        (-signal.SIGKILL, "by SIGKILL", False),
        (-signal.SIGTERM, "by SIGTERM", False),
        (-40, "by signal 40", False),
        (None, "as its worker killed it", False),
    ],
)
def test_how_a_process_ended(status: int | None, how: str, by_itself: bool) -> None:
    end = ProcessEnd(status)
    assert (end.how, end.by_itself) == (how, by_itself)


def test_the_kernels_lack_of_memory_is_named_for_sigkill_alone() -> None:
    killed = ProcessEnd(-signal.SIGKILL, oom_kills=1)
    assert killed.how == "by SIGKILL (memory was short: the kernel killed 1 here)"
    assert ProcessEnd(-signal.SIGSEGV, oom_kills=1).how == "by SIGSEGV"
    # It is part of JSON that a script writes without escapes.
    assert not set(killed.how) & set('"\\')


def test_kills_are_counted_since_the_last_look_but_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "memory.events"
    monkeypatch.setattr(process_end, "_sources", lambda: [tmp_path / "none", source])
    source.write_text("low 0\noom 3\noom_kill 3\n")
    kills = OomKills()
    assert kills.recent == 0
    source.write_text("oom_kill 4\n")
    kills.look()
    assert kills.recent == 1, "a look between a kill and its notice hides nothing"
    kills.look()
    assert kills.recent == 0
    source.unlink()
    assert OomKills().recent == 0


def test_this_system_has_a_count() -> None:
    assert any(process_end._count(path) is not None for path in process_end._sources())
