"""The traffic of a model: which version runs the jobs that name none.

The version is chosen by weighted rendezvous hashing. Each version draws a number from the hash of
its name and of the job's key. Its weight scales the draw, and the highest draw wins. The shares of
many keys are as the weights, and a change of one weight moves only keys to or from its version.

Sources: D. Thaler, C. Ravishankar, "Using name-based mappings to increase hit rates", 1998; and the
logarithmic method of C. Schindelhauer, G. Schomaker, "Weighted distributed hash tables", 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from hashlib import sha256
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headrace.jobs.ids import VERSION

VERSIONS_MAX: Final = 32
WEIGHT_MAX: Final = 1_000_000
_HEADER: Final = "^[A-Za-z0-9!#$&^_.+-]{1,64}$"
#: As many bits of a hash as a float between 0 and 1 has room for, both ends left out.
_BITS: Final = 52

VersionName = Annotated[str, Meta(pattern=VERSION, max_length=64)]
Weight = Annotated[float, Meta(ge=0, le=WEIGHT_MAX)]


class Sticky(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a user is recognised by, so that one user sees one version; one of both.

    Attributes:
        header: the name of a header of the submit.
        metadata: a key in the metadata of the job.
    """

    header: Annotated[str, Meta(pattern=_HEADER)] | None = None
    metadata: Annotated[str, Meta(min_length=1, max_length=256)] | None = None

    def __post_init__(self) -> None:
        if (self.header is None) == (self.metadata is None):
            raise ValueError("sticky has either header or metadata")


class Traffic(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Where the jobs of a model go that name no version.

    Attributes:
        weights: the share of each version, relative to the others. Without any, such jobs run on
            the default version.
        sticky: what a user is recognised by; without it each job is drawn by itself.
        shadow: a version that gets copies of such jobs; what they return is compared and counted.
        shadow_percent: how many of the jobs are copied.
    """

    weights: Annotated[dict[VersionName, Weight], Meta(max_length=VERSIONS_MAX)] = {}
    sticky: Sticky | None = None
    shadow: VersionName | None = None
    shadow_percent: Annotated[float, Meta(ge=0, le=100)] = 100.0

    def __post_init__(self) -> None:
        if self.weights and not any(self.weights.values()):
            raise ValueError("one of the weights must be above 0; without traffic, leave them out")

    @property
    def versions(self) -> list[str]:
        """Return the versions with a weight, and the shadow version."""
        return list(dict.fromkeys([*self.weights, *([self.shadow] if self.shadow else [])]))

    def without_weights(self, default: str) -> Traffic:
        """Return the traffic that is left when all such jobs run on the default version."""
        if self.shadow is None or self.shadow == default:
            return Traffic()
        return Traffic(shadow=self.shadow, shadow_percent=self.shadow_percent)

    def among(self, known: Container[str]) -> Traffic | None:
        """Return the traffic of these known versions; None if nothing is left to decide."""
        weights = {name: weight for name, weight in self.weights.items() if name in known}
        if not any(weights.values()):
            weights = {}
        shadow = self.shadow if self.shadow is not None and self.shadow in known else None
        if not weights and shadow is None:
            return None
        return msgspec.structs.replace(self, weights=weights, shadow=shadow)

    def key(
        self, job_id: str, metadata: Mapping[str, Any] | None, header: Callable[[bytes], bytes]
    ) -> bytes:
        """Return the key of a job for `choose`: its user's value, or its id if it has no user.

        Args:
            job_id: the id of the job; a repeat has the same id and gets the same version.
            header: returns a header of the request by its name in lower case; b"" for none.
        """
        value = b""
        if self.sticky is not None and self.sticky.header is not None:
            value = header(self.sticky.header.lower().encode())
        elif self.sticky is not None and metadata is not None:
            found = metadata.get(self.sticky.metadata or "")
            if isinstance(found, str):
                value = found.encode()
            elif found is not None:
                value = msgspec.json.encode(found, order="sorted")
        return value or job_id.encode()

    def choose(self, model: str, key: bytes) -> str:
        """Return the version for a key; "" if there are no weights."""
        best, version = 0.0, ""
        for name, weight in self.weights.items():
            # No name has a NUL. With the model's name, the draws of two models are independent.
            digest = sha256(b"%s\0%s\0%s" % (model.encode(), name.encode(), key)).digest()
            drawn = (int.from_bytes(digest[:8]) >> (64 - _BITS)) + 0.5
            score = weight / -math.log(drawn / (1 << _BITS))
            if score > best:
                best, version = score, name
        return version

    def copies(self, model: str, job_id: str) -> bool:
        """Return whether a job is copied to the shadow version."""
        if self.shadow is None:
            return False
        drawn = sha256(b"shadow\0%s\0%s" % (model.encode(), job_id.encode())).digest()
        return int.from_bytes(drawn[:8]) < self.shadow_percent / 100 * (1 << 64)

    def in_words(self) -> str:
        """Return a description for the log of changes."""
        words = [f"{name}={weight:g}" for name, weight in self.weights.items()]
        if self.sticky is not None:
            kind = "header" if self.sticky.header is not None else "metadata"
            words.append(f"sticky by {kind} {self.sticky.header or self.sticky.metadata}")
        words = words or ["the default version"]
        if self.shadow is not None:
            words.append(f"shadow {self.shadow} ({self.shadow_percent:g} %)")
        return ", ".join(words)


def known_parts(written: Any) -> Any:
    """Return stored traffic without the keys that this version does not know."""
    if not isinstance(written, Mapping):
        return written
    found = {key: part for key, part in written.items() if key in Traffic.__struct_fields__}
    if isinstance(sticky := found.get("sticky"), Mapping):
        kinds = {key: kind for key, kind in sticky.items() if key in Sticky.__struct_fields__}
        found["sticky"] = kinds or None
    return found


def read_traffic(value: object) -> Traffic:
    """Return the traffic written in a models file; raise ValueError with what is wrong."""
    weights = value.get("weights") if isinstance(value, Mapping) else None
    weights = weights if isinstance(weights, Mapping) else {}
    numbers = [name for name in weights if not isinstance(name, str)]
    if numbers:
        raise ValueError(f'weights: a version is text; write it in quotes: "{numbers[0]}"')
    try:
        return msgspec.convert(value, Traffic)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        where = where.strip("`.")
        text = text.replace("`", "").replace("object", "mapping").replace(" | null", "")
        text = text[:1].lower() + text[1:]
        raise ValueError(f"{where}: {text}" if where else text) from None
