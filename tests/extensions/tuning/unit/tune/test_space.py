"""The points of a search, and the options of each."""

from __future__ import annotations

from itertools import product
from typing import Any

from extensions.tuning.tune.space import SLOTS, THREADS, Space, powers_of_two, space_of
from headrace.config.model.optimize import Optimize
from tests.harness.simulated_model import PRESENT


def candidates(space: Space) -> list[tuple[dict[str, Any], dict[str, str]]]:
    points = product(*(range(len(axis.choices)) for axis in space.axes))
    found = [space.candidate(point) for point in points]
    return [(one.options, one.environ) for one in found]


def names(space: Space) -> list[str]:
    return [axis.name for axis in space.axes]


def test_the_present_options_are_a_point_whatever_they_are() -> None:
    odd = {**PRESENT, "max_batch_size": 24, "max_batch_delay_ms": 7.0, "replicas": 3}
    space = space_of(odd, objective_ms=100.0, cores=4)
    assert space.candidate(space.present).options == odd


def test_the_powers_of_two_end_with_the_number() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(16) == [1, 2, 4, 8, 16]
    assert powers_of_two(24) == [1, 2, 4, 8, 16, 24]


def test_a_delay_leaves_half_of_the_objective_to_the_batch() -> None:
    space = space_of(PRESENT, objective_ms=20.0, cores=1)
    assert {one["max_batch_delay_ms"] for one, _ in candidates(space)} == {0.0, 2.0, 5.0, 10.0}


def test_a_backend_that_builds_for_each_size_gets_allowed_sizes() -> None:
    space = space_of(PRESENT, objective_ms=100.0, cores=1, variants=[Optimize(backend="compile")])
    for options, _ in candidates(space):
        compiled = options["optimize"] is not None
        expected = powers_of_two(options["max_batch_size"]) if compiled else None
        assert options.get("allowed_batch_sizes") == expected


def test_own_allowed_sizes_follow_the_largest_batch() -> None:
    own = {**PRESENT, "allowed_batch_sizes": [4, 12, 32]}
    space = space_of(own, objective_ms=100.0, cores=1)
    found = [options for options, _ in candidates(space)]
    assert space.candidate(space.present).options["allowed_batch_sizes"] == [4, 12, 32]
    assert {"max_batch_size": 8, "allowed_batch_sizes": [4, 8]}.items() <= next(
        one.items() for one in found if one["max_batch_size"] == 8
    )


def test_replicas_that_are_shared_or_follow_the_demand_stay() -> None:
    for options in ({"total_replicas": 3}, {"max_replicas": 4}, {"replicas": "auto"}):
        space = space_of({**PRESENT, **options}, objective_ms=100.0, cores=4)
        assert "replicas" not in names(space)


def test_variables_of_the_workers_are_varied_only_where_they_can_be_set() -> None:
    assert {"threads", "slots"} <= set(
        names(space_of(PRESENT, objective_ms=100.0, cores=4, workers=True))
    )
    without = space_of(PRESENT, objective_ms=100.0, cores=4)
    assert not {"threads", "slots"} & set(names(without))
    assert all(environ == {} for _, environ in candidates(without))


def test_what_has_no_effect_is_left_out() -> None:
    space = space_of(PRESENT, objective_ms=100.0, cores=4, workers=True)
    for options, environ in candidates(space):
        if options["replicas"] == 1:
            assert SLOTS not in environ
        assert environ.get(THREADS) != str(4 // options["replicas"])


def test_preprocess_is_varied_only_if_it_takes_time() -> None:
    assert "preprocess" in names(space_of(PRESENT, objective_ms=100.0, cores=2))
    assert "preprocess" not in names(
        space_of(PRESENT, objective_ms=100.0, cores=2, preprocess_share=0.05)
    )
