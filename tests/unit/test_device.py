from __future__ import annotations

from workers.device import TUNABLES, tuned


def test_what_the_user_has_set_wins_and_the_rest_is_added() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1:glibc.malloc.tcache_count=2"}
    parts = tuned(given, "cpu")["GLIBC_TUNABLES"].split(":")
    threshold = "glibc.malloc.mmap_threshold"
    assert parts == [*given["GLIBC_TUNABLES"].split(":"), f"{threshold}={TUNABLES[threshold]}"]


def test_a_gpus_process_keeps_its_environment() -> None:
    assert tuned({"A": "1"}, "cuda:0") == {"A": "1"}
