"""The table, the remarks and the page of a comparison."""

from __future__ import annotations

import re

import msgspec

from extensions.tuning.cli.arguments import json_text
from extensions.tuning.optimize import page
from extensions.tuning.optimize.report import LATE, BatchTime, Comparison, Variant
from headrace.config.model.optimize import Optimize


def times(*ms: float) -> list[BatchTime]:
    return [
        BatchTime(size=size, inference_ms=one, low_ms=one * 0.9, high_ms=one * 1.1)
        for size, one in zip((1, 8), ms, strict=True)
    ]


EAGER = Variant(optimize=Optimize(), load_s=2, memory_mb=300, times=times(10, 80))
FAST = Variant(
    optimize=Optimize(backend="openvino", precision="int8"), load_s=2.5, build_s=9, memory_mb=350,
    times=times(4, 32), error=0.021, agreement=0.995,
)  # fmt: skip
WRONG = Variant(
    optimize=Optimize(backend="onnxruntime", precision="int8"), times=times(3, 20), error=0.5,
    refused="its outputs differ <b>",
)  # fmt: skip
MISSING = Variant(optimize=Optimize(backend="tensorrt"), refused="not installed")


def compared(*variants: Variant) -> Comparison:
    return Comparison(
        model="m<1>", device="cpu", variants=list(variants), threads=2, inputs="in",
        environment={"cpu": "a & b"},
    )  # fmt: skip


def test_the_table_has_a_row_for_each_variant() -> None:
    columns, rows = page.table(compared(EAGER, FAST, WRONG, MISSING))
    assert columns == [
        "backend", "precision", ">load s", ">build s", ">MiB", ">ms of 1", ">ms of 8",
        ">times of 8", ">error", ">agreement", "used",
    ]  # fmt: skip
    assert rows == [
        ["eager", "float", "2.0", "0.0", "300", "10.0", "80.0", "1.00", "0", "-", "yes"],
        ["openvino", "int8", "2.5", "9.0", "350", "4.00", "32.0", "2.50", "0.02", "99.5%", "yes"],
        ["onnxruntime", "int8", "0.0", "0.0", "0", "3.00", "20.0", "4.00", "0.5", "-", "refused"],
        ["tensorrt", "float", *["-"] * 8, "refused"],
    ]


def test_the_best_is_the_fastest_that_is_not_refused() -> None:
    said = list(page.remarks(compared(EAGER, FAST, WRONG, MISSING)))
    assert said == [
        "onnxruntime int8 is refused: its outputs differ <b>",
        "tensorrt float is refused: not installed",
        "openvino int8 is best: 2.50 times as fast as eager at a batch of 8",
    ]
    assert list(page.remarks(compared(EAGER, WRONG)))[-1] == "eager is best"
    assert list(page.remarks(compared(MISSING))) == ["tensorrt float is refused: not installed"]


def test_the_page_is_whole_and_asks_no_other_host() -> None:
    text = page.html(compared(EAGER, FAST, WRONG, MISSING))
    assert re.findall(r"https?:|src=|url\(|@import|href=.[^#d]", text) == []
    assert "m&lt;1&gt;" in text
    assert "m<1>" not in text
    assert "&lt;b&gt;" in text
    assert text.count("<svg") == 2
    for name in ("eager float", "openvino int8", "onnxruntime int8"):
        assert text.count(f">{name}</text>") == 2
    assert ">tensorrt float</text>" not in text
    assert "prefers-color-scheme:dark" in text


def test_the_json_is_the_document() -> None:
    comparison = compared(EAGER, FAST)
    assert msgspec.json.decode(json_text(comparison), type=Comparison) == comparison


def test_what_was_not_measured_and_what_was_kept_is_named() -> None:
    aot, script = (
        Variant(optimize=Optimize(backend=name), refused=LATE) for name in ("aot", "torchscript")
    )
    kept = msgspec.structs.replace(FAST, kept_s=7300)
    comparison = msgspec.structs.replace(compared(EAGER, kept, aot, script), cut=True)
    assert [row[-1] for row in page.table(comparison)[1]] == ["yes", "yes", *["not measured"] * 2]
    late = "not built and loaded in time: aot float, torchscript float; builds are kept"
    old = "outputs were compared in an earlier run: openvino int8 (2 h ago); --again compares again"
    first, second, best = page.remarks(comparison)
    assert (first, second.partition(", so")[0]) == (old, late)
    assert best.startswith("openvino int8 is best")
    text = page.html(comparison)
    assert f"{old}." in text
    assert late in text
    assert "is refused" not in text
    whole = msgspec.structs.replace(compared(EAGER), cut=True)
    assert page.cut_text(whole).startswith("not all rounds were run")
