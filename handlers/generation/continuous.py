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
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
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

from handlers.generation.engine import AHEAD, Engine, NewTokens, Prompt
from handlers.generation.sampling import (
    Likelihood,
    Penalized,
    PromptScores,
    Sampling,
    adjusted,
    likelihoods,
    masked,
    penalized,
)
from headrace.generator import Budget

# It logs at level INFO what it chose for each model.
logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)

#: How long a step lasts if no prompt can go on.
_IDLE_S: Final = 0.001
#: Tokens of a page of the cache. Flash attention reads pages of 256 only.
_PAGE: Final = {"cpu": 32, "cuda": 256}
#: The most tokens of one step. A longer prompt is split, so that the others do not wait for it.
_STEP_TOKENS: Final = {"cpu": 512, "cuda": 4096}
_SCHEDULER_NUMBERS: Final = itertools.count()


@dataclass(slots=True)
class _SchedulerState:
    """What engine and scheduler share: the paused prompts, and whether all lack memory (stuck)."""

    paused: Set[str] = frozenset()
    stuck: bool = False


class FairScheduler(FIFOScheduler):  # type: ignore[misc] # untyped
    """Gives each step to all answers that are written, and to prompts by turns."""

    def __init__(
        self, state: _SchedulerState, running: Mapping[str, _Running], *args: Any, **options: Any
    ) -> None:
        self._state = state
        self._running = running
        self._cheapest_next = False
        super().__init__(*args, **options)

    @override
    def schedule_batch(self, token_budget: int, cache_budget: int) -> tuple[Any, bool, int, int]:
        removed: set[str] = set()
        candidates = self._candidates(token_budget)
        scheduled, lacking, *rest = self._process_candidates(
            candidates, token_budget, cache_budget, removed
        )
        if lacking and self.cache.evict_cached_blocks() and not scheduled:
            # Blocks of prompts that have ended were kept for others that begin alike.
            self.cache.pool.try_to_free_sectors()
            scheduled, lacking, *rest = self._process_candidates(
                candidates, token_budget, cache_budget, removed
            )
        self._cleanup_waiting_queue(removed)
        # The manager would put some of them back; the engine's owner does.
        self.starved_requests: list[Any] = []
        self._state.stuck = bool(lacking and not scheduled)
        fast, queries, reads = rest
        return (scheduled, fast, queries, reads) if scheduled else ([], fast, 0, 0)

    @override
    def _schedule_request(self, state: Any, *args: Any) -> None:
        if (running := self._running.get(state.request_id)) is not None:
            # Before the first step of a request these are the tokens of blocks that it shares.
            running.prompt.cached.note(state.position_offset)
        super()._schedule_request(state, *args)

    def _candidates(self, tokens: int) -> list[Any]:
        """Return the requests for a step of so many tokens, the first one first."""

        def not_paused(states: Iterable[Any]) -> list[Any]:
            return [state for state in states if state.request_id not in self._state.paused]

        active = not_paused(self.active_requests.values())
        answers = [state for state in active if state.status == RequestStatus.DECODING]
        prompts = [state for state in active if state.status == RequestStatus.PREFILLING]
        prompts += not_paused(self._get_waiting_candidates())
        if len(prompts) > 1:
            if self._cheapest_next:
                prompts = _cheapest(prompts, tokens - len(answers))
            self._cheapest_next = not self._cheapest_next
        return answers + prompts


def _cheapest(prompts: list[Any], tokens: int) -> list[Any]:
    """Return the cheapest prompts that fit whole into a step, which is then short; else all."""
    prompts = sorted(prompts, key=lambda state: len(state.remaining_prefill_tokens))
    totals = itertools.accumulate(len(state.remaining_prefill_tokens) for state in prompts)
    fitting = [state for state, total in zip(prompts, totals, strict=True) if total <= tokens]
    return fitting or prompts


@dataclass(slots=True)
class _Running:
    """A prompt with its answer.

    Attributes:
        returned: how many tokens of the answer `step` has returned.
        likelihoods: those that `step` has not returned, by the place of their token in the answer.
        error: its sampling has failed; it ends this answer alone.
        penalized: what changes its logits.
    """

    prompt: Prompt
    returned: int = 0
    likelihoods: dict[int, Likelihood] = field(default_factory=dict)
    error: BaseException | None = None
    penalized: Penalized | None = None


class ContinuousEngine(Engine):
    """Runs many prompts in one batch, which they join and leave.

    Args:
        cache_tokens: for how many tokens there is memory.
        slots: the most prompts at a time.
        prefix_cache: prompts that begin alike share their blocks.
    """

    can_pause: ClassVar[bool] = True

    def __init__(
        self,
        model: Any,
        end_tokens: list[int],
        cache_tokens: int,
        slots: int,
        *,
        prefix_cache: bool = True,
    ) -> None:
        self._page = _PAGE.get(model.device.type, _PAGE["cpu"])
        self._pages = max(1, cache_tokens // self._page)
        self._slots = slots
        self._end_tokens = end_tokens
        self._running: dict[str, _Running] = {}
        self._scheduler = _SchedulerState()
        scheduler_name = f"headrace {next(_SCHEDULER_NUMBERS)}"
        SCHEDULER_MAPPING[scheduler_name] = partial(FairScheduler, self._scheduler, self._running)
        self._sampler = _Sampler(self._running)
        # The manager makes its processors of those of the model.
        model._get_logits_processor = lambda _config: LogitsProcessorList([self._sampler])
        settings: Any = GenerationConfig
        self.manager = model.init_continuous_batching(
            generation_config=settings(do_sample=False, eos_token_id=end_tokens),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=self._page,
                num_blocks=self._pages,
                max_batch_tokens=_STEP_TOKENS.get(model.device.type, _STEP_TOKENS["cpu"]),
                max_requests_per_batch=slots,
                scheduler_type=scheduler_name,
                safety_margin=0.0,
                use_async_batching=False,
                use_cuda_graph=False,
                per_request_processors=True,
                allow_block_sharing=prefix_cache,
            ),
        )
        self.manager.logit_processor.tensors_required = 1
        if model.device.type == "cuda" and model.device.index is not None:
            # Kernels are started on the thread's device, and not on that of their tensors.
            torch.cuda.set_device(model.device)
        self._batches = self.manager._create_batch_processor()
        self._outputs: queue.Queue[Any] = self.manager.output_router.output_queue

    @override
    def budget(self) -> Budget:
        return Budget(self._slots - len(self._running), self._pages * self._page)

    @override
    def cost(self, tokens: int) -> int:
        """Return the tokens of whole pages."""
        return -(-tokens // self._page) * self._page

    @override
    def add(self, prompt_id: str, prompt: Prompt) -> None:
        changed = prompt.penalized(self._end_tokens)
        self._running[prompt_id] = _Running(prompt, penalized=changed)
        added = None
        try:
            added = self.manager.add_request(
                list(prompt.tokens),
                request_id=prompt_id,
                max_new_tokens=prompt.max_tokens,
                streaming=True,
                eos_token_id=prompt.ends(self._end_tokens),
            )
        finally:
            if added is None:  # it is stopped, or raised because its queue is full
                del self._running[prompt_id]
        if added is None:
            raise RuntimeError("continuous batching has stopped")

    @override
    def prompt_scores(self, tokens: Sequence[int], likeliest: int) -> PromptScores:
        return PromptScores(self.manager.model, tokens, likeliest)

    @override
    def lacks_memory(self) -> bool:
        needed = 0
        for running in self._running.values():
            new = min(running.returned + AHEAD, running.prompt.max_tokens)
            needed += self.cost(len(running.prompt.tokens) + new)
        return needed > self._pages * self._page or self._scheduler.stuck

    @override
    def pause(self, prompt_ids: Set[str]) -> None:
        """Leave these prompts out of the steps; they keep their memory."""
        self._scheduler.paused = prompt_ids

    @override
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
            output = self._outputs.get()
            prompt_id = output.request_id
            self._add_output(output, new.setdefault(prompt_id, NewTokens(prompt_id)))
        return new.values()

    def _add_output(self, output: Any, new: NewTokens) -> None:
        running, tokens = self._running.get(new.id), output.generated_tokens
        if running is None:  # it has failed in this step
            return
        if running.error is not None:
            new.error = running.error
            self.cancel(new.id)
            return
        new.tokens += tokens[running.returned :]
        if running.prompt.logprobs is not None:
            first = running.prompt.position
            places = range(first + running.returned, first + len(tokens))
            new.likelihoods += [running.likelihoods.pop(place) for place in places]
        running.returned = len(tokens)
        if not output.is_finished():
            return
        del self._running[new.id]
        if output.error is not None:
            new.error = RuntimeError(output.error)
        else:
            ends = running.prompt.ends(self._end_tokens)
            new.finish = "stop" if tokens[-1] in ends else "length"

    @override
    def cancel(self, prompt_id: str) -> None:
        """Stop a prompt, and free its memory at once."""
        if self._running.pop(prompt_id, None) is not None:
            self._scheduler.stuck = False
            self.manager.cancel_request(prompt_id)
            # The next step begins with the same two calls.
            self._batches._update_tp_group_state()
            self._batches.scheduler.clear_cancelled_requests()

    @override
    def close(self) -> None:
        self.manager.destroy()
        del self._batches


@dataclass(slots=True)
class _Row:
    """A row of logits: how many tokens its answer has, and bits of those that can follow."""

    running: _Running | None = None
    sampling: Sampling = field(default_factory=Sampling)
    position: int = 0
    bits: bytes | None = None
    penalized: Penalized | None = None
    logprobs: int | None = None


class _Sampler(ContinuousBatchingLogitsProcessor):  # type: ignore[misc] # untyped
    """Samples each row by the parameters of its own prompt.

    The manager calls `prepare_tensor_args` with the requests of a step, and then the processor
    itself with their logits.
    """

    def __init__(self, running: Mapping[str, _Running]) -> None:
        self.supported_kwargs: dict[str, type] = {}
        self.ignored_kwargs = ()
        self._running = running
        self._rows: list[_Row] = []

    @override
    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.fill_(0)

    @override
    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        self._rows = []
        for request in requests_with_new_token:
            row, running = _Row(), self._running.get(request.state.request_id)
            if running is not None and running.error is None:
                try:
                    row = _row(running, request.state)
                except BaseException as error:  # noqa: BLE001 - it ends this answer alone
                    running.error = error
            self._rows.append(row)
        return torch.zeros(len(self._rows), dtype=torch.int32)

    @override
    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        # Now, and not before the step: a GPU computes the logits meanwhile.
        for row in self._rows:
            if row.running is not None and (mask := row.running.prompt.mask) is not None:
                try:
                    row.bits = mask.bits()
                except Exception as error:  # noqa: BLE001 - it ends this answer alone
                    row.running.error = error
        try:
            return _sampled(scores, self._rows)
        except Exception as error:  # noqa: BLE001 - it is found out whose it is
            return self._each_alone(scores, error)

    def _each_alone(self, scores: Tensor, error: Exception) -> Tensor:
        """Sample each row alone, and fail those that raise.

        Raises:
            Exception: that of several rows, if all of them raise: it is not due to one of them.
        """
        result, failed = scores.clone(), 0
        for n, row in enumerate(self._rows):
            try:
                result[n : n + 1] = _sampled(scores[n : n + 1], [row])
            except Exception as own_error:  # noqa: BLE001 - as above
                failed += 1
                if row.running is not None:
                    row.running.error = own_error
        if 1 < failed == len(self._rows):
            raise error
        return result


def _row(running: _Running, state: Any) -> _Row:
    """Return the row of a prompt with an answer so far."""
    prompt, tokens = running.prompt, state.generated_tokens
    row = _Row(running, prompt.sampling, prompt.position + state.generated_len())
    row.logprobs = prompt.logprobs
    if (mask := prompt.mask) is not None:
        mask.read(tokens[mask.count - prompt.position :])
    if (changed := running.penalized) is not None:
        changed.read(tokens[changed.count - prompt.position :])
        row.penalized = changed
    return row


def _sampled(scores: Tensor, rows: Sequence[_Row]) -> Tensor:
    """Return scores whose largest ones are chosen, and note how likely these are."""
    masks = [(n, row.bits) for n, row in enumerate(rows) if row.bits is not None]
    changes = [(n, row.penalized) for n, row in enumerate(rows) if row.penalized is not None]
    result = penalized(masked(scores, masks), changes)
    result = adjusted(result, [(row.sampling, row.position) for row in rows])
    wanted = [(n, row.logprobs) for n, row in enumerate(rows) if row.logprobs is not None]
    if wanted:
        chosen = likelihoods(scores, result.argmax(dim=-1), wanted)
        for (n, _), likelihood in zip(wanted, chosen, strict=True):
            row = rows[n]
            if row.running is not None:
                row.running.likelihoods[row.position] = likelihood
    return result
