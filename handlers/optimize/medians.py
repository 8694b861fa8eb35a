"""How sure a median is, for the check of a variant and for the table of a measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

#: Half the width of the 95 % interval of a median, in places, for the root of the count.
_HALF: Final = 0.98


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of ascending values, by their ranks."""
    middle, half = (len(ordered) - 1) / 2, _HALF * math.sqrt(len(ordered))
    low, high = math.floor(middle - half), math.ceil(middle + half)
    return ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]
