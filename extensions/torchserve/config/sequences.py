"""Sequences of requests (`sequenceBatching`): the names of their headers, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from extensions.torchserve.config.settings import TorchServeConfig

#: Before the ids that the server makes.
PREFIX: Final = "ts-seq-"
#: Each request of a sequence looks at those that wait before it.
MAX_WAITING: Final = 1000


class SequenceKeys(NamedTuple):
    """The names of the headers of a sequence."""

    id: str
    start: str
    end: str

    @classmethod
    def of(cls, config: TorchServeConfig) -> SequenceKeys:
        """Return the names that a configuration has."""
        return cls(
            config.ts_header_key_sequence_id,
            config.ts_header_key_sequence_start,
            config.ts_header_key_sequence_end,
        )

    def id_of(self, headers: Mapping[str, Any]) -> str:
        """Return the id of a request's sequence; "" without one."""
        return _value(headers, self.id)

    def begun(self, headers: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the headers with an id; a request without one begins a sequence of this name."""
        if self.id_of(headers):
            return headers
        return {**headers, self.id: f"{PREFIX}{name}", self.start: "true"}

    def ended_by(self, headers: Mapping[str, Any]) -> list[str]:
        """Return the sequences that a reply with these headers ends."""
        return [one.strip() for one in _value(headers, self.end).split(";") if one.strip()]


def _value(headers: Mapping[str, Any], name: str) -> str:
    """Return the value of a header in any case of its name; "" without it."""
    wanted = name.lower()
    return next((str(v) for key, v in headers.items() if key.lower() == wanted and v), "")


class SequenceLimits(NamedTuple):
    """How many sequences a model has at most, and when one of them ends by itself.

    Attributes:
        most: the most sequences at a time (`maxNumSequence`).
        waiting: the most requests of one sequence that wait (`maxSequenceJobQueueSize`); at most
            MAX_WAITING.
        idle_ms: a sequence ends when it has had no request for so long (`sequenceMaxIdleMSec`).
        timeout_ms: it ends so long after its begin (`sequenceTimeoutMSec`); 0 for never.
    """

    most: int
    waiting: int
    idle_ms: int
    timeout_ms: int

    @classmethod
    def of_yaml(cls, values: Mapping[str, Any]) -> SequenceLimits | None:
        """Return the limits in a model-config.yaml; None without `sequenceMaxIdleMSec`."""
        if values.get("sequenceMaxIdleMSec", 0) <= 0:
            return None
        return cls(
            values.get("maxNumSequence", 1),
            min(values.get("maxSequenceJobQueueSize", 1), MAX_WAITING),
            values["sequenceMaxIdleMSec"],
            values.get("sequenceTimeoutMSec", 0),
        )

    @classmethod
    def of_option(cls, option: Any) -> SequenceLimits | None:
        """Return the limits in the option of a model; None for no limits."""
        return cls(**option) if isinstance(option, dict) else None
