"""The engine with transformers' continuous batching.

It uses `add_request`, `cancel_request` and `get_result` of a ContinuousBatchingManager, which
runs the model in a thread of its own, and a scheduler of ours in it (transformers 5.23,
generation/continuous_batching).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)
from typing_extensions import override

from handlers.generation.engine import AHEAD, NewTokens, Prompt
from handlers.generation.sampling import Likelihood, Sampling, adjusted, likelihoods
from handlers.generation.scheduler import Control, register
from headrace.generator import Budget

# It logs at level INFO what it chose for each model.
logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)

#: How long a step waits for tokens, so that cancels and new prompts are seen.
_WAIT_S: Final = 0.05
#: Tokens of a page of the cache. Flash attention reads pages of 256 only.
_PAGE: Final = {"cpu": 32, "cuda": 256}
#: The most tokens of one step. A longer prompt is split, so that the others do not wait for it.
_STEP_TOKENS: Final = {"cpu": 512, "cuda": 4096}


class ContinuousEngine:
    """Runs many prompts in one batch, which they join and leave.

    Args:
        model: a causal language model of transformers.
        end_tokens: those that end an answer.
        cache_tokens: for how many tokens there is memory.
        slots: the most prompts at a time.
    """

    has_logprobs: ClassVar[bool] = True

    def __init__(self, model: Any, end_tokens: list[int], cache_tokens: int, slots: int) -> None:
        self._page = _PAGE.get(model.device.type, _PAGE["cpu"])
        self._pages = max(1, cache_tokens // self._page)
        self._slots = slots
        self._end_tokens = end_tokens
        self._sampler = _Sampler()
        self._control = Control()
        self._cancels = 0
        # The manager makes its processors of those of the model.
        model._get_logits_processor = lambda _config: LogitsProcessorList([self._sampler])
        self.manager = model.init_continuous_batching(
            generation_config=_settings(end_tokens),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=self._page,
                num_blocks=self._pages,
                max_batch_tokens=_STEP_TOKENS.get(model.device.type, _STEP_TOKENS["cpu"]),
                max_requests_per_batch=slots,
                scheduler_type=register(self._control),
                safety_margin=0.0,
                use_async_batching=False,
                use_cuda_graph=False,
                per_request_processors=True,
            ),
        )
        self.manager.logit_processor.tensors_required = 1
        # Its thread is a daemon like the one that starts it, so it does not hold up the process.
        starter = threading.Thread(target=self.manager.start, daemon=True)
        starter.start()
        starter.join()
        # By the manager's name of each prompt. A name is used once, as the manager may see a cancel
        # after the next prompt with the same id.
        self._running: dict[str, _Running] = {}
        self._names: dict[str, str] = {}
        self._numbers = itertools.count()

    def budget(self) -> Budget:
        """Return the free slots, and how many tokens the cache has room for."""
        return Budget(self._slots - len(self._running), self._pages * self._page)

    def cost(self, tokens: int) -> int:
        """Return the tokens of whole pages."""
        return -(-tokens // self._page) * self._page

    def add(self, prompt_id: str, prompt: Prompt) -> None:
        """Take a prompt."""
        name = f"{prompt_id}/{next(self._numbers)}"
        end_tokens = [] if prompt.ignore_end else self._end_tokens
        count = len(prompt.tokens)
        self._running[name] = _Running(prompt_id, end_tokens, count, count + prompt.max_tokens)
        self._names[prompt_id] = name
        self._sampler.prompts[name] = (prompt.sampling, prompt.position)
        if prompt.logprobs is not None:
            self._sampler.wanted[name] = (prompt.logprobs, {})
        added = None
        try:
            added = self.manager.add_request(
                list(prompt.tokens),
                request_id=name,
                max_new_tokens=prompt.max_tokens,
                streaming=True,
                eos_token_id=end_tokens,
            )
        finally:
            if added is None:  # it is stopped, or raised because its queue is full
                self._leave(name)
        if added is None:
            raise self._failure()

    def lacks_memory(self) -> bool:
        """Return whether the prompts that run need more pages soon than there are.

        The manager may be a step or two ahead of the tokens that have been taken.
        """
        pages = sum(self._pages_of(one) for one in self._running.values())
        return pages > self._pages or self._control.stuck == self._cancels

    def _pages_of(self, one: _Running) -> int:
        return -(-min(one.tokens + AHEAD, one.most) // self._page)

    def pause(self, prompt_ids: Set[str]) -> None:
        """Leave these prompts out of the steps; they keep their memory."""
        self._control.paused = frozenset(
            name for name, one in self._running.items() if one.id in prompt_ids
        )

    def wake(self) -> None:
        """Let a step that waits for tokens return."""
        self.manager.output_router.output_queue.put(None)

    def step(self) -> Iterable[NewTokens]:
        """Return the tokens that have come, a moment after the last step at the latest."""
        output = self.manager.get_result(timeout=_WAIT_S)
        if output is None and not self.manager.is_running():
            raise self._failure()
        new: dict[str, NewTokens] = {}
        while output is not None:
            self._take(output, new)
            output = self.manager.get_result(timeout=0)
        return new.values()

    def _take(self, output: Any, new: dict[str, NewTokens]) -> None:
        """Add what one output has to the new tokens of its prompt."""
        running = self._running.get(output.request_id)
        if running is None:
            return  # it was cancelled
        if self.manager.background_thread_status.fatal_error is not None:
            raise self._failure()
        tokens = output.generated_tokens
        found = new.setdefault(running.id, NewTokens(running.id))
        found.tokens += tokens[running.come :]
        running.tokens += len(tokens) - running.come
        if (wanted := self._sampler.wanted.get(output.request_id)) is not None:
            at = self._sampler.prompts[output.request_id][1]
            places = range(at + running.come, at + len(tokens))
            found.likelihoods += [wanted[1].pop(place) for place in places]
        running.come = len(tokens)
        if not output.is_finished():
            return
        self._leave(output.request_id)
        if output.error is not None:
            found.error = RuntimeError(output.error)
        else:
            found.finish = "stop" if tokens[-1] in running.end_tokens else "length"

    def cancel(self, prompt_id: str) -> None:
        """Stop a prompt before the manager's next step."""
        name = self._names.get(prompt_id)
        if name is not None:
            self._leave(name)
            self._cancels += 1
            self.manager.cancel_request(name)

    def close(self) -> None:
        """Stop the manager and what it runs."""
        self.manager.stop(block=True, hard_stop=True)

    def _leave(self, name: str) -> None:
        running = self._running.pop(name)
        del self._names[running.id]
        self._sampler.prompts.pop(name, None)
        self._sampler.wanted.pop(name, None)

    def _failure(self) -> Exception:
        error = RuntimeError("continuous batching has stopped")
        error.__cause__ = self.manager.background_thread_status.fatal_error
        return error


@dataclass(slots=True)
class _Running:
    """A prompt with its answer: how many tokens both have now, and at most."""

    id: str
    end_tokens: list[int]
    tokens: int
    most: int
    come: int = 0


def _settings(end_tokens: list[int]) -> Any:
    make: Any = GenerationConfig
    return make(do_sample=False, eos_token_id=end_tokens)


class _Sampler(ContinuousBatchingLogitsProcessor):  # type: ignore[misc] # untyped
    """Samples each row by the parameters of its own request.

    The manager calls `prepare_tensor_args` with the requests of a step, and then the processor
    itself with their logits, in the same thread.
    """

    def __init__(self) -> None:
        self.supported_kwargs: dict[str, type] = {}
        self.ignored_kwargs = ()
        self.prompts: dict[str, tuple[Sampling, int]] = {}
        self._rows: list[tuple[Sampling, int]] = []
        # By the name of a prompt that wants log probabilities: how many, and those that have come,
        # by how many tokens of the answer are before them.
        self.wanted: dict[str, tuple[int, dict[int, Likelihood]]] = {}
        self._names: list[str] = []

    @override
    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.fill_(0)

    @override
    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        self._rows = [self._row(one.state) for one in requests_with_new_token]
        names = (one.state.request_id for one in requests_with_new_token)
        self._names = list(names) if self.wanted else []
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def _row(self, state: Any) -> tuple[Sampling, int]:
        sampling, position = self.prompts.get(state.request_id, (Sampling(), 0))
        return sampling, position + state.generated_len()

    @override
    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        result = adjusted(scores, self._rows)
        if self.wanted:
            self._keep_likelihoods(scores, result)
        return result

    def _keep_likelihoods(self, logits: Tensor, scores: Tensor) -> None:
        # Another thread takes prompts out.
        rows = [(n, self.wanted.get(name)) for n, name in enumerate(self._names)]
        wanted = [(n, *one) for n, one in rows if one is not None]
        if wanted:
            found = likelihoods(logits, scores, [(n, count) for n, count, _ in wanted])
            for (n, _, come), one in zip(wanted, found, strict=True):
                come[self._rows[n][1]] = one
