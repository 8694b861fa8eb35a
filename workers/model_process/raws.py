"""Whether results in this process can hold a `msgspec.Raw`, which msgspec writes as it is, unread.

To look for one in each result would cost up to half of what its encoding does. Who makes one must
import msgspec, which next to no handler does, so that it is asked once which modules have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

#: They make no result that has one inside.
_OURS = ("headrace", "workers", "handlers", "msgspec")


class ForeignType:
    """Whether code that is not ours has msgspec at hand, as a module's name for it shows."""

    def __init__(self) -> None:
        self._looked_at = 0
        self._found = False

    def makers(self) -> bool:
        """Look, where modules were imported since the last time."""
        if not self._found and len(sys.modules) != self._looked_at:
            self._looked_at = len(sys.modules)
            self._found = names_msgspec(list(sys.modules.items()))
        return self._found


def names_msgspec(modules: Iterable[tuple[str, object]]) -> bool:
    """Whether one of these modules that is not ours has a name for msgspec, or for its `Raw`."""
    for name, module in modules:
        if name.partition(".")[0] in _OURS:
            continue
        # What stands there need not be a module.
        known = getattr(module, "__dict__", None)
        if not isinstance(known, dict):
            continue
        if any(value is msgspec or value is msgspec.Raw for value in list(known.values())):
            return True
    return False
