"""What the times of a batch leave out before any trial, and where the search begins."""

from __future__ import annotations

import msgspec

from extensions.tuning.optimize.candidates import candidates
from extensions.tuning.optimize.report import BatchTime, Comparison, Variant
from extensions.tuning.tune.calibration import calibrated, expected_rate, start_of
from extensions.tuning.tune.space import Candidate, space_of
from headrace.config.model.optimize import FIXED_SHAPES, Backend, Optimize
from tests.harness.simulated_model import PRESENT


def variant(backend: Backend, *times: tuple[int, float], memory_mb: float = 100.0) -> Variant:
    return Variant(
        optimize=Optimize(backend=backend),
        memory_mb=memory_mb,
        times=[
            BatchTime(size=size, inference_ms=ms, low_ms=ms * 0.95, high_ms=ms * 1.05)
            for size, ms in times
        ],
    )


def comparison(*variants: Variant) -> Comparison:
    return Comparison(model="m", device="cpu", variants=list(variants))


def names(comparison: Comparison, objective_ms: float) -> list[str]:
    found = calibrated(comparison, objective_ms)
    return [variant.optimize.backend for variant in found.variants]


def test_the_likely_winners_are_measured_first_and_slow_builds_last() -> None:
    assert [(one.backend, one.precision) for one in candidates("cpu")] == [
        ("openvino", "int8"), ("onnxruntime", "int8"), ("openvino", "float"),
        ("onnxruntime", "float"), ("torchscript", "float"), ("aot", "float"), ("compile", "float"),
    ]  # fmt: skip
    on_gpu = candidates("cuda:0")
    slow = [one.backend in FIXED_SHAPES for one in on_gpu]
    assert (len(on_gpu), on_gpu[0].precision, slow == sorted(slow)) == (12, "half", True)


def test_two_sizes_show_which_larger_batches_may_be_in_time() -> None:
    eager = variant("eager", (1, 20.0), (16, 320.0))
    fast = variant("openvino", (1, 8.0), (16, 68.0))
    found = calibrated(comparison(eager, fast), 300.0)
    # By 4 ms for an item, 64 of them take 260 ms.
    assert (found.batch_max, found.start) == (64, 16)
    assert calibrated(comparison(eager, fast), 100.0).batch_max == 16
    one, other = (
        Candidate(label="", options={"optimize": {"backend": backend}, "max_batch_size": most})
        for backend, most in (("openvino", 16), ("eager", 8))
    )
    assert round(expected_rate(found, 300.0, one)) == 235
    assert expected_rate(found, 300.0, other) == 50
    # Of 4 there is no time: by 4 ms for an item it takes 20 ms.
    four = msgspec.structs.replace(one, options={**one.options, "max_batch_size": 4})
    assert round(expected_rate(found, 300.0, four)) == 200
    assert calibrated(comparison(eager, fast), 100.0).start == 8
    assert expected_rate(found, 300.0, Candidate(label="", options={})) == 50


def test_a_variant_that_is_slower_at_every_size_is_left_out() -> None:
    eager = variant("eager", (1, 10.0), (8, 40.0))
    slow = variant("compile", (1, 20.0), (8, 60.0))
    mixed = variant("openvino", (1, 12.0), (8, 20.0))

    found = calibrated(comparison(eager, slow, mixed), 100.0)

    assert [one.optimize.backend for one in found.variants] == ["openvino", "eager"]
    assert [(one.what, one.reason) for one in found.left_out] == [
        ("compile float", "eager float is faster at every batch size")
    ]


def test_times_within_each_others_intervals_leave_nothing_out() -> None:
    eager, alike = variant("eager", (1, 10.0)), variant("compile", (1, 10.5))
    assert set(names(comparison(eager, alike), 100.0)) == {"eager", "compile"}


def test_a_slower_variant_with_less_memory_stays() -> None:
    eager = variant("eager", (1, 10.0), memory_mb=1000)
    small = variant("openvino", (1, 20.0), memory_mb=200)
    assert names(comparison(eager, small), 100.0) == ["eager", "openvino"]


def test_what_cannot_meet_the_objective_is_left_out() -> None:
    eager = variant("eager", (1, 200.0))
    fast = variant("openvino", (1, 30.0), (8, 90.0), (16, 180.0))

    found = calibrated(comparison(eager, fast), 100.0)

    assert [one.optimize.backend for one in found.variants] == ["openvino"]
    assert found.batch_max == 8
    # A job waits for one batch and then for its own: 2 x 39 ms are in time, and 2 x 56 are not.
    assert found.start == 2
    assert "more than 100 ms" in found.left_out[0].reason
    assert found.left_out[1].what == "batches of 16 and more"


def test_nothing_may_be_left() -> None:
    found = calibrated(comparison(variant("eager", (1, 200.0))), 100.0)
    assert found.variants == []
    assert found.batch_max == 0


def test_a_refused_variant_is_left_out_with_its_reason() -> None:
    wrong = Variant(optimize=Optimize(backend="openvino", precision="int8"), refused="wrong")
    found = calibrated(comparison(variant("eager", (1, 10.0)), wrong), 100.0)
    assert [(one.what, one.reason) for one in found.left_out] == [("openvino int8", "wrong")]


def test_a_batch_with_a_lower_rate_than_a_smaller_one_is_left_out() -> None:
    eager = variant("eager", (1, 10.0), (8, 30.0), (16, 90.0))
    assert calibrated(comparison(eager), 1000.0).batch_max == 8


def test_sizes_between_the_measured_ones_stay() -> None:
    eager = variant("eager", (1, 10.0), (4, 20.0), (16, 50.0), (64, 200.0))
    assert calibrated(comparison(eager), 100.0).batch_max == 32


def test_sizes_that_were_not_reached_in_time_stay() -> None:
    eager = variant("eager", (1, 10.0), (4, 20.0))
    cut = msgspec.structs.replace(comparison(eager), cut=True)
    assert calibrated(comparison(eager), 100.0).batch_max == 16
    assert calibrated(cut, 1000.0).batch_max == 64
    assert calibrated(cut, 100.0).batch_max == 16  # by 3.3 ms for an item
    # Those that were reached, and are too large, do not.
    assert calibrated(cut, 15.0).batch_max == 2


def test_one_size_does_not_show_that_a_variant_is_slower() -> None:
    eager, slow = variant("eager", (1, 10.0)), variant("compile", (1, 20.0))
    assert names(comparison(eager, slow), 100.0) == ["eager", "compile"]


def test_the_search_begins_with_the_fastest_variant_and_its_best_batch() -> None:
    eager = variant("eager", (1, 12.0), (8, 40.0), (16, 70.0))
    fast = variant("openvino", (1, 14.0), (8, 30.0), (16, 45.0), (32, 80.0))
    calibration = calibrated(comparison(eager, fast), 100.0)
    space = space_of(
        PRESENT,
        objective_ms=100.0,
        cores=2,
        variants=[one.optimize for one in calibration.variants],
        batch_max=calibration.batch_max,
    )

    start = space.candidate(start_of(space, calibration))

    assert start.options["optimize"]["backend"] == "openvino"
    assert start.options["max_batch_size"] == 16
    present = space.candidate(space.present)
    assert present.options["optimize"] is None
    assert present.options["max_batch_size"] == 32
