"""Fixtures for every test: real Redis servers, clean databases, a check for leaked keys."""

from __future__ import annotations

import gc
import importlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.harness.deployments.shared import SharedDeployment
from tests.harness.servers.api_process import ApiProcess
from tests.harness.servers.redis_servers import FLAVOURS, RedisServer, nothing_leaks, redis_server
from tests.harness.workers.worker import Worker

#: What `make test` leaves to `make test-all`: dear, and rarely the one to fail. Whole systems,
#: browsers, conformance, long series of kills.
SLOW: Final = (
    "bench",
    "chaos",
    "extensions/torchserve/compat",
    "e2e",
    "integration/api/test_conformance.py",
    "integration/api/test_refused_bodies.py",
    "integration/background/test_refused_writes.py",
    "extensions/openai/integration/clients",
    "extensions/openai/integration/batches/test_kills.py",
    "extensions/openai/integration/batches/test_windows.py",
    "extensions/tuning/integration/bench/test_bench_command.py",
    "extensions/tuning/integration/bench/test_measure.py",
    "extensions/tuning/integration/bench/test_other_servers.py",
    "extensions/tuning/integration/bench/test_sweep.py",
    "integration/canvas",
    "integration/celery/test_flower.py",
    "integration/celery/test_flower_alone.py",
    "extensions/tuning/integration/cli/test_optimize.py",
    "extensions/top/integration/test_top.py",
    "integration/client/test_outage.py",
    "integration/jobs/streams/test_events_kills.py",
    "integration/jobs/streams/test_generator_classes.py",
    "integration/jobs/streams/test_language_model.py",
    "integration/jobs/test_path.py",
    "integration/model_process/test_variants.py",
    "integration/models/test_requirements.py",
    "integration/models/test_serving.py",
    "integration/observability/test_logs.py",
    "integration/observability/test_monitoring.py",
    "extensions/openai/integration/api/test_batches.py",
    "integration/pipelines/test_freed.py",
    "integration/pipelines/test_kills.py",
    "integration/redis/test_backup.py",
    "integration/redis/test_outage.py",
    "integration/redis/test_sentinel.py",
    "integration/registry/test_autoscaling.py",
    "integration/registry/test_labels.py",
    "integration/registry/test_live.py",
    "integration/registry/test_on_demand.py",
    "integration/registry/test_replicas.py",
    "integration/registry/test_shadow.py",
    "extensions/runs/integration/test_runs.py",
    "extensions/runs/integration/test_tables.py",
    "integration/server/test_declared_inputs.py",
    "integration/server/test_extensions.py",
    "integration/server/test_health_probe.py",
    "extensions/torchserve/integration/server/test_server.py",
    "integration/server/test_up.py",
    "integration/server/test_upgrade.py",
    "extensions/torchserve/integration/test_builtin_handlers.py",
    "extensions/torchserve/integration/test_management.py",
    "extensions/torchserve/integration/test_management_fuzz.py",
    "extensions/torchserve/integration/test_management_kills.py",
    "extensions/torchserve/integration/test_model_config.py",
    "extensions/torchserve/integration/test_model_process.py",
    "extensions/torchserve/integration/test_sequences.py",
    "extensions/console/e2e",
    "extensions/tuning/e2e",
    "extensions/tuning/integration/tune",
    "integration/webhooks/test_kills.py",
    "integration/webhooks/test_shares.py",
    "integration/workers/test_on_demand.py",
    "integration/workers/test_profile.py",
    "integration/workers/leases/test_time.py",
    "integration/workers/leases/test_wrong_clock.py",
    "unit/deploy/test_policies.py",
    "unit/handlers/optimize/test_backends.py",
    "unit/handlers/optimize/test_several_modules.py",
    "unit/handlers/test_language_model.py",
)
#: The kinds of Redis that only `make test-slow` runs the tests of every kind on.
SLOW_FLAVOURS: Final = frozenset(FLAVOURS[1:])
#: The modules that take longest. They begin first, as one that begins last would run alone.
LONGEST: Final = (
    "extensions/tuning/integration/tune/test_tune.py",
    "extensions/torchserve/compat/test_same.py",
    "unit/handlers/optimize/test_backends.py",
    "integration/model_process/test_variants.py",
    "integration/observability/test_monitoring.py",
    "bench/test_runs.py",
    "extensions/tuning/integration/tune/test_apply.py",
    "chaos/test_registry_kills.py",
    "e2e/test_documents.py",
    "extensions/openai/integration/api/test_inference.py",
    "extensions/openai/integration/api/test_responses.py",
    "extensions/openai/integration/api/test_tools.py",
)
#: The modules of such folders run in one process: they share what takes seconds to start.
TOGETHER: Final = (
    ("extensions/inference_protocols/integration",),
    ("extensions/openai/integration/api", "extensions/openai/integration/clients"),
)
TESTS: Final = Path(__file__).parent
#: Torch takes two seconds to import. One process runs all unit tests that need it.
_IMPORTS_TORCH: Final = re.compile(r"^ *(import|from) torch\b|importorskip\(.torch", re.MULTILINE)

#: What makes a test slow outside of SLOW: its mark, or a fixture with each kind of Redis.
_MAY_BE_SLOW: Final = re.compile(r"mark\.slow|\bany_(redis|flavour)\b")

# How long an example takes is for the machine to say, and it may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    # What is imported stays: a fifth of what collecting takes would be looking through it.
    gc.disable()
    # Hundreds of processes are started, and without it each would compile all our code anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    Worker.forked = ApiProcess.forked = True
    # Commands keep the user's state there, and tests must not see or change it.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="headrace-tests-state-")
    # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # So does nohup with SIGHUP; who has a handler goes on, and its children begin with the default.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def is_slow(path: Path) -> bool:
    """Whether `make test` leaves this test module out."""
    return path.relative_to(TESTS).as_posix().startswith(SLOW)


@cache
def has_slow(path: Path) -> bool:
    """Whether a module has slow tests, by its place and text; collection checks it."""
    if is_slow(path) or "contract" in path.parts:
        return True
    return _MAY_BE_SLOW.search(path.read_text()) is not None


def is_deselected(path: Path, markexpr: str) -> bool:
    """Whether `-m` would deselect all tests of a module or folder: nobody needs its imports."""
    if markexpr == "slow":
        return path.suffix == ".py" and not has_slow(path)
    return markexpr == "not slow" and is_slow(path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave `tests/containers` to `make test-containers`, and slow modules to `make test-slow`."""
    if collection_path == TESTS / "containers":
        return config.args_source is config.ArgsSource.TESTPATHS or None
    if TESTS not in collection_path.parents:
        return None
    return is_deselected(collection_path, config.option.markexpr) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        flavours = given.get("any_redis"), given.get("any_flavour")
        if is_slow(item.path) or SLOW_FLAVOURS.intersection(flavours):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not has_slow(item.path):
            raise pytest.UsageError(f"has_slow does not know that {item.nodeid} is slow")
    rank = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


class ByModule(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """The tests of a module run in one process, and so do all modules that import torch.

    So do those of folders that are TOGETHER.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        path = TESTS.parent / file
        folder = path.parent.relative_to(TESTS).as_posix()
        for together in TOGETHER:
            if folder in together:
                return together[0]
        return "torch" if imports_torch(path) else file


@cache
def imports_torch(path: Path) -> bool:
    """Whether this is a module of fast unit tests that imports torch."""
    if "unit" not in path.parts or is_slow(path):
        return False
    return _IMPORTS_TORCH.search(path.read_text()) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule | None:
    return ByModule(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import all modules of tests, each of several processes beginning with another one.

    pytest rewrites and compiles each module, which takes as long as all of their imports. Where
    nothing is compiled yet, as in a clean checkout, a process finds what the others compiled.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not session.config.ArgsSource.TESTPATHS:
        return
    markexpr = session.config.option.markexpr
    names = [
        ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        for path in sorted(TESTS.rglob("test_*.py"))
        if not is_deselected(path, markexpr)
    ]
    first = int(worker["workerid"].removeprefix("gw")) * len(names) // worker["workercount"]
    for name in names[first:] + names[:first]:
        # What cannot be imported is reported when it is collected.
        with suppress(BaseException):
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """Look for garbage again, but seldom, and not among all that the imports have made."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.fixture(scope="session")
def _servers() -> Iterator[dict[str, RedisServer]]:
    """One server per flavour and test process, started when first asked for."""
    servers: dict[str, RedisServer] = {}
    contexts = []

    class Lazy(dict[str, RedisServer]):
        def __missing__(self, flavour: str) -> RedisServer:
            context = redis_server(flavour)
            server = context.__enter__()
            contexts.append(context)
            self[flavour] = server
            return server

    servers = Lazy()
    yield servers
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def shared_deployment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedDeployment]:
    """An API and a worker for all modules of this test process that ask for them."""
    deployment = SharedDeployment(tmp_path_factory.mktemp("shared"))
    yield deployment
    deployment.close()


def _cleaned(server: RedisServer, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with server.client() as client:
        client.flushall()
        yield server
        try:
            if not request.node.get_closest_marker("leaves_keys"):
                nothing_leaks(client)
        finally:
            client.flushall()


@pytest.fixture
def redis_db(
    _servers: dict[str, RedisServer], request: pytest.FixtureRequest
) -> Iterator[RedisServer]:
    """A clean Valkey 9 server; a key left without a TTL fails the test.

    The server is the test process' own, so that emptying it hurts nobody.
    """
    yield from _cleaned(_servers["valkey9"], request)


@pytest.fixture(params=FLAVOURS)
def any_redis(
    _servers: dict[str, RedisServer], request: pytest.FixtureRequest
) -> Iterator[RedisServer]:
    """A clean server of each flavour in turn."""
    yield from _cleaned(_servers[request.param], request)


@pytest.fixture(params=FLAVOURS)
def any_flavour(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of each flavour, with AOF, of the test's own: it may stop and start it."""
    with redis_server(request.param, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server
