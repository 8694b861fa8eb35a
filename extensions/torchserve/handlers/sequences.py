"""The order of sequences (`sequenceBatching`) in a batch.

A model with sequences has one model process, so that each sequence finds its state there.
"""

from __future__ import annotations

from collections.abc import Sequence


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
