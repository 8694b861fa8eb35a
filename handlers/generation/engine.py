"""What an engine does: it takes prompts as tokens, and returns new tokens, step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import ClassVar, Final

from handlers.generation.sampling import (
    Likelihood,
    Penalized,
    Penalties,
    PromptScores,
    Sampling,
)
from handlers.generation.structure import Grammar, Mask
from headrace.generator import Budget

#: How many tokens of an answer may come before the next look at the memory.
AHEAD: Final = 4


@dataclass(slots=True)
class CachedTokens:
    """How many tokens of a prompt the cache had when an engine first read it.

    If the prompt is put back, and read again later, its own tokens may be there: no saving.
    """

    count: int | None = None

    def note(self, count: int) -> None:
        """Take the count, if it is the first one."""
        if self.count is None:
            self.count = count


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an engine continues.

    Attributes:
        position: how many tokens of the answer are in `tokens` already.
        ignore_end: do not stop at the model's end token.
        logprobs: how many of the likeliest tokens come with the log probability of each new one;
            None for no log probabilities.
        mask: which tokens can follow; it has read those of the answer in `tokens`.
        grammar: what the answer must be; for engines without masks of ours.
        stop_tokens: further tokens that end the answer, also with `ignore_end`.
        penalties: what changes the logits; None for nothing.
        cached: filled by an engine that keeps tokens for other prompts.
    """

    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling
    position: int = 0
    ignore_end: bool = False
    logprobs: int | None = None
    mask: Mask | None = None
    grammar: Grammar | None = None
    stop_tokens: Sequence[int] = ()
    penalties: Penalties | None = None
    cached: CachedTokens = field(default_factory=CachedTokens, compare=False)

    def ends(self, end_tokens: Sequence[int]) -> list[int]:
        """Return the tokens that end the answer, of a model with these end tokens."""
        return [*(() if self.ignore_end else end_tokens), *self.stop_tokens]

    def penalized(self, end_tokens: Sequence[int]) -> Penalized | None:
        """Return what changes the logits of its answer."""
        if self.penalties is None:
            return None
        first = len(self.tokens) - self.position
        ends = self.ends(end_tokens)
        return Penalized(self.penalties, self.tokens[:first], self.tokens[first:], ends)


@dataclass(slots=True)
class NewTokens:
    """What a step did for one prompt.

    Attributes:
        tokens: the new ones; an end token is among them.
        finish: "stop" after an end token, "length" after `max_tokens`; None while it runs.
        likelihoods: one for each token, if the prompt wants log probabilities.
    """

    id: str
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: BaseException | None = None
    likelihoods: list[Likelihood] = field(default_factory=list)


class Engine(ABC):
    """Continues several prompts at a time.

    Attributes:
        has_logprobs: it returns log probabilities.
        has_masks: it applies the masks of prompts. Otherwise it makes masks of their grammars, and
            an answer that has one begins again in another process.
        can_pause: `pause` does something.
    """

    has_logprobs: ClassVar[bool] = True
    has_masks: ClassVar[bool] = True
    can_pause: ClassVar[bool] = False

    @abstractmethod
    def budget(self) -> Budget:
        """Return how many more prompts may run, and how many tokens all may have together."""

    def cost(self, tokens: int) -> int:
        """Return what a prompt with an answer of so many tokens takes of the budget."""
        return tokens

    @abstractmethod
    def add(self, prompt_id: str, prompt: Prompt) -> None:
        """Take a prompt for which there is room."""

    @property
    def has_prompt_scores(self) -> bool:
        """Whether `prompt_scores` works."""
        return self.has_logprobs

    def prompt_scores(self, tokens: Sequence[int], likeliest: int) -> PromptScores:
        """Return what reads the log probabilities of a prompt, outside of the batch."""
        raise NotImplementedError

    def lacks_memory(self) -> bool:
        """Return whether the prompts that run need more memory soon than there is."""
        return False

    def pause(self, prompt_ids: Set[str]) -> None:  # noqa: B027 - not every engine can
        """Let these prompts wait, and no others, if the engine can."""

    @abstractmethod
    def step(self) -> Iterable[NewTokens]:
        """Wait a moment for new tokens and return them; an error means that all prompts failed."""

    @abstractmethod
    def cancel(self, prompt_id: str) -> None:
        """Stop a prompt, and free its memory."""

    @abstractmethod
    def close(self) -> None:
        """Stop."""
