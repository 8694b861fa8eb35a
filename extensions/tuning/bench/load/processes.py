"""Runs generators, each in a process of its own, and joins what they have seen."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from extensions.tuning.bench.load.generator import READY
from extensions.tuning.bench.load.plan import Cut, Plan, Sent
from headrace.config.environment import server_root
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
        for number, child in enumerate(children):
            _write(child, msgspec.msgpack.encode(_part(plan, number, processes)))
        for child in children:
            if _stdout(child).read(1) != READY:
                raise GeneratorFailed("a generator process did not start")
        start_at = time.monotonic() + _AHEAD_S
        for child in children:
            _write(child, msgspec.msgpack.encode(start_at))
        return _joined([_result(child) for child in children]), start_at


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
def _started(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-P", "-m", "extensions.tuning.bench.load.generator"]
    path = [str(server_root()), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    children: list[subprocess.Popen[bytes]] = []
    try:
        while len(children) < processes:
            children.append(
                subprocess.Popen(
                    command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait(_STOP_S)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


def _write(child: subprocess.Popen[bytes], data: bytes) -> None:
    if child.stdin is None:
        raise GeneratorFailed("a generator process has no input")
    try:
        child.stdin.write(len(data).to_bytes(8, "little") + data)
        child.stdin.flush()
    except BrokenPipeError:
        raise GeneratorFailed("a generator process ended early") from None


def _stdout(child: subprocess.Popen[bytes]) -> Any:
    return child.stdout


def _result(child: subprocess.Popen[bytes]) -> Sent:
    data = _stdout(child).read()
    if not data:
        raise GeneratorFailed(f"a generator process ended with status {child.wait(_STOP_S)}")
    return msgspec.msgpack.decode(data, type=Sent)


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
