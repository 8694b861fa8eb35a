"""Headrace answers as the real TorchServe does: the same archives, the same requests.

Where it does not on purpose, docs/torchserve-differences.md has a row, and the request names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.compat import guarded_cases, servers
from tests.compat.builtin_cases import BUILTIN
from tests.compat.cases import CONFIG, QUEUE, Scenario
from tests.compat.compare import mismatches, perform
from tests.compat.differences import documented
from tests.compat.guarded_cases import GUARDED
from tests.compat.held import ACCEPTED, FULL, TICKETED, batches, fill, ticketed
from tests.compat.inference_cases import INFERENCE, SHAPES
from tests.compat.management_cases import FAILURES, MANAGEMENT
from tests.compat.servers import Answer, Ask, Server

T = TypeVar("T")
SCENARIOS = {one.name: one for one in (*INFERENCE, *SHAPES, *BUILTIN, *FAILURES, *MANAGEMENT)}
FLAGS = ("--disable-token-auth", "--enable-model-api")


@pytest.fixture(scope="module")
def both(store: Path) -> Iterator[tuple[Server, Server]]:
    """The real TorchServe, and Headrace in its place; `noop` is loaded in both."""
    yield from pair(store, ["noop.mar"], CONFIG, *FLAGS)


@pytest.fixture(scope="module")
def guarded(store: Path) -> Iterator[tuple[Server, Server]]:
    """Both without flags: they ask for tokens, and register nothing over HTTP."""
    yield from pair(store, guarded_cases.MODELS, guarded_cases.CONFIG)


def pair(
    store: Path, models: Sequence[str], config: Mapping[str, str], *flags: str
) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        real = stack.enter_context(servers.theirs(store, models, config, *flags))
        yield real, stack.enter_context(servers.ours(store, models, config, *flags))


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=str)
def test_headrace_answers_as_torchserve_does(
    both: tuple[Server, Server], scenario: Scenario
) -> None:
    problems = compare(both, partial(perform, scenario))
    assert not problems, "\n".join(problems)


def test_requests_that_wait_are_one_batch(both: tuple[Server, Server], tmp_path: Path) -> None:
    theirs, ours = in_both(both, partial(batches, folder=tmp_path))
    assert theirs == [1] + [QUEUE] * QUEUE
    assert ours[0] == 1
    assert max(ours) > 1


def test_a_full_queue_refuses(both: tuple[Server, Server], tmp_path: Path) -> None:
    answers = in_both(both, partial(fill, folder=tmp_path))
    for server, (_, accepted) in zip(both, answers, strict=True):
        assert accepted in ACCEPTED[server.real]
    (theirs, _), (ours, _) = answers
    assert judge(FULL, [theirs], [ours]) == []


def test_a_model_with_tickets_takes_a_request_if_a_worker_is_idle(
    both: tuple[Server, Server], tmp_path: Path
) -> None:
    (theirs, later), (ours, ours_later) = in_both(both, partial(ticketed, folder=tmp_path))
    assert (theirs.status, ours.status) == (503, 503)
    assert judge(TICKETED, [theirs], [ours]) == []
    assert later == ours_later == 200


@pytest.mark.parametrize("scenario", GUARDED, ids=str)
def test_headrace_guards_itself_as_torchserve_does(
    guarded: tuple[Server, Server], scenario: Scenario
) -> None:
    problems = compare(guarded, lambda server: [(ask, server.ask(ask)) for ask in scenario.asks])
    assert not problems, "\n".join(problems)


def in_both(both: tuple[Server, Server], do: Callable[[Server], T]) -> tuple[T, T]:
    """Do something with both servers at once."""
    with ThreadPoolExecutor(2) as pool:
        theirs, ours = pool.map(do, both)
    return theirs, ours


def compare(
    both: tuple[Server, Server], send: Callable[[Server], list[tuple[Ask, list[Answer]]]]
) -> list[str]:
    """Send requests to both at once; return what is wrong with our answers."""
    theirs, ours = in_both(both, send)
    problems: list[str] = []
    for (ask, one), (_, other) in zip(theirs, ours, strict=True):
        problems += [f"{ask}\n    {text}" for text in judge(ask, one, other)]
    return problems


def judge(ask: Ask, theirs: list[Answer], ours: list[Answer]) -> list[str]:
    """What is wrong with our answers to a request; nothing if they are as they should be."""
    found = mismatches(ask, theirs, ours)
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
    asks = [FULL, *(ask for one in (*SCENARIOS.values(), *GUARDED) for ask in one.asks)]
    assert {ask.differs for ask in asks if ask.differs} == set(documented())
