"""A dimension of a metric: a name and a value."""

from __future__ import annotations

from typing import Any

from typing_extensions import override


class Dimension:
    """A dimension of a metric."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    @override
    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, Any]:
        """Return its name and value."""
        return {"Name": self.name, "Value": self.value}
