"""Limits of a language model's input: its handler has them, and what takes requests for it."""

from __future__ import annotations

from typing import Final

#: The most texts that end an answer, and the most characters of each.
STOPS_MAX: Final = 16
STOP_MAX_CHARS: Final = 1024
