"""Sequences of requests (`sequenceBatching`): their ids, and their order in a batch.

A model with sequences has one model process, so that each sequence finds its state there.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace.torchserve.config import TorchServeConfig

#: Before the ids that the server makes.
PREFIX: Final = "ts-seq-"
_YES: Final = "true"


class SequenceKeys(NamedTuple):
    """The names of the headers of a sequence."""

    id: str
    start: str

    @classmethod
    def of(cls, config: TorchServeConfig) -> SequenceKeys:
        """Return the names that a configuration has."""
        return cls(config.ts_header_key_sequence_id, config.ts_header_key_sequence_start)

    def id_of(self, headers: dict[str, Any]) -> str:
        """Return the id of a request's sequence; "" without one."""
        wanted = self.id.lower()
        return next((str(v) for name, v in headers.items() if name.lower() == wanted and v), "")

    def begun(self, headers: dict[str, Any]) -> dict[str, Any]:
        """Return the headers with an id; a request without one begins a sequence."""
        if self.id_of(headers):
            return headers
        return {**headers, self.id: f"{PREFIX}{uuid.uuid4()}", self.start: _YES}


def turns(ids: Sequence[str], places: Sequence[int]) -> list[list[int]]:
    """Return the places of a batch in turns, none with two requests of one sequence.

    Args:
        ids: the sequence of each request.
        places: the requests, in the order of their submits.
    """
    found: list[list[int]] = []
    seen: dict[str, int] = {}
    for place in places:
        turn = seen.get(ids[place], 0)
        seen[ids[place]] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(place)
    return found
