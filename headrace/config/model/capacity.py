"""What a worker can host and what a model needs, which decide which workers serve a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headrace.config.suggestions import listing

if TYPE_CHECKING:
    from headrace.config.model.options import ModelOptions


class Capacity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker can host, next to its labels.

    Attributes:
        device: cpu or cuda; "" if it is not reported.
        gpus: the numbers on its host of its GPUs, or of those that its MIG devices are part of.
        memory_mib: the memory of its host, or the limit of its container; 0 if it is not known.
        gpu_memory_mib: the memory of its smallest GPU or MIG device; 0 if it is not known.
        cores: the physical cores that it computes with.
        mps: NVIDIA's Multi-Process Service runs there.
    """

    device: str = ""
    gpus: list[int] = []
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    cores: int = 0
    pin_cores: str = "off"
    mps: bool = False


class Needs(msgspec.Struct, frozen=True):
    """What a model needs; docs/configuration.md explains the options."""

    device: str = "auto"
    device_ids: list[int] | None = None
    labels: list[str] = []
    memory_mb: int | None = None


class Host(NamedTuple):
    """A live worker, as it reports itself."""

    labels: Collection[str]
    capacity: Capacity


_KEYS: Final = Needs.__struct_fields__


def needs_of(config: ModelOptions | Needs, options: Mapping[str, Any] | None = None) -> Needs:
    """Return what a model needs; newer values among `options` count, if they fit."""
    needs = msgspec.convert(config, Needs, from_attributes=True)
    known = {key: value for key, value in (options or {}).items() if key in _KEYS}
    try:
        return msgspec.convert({**msgspec.structs.asdict(needs), **known}, Needs)
    except msgspec.ValidationError:
        return needs


def misfits(needs: Needs, labels: Collection[str], capacity: Capacity) -> list[str]:
    """Return in words why a worker cannot host a model; empty if it can."""
    found = []
    if missing := [label for label in needs.labels if label not in labels]:
        found.append(f"lacks {listing(missing)}")
    on_gpu = capacity.device == "cuda"
    if needs.device.startswith("cuda") and capacity.device == "cpu":
        found.append("has no GPU")
    elif on_gpu and needs.device != "cpu" and needs.device_ids is not None:
        others = [number for number in capacity.gpus if number not in needs.device_ids]
        if others or not capacity.gpus:
            has = f"GPU {listing(map(str, others))}" if others else "a GPU without a number"
            found.append(f"has {has}, not one of device_ids {listing(map(str, needs.device_ids))}")
    where, memory_mib = "memory", capacity.memory_mib
    if on_gpu and needs.device != "cpu":
        where, memory_mib = "GPU memory", capacity.gpu_memory_mib
    if needs.memory_mb is not None and 0 < memory_mib < needs.memory_mb:
        found.append(f"has {memory_mib} MiB of {where}, and a replica needs {needs.memory_mb}")
    return found


def why_no_worker(needs: Needs, workers: Mapping[str, Host]) -> str:
    """Return in words why no worker takes a model; "" if one fits."""
    if not workers:
        return "no worker runs"
    found = {node: misfits(needs, *host) for node, host in workers.items()}
    if not all(found.values()):
        return ""
    each = [f"{node} {listing(why)}" for node, why in found.items()]
    return f"no worker fits: {listing(each)}"
