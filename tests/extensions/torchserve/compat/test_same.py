"""Headrace answers as the real TorchServe does: the same archives, the same requests.

Where it does not on purpose, docs/torchserve-differences.md has a row, and the request names it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from extensions.torchserve.config.properties import read_properties
from tests.extensions.torchserve.compat import streams
from tests.extensions.torchserve.compat.cases import guarded as guarded_cases
from tests.extensions.torchserve.compat.cases import restored as restored_cases
from tests.extensions.torchserve.compat.cases.builtin import BUILTIN
from tests.extensions.torchserve.compat.cases.guarded import GUARDED
from tests.extensions.torchserve.compat.cases.inference import INFERENCE, SHAPES
from tests.extensions.torchserve.compat.cases.management import ALONE, FAILURES, MANAGEMENT
from tests.extensions.torchserve.compat.cases.restored import RESTORED
from tests.extensions.torchserve.compat.cases.table import (
    CONFIG,
    QUEUE,
    Scenario,
    manage,
    models_of,
    register,
)
from tests.extensions.torchserve.compat.compare import Exchange, mismatches, perform, registered
from tests.extensions.torchserve.compat.differences import documented
from tests.extensions.torchserve.compat.held import (
    ACCEPTED,
    CROWDED,
    FULL,
    SPOILED,
    TICKETED,
    batches,
    crowded,
    fill,
    spoiled,
    ticketed,
)
from tests.extensions.torchserve.compat.servers import (
    ROOT,
    UNTIL_S,
    VENV,
    Answer,
    Ask,
    Both,
    Server,
    in_both,
    pair,
    together,
)
from tests.harness.wait import wait_until

#: A group loads up to 20 models in each server; on a machine that runs much else, for minutes.
pytestmark = pytest.mark.timeout(1200)
FLAGS = ("--disable-token-auth", "--enable-model-api", "--ncs")
#: Scenarios whose models are registered together.
GROUPS: Final[Mapping[str, Sequence[Scenario]]] = {
    "inference": INFERENCE,
    "shapes": SHAPES,
    "builtin": BUILTIN,
    "failures": FAILURES,
    "management": MANAGEMENT,
    "alone": ALONE,
}
SCENARIOS: Final = [(group, one) for group, scenarios in GROUPS.items() for one in scenarios]


@pytest.fixture(scope="module")
def both(store: Path) -> Iterator[Both]:
    """The real TorchServe, and Headrace in its place; `noop` is loaded in both."""
    with pair(store, ["noop.mar"], CONFIG, *FLAGS) as servers:
        yield servers


@pytest.fixture(scope="module")
def guarded(store: Path) -> Iterator[Both]:
    """Both without flags: they ask for tokens, and register nothing over HTTP."""
    with pair(store, guarded_cases.MODELS, guarded_cases.CONFIG) as servers:
        yield servers


@pytest.fixture(scope="module")
def restored(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Both, started from a snapshot with broken archives and with an empty workflow store."""
    empty = str(tmp_path_factory.mktemp("workflow-store"))
    flags = ("--disable-token-auth", "--workflow-store", empty)
    with pair(store, [], restored_cases.CONFIG, *flags) as servers:
        in_both(servers, lambda server: server.wait_loaded(restored_cases.LOADED))
        yield servers


@pytest.fixture(scope="module")
def kept(both: Both, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The models of a group, for the scenarios that are selected; both servers have them."""
    selected = {item.name for item in request.session.items}
    models = models_of(
        one for one in GROUPS[request.param] if any(f"-{one}]" in name for name in selected)
    )
    with together(lambda server: registered(server, models), both):
        yield models


@pytest.mark.parametrize(
    ("kept", "scenario"), SCENARIOS, ids=str, indirect=["kept"], scope="module"
)
def test_headrace_answers_as_torchserve_does(
    both: Both, kept: list[str], scenario: Scenario
) -> None:
    problems = compare(both, lambda server: perform(scenario, server, kept))
    assert not problems, "\n".join(problems)


def test_requests_that_wait_are_one_batch(both: Both, tmp_path: Path) -> None:
    theirs, ours = in_both(both, partial(batches, folder=tmp_path))
    assert theirs == [1] + [QUEUE] * QUEUE
    assert ours[0] == 1
    assert max(ours) > 1


def test_a_bad_input_fails_alone(both: Both, tmp_path: Path) -> None:
    theirs, ours = in_both(both, partial(spoiled, folder=tmp_path))
    assert judge(SPOILED, [theirs], [ours]) == []


@pytest.mark.parametrize(
    ("asks", "streamed"),
    [
        pytest.param(streams.ASKS, streams.streamed, id="pieces"),
        # A continuous batch, with a handler in the style of TorchServe's stateful example.
        pytest.param(streams.SESSION, streams.session, id="session"),
    ],
)
def test_a_reply_in_pieces_is_the_same_chunks(
    both: Both, asks: Sequence[Ask], streamed: Callable[[Server], list[streams.Streamed]]
) -> None:
    problems: list[str] = []
    for ask, theirs, ours in zip(asks, *in_both(both, streamed), strict=True):
        more = streams.unlike(theirs, ours)
        found = judge(ask, [theirs.answer], [ours.answer], more)
        problems += [f"{ask}\n    {text}" for text in found]
    assert not problems, "\n".join(problems)


def test_a_model_is_described_by_its_path(both: Both, store: Path) -> None:
    def registered_by_path(server: Server) -> tuple[list[int], str]:
        (made,) = server.ask(register("echo", url=str(store / "echo.mar"), initial_workers=0))
        (described,) = server.ask(manage("GET", "/models/echo"))
        (removed,) = server.ask(manage("DELETE", "/models/echo"))
        statuses = [one.status for one in (made, described, removed)]
        return statuses, json.loads(described.body)[0]["modelUrl"]

    theirs, ours = in_both(both, registered_by_path)
    assert theirs == ours == ([200, 200, 200], str(store / "echo.mar"))


def test_a_fetched_file_stays_if_its_model_is_registered_already(
    both: Both, store: Path, tmp_path: Path
) -> None:
    for server in both:  # they share the model store
        name = f"fetched-{server.real}.mar"
        shutil.copyfile(store / "noop.mar", tmp_path / name)
        asks = [register("noop", url=url) for url in (f"file://{tmp_path / name}", name)]
        try:
            assert [server.ask(ask)[0].status for ask in asks] == [409, 409]
            assert (store / name).exists()
        finally:
            (store / name).unlink(missing_ok=True)


def test_a_full_sequence_refuses(both: Both, tmp_path: Path) -> None:
    (theirs, statuses), (ours, ours_statuses) = in_both(both, partial(crowded, folder=tmp_path))
    assert statuses == ours_statuses == [200, 200, 503]
    assert judge(CROWDED, [theirs], [ours]) == []


def test_a_full_queue_refuses(both: Both, tmp_path: Path) -> None:
    answers = in_both(both, partial(fill, folder=tmp_path))
    for server, (_, accepted) in zip(both, answers, strict=True):
        assert accepted in ACCEPTED[server.real]
    (theirs, _), (ours, _) = answers
    assert judge(FULL, [theirs], [ours]) == []


def test_a_model_with_tickets_takes_a_request_if_a_worker_is_idle(
    both: Both, tmp_path: Path
) -> None:
    (theirs, later), (ours, ours_later) = in_both(both, partial(ticketed, folder=tmp_path))
    assert (theirs.status, ours.status) == (503, 503)
    assert judge(TICKETED, [theirs], [ours]) == []
    assert later == ours_later == 200


@pytest.mark.parametrize("scenario", GUARDED, ids=str)
def test_headrace_guards_itself_as_torchserve_does(guarded: Both, scenario: Scenario) -> None:
    problems = compare(guarded, lambda server: [(ask, server.ask(ask)) for ask in scenario.asks])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("scenario", RESTORED, ids=str)
def test_headrace_starts_from_a_snapshot_as_torchserve_does(
    restored: Both, scenario: Scenario
) -> None:
    problems = compare(restored, lambda server: [(ask, server.ask(ask)) for ask in scenario.asks])
    assert not problems, "\n".join(problems)


def test_both_write_the_same_models_into_a_snapshot(guarded: Both) -> None:
    theirs, ours = in_both(guarded, models_of_snapshot)
    assert theirs.keys() == ours.keys() == {"noop", "shown"}
    for name, versions in theirs.items():
        assert versions.keys() == ours[name].keys()
        for version, members in versions.items():
            own = ours[name][version]
            assert members == {one: own.get(one) for one in members}, f"{name} {version}"


def models_of_snapshot(server: Server) -> dict[str, dict[str, Any]]:
    folder = server.folder / "logs/config"
    (path,) = wait_until(lambda: list(folder.glob("*-startup.cfg")), "the snapshot of the start")
    content = json.loads(read_properties(path)["model_snapshot"])
    assert content["modelCount"] == 2
    models: dict[str, dict[str, Any]] = content["models"]
    return models


def test_a_change_is_in_a_snapshot_before_its_answer(guarded: Both) -> None:
    def scaled(server: Server) -> list[int]:
        found = []
        for number in (2, 1):
            path = f"/models/noop?min_worker={number}&synchronous=true"
            ask = manage("PUT", path, headers=guarded_cases.bearer("management"))
            assert server.ask(ask)[0].status == 200
            newest = max((server.folder / "logs/config").glob("*-snapshot.cfg"))
            content = json.loads(read_properties(newest)["model_snapshot"])
            found.append(content["models"]["noop"]["1.11"]["minWorkers"])
        return found

    theirs, ours = in_both(guarded, scaled)
    assert theirs == ours == [2, 1]


def test_a_failed_load_has_the_same_words_in_the_log(both: Both) -> None:
    words = (
        r"Backend worker process died\.\n.*Traceback \(most recent call last\):\n(.*\n)*?"
        r".*ValueError: the weights do not fit the model\n",
        r"Backend worker error\n.*org\.pytorch\.serve\.wlm\.WorkerInitializationException: Backend "
        r"worker did not respond in given time\n",
    )

    def failed(server: Server) -> list[bool]:
        before = len(server.log)
        asks = (register("init_error"), register("echo", startup_timeout=0, model_name="too_slow"))
        assert [server.ask(ask)[0].status for ask in asks] == [500, 500]

        def logged() -> list[bool]:
            return [re.search(one, server.log[before:]) is not None for one in words]

        with suppress(AssertionError):
            wait_until(lambda: all(logged()), "the words are in the log")
        return logged()

    theirs, ours = in_both(both, failed)
    assert theirs == ours == [True, True]


@pytest.mark.usefixtures("_real")
def test_the_errors_of_metrics_are_the_same_errors_of_python() -> None:
    code = (
        "import ts.metrics.metric_cache_errors as found\n"
        "for name, one in sorted(vars(found).items()):\n"
        "    if isinstance(one, type):\n"
        "        print(name, *[base.__name__ for base in one.__mro__])\n"
    )
    theirs, ours = (
        subprocess.run(
            [str(python), "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, check=True,
        ).stdout
        for python, path in (
            (VENV / "bin/python", ""),
            (sys.executable, str(ROOT / "extensions/torchserve/handlers/shim")),
        )
    )  # fmt: skip
    assert theirs == ours


def compare(both: Both, send: Callable[[Server], list[Exchange]]) -> list[str]:
    """Send requests to both at once; return what is wrong with our answers."""
    theirs, ours = in_both(both, send)
    problems: list[str] = []
    for (ask, one), (_, other) in zip(theirs, ours, strict=True):
        found = judge(ask, one, other)
        if found and ask.settles:
            found = settled(both, ask)
        problems += [f"{ask}\n    {text}" for text in found]
    return problems


def settled(both: Both, ask: Ask) -> list[str]:
    """Ask both until they answer alike; return what is wrong in the end."""
    found: list[str] = []

    def alike() -> bool:
        found[:] = judge(ask, *in_both(both, lambda server: server.ask(ask)))
        return not found

    with suppress(AssertionError):
        wait_until(alike, str(ask), UNTIL_S, poll_s=1)
    return found


def judge(
    ask: Ask, theirs: list[Answer], ours: list[Answer], more: Sequence[str] = ()
) -> list[str]:
    """What is wrong with our answers to a request; nothing if they are as they should be.

    `more` is what is not alike in another way.
    """
    found = [*mismatches(ask, theirs, ours), *more]
    if not ask.differs:
        return found
    row = documented()[ask.differs]
    if not found:
        return [f"both answer alike now: remove the difference {ask.differs}"]
    for status, answers in ((row.theirs, theirs), (row.ours, ours)):
        if status not in {one.status for one in answers}:
            return [f"no answer has the status {status} of the row {ask.differs}: {found}"]
    return []


def test_each_documented_difference_is_seen() -> None:
    scenarios = [*(one for _, one in SCENARIOS), *GUARDED, *RESTORED]
    asks = [FULL, SPOILED, *streams.ASKS, *(ask for one in scenarios for ask in one.asks)]
    assert {ask.differs for ask in asks if ask.differs} == set(documented())
