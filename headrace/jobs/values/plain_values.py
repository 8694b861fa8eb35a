"""The JSON form of values that JSON has not: numpy's, torch's, and some of Python's own.

numpy and torch are recognised if the process has imported them; this module never imports them.
docs/handlers.md has the table of forms.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final

#: Units of durations that a `timedelta` holds exactly.
_EXACT: Final = ("W", "D", "h", "m", "s", "ms", "us")
#: Keys that Python's json writes as text. As values msgspec knows them.
_KEYS: Final = {None: "null", True: "true", False: "false"}
#: Subclasses, which msgspec does not know, and containers.
_PARENTS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    ((datetime, date), lambda time: time.isoformat()),
    (Mapping, dict),
    ((deque, range), list),
)


def plain(value: Any) -> Any:
    """Return a value that msgspec cannot encode as one that it can, or that has such values.

    Raises:
        TypeError: it has no form in JSON.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
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
