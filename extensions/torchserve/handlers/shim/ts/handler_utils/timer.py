"""Measures the steps of a handler, if its configuration asks for it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _profiles(context: Any) -> bool:
    config = getattr(context, "model_yaml_config", None)
    section = config.get("handler") if isinstance(config, dict) else None
    return isinstance(section, dict) and bool(section.get("profile"))


def timed(function: _Function) -> _Function:
    """Report the time of a handler's method as the metric `ts_handler_<method>`.

    Only with `handler: {profile: true}` in the archive's configuration. The handler may lack a
    context, as a class need not call its base class.
    """

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        context: Any = getattr(self, "context", None)
        if not _profiles(context):
            return function(self, *args, **kwargs)
        _wait_for_device(self)
        started = time.perf_counter()
        result = function(self, *args, **kwargs)
        _wait_for_device(self)
        took_ms = (time.perf_counter() - started) * 1000
        if context.metrics is not None:
            context.metrics.add_time(f"ts_handler_{function.__name__}", took_ms)
        return result

    return call  # type: ignore[return-value]


def _wait_for_device(handler: Any) -> None:
    device = getattr(handler, "device", None)
    if getattr(device, "type", "") == "cuda":
        import torch

        torch.cuda.synchronize(device)
