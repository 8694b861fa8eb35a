"""An offline run from Python: `run_offline`, which the extension `runs` has."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.extensions import exported
from headrace.runs.spec import RunProgress

run_offline: Callable[..., RunProgress]


def __getattr__(name: str) -> object:
    return exported(__name__, name)
