"""Runs generators, each in a process of its own, and joins what they have seen."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from extensions.tuning.bench.load.generator import READY
from extensions.tuning.bench.load.plan import Cut, Plan, Sent
from headrace.config.environment import launch_command, with_server_path
from headrace.errors import ConfigError, HeadraceError

#: From the order to start until the load starts, so that all processes start together.
_AHEAD_S: Final = 0.05
_STOP_S: Final = 10.0


class GeneratorFailed(HeadraceError, title="Generator failed"):
    """A generator process ended without a result."""


def run_generators(plan: Plan, processes: int = 1) -> tuple[Sent, float]:
    """Send a load from so many processes.

    Returns:
        What they have seen together, and the time of `time.monotonic` at which the load started.

    Raises:
        ConfigError: a package is missing.
        GeneratorFailed: a generator ended without a result.
    """
    if find_spec("httptools") is None:
        raise ConfigError(
            "the package httptools is not installed", hint="pip install 'headrace[bench]'"
        )
    # More processes than requests under way would have nothing to send.
    most = plan.scenario.concurrency or processes
    processes = max(1, min(processes, most))
    with _started(processes) as children:
        try:
            for number, child in enumerate(children):
                child.send_bytes(msgspec.msgpack.encode(_part(plan, number, processes)))
            if any(child.recv_bytes() != READY for child in children):
                raise GeneratorFailed("a generator process did not start")
            start_at = time.monotonic() + _AHEAD_S
            for child in children:
                child.send_bytes(msgspec.msgpack.encode(start_at))
            seen = [msgspec.msgpack.decode(child.recv_bytes(), type=Sent) for child in children]
        except (EOFError, OSError):
            raise GeneratorFailed("a generator process ended early") from None
    return _joined(seen), start_at


def _part(plan: Plan, number: int, processes: int) -> Plan:
    cut = plan.cut
    if cut is not None and processes > 1:
        # Each process sees its own late requests only, so each stops a little later.
        cut = Cut(cut.after_s, cut.latency_ms, cut.allowed // processes + 5)
    return msgspec.structs.replace(
        plan,
        scenario=plan.scenario.share(number, processes),
        seed=plan.seed * 1009 + number,
        cut=cut,
    )


@contextmanager
def _started(count: int) -> Iterator[list[Connection]]:
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            ours, theirs = Pipe()
            with theirs:
                fd = theirs.fileno()
                child = subprocess.Popen(
                    launch_command("extensions.tuning.bench.load.generator", str(fd)),
                    env=with_server_path(os.environ), stdin=subprocess.DEVNULL, pass_fds=(fd,),
                )  # fmt: skip
            stack.callback(child.wait, _STOP_S)
            stack.callback(child.kill)
            connections.append(stack.enter_context(ours))
        yield connections


def _joined(parts: list[Sent]) -> Sent:
    """Return what several generators have seen as one; the busiest counts for its CPU."""
    cut = any(one.cut for one in parts)
    length_s = min(one.length_s for one in parts) if cut else max(one.length_s for one in parts)
    rows = [row for one in parts for row in one.rows if row.due_s <= length_s]
    ticks = [tick for one in parts for tick in one.ticks_s]
    return Sent(
        rows, ticks, length_s, max(one.cpu_s for one in parts), cut,
        sum(one.all_cpu_s for one in parts), sum(one.memory_mb for one in parts), len(parts),
        any(one.overrun for one in parts),
    )  # fmt: skip
