"""Values that are converted to a type, with messages for who wrote them.

Apart from yaml_file.py, because settings from the environment alone need no YAML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.config.suggestions import not_a_choice

_SHOWN_MAX_CHARS: Final = 60


def convert(value: object, kind: Any, *, strict: bool = True, secret: bool = False) -> Any:
    """Convert a value to a type.

    Args:
        kind: the type, with its limits in `msgspec.Meta`.
        strict: False also parses numbers in text, for environment variables.
        secret: whether the message must not contain the value.

    Raises:
        ValueError: it does not fit; the message has the expected type and the value.
    """
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_decode)
    except msgspec.ValidationError as error:
        if not secret and (problem := not_a_choice(error, kind)):
            raise ValueError(problem) from None
        text = str(error).partition(" - at ")[0].replace("`", "")
        text = text.replace("object", "mapping").replace("array", "list").replace(" | null", "")
        text = text[:1].lower() + text[1:].replace("got null", "got nothing")
        if not secret and (", got" not in text or isinstance(value, str)):
            text = f"{text.partition(', got')[0]}, got {shown(value)}"
        raise ValueError(text) from None


def shown(value: object) -> str:
    """Return a value for a message, shortened to 60 characters."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _SHOWN_MAX_CHARS else f"{text[:_SHOWN_MAX_CHARS]}..."


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value:
        return Path(value).expanduser()
    raise ValueError(f"Expected `{kind.__name__.lower()}`, got `{type(value).__name__}`")
