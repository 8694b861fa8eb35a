"""Which pieces of a log belong to one reply of TorchServe's API."""

from __future__ import annotations

import msgspec
import pytest

from api.http.messages import ResponseCutShort
from extensions.torchserve.api.predictions.streams import _pieces
from headrace.queue.following.piece_log import LogEvent, Missing, Pieces, Place, Restarted

ONE, TWO = msgspec.Raw(b"1"), msgspec.Raw(b"2")


def test_a_reply_begins_with_the_head_of_its_first_piece() -> None:
    assert _pieces([Pieces(Place(1), [ONE], b"{}"), Pieces(Place(2), [TWO])]) == ([ONE, TWO], b"{}")


@pytest.mark.parametrize("event", [Restarted(Place()), Missing(2, Place(3))])
def test_a_reply_of_two_runs_or_with_a_gap_is_cut_short(event: LogEvent) -> None:
    with pytest.raises(ResponseCutShort):
        _pieces([event, Pieces(Place(4), [ONE])])
