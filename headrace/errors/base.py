"""The root of the error tree."""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """Root of every error that Headrace raises on purpose.

    Args:
        message: what is wrong, where, and with which value.
        hint: what to do about it.

    Attributes:
        code: identifies the error. If a newer server sends a code that this version does not know,
            the client sets it on the instance, and `status` and `retryable` too.
        status: the HTTP status of the API's answer.
        retryable: whether another try can succeed.
        title: a short description.
    """

    code: str = "error"
    status: int = 500
    retryable: bool = False
    title: ClassVar[str] = "Error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
