"""Values that Celery's JSON has and JSON has not: times, UUIDs, decimal numbers and bytes.

A Celery client writes each as `{"__type__", "__value__"}`. This is what kombu.utils.json reads.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from datetime import datetime, time
from decimal import Decimal
from typing import Any, Final

from headrace.errors import InvalidRequest

#: Is in the JSON text of each such value.
MARK: Final = b'"__type__"'
_KEYS: Final = {"__type__", "__value__"}
_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda fields: uuid.UUID(fields["hex"]),
    "bytes": lambda text: text.encode(),
    "base64": lambda text: base64.b64decode(text.encode(), validate=True),
}


def decode_celery_types(value: Any) -> Any:
    """Return a parsed JSON value with such values in it, as a Celery worker gets it.

    Raises:
        InvalidRequest: one has another type, or cannot be read, or they are nested too deeply.
    """
    try:
        return _decoded(value)
    except RecursionError:
        raise InvalidRequest("the input is nested too deeply") from None


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != _KEYS:
        return {name: _decoded(item) for name, item in value.items()}
    kind, content = value["__type__"], _decoded(value["__value__"])
    decode = _DECODERS.get(kind) if isinstance(kind, str) else None
    if decode is None:
        raise InvalidRequest(
            f"the input has a value of the type {str(kind)[:64]!r}, which Celery's JSON does not "
            f"have; it has {', '.join(_DECODERS)}"
        )
    try:
        return decode(content)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        raise InvalidRequest(f"the input has a value that is no {kind}") from None
