"""What an engine does: it takes prompts as tokens, and returns new tokens, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from handlers.generation.sampling import Sampling
from headrace.generator import Budget


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an engine continues.

    Attributes:
        tokens: the prompt.
        max_tokens: the most new tokens.
        sampling: how each is chosen.
        position: how many tokens of the answer are in `tokens` already.
        ignore_end: do not stop at the model's end token.
    """

    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling
    position: int = 0
    ignore_end: bool = False


@dataclass(slots=True)
class NewTokens:
    """What a step did for one prompt.

    Attributes:
        tokens: the new ones; an end token is among them.
        finish: "stop" after an end token, "length" after `max_tokens`; None while it runs.
        error: it has ended with this error.
    """

    id: str
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: Exception | None = None


class Engine(Protocol):
    """Continues several prompts at a time."""

    def budget(self) -> Budget:
        """Return the room for more prompts."""

    def cost(self, tokens: int) -> int:
        """Return what a prompt with an answer of so many tokens takes of the budget."""

    def add(self, prompt_id: str, prompt: Prompt) -> None:
        """Take a prompt for which there is room."""

    def step(self) -> Iterable[NewTokens]:
        """Wait for new tokens for a moment, and return those that have come.

        Raises:
            Exception: the engine has failed, and with it all of its prompts.
        """

    def cancel(self, prompt_id: str) -> None:
        """Stop a prompt, and free its memory."""

    def close(self) -> None:
        """Stop."""
