"""What this API process counts, until it has told Redis, where the counts of all add up."""

from __future__ import annotations

from collections import Counter
from typing import Final

from headrace.observability.worker_report import ADMITTED, REJECTED
from headrace.redis.traffic import TRAFFIC

#: What is to be added, by model (`""` for what concerns none) and field.
Counts = Counter[tuple[str, str]]
#: Fields of `hr:stats:`: `requests:<method> <code> <route>`.
REQUESTS: Final = "requests"
NO_MODEL: Final = ""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Counters:
    """Jobs admitted, submits refused and requests answered since the last `take`.

    Plain numbers: everything happens on one event loop, and a lock for each count would cost more
    than the count.
    """

    def __init__(self) -> None:
        self._counts: Counts = Counter()
        self._requests: Counter[tuple[str, str, int]] = Counter()

    def admitted(self, model: str, count: int = 1) -> None:
        """Jobs were enqueued."""
        self._counts[model, ADMITTED] += count

    def refused(self, model: str, reason: str, count: int = 1) -> None:
        """Submits were refused with the error of this code."""
        self._counts[model, f"{REJECTED}:{reason}"] += count

    def answered(self, route: str, method: str, status: int) -> None:
        """A request was answered.

        Args:
            route: the template of its path, never the path itself.
            method: as it was sent, whatever it is.
            status: of the answer.
        """
        self._requests[route, method, status] += 1

    def take(self) -> Counts:
        """Take the counts, by model and field of `hr:stats:<model>`."""
        taken, self._counts = self._counts, Counter()
        requests, self._requests = self._requests, Counter()
        for (route, method, status), count in requests.items():
            shown = method if method in _METHODS else "other"
            taken[NO_MODEL, f"{REQUESTS}:{shown} {status} {route}"] += count
        if taken:
            # Alone it would be told for ever, as telling it is traffic too.
            taken.update({(NO_MODEL, name): n for name, n in TRAFFIC.take("api").items()})
        return taken

    def give_back(self, counts: Counts) -> None:
        """These could not be told; they are told next time."""
        self._counts.update(counts)
