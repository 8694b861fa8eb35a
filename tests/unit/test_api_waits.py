"""How long a request waits."""

from __future__ import annotations

import pytest

from api.waits import asked_wait_s, preferred_wait_s
from headrace.errors import InvalidRequest


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (b"wait=5", 5),
        (b"WAIT=5", 5),
        (b'wait="5"', 5),
        (b" respond-async , wait = 7 ", 7),
        (b"return=minimal; x=1, wait=7; y=2", 7),
        (b"wait=100", 60),
        (b"wait=0", 0),
        (b"", None),
        (b"wait", None),
        (b"wait=", None),
        (b"wait=-1", None),
        (b"wait=1.5", None),
        (b"wait=soon", None),
        (b"await=5", None),
        (b"wait=99999999999", None),
    ],
)
def test_a_preference_that_cannot_be_read_is_none(prefer: bytes, seconds: float | None) -> None:
    assert preferred_wait_s(prefer, 60) == seconds


def test_a_wait_that_is_asked_for_must_be_a_number() -> None:
    assert asked_wait_s(None, 60) is None
    assert asked_wait_s("0.5", 60) == 0.5
    assert asked_wait_s("61", 60) == 60
    for wrong in ("", "x", "-1", "nan", "inf"):
        with pytest.raises(InvalidRequest, match="wait"):
            asked_wait_s(wrong, 60)
