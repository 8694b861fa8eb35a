"""The engine of vLLM, on a module with its interface: the answers, cancels and failures."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from handlers.generation.engine import NewTokens, Prompt
from handlers.generation.sampling import Penalties, Sampling
from handlers.generation.vllm import VllmEngine
from handlers.language_model import INCLUDED, LanguageModel
from headrace.handler import Context
from tests.harness.wait import wait_until

SLOTS = 3
END = 0


@dataclass
class Parameters:
    """The arguments of `SamplingParams` and `AsyncEngineArgs`."""

    given: dict[str, Any]

    def __init__(self, **given: Any) -> None:
        self.given = given


@dataclass
class FakeLLM:
    """An `AsyncLLM` that counts on from the last token of a prompt, three tokens at a time.

    Attributes:
        gate: opened by the test; each output needs one permit.
    """

    arguments: Parameters
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    prompts: dict[str, tuple[list[int], Parameters]] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    errored: bool = False
    fails: bool = False
    finish: str = "length"
    down: bool = False
    dead_error: Exception = field(default_factory=lambda: RuntimeError("the engine is dead"))
    model_config: Any = field(default_factory=lambda: SimpleNamespace(max_model_len=64))

    @classmethod
    def from_engine_args(cls, arguments: Parameters) -> FakeLLM:
        asyncio.get_running_loop()  # vLLM starts tasks
        return cls(arguments)

    async def generate(
        self, prompt: Any, sampling_params: Parameters, request_id: str
    ) -> AsyncIterator[Any]:
        tokens, most = prompt["prompt_token_ids"], sampling_params.given["max_tokens"]
        self.prompts[request_id] = (tokens, sampling_params)
        come = 0
        try:
            while come < most:
                await self.gate.acquire()
                if self.fails:
                    raise ValueError("the prompt is refused")
                new = [tokens[-1] + come + n + 1 for n in range(min(3, most - come))]
                come += len(new)
                ended = come == most
                output = SimpleNamespace(
                    token_ids=new, finish_reason=self.finish if ended else None
                )
                yield SimpleNamespace(
                    outputs=[output], finished=ended, num_cached_tokens=len(tokens) - 1
                )
        finally:
            self.left.append(request_id)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def shutdown(self) -> None:
        self.down = True


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "vllm",
        "vllm.config",
        "vllm.sampling_params",
        "vllm.v1",
        "vllm.v1.engine",
        "vllm.v1.engine.async_llm",
    )
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm"].AsyncEngineArgs = modules["vllm"].SamplingParams = Parameters
    modules["vllm"].config = modules["vllm.config"]
    modules["vllm.config"].StructuredOutputsConfig = Parameters
    modules["vllm.sampling_params"].StructuredOutputsParams = Parameters
    modules["vllm"].sampling_params = modules["vllm.sampling_params"]
    modules["vllm.sampling_params"].RequestOutputKind = SimpleNamespace(DELTA="delta")
    modules["vllm.v1.engine.async_llm"].AsyncLLM = FakeLLM


@pytest.fixture
def engine() -> Iterator[VllmEngine]:
    engine = VllmEngine(Path("/model"), "auto", 64, SLOTS, [END])
    yield engine
    engine.close()
    assert fake(engine).down


def fake(engine: VllmEngine) -> FakeLLM:
    found = engine._engine
    assert isinstance(found, FakeLLM)
    return found


def allow(engine: VllmEngine, outputs: int) -> None:
    """Let so many outputs come."""
    for _ in range(outputs):
        engine._loop.call_soon_threadsafe(fake(engine).gate.release)


def prompt(*tokens: int, most: int = 6, **more: Any) -> Prompt:
    return Prompt(list(tokens), most, Sampling(0.5, 0.9, 7, seed=1 << 70), **more)


def taken(engine: VllmEngine, *ends: str) -> dict[str, NewTokens]:
    """What comes until these prompts have ended."""
    found: dict[str, NewTokens] = {}

    def ended() -> bool:
        for new in engine.step():
            known = found.setdefault(new.id, NewTokens(new.id))
            known.tokens += new.tokens
            known.finish, known.error = new.finish, new.error
        return all(one in found and (found[one].finish or found[one].error) for one in ends)

    wait_until(ended, f"{ends} end")
    return found


def test_vllm_gets_the_model_and_the_parameters_of_each_prompt(engine: VllmEngine) -> None:
    outputs = fake(engine).arguments.given.pop("structured_outputs_config")
    assert outputs.given == {"backend": "guidance"}
    assert fake(engine).arguments.given == {
        "model": "/model", "dtype": "auto", "max_model_len": 64, "max_num_seqs": SLOTS,
        "disable_log_stats": True, "enable_prefix_caching": True,
    }  # fmt: skip
    engine.add("a", prompt(5))
    penalties = Penalties(0.5, -0.5, 1.1, {7: 2.0}, min_tokens=3)
    more: dict[str, Any] = {"penalties": penalties, "stop_tokens": [9], "position": 1}
    engine.add("b", prompt(5, ignore_end=True, **more))
    allow(engine, 4)
    taken(engine, "a", "b")
    (one, first), (other, second) = fake(engine).prompts.values()
    assert one == other == [5]
    assert first.given == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": (1 << 70) % (1 << 63),
        "max_tokens": 6, "ignore_eos": False, "stop_token_ids": [END], "detokenize": False,
        "output_kind": "delta", "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "repetition_penalty": 1.0, "logit_bias": None, "min_tokens": 0,
        "structured_outputs": None,
    }  # fmt: skip
    assert second.given == {
        **first.given, "ignore_eos": True, "stop_token_ids": [9], "frequency_penalty": 0.5,
        "presence_penalty": -0.5, "repetition_penalty": 1.1, "logit_bias": {7: 2.0},
        "min_tokens": 2,
    }  # fmt: skip


def test_prompts_run_together_and_each_gets_its_own_tokens(engine: VllmEngine) -> None:
    assert engine.budget().slots == SLOTS
    engine.add("a", prompt(10, most=7))
    engine.add("b", prompt(20, most=2))
    assert engine.budget().slots == SLOTS - 2
    allow(engine, 4)
    found = taken(engine, "a", "b")
    assert found["a"].tokens == list(range(11, 18))
    assert found["b"].tokens == [21, 22]
    assert {one.finish for one in found.values()} == {"length"}
    assert engine.budget().slots == SLOTS


def test_a_cancelled_prompt_is_aborted_and_what_it_left_is_ignored(engine: VllmEngine) -> None:
    engine.add("a", prompt(10, most=9))
    allow(engine, 1)
    wait_until(lambda: any(new.tokens for new in engine.step()), "the first tokens come")
    engine.cancel("a")
    (name,) = fake(engine).aborted
    wait_until(lambda: fake(engine).left == [name], "its generator is closed")
    assert engine.budget().slots == SLOTS
    # The same id again is another prompt.
    engine.add("a", prompt(30, most=3))
    allow(engine, 1)
    assert taken(engine, "a")["a"].tokens == [31, 32, 33]
    assert len(set(fake(engine).prompts)) == 2


def test_a_prompt_that_fails_ends_alone(engine: VllmEngine) -> None:
    engine.add("a", prompt(10))
    fake(engine).fails = True
    allow(engine, 1)
    assert str(taken(engine, "a")["a"].error) == "the prompt is refused"
    fake(engine).fails = False
    engine.add("b", prompt(20))
    allow(engine, 2)
    assert taken(engine, "b")["b"].error is None


def test_an_answer_that_vllm_gives_up_is_an_error(engine: VllmEngine) -> None:
    fake(engine).finish = "abort"
    engine.add("a", prompt(10))
    allow(engine, 2)
    found = taken(engine, "a")["a"]
    assert found.finish is None
    assert str(found.error) == "vLLM ended the answer: abort"


def test_a_dead_engine_ends_the_step(engine: VllmEngine) -> None:
    fake(engine).errored = True
    with pytest.raises(RuntimeError, match="the engine is dead"):
        engine.step()


def test_the_handler_writes_the_text_of_the_tokens() -> None:
    model = LanguageModel()
    options = {"engine": "vllm", "context": 64}
    model.initialize(Context("m", "1", "cpu", Path("/"), options=options, max_batch_size=SLOTS))
    try:
        engine = model.engine
        assert isinstance(engine, VllmEngine)
        assert fake(engine).arguments.given["model"] == str(INCLUDED)
        (asked,) = model.preprocess([{"prompt": [58, 59, 60], "max_tokens": 6}])
        allow(engine, 1)
        model.add("a", asked)
        pieces = list(wait_until(lambda: list(model.step()), "the first piece comes") or [])
        # It goes on elsewhere from the tokens of its pieces.
        tokens = [token for piece in pieces for token in piece.tokens]
        model.cancel("a")
        model.add("b", asked, tokens)
        wait_until(lambda: len(fake(engine).prompts) == 2, "it is added")
        given, parameters = list(fake(engine).prompts.values())[1]
        assert given == [58, 59, 60, *tokens]
        assert parameters.given["max_tokens"] == 6 - len(tokens)
        allow(engine, 2)

        def ended() -> bool:
            pieces.extend(model.step())
            return pieces[-1].finish is not None

        wait_until(ended, "it ends")
        text = "".join(piece.delta for piece in pieces if piece.delta)
        assert text == model.tokenizer.decode(list(range(61, 67)))
        assert pieces[-1].usage == {
            "prompt_tokens": 3, "cached_tokens": 2, "completion_tokens": 6, "total_tokens": 9
        }  # fmt: skip
    finally:
        model.engine.close()


TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
CHAT = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 6}


@pytest.mark.parametrize(
    ("more", "member", "text"),
    [
        ({"structured": {"regex": "[0-9]+"}}, "regex", "[0-9]+"),
        ({"structured": {"choice": ["a", "b"]}}, "grammar", 'start: CHOICE\nCHOICE: "a" | "b"'),
        ({"structured": {"json": {"type": "array"}}}, "grammar", 'start: %json {"type":"array",'),
        ({"tools": [TOOL], "tool_choice": "required"}, "grammar", "start: call"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "go"}}}, "grammar", "start: call"),
    ],
)
def test_shapes_and_forced_calls_are_vllms_to_mask(more: Any, member: str, text: str) -> None:
    model = LanguageModel()
    options = {"engine": "vllm"}
    model.initialize(Context("m", "1", "cpu", Path("/"), options=options, max_batch_size=SLOTS))
    try:
        engine = model.engine
        assert isinstance(engine, VllmEngine)
        model.context_tokens = 512
        (asked,) = model.preprocess([{**CHAT, **more}])
        preparation = model.preparation(asked)
        assert preparation is not None
        preparation.result()  # llguidance takes it
        allow(engine, 2)
        model.add("a", asked)
        pieces: list[Any] = []

        def ended() -> bool:
            pieces.extend(model.step())
            return bool(pieces) and pieces[-1].finish is not None

        wait_until(ended, "it ends")
        ((_, parameters),) = fake(engine).prompts.values()
        shape = parameters.given["structured_outputs"].given
        assert list(shape) == [member]
        assert shape[member].startswith(text)
        # vLLM begins a grammar anew, so the answer begins again in another process.
        assert not any(piece.tokens for piece in pieces)
        assert pieces[-1].usage["completion_tokens"] == 6
    finally:
        model.engine.close()
