"""A handler whose errors and results cannot be sent as they are, as an input's `do` says.

silent: an error of which str() raises. undecodable: its message has what UTF-8 cannot encode.
leave: `sys.exit`. odd: an error class of its own, without any field of ours. unwritable: a result
whose method raises. Everything else is returned with the process that ran it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from headrace.errors import InputError, JobError
from headrace.handler import Handler


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class OddError(JobError):
    code = ("no", "word")  # type: ignore[assignment]
    retryable = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self.text = text


class Unwritable:
    def tolist(self) -> list[Any]:
        raise RuntimeError("the device is away")


class Wordless(Handler):
    def inference(self, items: list[Any]) -> list[Any]:
        return [self.one(item) for item in items]

    def one(self, item: Any) -> Any:
        do = item.get("do")
        if do == "silent":
            raise SilentError
        if do == "undecodable":
            return InputError("no such file: \udcff.png")
        if do == "leave":
            sys.exit("bye")
        if do == "odd":
            raise OddError("mine")
        return Unwritable() if do == "unwritable" else os.getpid()


class WordlessAhead(Wordless):
    overlap = True
