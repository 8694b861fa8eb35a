"""What a list of jobs is searched for. Independent of HTTP and Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.access.api_key import NO_OWNER
from headrace.jobs.job import Job, State, read_error_record
from headrace.redis.fields import JobField

#: The fields of a record that `JobSearch.may_fit` takes.
RECORD_FIELDS: Final = (JobField.ERROR, JobField.METADATA)


@dataclass(frozen=True, slots=True)
class JobSearch:
    """The jobs that a list has.

    Attributes:
        states: their states; empty for all.
        since_us: jobs created before this are left out.
        owner: the API key whose jobs count; None for all.
        metadata: names and values that their metadata must have. A value is text, or the JSON of
            another value; None for any value.
        error: text in a member of their error.
        group: the group of their failure, without the model.
    """

    states: frozenset[State] = frozenset()
    since_us: int = 0
    owner: str | None = None
    metadata: Sequence[tuple[str, str | None]] = ()
    error: str = ""
    group: str = ""

    @property
    def failures_only(self) -> bool:
        """Whether only failed jobs can match."""
        return bool(self.error or self.group) or self.states == {State.FAILED}

    @property
    def metadata_texts(self) -> list[tuple[str, str, str]]:
        """Texts of which the JSON of the metadata has one of each three, if it matches."""
        found = []
        for name, value in self.metadata:
            member = f"{_json(name)}:"
            if value is None:
                found.append((member, member, member))
                continue
            # A number may be the beginning of a longer one.
            other = member + _canonical(value)
            found.append((member + _json(value), f"{other},", f"{other}}}"))
        return found

    @property
    def reads_records(self) -> bool:
        """Whether failed jobs are searched for by what only their records have."""
        return bool(self.error or self.metadata)

    def may_fit(self, error: bytes | None, metadata: bytes | None) -> bool:
        """Return whether a failed job can fit, by the JSON in its record; `fits` decides."""
        # JSON writes a text between its quotes as it is found within a longer one.
        wanted = _json(self.error.lower())[1:-1]
        if wanted not in (error or b"").decode("utf-8", "replace").lower():
            return False
        text = (metadata or b"").decode("utf-8", "replace")
        return all(any(one in text for one in three) for three in self.metadata_texts)

    def owned(self, job: Job) -> bool:
        """Return whether a job belongs to the API key."""
        return self.owner is None or (job.key or NO_OWNER) == self.owner

    def fits(self, job: Job) -> bool:
        """Return whether a job matches, apart from its owner and the group of its failure."""
        if self.states and job.state not in self.states:
            return False
        if job.created_us < self.since_us:
            return False
        if (self.error or self.group) and job.state is not State.FAILED:
            return False
        if self.error and not read_error_record(job.error_json).contains(self.error):
            return False
        return not self.metadata or self._has_metadata(job)

    def _has_metadata(self, job: Job) -> bool:
        stored = msgspec.json.decode(job.metadata_json) if job.metadata_json else {}
        return all(
            name in stored
            and (value is None or stored[name] == value or _json(stored[name]) == _canonical(value))
            for name, value in self.metadata
        )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _canonical(value: str) -> str:
    """Return a JSON value as records have it; a text that is not JSON as a string."""
    try:
        return _json(msgspec.json.decode(value))
    except msgspec.DecodeError:
        return _json(value)
