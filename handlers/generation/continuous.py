"""The engine with transformers' continuous batching.

It uses `add_request` and `cancel_request` of a ContinuousBatchingManager, with a scheduler of ours
in it. The steps run in the thread that calls `step`, and not in the manager's own. Two threads
would wait for each other's turns of the interpreter many times in each step (transformers 5.23,
generation/continuous_batching).
"""

from __future__ import annotations

import itertools
import logging
import queue
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)
from transformers.generation.continuous_batching.requests import RequestStatus
from transformers.generation.continuous_batching.scheduler import (
    SCHEDULER_MAPPING,
    FIFOScheduler,
)
from typing_extensions import override

from handlers.generation.engine import AHEAD, NewTokens, Prompt
from handlers.generation.sampling import Likelihood, Sampling, adjusted, likelihoods
from headrace.generator import Budget

_NUMBERS: Final = itertools.count()


@dataclass(slots=True)
class Control:
    """What an engine and the scheduler of its manager read of each other.

    Attributes:
        paused: the requests that have no part in a step.
        stuck: no request could get the memory that it needs.
    """

    paused: Set[str] = frozenset()
    stuck: bool = False


def register(control: Control) -> str:
    """Make a scheduler with this control known to transformers; return its name there."""
    name = f"headrace {next(_NUMBERS)}"
    SCHEDULER_MAPPING[name] = partial(FairScheduler, control)
    return name


class FairScheduler(FIFOScheduler):  # type: ignore[misc] # untyped
    """Gives each step to all answers that are written, and to prompts by turns."""

    def __init__(self, control: Control, *args: Any, **options: Any) -> None:
        self._control = control
        self._cheapest_next = False
        super().__init__(*args, **options)

    @override
    def schedule_batch(self, token_budget: int, cache_budget: int) -> tuple[Any, bool, int, int]:
        removed: set[str] = set()
        candidates = self._candidates(token_budget)
        found, lacking, *rest = self._process_candidates(
            candidates, token_budget, cache_budget, removed
        )
        if lacking and self.cache.evict_cached_blocks() and not found:
            # Blocks of prompts that have ended were kept for others that begin alike.
            self.cache.pool.try_to_free_sectors()
            found, lacking, *rest = self._process_candidates(
                candidates, token_budget, cache_budget, removed
            )
        self._cleanup_waiting_queue(removed)
        # The manager would put some of them back; the engine's owner does.
        self.starved_requests: list[Any] = []
        self._control.stuck = bool(lacking and not found)
        fast, queries, reads = rest
        return (found, fast, queries, reads) if found else ([], fast, 0, 0)

    def _candidates(self, tokens: int) -> list[Any]:
        """Return the requests for a step of so many tokens, the first one first."""
        paused = self._control.paused
        active = [one for one in self.active_requests.values() if one.request_id not in paused]
        answers = [one for one in active if one.status == RequestStatus.DECODING]
        prompts = [one for one in active if one.status == RequestStatus.PREFILLING]
        prompts += [one for one in self._get_waiting_candidates() if one.request_id not in paused]
        if len(prompts) > 1:
            if self._cheapest_next:
                prompts = _cheapest(prompts, tokens - len(answers))
            self._cheapest_next = not self._cheapest_next
        return answers + prompts


def _cheapest(prompts: list[Any], tokens: int) -> list[Any]:
    """Return the cheapest prompts that fit whole into a step, which is then short; else all."""
    prompts = sorted(prompts, key=lambda one: len(one.remaining_prefill_tokens))
    totals = itertools.accumulate(len(one.remaining_prefill_tokens) for one in prompts)
    whole = [one for one, total in zip(prompts, totals, strict=True) if total <= tokens]
    return whole or prompts


# It logs at level INFO what it chose for each model.
logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)

#: How long a step lasts if no prompt can go on.
_IDLE_S: Final = 0.001
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
    can_pause: ClassVar[bool] = True

    def __init__(self, model: Any, end_tokens: list[int], cache_tokens: int, slots: int) -> None:
        self._page = _PAGE.get(model.device.type, _PAGE["cpu"])
        self._pages = max(1, cache_tokens // self._page)
        self._slots = slots
        self._end_tokens = end_tokens
        self._sampler = _Sampler()
        self._control = Control()
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
        if model.device.type == "cuda" and model.device.index is not None:
            # Kernels are started on the thread's device, and not on that of their tensors.
            torch.cuda.set_device(model.device)
        self._batches = self.manager._create_batch_processor()
        self._outputs: queue.Queue[Any] = self.manager.output_router.output_queue
        self._running: dict[str, _Running] = {}

    def budget(self) -> Budget:
        """Return the free slots, and how many tokens the cache has room for."""
        return Budget(self._slots - len(self._running), self._pages * self._page)

    def cost(self, tokens: int) -> int:
        """Return the tokens of whole pages."""
        return -(-tokens // self._page) * self._page

    def add(self, prompt_id: str, prompt: Prompt) -> None:
        """Take a prompt."""
        end_tokens = [] if prompt.ignore_end else self._end_tokens
        count = len(prompt.tokens)
        self._running[prompt_id] = _Running(end_tokens, count, count + prompt.max_tokens)
        self._sampler.prompts[prompt_id] = (prompt.sampling, prompt.position)
        if prompt.logprobs is not None:
            self._sampler.wanted[prompt_id] = (prompt.logprobs, {})
        added = None
        try:
            added = self.manager.add_request(
                list(prompt.tokens),
                request_id=prompt_id,
                max_new_tokens=prompt.max_tokens,
                streaming=True,
                eos_token_id=end_tokens,
            )
        finally:
            if added is None:  # it is stopped, or raised because its queue is full
                self._leave(prompt_id)
        if added is None:
            raise RuntimeError("continuous batching has stopped")

    def lacks_memory(self) -> bool:
        """Return whether the prompts that run need more pages soon than there are."""
        pages = sum(self._pages_of(one) for one in self._running.values())
        return pages > self._pages or self._control.stuck

    def _pages_of(self, one: _Running) -> int:
        return -(-min(one.tokens + AHEAD, one.most) // self._page)

    def pause(self, prompt_ids: Set[str]) -> None:
        """Leave these prompts out of the steps; they keep their memory."""
        self._control.paused = prompt_ids

    def step(self) -> Iterable[NewTokens]:
        """Run one step of the model, and return the tokens that it made."""
        batches = self._batches
        # Tensors without a history of their changes save a little in each operation.
        with torch.inference_mode():
            if batches.prepare_next_batch():
                batches._generation_step(self.manager.model)
                batches.update_batch()
            elif self._outputs.empty():
                time.sleep(_IDLE_S)
        new: dict[str, NewTokens] = {}
        while not self._outputs.empty():
            self._take(self._outputs.get(), new)
        return new.values()

    def _take(self, output: Any, new: dict[str, NewTokens]) -> None:
        """Add what one output has to the new tokens of its prompt."""
        running = self._running[output.request_id]
        tokens = output.generated_tokens
        found = new.setdefault(output.request_id, NewTokens(output.request_id))
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
        """Stop a prompt, and free its memory at once."""
        if prompt_id in self._running:
            self._leave(prompt_id)
            self._control.stuck = False
            self.manager.cancel_request(prompt_id)
            # The next step begins with the same two calls.
            self._batches._update_tp_group_state()
            self._batches.scheduler.clear_cancelled_requests()

    def close(self) -> None:
        """Free the memory of the cache."""
        self.manager.destroy()
        del self._batches

    def _leave(self, prompt_id: str) -> None:
        del self._running[prompt_id]
        self._sampler.prompts.pop(prompt_id, None)
        self._sampler.wanted.pop(prompt_id, None)


@dataclass(slots=True)
class _Running:
    """A prompt with its answer: how many tokens both have now, and at most."""

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
    itself with their logits.
    """

    def __init__(self) -> None:
        self.supported_kwargs: dict[str, type] = {}
        self.ignored_kwargs = ()
        self.prompts: dict[str, tuple[Sampling, int]] = {}
        self._rows: list[tuple[Sampling, int]] = []
        # By the name of a prompt that wants log probabilities: how many it wants, and those that
        # have come. Each is under the number of the answer's tokens before it.
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
        wanted = [
            (n, *self.wanted[name]) for n, name in enumerate(self._names) if name in self.wanted
        ]
        if wanted:
            found = likelihoods(logits, scores, [(n, count) for n, count, _ in wanted])
            for (n, _, come), one in zip(wanted, found, strict=True):
                come[self._rows[n][1]] = one
