"""How many batches may run at once on a device, and what each process may use of the cores."""

from __future__ import annotations

import pytest

from workers.replicas import devices
from workers.replicas.devices import model_environ, slots_of


@pytest.mark.parametrize(
    ("cores", "device", "replicas", "processes", "slots"),
    [
        (8, "cpu", 1, 1, 1),  # one process has all cores
        (8, "cpu", 1, 4, 4),  # four have two each: side by side they use all
        (8, "cpu", 1, 20, 8),  # one core each, and no more of them than cores
        (2, "cpu", 4, 4, 4),  # one model alone is never slowed down
        (8, "cuda:0", 1, 20, 1),
        (8, "cuda:0", 3, 5, 3),
    ],
)
def test_slots_of_a_device(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    device: str,
    replicas: int,
    processes: int,
    slots: int,
) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: cores)
    assert slots_of(device, replicas, processes) == slots
    if device == "cpu" and slots <= cores:
        threads = int(model_environ({}, processes)["OMP_NUM_THREADS"])
        assert slots * threads <= cores
