"""The differences from TorchServe that are on purpose, as the documentation lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.extensions.torchserve.compat.servers import ROOT

PAGE: Final = ROOT / "docs/torchserve-differences.md"
_ROW: Final = re.compile(
    r"^\| `([a-z0-9-]+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE
)
_STATUS: Final = re.compile(r"^`(\d{3}|no answer)`")


@dataclass(frozen=True)
class Difference:
    """A row of the page.

    Attributes:
        name: what requests of the comparison call it.
        theirs, ours: the statuses that the row says; 0 for no answer.
    """

    name: str
    theirs: int
    ours: int


def documented() -> dict[str, Difference]:
    """The rows of the page, by name."""
    found = {}
    for name, _, theirs, ours, _ in _ROW.findall(PAGE.read_text()):
        found[name] = Difference(name, _status(theirs), _status(ours))
    return found


def _status(cell: str) -> int:
    match = _STATUS.match(cell)
    assert match, f"{PAGE.name}: a cell begins with a status in backticks: {cell}"
    return 0 if match[1] == "no answer" else int(match[1])
