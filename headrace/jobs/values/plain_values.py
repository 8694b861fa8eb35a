"""Values that JSON has not, and their JSON form: Celery's, numpy's, torch's and Python's own."""

from __future__ import annotations

import base64
import sys
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from headrace.errors import InvalidRequest

#: Is in the JSON text of each such value.
MARK: Final = b'"__type__"'
_CELERY_KEYS: Final = {"__type__", "__value__"}
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
    """Return a JSON value with such values as a Celery worker gets it; or raise InvalidRequest."""
    try:
        return _decoded(value)
    except RecursionError:
        raise InvalidRequest("the input is nested too deeply") from None


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != _CELERY_KEYS:
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


#: Units of durations that a `timedelta` holds exactly.
_EXACT: Final = ("W", "D", "h", "m", "s", "ms", "us")
#: Keys that Python's json writes as text. As values msgspec knows them.
_KEYS: Final = {None: "null", True: "true", False: "false"}


def _of_timedelta(span: Any) -> timedelta:
    if getattr(span, "nanoseconds", 0):
        raise TypeError(f"{_named(span)} with nanoseconds is not a JSON value; send a number")
    return timedelta(span.days, span.seconds, span.microseconds)


#: Subclasses, which msgspec does not know, and containers.
_PARENTS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    ((datetime, date), lambda time: time.isoformat()),
    (timedelta, _of_timedelta),
    (Mapping, dict),
    ((deque, range), list),
)


def plain(value: Any) -> Any:
    """Return a value that msgspec cannot encode in a form that it can; raise TypeError for none."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if _is_missing(value):
        return None
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _of_numpy(numpy, value)
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value)
    if value is None or isinstance(value, bool):
        return _KEYS[value]
    for kind, convert in _PARENTS:
        if isinstance(value, kind):
            return convert(value)
    return _of_another(value)


def _is_missing(value: Any) -> bool:
    """Return whether a value is pandas' NaT, which is a datetime, or its NA."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NaT or value is pandas.NA)


def _of_another(value: Any) -> Any:
    if isinstance(value, (tuple, frozenset)):
        raise TypeError(f"a key of an object must be text or a number, not {_named(value)}")
    if isinstance(value, complex):
        raise TypeError("a complex number is not a JSON value; send its parts")
    # Arrays of other libraries.
    for method in ("tolist", "item"):
        convert = getattr(value, method, None)
        if callable(convert) and not isinstance(value, type):
            converted = convert()
            if type(converted) is not type(value):
                return converted
    raise TypeError(f"{_named(value)} is not a JSON value")


def _of_numpy(numpy: Any, value: Any) -> Any:
    kind = value.dtype.kind
    if kind == "c":
        raise TypeError(f"numpy's {value.dtype} is not a JSON value; send real and imaginary parts")
    if kind == "f" and value.dtype.itemsize > 8:
        return value.astype(numpy.float64).tolist()
    if kind == "M":
        # As text, because numpy gives nanoseconds and years after 9999 as numbers.
        texts = numpy.datetime_as_string(value)
        return numpy.where(numpy.isnat(value), None, texts).tolist()
    if kind == "m":
        if numpy.datetime_data(value.dtype)[0] not in _EXACT:
            raise TypeError(f"numpy's {value.dtype} is not a JSON value; send a number")
        return value.astype("timedelta64[us]").tolist()
    return value.tolist()


def _of_torch(torch: Any, value: Any) -> Any:
    if value.is_complex():
        raise TypeError(f"{value.dtype} is not a JSON value; send real and imaginary parts")
    if value.is_nested:
        return list(value.unbind())
    if value.layout is not torch.strided:
        raise TypeError("a sparse tensor is not a JSON value; call to_dense()")
    return (value.dequantize() if value.is_quantized else value).tolist()


def _named(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
