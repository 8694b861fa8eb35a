"""The lines of a measuring process, also of one that was killed."""

from __future__ import annotations

import msgspec

from extensions.tuning.optimize.report import BatchTime, Comparison, Variant, read_lines
from headrace.config.model.optimize import Optimize

HEAD = Comparison(model="m", device="cpu", variants=[], threads=2)
TIME = BatchTime(size=1, inference_ms=2, low_ms=1, high_ms=3)
EAGER = Variant(optimize=Optimize(), load_s=1)
MEASURED = msgspec.structs.replace(EAGER, times=[TIME])
AOT = Variant(optimize=Optimize(backend="aot"), refused="slower")


def text(*lines: Comparison | Variant) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def test_the_last_line_of_a_variant_counts() -> None:
    found = read_lines(text(HEAD, EAGER, AOT, MEASURED))
    assert found == msgspec.structs.replace(HEAD, variants=[MEASURED, AOT])


def test_an_incomplete_line_is_left_out() -> None:
    whole = text(HEAD, EAGER, MEASURED)
    for end in range(len(text(HEAD, EAGER)), len(whole)):
        found = read_lines(whole[:end])
        assert found == msgspec.structs.replace(HEAD, variants=[EAGER])


def test_without_a_line_there_is_no_comparison() -> None:
    assert read_lines(b"") is None
    assert read_lines(text(HEAD)[:-1]) is None
    assert read_lines(text(HEAD)) == HEAD
