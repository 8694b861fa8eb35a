"""Encodes inputs as the JSON of `POST /api/v1/jobs`.

| input | sent as |
|---|---|
| `pathlib.Path` | the file's content; its type is from its name, else from its first bytes |
| `bytes`, `bytearray`, `memoryview` | bytes; the type is from the first bytes, else octet-stream |
| a Pillow image | PNG, or the type in `content_type` |
| a numpy array | nested lists; `.npy` with `application/x-npy` |
| `str` | a JSON string; text with `text/...` |
| any other JSON value | JSON; files, bytes and Pillow images inside lists and mappings as here |
| an `InputRef` | the reference, not the input |

Pillow and numpy are recognised if the caller has imported them; this module never imports them.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, cast
from urllib.parse import quote

import msgspec
from typing_extensions import override

from headrace.client.models import Job
from headrace.client.sansio import HttpRequest
from headrace.config.suggestions import did_you_mean, value_problem
from headrace.errors import InvalidRequest
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions, check_metadata
from headrace.jobs.values.encoding import binary_input, nested_binaries
from headrace.jobs.values.media_types import (
    BINARY_TYPE,
    BOM,
    ORIENTATION_TAG,
    UPRIGHT,
    exif_orientation,
    image_type,
    is_json,
    type_by_name,
    upright,
)
from headrace.jobs.values.plain_values import plain
from headrace.schema.lines import JobRequest

NPY_TYPE: Final = "application/x-npy"
PNG_TYPE: Final = "image/png"
TIFF_TYPE: Final = "image/tiff"
#: Images that keep their EXIF orientation; others are turned upright.
EXIF_TYPES: Final = frozenset({PNG_TYPE, "image/jpeg", "image/webp"})
#: Modes of 8 bits that PNG supports; others are converted to RGB or RGBA.
PNG_MODES: Final = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_WHAT_CAN_BE_SENT: Final = (
    "Send JSON, str, bytes, a pathlib.Path, a Pillow image or a numpy array; "
    "for an open file send the result of its read()."
)


class InputRef:
    """A reference to an input that the server reads itself.

    Can be used instead of any input: `submit("digits", InputRef("s3://scans/1.png"))`. Not a
    dataclass, because a dataclass inside another input would be sent as JSON.

    Args:
        ref: `file:/folder/name` on the server's machines, or `s3://bucket/key`.
        content_type: its media type; default from its name.

    Raises:
        InvalidRequest: the reference is not a str.
    """

    __slots__ = ("content_type", "ref")

    def __init__(self, ref: str, content_type: str | None = None) -> None:
        if not isinstance(ref, str):
            raise InvalidRequest(
                f"a reference must be a str, not {_named(ref)}",
                hint="Give one such as file:/folder/name or s3://bucket/key.",
            )
        self.ref = ref
        self.content_type = content_type

    @override
    def __repr__(self) -> str:
        kind = "" if self.content_type is None else f", {self.content_type!r}"
        return f"InputRef({self.ref!r}{kind})"


def encode_input(value: Any, content_type: str | None = None) -> bytes:
    """Return the JSON text of an input.

    Args:
        value: the input; see the table above.
        content_type: its media type, if it differs from the default of its Python type.

    Raises:
        InvalidRequest: it is of a kind that cannot be sent, not of the type that is given, or a
            file that cannot be read.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if isinstance(value, Path):
        return _file(value, content_type)
    if isinstance(value, (bytes, bytearray, memoryview)):
        body = bytes(value)
        return _body(body, content_type or image_type(body) or BINARY_TYPE)
    if _is(value, "PIL.Image", "Image"):
        return _image(value, content_type or PNG_TYPE)
    if kind == NPY_TYPE and _is(value, "numpy", "ndarray"):
        return binary_input(_npy(value), NPY_TYPE)
    if isinstance(value, str) and kind and not is_json(kind):
        return _body(value.encode(), content_type or "")
    if kind and not is_json(kind):
        raise InvalidRequest(
            f"{_named(value)} cannot be sent as {content_type}",
            hint="Omit content_type, or send bytes.",
        )
    return _json(value)


def _file(path: Path, content_type: str | None) -> bytes:
    try:
        body = path.read_bytes()
    except (OSError, ValueError) as error:
        # ValueError: the name has a NUL, or characters that no file name can have.
        why = error.strerror if isinstance(error, OSError) else None
        is_folder = isinstance(error, IsADirectoryError)
        raise InvalidRequest(
            f"the file {str(path)!a} cannot be read: {why or error}",
            hint="Send the files of a folder one by one." if is_folder else "Check the path.",
        ) from error
    kind = content_type or type_by_name(path.name) or image_type(body) or BINARY_TYPE
    return _body(body, kind, str(path))


def _body(body: bytes, content_type: str, where: str = "the input") -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    if not is_json(kind):
        return binary_input(body, content_type)
    body = body.removeprefix(BOM)
    try:
        body.decode()
        text = bytes(msgspec.json.decode(body, type=msgspec.Raw))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{where} is sent as {kind}, but is not JSON: {error}",
            hint="Correct it, or set another content_type.",
        ) from None
    # A line of a bulk request must not contain a line feed.
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _image(image: Any, content_type: str) -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    pillow = sys.modules["PIL.Image"]
    pillow.init()
    name = next((name for name, mime in pillow.MIME.items() if mime == kind), None)
    if name is None:
        raise InvalidRequest(
            f"a Pillow image cannot be sent as {content_type}", hint="Use one such as image/jpeg."
        )
    options = {}
    out = io.BytesIO()
    try:
        # Pillow turns a TIFF upright when it reads the pixels.
        image.load()
        if (orientation := exif_orientation(image)) != UPRIGHT and kind in EXIF_TYPES:
            options["exif"] = pillow.Exif()
            options["exif"][ORIENTATION_TAG] = orientation
        image = _for_format(image if options else upright(image), kind)
        image.save(out, name, **options)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"a Pillow image of mode {image.mode} cannot be written as {content_type}: {error}",
            hint='Convert it first, such as image.convert("RGB"), or send it as image/png.',
        ) from None
    return binary_input(out.getvalue(), content_type)


def _for_format(image: Any, kind: str) -> Any:
    """Return the image in a mode that the format supports, same tones; or raise ValueError."""
    wide = image.mode == "F" or image.mode.startswith("I")
    if kind != PNG_TYPE:
        # Pillow clips wide tones in some formats.
        if wide and kind != TIFF_TYPE:
            raise ValueError("it has tones of 8 bits")
        return image
    if wide:
        return _narrowed(image)
    if image.mode in PNG_MODES:
        return image
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _narrowed(image: Any) -> Any:
    if image.mode == "I;16":
        return image
    kind, most = ("L", 255) if image.mode == "F" else ("I;16", 65_535)
    whole = image if image.mode == "F" else image.convert("I")
    low, high = whole.getextrema()
    # Of floating-point tones up to 1, rounding would leave nothing.
    if not 0 <= low <= high <= most or (kind == "L" and 0 < high <= 1):
        raise ValueError(f"its tones are {low:g} to {high:g}, and whole ones to {most} are written")
    return whole.convert(kind)


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    try:
        sys.modules["numpy"].save(out, array, allow_pickle=False)
    except ValueError as error:
        raise InvalidRequest(
            f"an array of {array.dtype} cannot be written as {NPY_TYPE}: {error}",
            hint="Objects are not pickled: send numbers or fixed-length text.",
        ) from None
    return out.getvalue()


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(nested_binaries(value, _part), enc_hook=plain)
    except (TypeError, ValueError, RecursionError, msgspec.EncodeError) as error:
        raise InvalidRequest(
            f"{_named(value)} cannot be sent: {error}", hint=_WHAT_CAN_BE_SENT
        ) from None


def _part(value: Any) -> bytes | None:
    """Return a part of an input that has a form of its own in JSON; None for the others."""
    if isinstance(value, (bytes, bytearray, memoryview, Path)) or _is(value, "PIL.Image", "Image"):
        return encode_input(value)
    return None


def _is(value: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name, ()))


def _named(value: Any) -> str:
    kind = type(value)
    return f"a value of type {kind.__module__}.{kind.__qualname__}"


JOBS: Final = "/api/v1/jobs"
JSON_HEADERS: Final = {"content-type": "application/json"}
NDJSON_HEADERS: Final = {"content-type": "application/x-ndjson"}


def json_request(
    method: str,
    path: str,
    value: Any,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    wait_s: float = 0,
) -> HttpRequest:
    """Return a request whose body is a value as JSON."""
    body = msgspec.json.encode(value)
    return HttpRequest(method, path, query or {}, body, {**JSON_HEADERS, **(headers or {})}, wait_s)


def trace_headers() -> dict[str, str]:
    """Return the trace context headers for a submit, if the caller uses OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


class Options(TypedDict, total=False):
    """A job's options, documented in docs/api.md. None means the server's default."""

    priority: int | None
    expires: float | None
    countdown: float | None
    timeout: float | None
    result_ttl: int | None
    max_retries: int | None
    retry_backoff: float | None
    retry_backoff_max: float | None
    metadata: dict[str, Any] | None
    webhook: str | None
    webhook_events: Sequence[str] | None


def check_options(options: Mapping[str, Any], valid: Collection[str] = ()) -> None:
    """Check the names of a job's options, and that each number is one that JSON has.

    Args:
        valid: the names that the caller takes, for the message; default those of the options.

    Raises:
        InvalidRequest: there is no option of a name, or a value is NaN or infinity.
    """
    set_names = {name for name, option in options.items() if option is not None}
    unknown = set_names - Options.__annotations__.keys()
    if unknown:
        valid = valid or Options.__annotations__
        names = ", ".join(sorted(unknown))
        near = did_you_mean(min(unknown), valid)
        raise InvalidRequest(
            f"unknown option: {names}{near}", hint=f"Valid options: {', '.join(valid)}."
        )
    # Its null in JSON would be the server's default.
    _check_numbers(options, "option")


def checked_options(options: Mapping[str, Any], valid: Collection[str] = ()) -> Options:
    """Return a job's options as JSON has them, checked as the server does, once before many jobs.

    Args:
        valid: as for `check_options`.

    Raises:
        InvalidRequest: there is no option of a name, or a value is not valid.
    """
    check_options(options, valid)
    given = {name: option for name, option in options.items() if option is not None}
    checked = _as_json(given, "an option")
    for name, value in checked.items():
        try:
            msgspec.convert({name: value}, JobOptions)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"option {name}: {value_problem(value, error, JobOptions)}"
            ) from None
    check_metadata(checked.get("metadata"))
    return cast("Options", checked)


def plain_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return parameters as JSON has them, {} for None; the server decides what null means.

    Raises:
        InvalidRequest: they are no mapping, or one cannot be sent, or is NaN or infinity.
    """
    if not parameters:
        return {}
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(
            f"parameters: expected a mapping, got {type(parameters).__name__}",
            hint="Give each value by its name.",
        )
    sent = _as_json(parameters, "a parameter")
    _check_numbers(parameters, "parameter")
    return sent


def _as_json(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(values, enc_hook=plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} cannot be sent: {error}") from None
    return found


def _check_numbers(values: Mapping[str, Any], what: str) -> None:
    """Raise InvalidRequest for NaN and infinity, at any depth: their JSON would be null."""
    for name, value in values.items():
        if value is None or isinstance(value, (str, bool, int)):
            continue
        try:
            builtin = msgspec.to_builtins(value, enc_hook=_number_or_plain, str_keys=True)
        except (TypeError, ValueError, RecursionError):
            # The caller reports what cannot be sent.
            continue
        for where, number in _not_finite(builtin, name):
            raise InvalidRequest(
                f"{what} {where}: {number} is not a number", hint="Send a number, or leave it out."
            )


def _number_or_plain(value: Any) -> Any:
    as_plain = plain(value)
    # pandas' missing values are null in JSON too.
    return math.nan if as_plain is None else as_plain


def _not_finite(value: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield where, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _not_finite(item, f"{where}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{where}[{index}]")


def job_line(
    model: str,
    value: Any,
    content_type: str | None,
    version: str | None,
    options: Options,
    job_id: str | None = None,
    parameters: dict[str, Any] | None = None,
) -> bytes:
    """Return one job as JSON: the body of a submit, or a line of a bulk request.

    Args:
        parameters: as `plain_parameters` returns them.

    Raises:
        InvalidRequest: the input or an option cannot be sent.
    """
    check_options(options)
    set_options = {name: option for name, option in options.items() if option is not None}
    line = JobRequest(
        model=model, id=job_id, version=version,
        parameters=parameters or None,
        # The server checks the options.
        options=cast("JobOptions", set_options) if set_options else DEFAULT_OPTIONS,
    )  # fmt: skip
    if isinstance(value, InputRef):
        line.input_ref, line.content_type = value.ref, value.content_type or content_type
    else:
        line.input = msgspec.Raw(encode_input(value, content_type))
    try:
        return msgspec.json.encode(line, enc_hook=plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"an option cannot be sent: {error}") from None


def job_request(method: str, job: str | Job, *, wait_s: float = 0, below: str = "") -> HttpRequest:
    """Return a request for one job, or for the path `below` it."""
    job_id = job if isinstance(job, str) else job.id
    query = {"wait": f"{wait_s:g}"} if wait_s else {}
    return HttpRequest(method, f"{JOBS}/{quote(job_id, safe='')}{below}", query, wait_s=wait_s)
