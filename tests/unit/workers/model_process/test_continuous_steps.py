"""How soon a request that joins others has its first token, counted in steps of the model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.language_model import LanguageModel
from headrace.handler import Context
from tests.harness.wait import wait_until
from workers.model_process.continuous import ContinuousExecutor
from workers.model_process.executor import BatchExecutor
from workers.model_process.overlap import Inbox

LONG = 8
#: How many more steps may run after the one that has read the prompt of a request.
STEPS_MAX = 3


class Steps:
    """Lets the steps of an engine run one by one.

    Attributes:
        rows: for each step that has begun, the requests that get a token in it.
    """

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[set[str]] = []
        self._allowed = threading.Semaphore(0)
        self._prepare = engine._sampler.prepare_tensor_args
        monkeypatch.setattr(engine._sampler, "prepare_tensor_args", self._begin)

    def _begin(self, requests: list[Any]) -> Any:
        self.rows.append({one.state.request_id.partition("/")[0] for one in requests})
        self._allowed.acquire()
        return self._prepare(requests)

    def run_one(self) -> set[str]:
        """Let the step that has begun end, and the next one begin; return whom it gave a token."""
        before = len(self.rows)
        self._allowed.release()
        wait_until(lambda: len(self.rows) > before, "the next step begins")
        return self.rows[before - 1]

    def run_all(self) -> None:
        """Let all steps run from now on."""
        self._allowed.release(1_000_000)


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    handler = LanguageModel()
    options = {"engine": "continuous"}
    handler.initialize(Context("m", "1", "cpu", Path(), options=options, max_batch_size=LONG + 1))
    yield handler
    handler.engine.close()
    torch.set_num_threads(before)


def question(**more: Any) -> bytes:
    messages = [{"role": "user", "content": "What is json.loads?"}]
    return json.dumps({"messages": messages, "temperature": 0, **more}).encode()


def test_a_short_request_beside_long_ones_has_its_first_token_at_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each process that collects these tests would take two seconds to import it.
    from handlers.generation.continuous import ContinuousEngine

    engine = model.engine
    assert isinstance(engine, ContinuousEngine)
    inbox: Inbox = Inbox()
    sent: list[Any] = []
    executor = ContinuousExecutor(
        BatchExecutor(model, model.context), model, inbox, sent.append, "test"
    )
    steps = Steps(engine, monkeypatch)
    thread = threading.Thread(target=executor.run, daemon=True)
    thread.start()

    def pieces_of(job_id: str) -> list[Any]:
        rows = [row for kind, *rest in list(sent) if kind == "pieces" for row in rest[0]]
        return [row for row in rows if row[1] == job_id and row[3]]

    dropped: list[set[int]] = [set() for _ in range(LONG)]
    for n, gone in enumerate(dropped):
        long = question(max_tokens=500, ignore_eos=True)
        inbox.put(["batch", n, [(f"long{n}", long)], gone])
    wait_until(lambda: steps.rows, "the first step begins")
    everybody = {f"long{n}" for n in range(LONG)}
    wait_until(lambda: steps.run_one() == everybody, "all of them run")
    # The next step has begun without the short one.
    inbox.put(["batch", LONG, [("short", question(max_tokens=5))], set()])
    wait_until(lambda: not engine.manager.input_queue.empty(), "it has joined")
    assert steps.run_one() == everybody
    assert steps.run_one() == {*everybody, "short"}, "its prompt is read beside the others"
    for _ in range(STEPS_MAX - 1):
        assert steps.run_one() == {*everybody, "short"}
    wait_until(lambda: pieces_of("short"), "its first token is sent")
    for gone in dropped:
        gone.add(0)
    steps.run_all()
    wait_until(lambda: sum(frame[0] == "done" for frame in list(sent)) == LONG + 1, "all end")
    inbox.put(["stop"])
    thread.join(60)
    (outcome,) = next(frame[2] for frame in sent if frame[:2] == ["done", LONG])
    assert json.loads(outcome[1])["usage"]["completion_tokens"] == 5
