"""Removes secrets from log lines and tracebacks: known values, and what looks like a secret.

Our own code logs no secrets. Errors of other libraries can contain a URL with a password.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import unquote

SHOWN: Final = "***"
#: A secret in a URL is not longer. Cut a text only after it was cleaned, or leave this much of it.
SECRET_MAX_CHARS: Final = 2048
#: Shorter passwords occur in ordinary words.
_SECRET_MIN_CHARS: Final = 4
_PATTERNS: Final = (
    # user:password@ in a URL; one that was not encoded may hold `/` and `@`. Each part is bounded,
    # because a client's text would otherwise cost the square of its length.
    (
        re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s:/@'\"]{0,256}):[^\s'\"]{1,2048}@"),
        rf"\1:{SHOWN}@",
    ),
    # An API key; its id may be known.
    (re.compile(r"(hr_[0-9a-f]{12})_[A-Za-z0-9_-]{8,}"), rf"\1_{SHOWN}"),
    (re.compile(r"(whsec_)[A-Za-z0-9+/=_-]+"), rf"\1{SHOWN}"),
    # What opens a URL that is signed, or has its password in the query; in HTML and JSON too. No
    # secret takes a backslash with it: it may belong to a quote of JSON, which the line then lacks.
    (
        re.compile(
            r"(?i)((?:[?&]|&amp;|\\u0026)(?:[\w-]{0,40}(?:token|secret|password|passwd|signature)|sig"
            r"|api[_-]?key)=)[^\s&#'\"<>\\]+"
        ),
        rf"\1{SHOWN}",
    ),
    (re.compile(r"(?i)(authorization\W{1,4}(?:bearer|basic)\s+)[^\s'\",\\]+"), rf"\1{SHOWN}"),
)
#: Each match of a pattern contains one of these, and a search for them is cheap.
_MARKS: Final = ("://", "hr_", "whsec_", "uthorization", "?", "&", "u0026")
_VARIABLES: Final = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HEADRACE_API_KEY", "FLOWER_BASIC_AUTH",
)  # fmt: skip
_URL_PASSWORD: Final = re.compile(r"://[^:@/]*:(.+)@")


@dataclass(frozen=True, slots=True)
class Redaction:
    """The secrets that one process knows, in all forms that a line may have, the longest first."""

    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str], redis_url: str | None = None) -> Redaction:
        """Return the redaction of the secrets in an environment and a URL."""
        known: set[str] = set()
        for url in (redis_url, environ.get("HEADRACE_REDIS_URL"), environ.get("REDIS_URL")):
            if found := _URL_PASSWORD.search(url or ""):
                known |= {found[1], unquote(found[1])}
        for name in _VARIABLES:
            value = environ.get(name, "")
            known.add(value.rpartition(":")[2] if name.startswith("FLOWER") else value)
        forms = known | {json.dumps(one)[1:-1] for one in known}
        kept = [form for form in forms if len(form) >= _SECRET_MIN_CHARS]
        return cls(tuple(sorted(kept, key=len, reverse=True)))

    def clean(self, line: str) -> str:
        """Return the line without secrets."""
        for secret in self.secrets:
            if secret in line:
                line = line.replace(secret, SHOWN)
        if any(mark in line for mark in _MARKS):
            for pattern, shown in _PATTERNS:
                line = pattern.sub(shown, line)
        return line


@cache
def of_environment() -> Redaction:
    """Return the redaction of the secrets in this process' environment."""
    return Redaction.of(os.environ)
