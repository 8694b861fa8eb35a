from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workers.replicas.devices import SPINS, TUNABLES, model_environ, tuned


def test_what_the_user_has_set_wins_and_the_rest_is_added() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1:glibc.malloc.tcache_count=2"}
    parts = tuned(given, "cpu")["GLIBC_TUNABLES"].split(":")
    threshold = "glibc.malloc.mmap_threshold"
    assert parts == [*given["GLIBC_TUNABLES"].split(":"), f"{threshold}={TUNABLES[threshold]}"]


def test_a_gpus_process_keeps_its_environment() -> None:
    assert tuned({"A": "1"}, "cuda:0") == {"A": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_torch_computes_with_the_users_number_of_threads(threads: int) -> None:
    given = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": str(threads)}
    # A share of the cores that is another number: that of one process, or of many.
    environ = model_environ(given, 1 if threads == 1 else 1000)
    command = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == [str(threads)]


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_sleep_soon_unless_the_user_has_said_how_they_wait(
    given: dict[str, str], spins: str | None
) -> None:
    assert model_environ(given, 1).get("GOMP_SPINCOUNT") == spins
