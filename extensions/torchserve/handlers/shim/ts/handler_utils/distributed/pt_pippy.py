"""PiPPy, which Headrace does not have: a model process is one process."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace.errors import ConfigError


def initialize_rpc_workers(local_rank: int, world_size: int, ctx: Any) -> NoReturn:
    """Raise a ConfigError."""
    raise _not_here(ctx)


def get_pipeline_driver(model: Any, world_size: int, ctx: Any) -> NoReturn:
    """Raise a ConfigError."""
    raise _not_here(ctx)


def _not_here(ctx: Any) -> ConfigError:
    return ConfigError(
        f"{ctx.model_name}: PiPPy splits a model over processes, and a model of Headrace runs in "
        "one process",
        hint="load it over several GPUs in one process, such as with Accelerate's "
        'device_map="auto"; PiPPy itself works with no current PyTorch',
    )
