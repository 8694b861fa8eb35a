"""What a worker measures: its host, its devices and its model processes.

The worker writes it to `hr:worker:<owner>` under `FIELD`, next to the states of the models. The key
expires after the worker's death.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: No model can have this name.
FIELD: Final = ":figures"


class HostFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One host.

    Attributes:
        cpus: logical processors.
        cpu_ratio: the recent load of all of them, 0 to 1.
        memory_bytes: its memory; `memory_available_bytes` can be allocated without swapping.
        disk_bytes: the file system of the worker; `disk_available_bytes` is free for it.
    """

    name: str
    cpus: int = 0
    cpu_ratio: float = 0.0
    memory_bytes: int = 0
    memory_available_bytes: int = 0
    disk_bytes: int = 0
    disk_available_bytes: int = 0


class DeviceFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU or MIG device. Values that the driver does not report are None.

    Attributes:
        id: its number on the host; the UUID of a MIG device.
        busy_ratio: the part of the last sample period in which a kernel ran, 0 to 1.
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
