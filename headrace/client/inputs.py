"""Inputs of every kind as the JSON that `POST /api/v1/jobs` takes.

| given | sent |
|---|---|
| `pathlib.Path` | the file's content, by its name's type, else by its first bytes |
| `bytes`, `bytearray`, `memoryview` | bytes, by their first bytes, else octet-stream |
| a Pillow image | a PNG, or what `content_type` says |
| a numpy array | nested lists; the `.npy` form under `application/x-npy` |
| `str` | a JSON string; text of that type under `text/...` |
| everything else that JSON can say | JSON |
| an `InputRef` | not the input, but where it is: requests.py |

Pillow and numpy are known by the modules that the caller has imported; nothing here imports them.
"""

from __future__ import annotations

import io
import mimetypes
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from typing_extensions import override

from headrace.errors import InvalidRequest
from headrace.jobs.encoding import binary_input
from headrace.jobs.media_types import BINARY_TYPE, image_type, is_json

NPY_TYPE: Final = "application/x-npy"
PNG_TYPE: Final = "image/png"
#: Modes that a PNG can hold as they are; any other becomes RGB, or RGBA.
PNG_MODES: Final = frozenset({"1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"})
_WHAT_CAN_BE_SENT: Final = (
    "Send JSON, str, bytes, a pathlib.Path, a Pillow image or a numpy array; "
    "of an open file send what read() gives."
)


class InputRef:
    """Where an input is that the server is to read by itself: it goes through no request.

    Stands wherever an input may: `submit("digits", InputRef("s3://scans/1.png"))`. Not a
    dataclass, which would be sent as JSON from within another input.

    Args:
        ref: `file:/folder/name` on the server's machines, or `s3://bucket/key`.
        content_type: what it is; by default its name says.

    Raises:
        InvalidRequest: the reference is no text.
    """

    __slots__ = ("content_type", "ref")

    def __init__(self, ref: str, content_type: str | None = None) -> None:
        if not isinstance(ref, str):
            raise InvalidRequest(
                f"a reference is text, not {_named(ref)}",
                hint="Give one such as file:/folder/name or s3://bucket/key.",
            )
        self.ref = ref
        self.content_type = content_type

    @override
    def __repr__(self) -> str:
        kind = "" if self.content_type is None else f", {self.content_type!r}"
        return f"InputRef({self.ref!r}{kind})"


def encode_input(value: Any, content_type: str | None = None) -> bytes:
    """The JSON text of an input.

    Args:
        value: the input; the table above says how each kind is sent.
        content_type: what it is, where its kind does not say so, or says otherwise.

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
            hint="Leave content_type out, or give the bytes themselves.",
        )
    return _json(value)


def _file(path: Path, content_type: str | None) -> bytes:
    try:
        body = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"the file {path} cannot be read: {error.strerror or error}",
            hint="A folder is sent file by file.",
        ) from error
    guessed, packed = mimetypes.guess_type(path.name)
    # The type of x.json.gz is that of what is packed in it.
    by_name = None if packed else guessed
    return _body(body, content_type or by_name or image_type(body) or BINARY_TYPE, str(path))


def _body(body: bytes, content_type: str, where: str = "the input") -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    if not is_json(kind):
        return binary_input(body, content_type)
    try:
        body.decode()
        text = bytes(msgspec.json.decode(body, type=msgspec.Raw))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{where} is to be {kind}, and is not JSON: {error}",
            hint="Correct it, or give its own content_type.",
        ) from None
    # A line of a bulk request holds no line feed.
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _image(image: Any, content_type: str) -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    pillow = sys.modules["PIL.Image"]
    pillow.init()
    name = next((name for name, mime in pillow.MIME.items() if mime == kind), None)
    if name is None:
        raise InvalidRequest(
            f"a Pillow image cannot be sent as {content_type}", hint="Give one such as image/jpeg."
        )
    if kind == PNG_TYPE and image.mode not in PNG_MODES:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    out = io.BytesIO()
    try:
        image.save(out, name)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"a Pillow image of mode {image.mode} cannot be written as {content_type}: {error}",
            hint='Convert it first: image.convert("RGB").',
        ) from None
    return binary_input(out.getvalue(), content_type)


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    try:
        sys.modules["numpy"].save(out, array, allow_pickle=False)
    except ValueError as error:
        raise InvalidRequest(
            f"an array of {array.dtype} cannot be written as {NPY_TYPE}: {error}",
            hint="Nothing is pickled: send numbers or fixed-length text.",
        ) from None
    return out.getvalue()


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_unpacked)
    except (TypeError, ValueError, RecursionError, msgspec.EncodeError) as error:
        raise InvalidRequest(
            f"{_named(value)} cannot be sent: {error}", hint=_WHAT_CAN_BE_SENT
        ) from None


def _unpacked(value: Any) -> Any:
    # Arrays and numbers of numpy, and torch's tensors, within JSON.
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return tolist()
    raise TypeError(f"{_named(value)} is nothing that JSON can say")


def _is(value: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name, ()))


def _named(value: Any) -> str:
    kind = type(value)
    return f"a value of type {kind.__module__}.{kind.__qualname__}"
