"""The parameters that a model declares, and the check of those that a client sends.

A parameter is a value with an input, such as a question or a threshold. The API checks the
parameters of a job before the queue, and the worker checks those of a Celery client. Both by the
same declaration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headrace.config.suggestions import did_you_mean
from headrace.config.values import shown
from headrace.config.yaml_file import Document, read_fields
from headrace.errors import InvalidRequest
from headrace.jobs.options import JobOptions

#: The most bytes of a job's parameters, as JSON.
PARAMETERS_MAX_BYTES: Final = 16_384
PARAMETERS_MAX: Final = 64
PARAMETER_NAME: Final = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
#: Where a client sends a parameter in a query or a form, these names mean something else.
RESERVED_NAMES: Final = frozenset({*JobOptions.__struct_fields__, "wait", "data", "body"})
#: Of a connection or a proxy (RFC 9110, 7.6.1), or with a secret: no handler gets them.
WITHHELD_HEADERS: Final = frozenset({
    "authorization", "cookie", "set-cookie", "x-api-key", "headrace-acts-for", "connection",
    "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip

#: The limits of msgpack, in which a model process receives values.
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**63 - 1
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}
_NAME: Final = re.compile(PARAMETER_NAME)

#: A value of a parameter.
Scalar = str | int | float | bool
_EXAMPLES: Final[dict[str, Scalar]] = {
    "string": "", "number": 0.0, "integer": 0, "boolean": False,
}  # fmt: skip
ParameterName = Annotated[str, Meta(pattern=PARAMETER_NAME)]
HeaderName = Annotated[str, Meta(pattern="^[a-z0-9!#$&^_.+-]{1,64}$")]


class Parameter(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A value that a client may send with an input.

    Attributes:
        type: string, number, integer or boolean.
        default: its value in a job that does not set it; without one the handler gets None.
        enum: the only values that it can have.
        minimum: the least value of a number or an integer.
        maximum: the greatest value of a number or an integer.
        required: whether a job that does not set it is refused.
        description: what it is for.
    """

    type: Literal["string", "number", "integer", "boolean"]
    default: Scalar | None = None
    enum: Annotated[list[Scalar], Meta(min_length=1, max_length=256)] | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    required: bool = False
    description: Annotated[str, Meta(max_length=1024)] = ""

    @property
    def expected(self) -> str:
        """Describe its values, such as "an integer from 1 to 10"."""
        if self.enum is not None:
            return f"one of {', '.join(map(str, self.enum))}"
        text = "an integer" if self.type == "integer" else f"a {self.type}"
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            return f"{text} from {low:g} to {high:g}"
        if low is not None:
            return f"{text} of at least {low:g}"
        return text if high is None else f"{text} of at most {high:g}"

    @property
    def example(self) -> Scalar:
        """A value that it can have: its default, if it has one."""
        for value in (self.default, *(self.enum or ()), self.minimum, self.maximum):
            if value is not None:
                return self.checked(value)
        return _EXAMPLES[self.type]

    @property
    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema, without the description."""
        named = {name: getattr(self, name) for name in ("default", "enum", "minimum", "maximum")}
        schema = {name: value for name, value in named.items() if value is not None}
        return {"type": self.type, **schema}

    def checked(self, value: object) -> Scalar:
        """Return a value by its type, text converted; raise ValueError if it does not fit."""
        converted = _converted(self.type, value)
        if converted is None or (self.enum is not None and converted not in self.enum):
            raise ValueError
        if isinstance(converted, (int, float)) and self.type != "boolean":
            below = self.minimum is not None and converted < self.minimum
            if below or (self.maximum is not None and converted > self.maximum):
                raise ValueError
        return converted


def _converted(kind: str, value: object) -> Scalar | None:
    """Return a value as this type; None if it is not one."""
    if kind == "string":
        return value if isinstance(value, str) else None
    if kind == "boolean":
        found = _BOOLEANS.get(value.lower()) if isinstance(value, str) else value
        return found if isinstance(found, bool) else None
    if isinstance(value, str):
        value = _number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    if not _INTEGER_MIN <= value <= _INTEGER_MAX and (kind == "integer" or isinstance(value, int)):
        return None
    if kind == "number":
        return value
    return int(value) if int(value) == value else None


def _number(text: str) -> int | float | None:
    # As JSON has them: `1_000` and `infinity` are no numbers.
    try:
        return msgspec.json.decode(text, type=int | float)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def check_parameters(
    declared: Mapping[str, Parameter], given: Mapping[str, Any], model: str
) -> dict[str, Any]:
    """Return parameters by type, null as not given; raise InvalidRequest with each mistake."""
    found: dict[str, Any] = {}
    wrong = []
    for name, value in given.items():
        parameter = declared.get(name)
        if parameter is None:
            wrong.append(f"unknown parameter {name[:64]!r}{did_you_mean(name[:64], declared)}")
        elif value is not None:
            try:
                found[name] = parameter.checked(value)
            except (ValueError, OverflowError):
                wrong.append(f"parameter {name}: expected {parameter.expected}, got {shown(value)}")
    wrong += [
        f"parameter {name} is missing: expected {parameter.expected}"
        for name, parameter in declared.items()
        if parameter.required and given.get(name) is None
    ]
    if wrong:
        raise InvalidRequest("; ".join(wrong), hint=_what_it_takes(declared, model))
    size = len(msgspec.json.encode(found))
    if size > PARAMETERS_MAX_BYTES:
        raise InvalidRequest(
            f"the parameters have {size} bytes as JSON, more than {PARAMETERS_MAX_BYTES}",
            hint="Send large values in the input.",
        )
    return found


def _what_it_takes(declared: Mapping[str, Parameter], model: str) -> str:
    if not declared:
        return f"Model {model} takes no parameters."
    each = "; ".join(f"{name} ({one.expected})" for name, one in declared.items())
    return f"Model {model} takes: {each}."


def with_defaults(declared: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each declared parameter; None for one without a value and a default."""
    return {name: given.get(name, one.default) for name, one in declared.items()}


def example_values(declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the parameters with which a handler's `example_input` runs."""
    examples = {name: one.example for name, one in declared.items() if one.required}
    return with_defaults(declared, examples)


def read_parameters(document: Document, where: tuple[str, ...]) -> dict[str, Parameter]:
    """Return the `parameters` of a model, which are at these keys; report the mistakes."""
    written = document.at(where)
    if not isinstance(written, dict):
        document.report(where, f"expected mapping, got {shown(written)}")
        return {}
    if len(written) > PARAMETERS_MAX:
        document.report(where, f"a model has at most {PARAMETERS_MAX} parameters")
    found = {}
    for name in written:
        before = len(document.problems)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            text = "a parameter's name has 1 to 64 of A-Z a-z 0-9 _ - and begins with a letter or _"
            document.report((*where, name), text)
        elif name in RESERVED_NAMES:
            text = "this name has another meaning in a submit; choose another name"
            document.report((*where, name), text)
        values = read_fields(document, (*where, name), Parameter)
        if len(document.problems) == before:
            found[name] = Parameter(**values)
            for member, text in _mistakes(found[name]):
                document.report((*where, name, member), text)
    return found


def _mistakes(parameter: Parameter) -> list[tuple[str, str]]:
    """Return the keys of a parameter that do not fit each other, each with a message."""
    low, high = parameter.minimum, parameter.maximum
    limits = {"minimum": low, "maximum": high}
    if parameter.type not in ("number", "integer"):
        text = f"only a number or an integer has one, not a {parameter.type}"
        wrong = [(key, text) for key, limit in limits.items() if limit is not None]
    elif low is not None and high is not None and low > high:
        wrong = [("minimum", f"it is greater than the maximum of {high:g}")]
    else:
        wrong = []
    free = msgspec.structs.replace(parameter, enum=None)
    wrong += [
        ("enum", f"expected {free.expected}, got {shown(value)}")
        for value in parameter.enum or ()
        if not _fits(free, value)
    ]
    default = parameter.default
    if default is None:
        return wrong
    if parameter.required:
        wrong.append(("default", "a required parameter has none; remove one of the two"))
    if not wrong and not _fits(parameter, default):
        wrong.append(("default", f"expected {parameter.expected}, got {shown(default)}"))
    return wrong


def _fits(parameter: Parameter, value: Scalar) -> bool:
    """Return whether a value of the models file is one of this parameter, without conversion."""
    try:
        parameter.checked(value)
    except (ValueError, OverflowError):
        return False
    return isinstance(value, str) == (parameter.type == "string")
