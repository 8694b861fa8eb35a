"""The supervisor over real processes: order, restarts, orderly and disorderly ends."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.harness.processes.processes import gone, suspend
from tests.harness.processes.supervised import Supervised, actor, supervised
from tests.harness.wait import wait_until


def started_pids(run: Supervised) -> list[int]:
    return [int(event[2]) for event in run.events() if event[0] in ("start", "spawned")]


def child(log: Path, name: str, body: str = "wait()", **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": actor(log, name, body), **fields}


def test_starts_by_stage_and_stops_by_rank(tmp_path: Path) -> None:
    log = tmp_path / "events"
    flag = tmp_path / "flag"

    def serves(name: str, after: Path, **fields: Any) -> dict[str, Any]:
        ready_file = str(tmp_path / f"{name}.ready")
        body = f"os.path.exists({str(after)!r}) or say('early'); open({ready_file!r}, 'w'); wait()"
        return child(log, name, body, ready_file=ready_file, **fields)

    children = [
        child(log, "redis", stage=0, stop_rank=3, ready_file=str(flag), death_signal="TERM"),
        serves("api", flag, stage=1, stop_rank=0),
        serves("worker", flag, stage=1, stop_rank=1),
        serves("flower", tmp_path / "api.ready", stage=2, stop_rank=2),
    ]
    with supervised(tmp_path, children) as run:
        run.wait_for("start redis")
        flag.touch()
        run.wait_for("start flower")
        wait_until(lambda: run.words().count("ready all") == 1, "everything is ready")
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 0
        words = run.words()
        assert words[0] == "start redis"
        assert set(words[1:3]) == {"start api", "start worker"}
        assert words[3:5] == ["start flower", "ready all"]
        ends = [word for word in words if word.startswith(("term", "exit"))]
        assert ends == [
            f"{what} {name}"
            for name in ("api", "worker", "flower", "redis")
            for what in ("term", "exit")
        ]
        assert gone(*started_pids(run))


def test_a_crashed_child_comes_back_with_growing_delays_and_a_new_environment(
    tmp_path: Path,
) -> None:
    log = tmp_path / "events"
    children = [child(log, "steady"), child(log, "crashy", "os.kill(os.getpid(), 9)")]
    with supervised(tmp_path, children, first_s=0.05, most_s=0.2) as run:
        run.wait_for("start steady")
        run.wait_for("start crashy", 5)
        text = run.text()
        delays = re.findall(r"crashy ended by SIGKILL; restarting it in ([\d.]+) s", text)
        assert delays[:4] == ["0.05", "0.1", "0.2", "0.2"]
        exits = [event for event in run.events() if event[:2] == ["exit", "crashy"]]
        assert len({event[2] for event in exits}) == len(exits)
        assert {event[3] for event in exits} == {"-9"}
        assert run.words().count("start steady") == 1
        assert not gone(*run.pids("start", "steady"))


def test_the_delay_starts_afresh_after_a_stable_run(tmp_path: Path) -> None:
    log = tmp_path / "events"
    with supervised(tmp_path, [child(log, "one")], first_s=0.05, stable_s=0.3) as run:
        run.wait_for("start one")
        os.kill(run.pids("start", "one")[-1], signal.SIGKILL)
        run.wait_for("start one", 2)
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 0.4, "it has run stably")
        os.kill(run.pids("start", "one")[-1], signal.SIGKILL)
        run.wait_for("start one", 3)
        assert re.findall(r"restarting it in ([\d.]+) s", run.text()) == ["0.05", "0.05"]


def test_a_child_that_never_gets_ready_stops_everything_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "events"
    children = [
        child(log, "fine"),
        child(log, "broken", "print('no such file: x'); sys.exit(7)", ready_file="/nonexistent"),
    ]
    with supervised(tmp_path, children, first_s=0.02) as run:
        assert run.process.wait(60) == 1
        last = run.text().splitlines()[-1]
        assert (
            last
            == "failed: broken ended 3 times before it was ready, with status 7: no such file: x"
        )
        assert run.words().count("start broken") == 3
        assert gone(*started_pids(run))


def test_a_child_that_is_not_essential_stops_nothing(tmp_path: Path) -> None:
    log = tmp_path / "events"
    children = [
        child(log, "fine"),
        child(log, "extra", "sys.exit(7)", ready_file="/nonexistent", essential=False),
    ]
    with supervised(tmp_path, children, first_s=0.02, most_s=0.02) as run:
        run.wait_for("start fine")
        run.wait_for("start extra", 5)
        run.wait_for("ready all")
        assert run.words().count("ready all") == 1
        assert not gone(*run.pids("start", "fine"))


def test_a_stage_that_is_late_does_not_hold_up_the_next_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "events"
    children = [
        child(log, "slow", ready_file="/nonexistent", ready_timeout_s=0.2),
        child(log, "next", stage=1),
    ]
    with supervised(tmp_path, children) as run:
        run.wait_for("start next")
        run.wait_for("ready all")
        assert "slow is not ready after" in run.text()


def test_an_orphan_that_has_ended_is_collected_while_all_children_run(tmp_path: Path) -> None:
    log = tmp_path / "events"
    # The middle one of three processes ends first.
    body = f"""
middle = os.fork()
if middle == 0:
    orphan = os.fork()
    if orphan:
        with open({str(log)!r}, "a") as file:
            file.write(f"orphan one {{orphan}}\\n")
    os._exit(0)
os.waitpid(middle, 0)
wait()
"""
    with supervised(tmp_path, [child(log, "one", body)]) as run:
        run.wait_for("orphan one")
        (orphan,) = run.pids("orphan", "one")
        wait_until(lambda: not Path(f"/proc/{orphan}").exists(), "it is collected")
        assert run.words().count("start one") == 1


def test_a_child_that_ignores_sigterm_is_killed_after_its_time(tmp_path: Path) -> None:
    log = tmp_path / "events"
    body = "signal.signal(signal.SIGTERM, lambda *_: say('deaf')); wait()"
    with supervised(tmp_path, [child(log, "deaf", body, stop_timeout_s=2)]) as run:
        run.wait_for("ready all")
        run.wait_for("start deaf")
        wait_until(lambda: _has_handler(run.pids("start", "deaf")[0], signal.SIGTERM), "it listens")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(60) == 0
        assert run.words().count("deaf deaf") == 1
        assert "deaf did not stop within 2 s; killed" in run.text()
        assert gone(*started_pids(run))


def test_a_second_signal_hurries_but_lets_redis_save(tmp_path: Path) -> None:
    log = tmp_path / "events"
    deaf = "signal.signal(signal.SIGTERM, lambda *_: say('deaf')); wait()"
    children = [
        child(log, "worker", deaf, stop_rank=0, stop_timeout_s=60),
        child(log, "redis", stop_rank=1, death_signal="TERM"),
    ]
    with supervised(tmp_path, children) as run:
        run.wait_for("start worker")
        run.wait_for("start redis")
        wait_until(
            lambda: _has_handler(run.pids("start", "worker")[0], signal.SIGTERM), "it listens"
        )
        run.process.send_signal(signal.SIGINT)
        run.wait_for("deaf worker")
        assert "term redis" not in run.words()

        def hurried() -> bool:
            # Two signals at once count as one, so a lone second one may come too early.
            run.process.send_signal(signal.SIGINT)
            return run.process.poll() is not None

        wait_until(hurried, "it ends at once")
        assert run.process.returncode == 0
        assert "term redis" in run.words()
        assert gone(*started_pids(run))


def test_two_signals_at_once_are_one_request(tmp_path: Path) -> None:
    log = tmp_path / "events"
    slow = (
        "signal.signal(signal.SIGTERM, lambda *_: signal.setitimer(signal.ITIMER_REAL, 0.5)); "
        "signal.signal(signal.SIGALRM, lambda *_: (say('done'), os._exit(0))); wait()"
    )
    with supervised(tmp_path, [child(log, "worker", slow, stop_timeout_s=30)]) as run:
        run.wait_for("start worker")
        wait_until(
            lambda: _has_handler(run.pids("start", "worker")[0], signal.SIGALRM), "it listens"
        )
        # Stopped meanwhile, so that it finds both.
        suspend(run.process.pid)
        run.process.send_signal(signal.SIGINT)
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGCONT)
        assert run.process.wait(60) == 0
        assert run.words()[-2:] == ["done worker", "exit worker"]


def test_what_a_dead_child_leaves_behind_is_killed_at_once(tmp_path: Path) -> None:
    log = tmp_path / "events"
    with supervised(tmp_path, [child(log, "parent", "spawn(); wait()")], first_s=30) as run:
        run.wait_for("spawned parent")
        (grandchild,) = run.pids("spawned", "parent")
        assert not gone(grandchild)
        os.kill(run.pids("start", "parent")[0], signal.SIGKILL)
        wait_until(lambda: gone(grandchild), "the grandchild in its own session is gone", 20)
        assert run.process.poll() is None


def test_no_descendant_survives_an_orderly_stop(tmp_path: Path) -> None:
    log = tmp_path / "events"
    with supervised(tmp_path, [child(log, "parent", "spawn(); wait()")]) as run:
        run.wait_for("spawned parent")
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 0
        assert gone(*started_pids(run))


def test_kill_9_of_the_supervisor_ends_its_children(tmp_path: Path) -> None:
    log = tmp_path / "events"
    children = [child(log, "redis", death_signal="TERM"), child(log, "worker"), child(log, "api")]
    with supervised(tmp_path, children) as run:
        for name in ("redis", "worker", "api"):
            run.wait_for(f"start {name}")
        pids = started_pids(run)
        assert not gone(pids[0])
        run.process.kill()
        run.process.wait(60)
        wait_until(lambda: gone(*pids), "all children are gone")
        # Only the one that must save was asked; the others were killed.
        assert [w for w in run.words() if w.startswith("term")] == ["term redis"]


def test_lines_carry_aligned_names_and_survive_odd_output(tmp_path: Path) -> None:
    log = tmp_path / "events"
    body = (
        "sys.stdout.buffer.write(b'one\\ntw'); sys.stdout.flush(); "
        "sys.stdout.buffer.write(b'o\\n\\xff\\nno newline'); sys.stdout.flush(); sys.exit(0)"
    )
    children = [child(log, "api", body), child(log, "longname")]
    with supervised(tmp_path, children, first_s=30) as run:
        wait_until(lambda: "api ended with status 0" in run.text(), "the child has ended")
        lines = [line for line in run.text().splitlines() if line.startswith("api")]
        assert lines == [
            "api      | one",
            "api      | two",
            "api      | �",
            "api      | no newline",
        ]


def test_a_program_that_does_not_exist_is_one_clear_failure(tmp_path: Path) -> None:
    children = [
        {"name": "ghost", "command": ["/nonexistent/program"], "ready_file": "/nonexistent"}
    ]
    with supervised(tmp_path, children, first_s=0.02) as run:
        assert run.process.wait(60) == 1
        assert (
            "headrace: cannot start /nonexistent/program: No such file or directory" in run.text()
        )


def test_child_program_refuses_to_start_what_has_lost_its_parent(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    command = [
        sys.executable, "-m", "headrace.server.supervisor.exec_child", "--signal", "KILL",
        "--parent", "1", "--", "touch", str(marker),
    ]  # fmt: skip
    assert os.spawnv(os.P_WAIT, command[0], command) == 127
    assert not marker.exists()


def _has_handler(pid: int, signum: signal.Signals) -> bool:
    """Whether a process catches a signal, and not with Python's first handler alone."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    sleeping = re.search(r"^State:\s*S", status, re.MULTILINE)
    return bool(match and sleeping and int(match[1], 16) & 1 << (signum - 1))
