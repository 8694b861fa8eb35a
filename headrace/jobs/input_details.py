"""What reaches a handler with an input: parameters, headers and metadata."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.errors import InvalidRequest


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class InputDetails(msgspec.Struct, frozen=True, gc=False):
    """What comes with the input of one job, each as the text of a JSON object; b"" for none.

    Attributes:
        headers: the headers of the request that the model has chosen.
        metadata: the client's own data.
        nested: bytes inside the input's JSON are decoded for any handler: the input was a form.
        typed: it may have values of `headrace.jobs.values.celery_types`: a Celery client sent it.
    """

    parameters: bytes = b""
    headers: bytes = b""
    metadata: bytes = b""
    nested: bool = False
    typed: bool = False

    def text(self) -> bytes:
        """Return all of it as the text of a JSON object, for a model process."""
        named = (
            (b"parameters", self.parameters),
            (b"headers", self.headers),
            (b"metadata", self.metadata),
            (b"nested", b"true" if self.nested else b""),
            (b"typed", b"true" if self.typed else b""),
        )
        return b"{%b}" % b",".join(b'"%b":%b' % pair for pair in named if pair[1])


class GivenDetails(msgspec.Struct):
    """The same as values."""

    parameters: dict[str, Any] = {}
    headers: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    nested: bool = False
    typed: bool = False


_GIVEN: Final = msgspec.json.Decoder(GivenDetails)
NO_DETAILS: Final = InputDetails()


def read_details(text: bytes) -> GivenDetails:
    """Read a text of `InputDetails.text`.

    Raises:
        InvalidRequest: it is not one, as a Celery client can write anything.
    """
    try:
        return _GIVEN.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"what came with the input cannot be read: {error}") from None


def read_object(text: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object from its text; {} for b"" and null.

    Raises:
        InvalidRequest: it is not an object; `what` names it.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any] | None) or {} if text else {}
    except (ValueError, RecursionError) as error:
        reason = str(error)
        raise InvalidRequest(f"{what}: {reason[:1].lower()}{reason[1:]}") from None
