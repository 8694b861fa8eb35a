"""The engine with vLLM: its scheduler, its cache, its kernels (vllm/v1/engine/async_llm.py).

vLLM is no dependency: install it yourself, for the GPU and the version of torch that you have.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Final

from typing_extensions import override

from handlers.generation.engine import Engine, NewTokens, Prompt
from handlers.generation.sampling import Penalties
from handlers.generation.structure import Grammar
from headrace.errors import ConfigError
from headrace.generator import Budget

#: How long a step waits for tokens, so that cancels and new prompts are seen.
_WAIT_S: Final = 0.05
#: Seeds of vLLM are numbers of 63 bits.
_SEEDS: Final = 1 << 63


class VllmEngine(Engine):
    """Gives prompts to vLLM's `AsyncLLM`, whose event loop has a thread of its own.

    Args:
        dtype: of the weights; "auto" for that of the folder.
        context: the most tokens of a prompt with its answer; None for what the model allows.
        slots: the most prompts at a time.
        prefix_cache: prompts that begin alike share their blocks.

    Raises:
        ConfigError: vLLM is not installed.
    """

    has_logprobs: ClassVar[bool] = False
    has_masks: ClassVar[bool] = False

    def __init__(
        self,
        folder: Path,
        dtype: str,
        context: int | None,
        slots: int,
        end_tokens: list[int],
        *,
        prefix_cache: bool = True,
    ) -> None:
        try:
            import vllm
            import vllm.config
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ConfigError(
                f"options.engine: vllm cannot be imported: {error}",
                hint="install vllm for your GPU, or write engine: continuous",
            ) from error
        self._vllm: Any = vllm
        self._slots = slots
        self._end_tokens = end_tokens
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="vllm")
        self._thread.start()
        arguments = vllm.AsyncEngineArgs(
            model=str(folder),
            dtype=dtype,
            max_model_len=context,
            max_num_seqs=slots,
            # It takes the grammars of `structure`, and needs the tokenizer for their masks.
            structured_outputs_config=vllm.config.StructuredOutputsConfig(backend="guidance"),
            disable_log_stats=True,
            enable_prefix_caching=prefix_cache,
        )

        async def start() -> Any:
            return AsyncLLM.from_engine_args(arguments)

        self._engine: Any = self._wait(start())
        self.context = int(self._engine.model_config.max_model_len)
        # With vLLM's name of each prompt, which is used once: what a cancelled one left is ignored.
        self._found: queue.SimpleQueue[tuple[str, NewTokens]] = queue.SimpleQueue()
        self._running: dict[str, tuple[str, Any]] = {}
        self._numbers = itertools.count()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @override
    def budget(self) -> Budget:
        """Return the free slots; vLLM itself holds prompts back that its cache has no room for."""
        return Budget(self._slots - len(self._running), 2 * self._slots * self.context)

    @override
    def add(self, prompt_id: str, prompt: Prompt) -> None:
        name = f"{prompt_id}/{next(self._numbers)}"
        sampling, asked = prompt.sampling, prompt.penalties or Penalties()
        parameters = self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed % _SEEDS,
            max_tokens=prompt.max_tokens,
            min_p=sampling.min_p,
            frequency_penalty=asked.frequency,
            presence_penalty=asked.presence,
            repetition_penalty=asked.repetition,
            logit_bias=dict(asked.bias) or None,
            # Tokens of the answer that are in the prompt count too.
            min_tokens=max(0, asked.min_tokens - prompt.position),
            ignore_eos=prompt.ignore_end,
            # Those of generation_config.json, which vLLM does not read here.
            stop_token_ids=prompt.ends(self._end_tokens),
            detokenize=False,
            structured_outputs=self._structured(prompt.grammar),
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        future = asyncio.run_coroutine_threadsafe(
            self._read(prompt_id, name, prompt, parameters), self._loop
        )
        self._running[prompt_id] = (name, future)

    def _structured(self, grammar: Grammar | None) -> Any:
        if grammar is None:
            return None
        member = {"regex" if grammar.regex else "grammar": grammar.text}
        return self._vllm.sampling_params.StructuredOutputsParams(**member)

    async def _read(self, prompt_id: str, name: str, prompt: Prompt, parameters: Any) -> None:
        """Put what vLLM returns for one prompt into the queue."""
        try:
            tokens = {"prompt_token_ids": list(prompt.tokens)}
            async for output in self._engine.generate(tokens, parameters, name):
                prompt.cached.note(output.num_cached_tokens or 0)
                (one,) = output.outputs
                new = NewTokens(prompt_id, list(one.token_ids))
                if output.finished and one.finish_reason in ("stop", "length"):
                    new.finish = one.finish_reason
                elif output.finished:
                    new.error = RuntimeError(f"vLLM ended the answer: {one.finish_reason}")
                self._found.put((name, new))
        except Exception as error:  # noqa: BLE001 - it becomes the job's error
            self._found.put((name, NewTokens(prompt_id, error=error)))

    @override
    def step(self) -> Iterable[NewTokens]:
        if self._engine.errored:
            raise self._engine.dead_error
        found: dict[str, NewTokens] = {}
        wait = True
        while True:
            try:
                name, new = self._found.get(block=wait, timeout=_WAIT_S if wait else None)
            except queue.Empty:
                return found.values()
            wait = False
            if self._running.get(new.id, ("",))[0] != name:
                continue  # it was cancelled
            if new.finish or new.error:
                del self._running[new.id]
            if (known := found.get(new.id)) is None:
                found[new.id] = new
            else:
                known.tokens += new.tokens
                known.finish, known.error = new.finish, new.error

    @override
    def cancel(self, prompt_id: str) -> None:
        found = self._running.pop(prompt_id, None)
        if found is not None:
            name, future = found
            future.cancel()
            self._wait(self._engine.abort(name))

    @override
    def close(self) -> None:
        self._engine.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
