"""What this extension adds."""

from __future__ import annotations

from typing import Final

from headrace.config.extensions import Extension

EXTENSION: Final = Extension(
    name="tuning", summary="The commands that measure, optimize, profile and tune models"
)
