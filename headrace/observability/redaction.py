"""The last guard of the logs: what looks like a secret, or is known to be one, leaves no process.

Whoever logs does not name secrets in the first place. But the texts of other libraries' errors pass
through, and those may name a URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

SHOWN: Final = "***"
#: A password that is shorter than this would stand in many a word.
_SECRET_MIN_CHARS: Final = 4
_PATTERNS: Final = (
    # user:password@ in a URL; one that was not encoded may hold `/` and `@`.
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s:/@'\"]*):[^\s'\"]+@"), rf"\1:{SHOWN}@"),
    # An API key; its id may be known.
    (re.compile(r"(hr_[0-9a-f]{12})_[A-Za-z0-9_-]{8,}"), rf"\1_{SHOWN}"),
    (re.compile(r"(whsec_)[A-Za-z0-9+/=_-]+"), rf"\1{SHOWN}"),
    (re.compile(r"(?i)(authorization\W{1,4}(?:bearer|basic)\s+)[^\s'\",]+"), rf"\1{SHOWN}"),
)
#: What stands in each text that one of them matches; to look for these costs next to nothing.
_MARKS: Final = ("://", "hr_", "whsec_", "uthorization")
_VARIABLES: Final = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HEADRACE_API_KEY", "FLOWER_BASIC_AUTH",
)  # fmt: skip
_URL_PASSWORD: Final = re.compile(r"://[^:@/]*:(.+)@")


@dataclass(frozen=True, slots=True)
class Redaction:
    """What one process knows to be secret.

    Attributes:
        secrets: in each form in which it may stand in a line, the longest first.
    """

    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str], redis_url: str | None = None) -> Redaction:
        """What these hold that is secret."""
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
        """The line without them."""
        for secret in self.secrets:
            if secret in line:
                line = line.replace(secret, SHOWN)
        if any(mark in line for mark in _MARKS):
            for pattern, shown in _PATTERNS:
                line = pattern.sub(shown, line)
        return line
