"""Environment variables by which a worker recognises the processes that belong to it."""

from __future__ import annotations

from typing import Final

#: Set in every model process and inherited by its children; names the worker: its pid, ":", random.
PARENT_VARIABLE: Final = "HEADRACE_MODEL_PARENT"
#: Set likewise; names one start of one model process.
LIFE_VARIABLE: Final = "HEADRACE_MODEL_LIFE"
