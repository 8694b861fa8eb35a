"""One check of `headrace doctor` on a site of a test's own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import redis

from headrace.cli.doctor.check import Check, CheckResult, run_checks
from headrace.cli.doctor.command import all_checks
from headrace.cli.doctor.deployment import Deployment
from headrace.observability.worker_report import CLOCK, FIGURES, Figures
from headrace.redis import keys

BY_NAME = {check.name: check for check in all_checks()}
F = TypeVar("F", bound=Callable[..., Any])


def breaks(*names: str) -> Callable[[F], F]:
    """Says which checks a test breaks; tests/docs/test_doctor.py holds that none is left."""
    unknown = set(names) - set(BY_NAME)
    assert not unknown, unknown
    return lambda test: test


@contextmanager
def site(
    url: str | None = None,
    models: Path | None = None,
    api: str | None = None,
    **environ: str,
) -> Iterator[Deployment]:
    """A site with nothing but this in its environment."""
    made = Deployment({"PATH": os.environ["PATH"], **environ}, url, models, api)
    try:
        yield made
    finally:
        made.close()


def look(at: Deployment, check: str | Check) -> CheckResult:
    """What one check finds."""
    (run,) = run_checks(at, [BY_NAME[check] if isinstance(check, str) else check])
    return run.result


def found(
    check: str, url: str | None = None, models: Path | None = None, **rest: Any
) -> CheckResult:
    """What one check finds on a site that it has for itself."""
    with site(url, models, **rest) as made:
        return look(made, check)


def tell(
    client: redis.Redis,
    owner: str,
    *,
    pid: int | None = None,
    host: str = "",
    ahead_s: float = 0.0,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    figures: Figures | None = None,
    versions: Mapping[str, str] | None = None,
    own: Mapping[str, Any] | None = None,
) -> str:
    """Say what a worker of this host (or another) would say each second; its node."""
    node = f"{owner}@{host or socket.gethostname()}"
    encode = msgspec.json.encode
    known = {"node": node, "pid": os.getpid() if pid is None else pid, "versions": versions or {}}
    fields = {"": encode({**known, **(own or {})}), FIGURES: encode(figures or Figures())}
    fields[CLOCK] = encode(time.time() + ahead_s)
    for name, said in (models or {}).items():
        state = {"state": "ready", "replicas": 1, "ready": 1, "device": "cpu", **said}
        fields[name] = encode({"node": node, **state})
    client.hset(keys.worker(owner), mapping=fields)  # type: ignore[arg-type]
    client.expire(keys.worker(owner), keys.WORKER_TTL_S)
    client.zadd(keys.WORKERS, {owner: int(time.time())})
    return node


def verdict(of: CheckResult, expected: str, *words: str) -> None:
    """Holds a finding to its verdict, to words in it, and to advice where something is wrong."""
    assert str(of.verdict) == expected, of
    for word in words:
        assert word in f"{of.sentence} -> {of.hint}", of
    assert of.hint or expected in ("ok", "skip"), of


def fake_torch(folder: Path, **said: Any) -> Path:
    """A folder for a PYTHONPATH with a torch that says this of itself; torch itself takes seconds.

    Args:
        folder: where to make it.
        said: `version`, `cuda`, `count` of devices, and `problem`, with which CUDA does not start.
    """
    told = {"version": "2.9.0", "cuda": None, "count": 0, "problem": "", **said}
    package = folder / "stand-in" / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(
        "from types import SimpleNamespace as N\n"
        f"told = {told!r}\n"
        "__version__ = told['version']\n"
        "version = N(cuda=told['cuda'], hip=None)\n"
        "def get_num_threads(): return 2\n"
        "def init():\n"
        "    if told['problem'] or not told['cuda']:\n"
        "        raise RuntimeError(told['problem'] or 'not compiled with CUDA')\n"
        "cuda = N(init=init, device_count=lambda: told['count'],\n"
        "         get_device_name=lambda i: f'H{i}')\n"
        "def ones(*_, device): return N(sum=lambda: N(item=lambda: 8.0))\n"
    )
    return package.parent


def fake_smi(folder: Path, *lines: str, status: int = 0) -> str:
    """A PATH whose nvidia-smi prints these lines and ends so."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    with program.open("a") as file:
        file.write(f"exit {status}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
