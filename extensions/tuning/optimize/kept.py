"""The last comparison of a model's variants, which `headrace tune` uses in place of its own."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from extensions.tuning.optimize.report import Comparison
from headrace._version import __version__

#: Below the state directory: the last comparison of each model.
_FOLDER: Final = "compared"
#: What a frame has besides the model, its inputs, and what its process has.
_OF_A_RUN: Final = frozenset(
    {
        "variants", "sizes", "rounds", "load_limit_s", "optimize_cache", "again", "optimize",
        "max_batch_size", "allowed_batch_sizes", "profile",
    }
)  # fmt: skip
#: An older comparison is not used.
_OLDEST_S: Final = 7 * 86_400


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison.

    Attributes:
        key: the digest of what was measured.
        at: when it was written, in seconds since 1970.
    """

    key: str
    at: float
    comparison: Comparison


def write(state_dir: Path, frame: Mapping[str, Any], comparison: Comparison) -> None:
    """Keep a comparison for the frame of its process, if the folder can be written."""
    kept = _Kept(key=_key(frame), at=time.time(), comparison=comparison)
    file = _file(state_dir, frame)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(kept))
        temporary.replace(file)


def read(state_dir: Path, frame: Mapping[str, Any]) -> tuple[Comparison, float] | None:
    """Return the last comparison of a model and inputs, and its age in s; None after a week."""
    with suppress(OSError, msgspec.MsgspecError):
        kept = msgspec.json.decode(_file(state_dir, frame).read_bytes(), type=_Kept)
        age_s = time.time() - kept.at
        if kept.key == _key(frame) and 0 <= age_s < _OLDEST_S:
            return kept.comparison, age_s
    return None


def _file(state_dir: Path, frame: Mapping[str, Any]) -> Path:
    return state_dir / _FOLDER / f"{frame['model']}.json"


def _key(frame: Mapping[str, Any]) -> str:
    parts = {name: value for name, value in frame.items() if name not in _OF_A_RUN}
    facts = [parts, __version__, sorted(os.sched_getaffinity(0)), _times(frame)]
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def _times(frame: Mapping[str, Any]) -> list[list[Any]]:
    """Return when the handler, the weights and the inputs were changed."""
    handler = Path(frame["model_dir"]) / frame["handler"]
    found = []
    for path in (handler, frame["weights"], frame["inputs"]):
        with suppress(OSError):
            found.append([str(path), Path(path).stat().st_mtime_ns] if path else [])
    return found
