"""The inputs of the jobs of one request. What they share exists once, until each is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec


class RequestInputs:
    """The inputs of the jobs of one request, in their order; each is made when it is asked for.

    Args:
        prompts: what differs, one for each text; several answers to a text have the same.
        shared: further members of each input; None leaves one out.
        choices: how many answers each prompt gets.
        seed: that of the first answer to each prompt; the next answer has the next number.
    """

    def __init__(
        self,
        prompts: Sequence[Any],
        shared: dict[str, Any] | None = None,
        choices: int = 1,
        seed: int | None = None,
    ) -> None:
        self._prompts = [msgspec.json.encode(prompt) for prompt in prompts]
        given = {name: one for name, one in (shared or {}).items() if one is not None}
        self._shared = msgspec.json.encode(given)[1:-1]
        self.choices = choices
        self._seed = seed

    def __len__(self) -> int:
        return len(self._prompts) * self.choices

    def __iter__(self) -> Iterator[bytes]:
        """Yield the inputs as JSON; equal ones in a row are one object."""
        for prompt in self._prompts:
            text = self._of(prompt, 0)
            for choice in range(self.choices):
                yield text if self._seed is None else self._of(prompt, choice)

    @property
    def total_bytes(self) -> int:
        """The most bytes of all inputs together."""
        members = self._members(self.choices - 1)
        each = len(members) + 1 if members else 0
        return self.choices * sum(len(prompt) + each for prompt in self._prompts)

    def first_answers(self) -> Iterator[bytes]:
        """Yield the input of the first answer to each prompt."""
        return (self._of(prompt, 0) for prompt in self._prompts)

    def _of(self, prompt: bytes, choice: int) -> bytes:
        members = self._members(choice)
        return b"%b,%b}" % (prompt[:-1], members) if members else prompt

    def _members(self, choice: int) -> bytes:
        if self._seed is None:
            return self._shared
        # With one seed for all, they would be the same answer several times.
        seed = b'"seed":%d' % (self._seed + choice)
        return b"%b,%b" % (self._shared, seed) if self._shared else seed
