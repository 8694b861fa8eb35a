"""The start of a model process or a preprocess process: its handler, context and parent."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from handlers import loader
from handlers.loader import load_handler
from headrace.errors import ConfigError
from headrace.handler import Context, Handler
from workers.model_process.outcomes import text_of

PR_SET_PDEATHSIG: Final = 1


def handler_of(config: dict[str, Any]) -> Handler:
    """Return the handler that the init frame names, not yet initialised.

    Raises:
        Exception: whatever its import or its constructor raises.
    """
    loaded = load_handler(config["handler"], Path(config["model_dir"]))
    return loaded() if isinstance(loaded, type) else loaded


def context_of(config: dict[str, Any], kind: type[Context]) -> Context:
    """Return the context that the init frame describes."""
    return kind(
        model_name=config["model"],
        version=config["version"],
        device=config["device"],
        model_dir=Path(config["model_dir"]),
        weights=Path(config["weights"]) if config["weights"] else None,
        options=config["options"],
        channels_last=config["channels_last"],
        max_batch_size=config["max_batch_size"],
        allowed_batch_sizes=config["allowed_batch_sizes"],
    )


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux).

    Args:
        parent: the pid of the process that started it; 0 if it is not known.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the line above.
    if parent and os.getppid() != parent:
        os._exit(0)


def why_not_loaded(error: BaseException) -> str:
    """Describe a failed load to the handler's author.

    The traceback has the frames of the author's code only, not those of Headrace and the import
    machinery. A ConfigError ends with its message and hint.
    """
    own = (error.__cause__ if isinstance(error, ConfigError) else None) or error
    frames = _their_frames(own.__traceback__)
    lines: list[str] = []
    if frames is not None or own is not error:
        lines.append("".join(traceback.format_exception(own.with_traceback(frames))))
    if isinstance(error, ConfigError):
        lines.append("; ".join(filter(None, (error.message, error.hint))) + "\n")
    return text_of("\n".join(lines))


def _their_frames(frames: TracebackType | None) -> TracebackType | None:
    ours = str(Path(__file__).parent), str(Path(loader.__file__)), "<frozen importlib"
    importlib_folder = str(Path(importlib.__file__).parent)
    while frames is not None:
        if not frames.tb_frame.f_code.co_filename.startswith((*ours, importlib_folder)):
            return frames
        frames = frames.tb_next
    return None
