"""The root of the error tree."""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    """Root of every error that Headrace raises on purpose.

    Args:
        message: what was wrong, where, and with which value.
        hint: what to do about it.

    Attributes:
        code: the word for it. The client sets it on an instance where a newer server says a word
            that this version does not know; so too `status` and `retryable`.
        status: the HTTP status of the API's answer.
        retryable: whether another try can succeed.
        title: a few words for it.
    """

    code: str = "error"
    status: int = 500
    retryable: bool = False
    title: ClassVar[str] = "Error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
