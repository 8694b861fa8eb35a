"""The engine with transformers' `generate`: one prompt at a time, for any causal model."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria
from transformers.generation.streamers import BaseStreamer
from typing_extensions import override

from handlers.generation.engine import Engine, NewTokens, Prompt
from handlers.generation.sampling import (
    Likelihood,
    Penalized,
    PromptScores,
    adjusted,
    likelihoods,
    masked,
)
from headrace.generator import Budget

#: How long a step waits for a token, so that cancels are seen.
_WAIT_S: Final = 0.05


class PlainEngine(Engine):
    """Runs one prompt after the other, each in a thread of its own, up to `context` tokens."""

    def __init__(self, model: Any, end_tokens: list[int], context: int) -> None:
        self._model = model
        self._end_tokens = end_tokens
        self._context = context
        self._run: _Run | None = None

    @override
    def budget(self) -> Budget:
        return Budget(0 if self._run else 1, self._context)

    @property
    @override
    def has_prompt_scores(self) -> bool:
        # The cache of others does not take several tokens at a time.
        return not getattr(self._model, "_is_stateful", False)

    @override
    def prompt_scores(self, tokens: Sequence[int], likeliest: int) -> PromptScores:
        return PromptScores(self._model, tokens, likeliest)

    @override
    def add(self, prompt_id: str, prompt: Prompt) -> None:
        self._run = _Run(prompt_id, prompt)
        threading.Thread(target=self._generate, args=(self._run,), daemon=True).start()

    def _generate(self, run: _Run) -> None:
        prompt = run.prompt
        penalized = prompt.penalized(self._end_tokens)
        ids = torch.tensor([list(prompt.tokens)], device=self._model.device)
        try:
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=prompt.max_tokens,
                do_sample=False,
                eos_token_id=prompt.ends(self._end_tokens) or None,
                pad_token_id=self._end_tokens[0] if self._end_tokens else 0,
                streamer=run,
                logits_processor=LogitsProcessorList([_Processor(run, penalized)]),
                stopping_criteria=[_Cancelled(run)],
            )
        except Exception as error:  # noqa: BLE001 - it becomes the job's error
            run.items.put(error)
        run.items.put(None)

    @override
    def step(self) -> Iterable[NewTokens]:
        run = self._run
        if run is None:
            return []
        new = NewTokens(run.id)
        wait = True
        while True:
            try:
                item = run.items.get(block=wait, timeout=_WAIT_S if wait else None)
            except queue.Empty:
                return [new] if new.tokens else []
            wait = False
            if isinstance(item, int):
                new.tokens.append(item)
                if run.likelihoods:
                    new.likelihoods.append(run.likelihoods.popleft())
                run.last = item
                continue
            self._run = None
            if item is not None:
                new.error = item
            elif run.last in run.prompt.ends(self._end_tokens):
                new.finish = "stop"
            else:
                new.finish = "length"
            return [new]

    @override
    def cancel(self, prompt_id: str) -> None:
        """Stop the prompt before its next token, and wait for that."""
        run = self._run
        if run is None or run.id != prompt_id:
            return
        run.cancelled = True
        while run.items.get() is not None:
            pass
        self._run = None

    @override
    def close(self) -> None:
        if self._run is not None:
            self.cancel(self._run.id)


class _Run(BaseStreamer):  # type: ignore[misc] # untyped
    """One prompt; its thread puts tokens, perhaps an error, and then None."""

    def __init__(self, prompt_id: str, prompt: Prompt) -> None:
        self.id = prompt_id
        self.prompt = prompt
        self.items: queue.SimpleQueue[int | Exception | None] = queue.SimpleQueue()
        self.cancelled = False
        # Those of tokens that are not in a step yet, if the prompt wants log probabilities.
        self.likelihoods: deque[Likelihood] = deque()
        self.last = -1
        self._prompt_came = False

    @override
    def put(self, value: Tensor) -> None:
        if self._prompt_came:
            self.items.put(int(value.item()))
        self._prompt_came = True

    @override
    def end(self) -> None:
        pass


class _Processor(LogitsProcessor):  # type: ignore[misc] # untyped
    def __init__(self, run: _Run, penalized: Penalized | None) -> None:
        self._run = run
        self._penalized = penalized

    @override
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        prompt, logits = self._run.prompt, scores.float()
        position = prompt.position + input_ids.shape[1] - len(prompt.tokens)
        scores = logits
        if (mask := prompt.mask) is not None:
            read = len(prompt.tokens) + mask.count - prompt.position
            mask.read(input_ids[0, read:].tolist())
            scores = masked(logits, [(0, mask.bits())])
        if (penalized := self._penalized) is not None:
            read = len(prompt.tokens) + penalized.count - prompt.position
            penalized.read(input_ids[0, read:].tolist())
            scores = penalized.logits(scores)
        scores = adjusted(scores, [(prompt.sampling, position)])
        if prompt.logprobs is not None:
            self._run.likelihoods += likelihoods(logits, scores.argmax(-1), [(0, prompt.logprobs)])
        return scores


class _Cancelled(StoppingCriteria):  # type: ignore[misc] # untyped
    def __init__(self, run: _Run) -> None:
        self._run = run

    @override
    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Any:
        return torch.full((input_ids.shape[0],), self._run.cancelled, device=input_ids.device)
