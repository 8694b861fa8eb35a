from __future__ import annotations

from workers.batching.estimates import PATIENCE_MIN, MemoryLimit


def full_batches(size: MemoryLimit, count: int) -> None:
    for _ in range(count):
        size.observe(size.limit, 0)


def test_what_fits_is_remembered_and_passed_again_slowly() -> None:
    size = MemoryLimit(32)
    assert size.observe(32, 8)
    assert size.limit == 8
    full_batches(size, 2 * PATIENCE_MIN - 1)
    assert size.limit == 8
    assert size.observe(8, 0)
    assert size.limit == 10


def test_small_batches_say_nothing_of_larger_ones() -> None:
    size = MemoryLimit(32)
    size.observe(32, 8)
    for _ in range(1000):
        size.observe(3, 0)
    assert size.limit == 8


def test_it_grows_back_to_the_whole_and_no_further() -> None:
    size = MemoryLimit(32)
    size.observe(32, 16)
    full_batches(size, 20 * PATIENCE_MIN)
    assert size.limit == 32
    assert not size.observe(32, 0)


def test_a_step_too_far_goes_back_to_what_ran_and_is_tried_later_each_time() -> None:
    size = MemoryLimit(32)
    size.observe(32, 16)
    full_batches(size, 2 * PATIENCE_MIN)
    assert size.limit == 20
    size.observe(20, 10)
    assert size.limit == 16
    full_batches(size, 4 * PATIENCE_MIN - 1)
    assert size.limit == 16
    size.observe(16, 0)
    assert size.limit == 20


def test_memory_that_shrinks_further_counts_though_more_ran_before() -> None:
    size = MemoryLimit(32)
    size.observe(32, 16)
    size.observe(16, 0)
    size.observe(16, 4)
    assert size.limit == 4
    size.observe(4, 1)
    assert size.limit == 1


def test_with_allowed_sizes_it_moves_from_one_to_the_next() -> None:
    size = MemoryLimit(32, (4, 8, 32))
    size.observe(32, 16)
    assert size.limit == 8
    full_batches(size, 2 * PATIENCE_MIN)
    assert size.limit == 32
