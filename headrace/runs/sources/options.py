"""What a user may say of how a source is to be read."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.errors import ConfigError

_UNTOLD: Final = frozenset({"output", "by_ref"})


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a source is read; each kind takes what concerns it and refuses the rest by `refuse`.

    Attributes:
        input: the column that is the input, in what has columns; the others are carried.
        key: the column that names the input.
        glob: in a folder, only files whose path below it matches one of these.
        content_type: what every input is, where it is a file or bytes.
        output: where the rows go: what a folder or a pattern finds there is no input. How the
            source is read does not depend on it, so that `told` leaves it out.
        by_ref: inputs are to be named and not sent; the same holds.
    """

    input: str | None = None
    key: str | None = None
    glob: tuple[str, ...] = ()
    content_type: str | None = None
    output: str = ""
    by_ref: bool = False

    def told(self) -> dict[str, Any]:
        """Those that were given, for `Source.describe`."""
        known = msgspec.to_builtins(self)
        return {name: value for name, value in known.items() if value and name not in _UNTOLD}

    def refuse(self, *names: str, of: str) -> None:
        """Refuse options that mean nothing for a source.

        Args:
            names: their names.
            of: what the user has named as the source.

        Raises:
            ConfigError: one of them was given.
        """
        for name in names:
            if getattr(self, name):
                raise ConfigError(
                    f"--{name.replace('_', '-')} means nothing for {of}", hint="Leave it out."
                )
