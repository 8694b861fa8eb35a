"""What a worker measures of its host, its devices and its model processes, on the way to the API.

It lies in `hr:worker:<owner>` under `FIELD`, beside the states of the models, and ends with that
key when its worker is gone.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: No model can be called so.
FIELD: Final = ":figures"


class HostFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One host.

    Attributes:
        cpus: logical processors.
        cpu_ratio: which part of them was busy of late, 0 to 1.
        memory_bytes: its memory, and what of it can still be had without swapping.
        disk_bytes: the file system that the worker works on, and what of it is free for it.
    """

    name: str
    cpus: int = 0
    cpu_ratio: float = 0.0
    memory_bytes: int = 0
    memory_available_bytes: int = 0
    disk_bytes: int = 0
    disk_available_bytes: int = 0


class DeviceFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU, or a MIG part of one. What the driver does not tell of it is None.

    Attributes:
        id: its number on the host; of a MIG part the UUID.
        busy_ratio: for which part of the last sample period a kernel ran, 0 to 1.
    """

    id: str
    uuid: str = ""
    name: str = ""
    busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that one worker measures.

    Attributes:
        models: the memory of each model's processes in bytes.
    """

    host: HostFigures | None = None
    devices: list[DeviceFigures] = []
    models: dict[str, int] = {}
