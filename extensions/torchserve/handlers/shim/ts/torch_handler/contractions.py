"""Contractions of English with their full forms."""

from __future__ import annotations

from typing import Final

from handlers.common.text import CONTRACTIONS

CONTRACTION_MAP: Final = CONTRACTIONS
