"""The counters of this API process since its last report to Redis, which sums all processes."""

from __future__ import annotations

from collections import Counter
from typing import Final

from headrace.observability.worker_report import ADMITTED, REJECTED
from headrace.redis.traffic import TRAFFIC

#: Counts to add, by model (`""` for no model) and field.
Counts = Counter[tuple[str, str]]
#: Fields of `hr:stats:`: `requests:<method> <code> <route>`.
REQUESTS: Final = "requests"
NO_MODEL: Final = ""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Counters:
    """Jobs admitted, submits refused and requests answered since the last `take`.

    Plain numbers without a lock, as everything happens on one event loop.
    """

    def __init__(self) -> None:
        self._counts: Counts = Counter()
        self._requests: Counter[tuple[str, str, int]] = Counter()

    def admitted(self, model: str, count: int = 1) -> None:
        """Count enqueued jobs."""
        self._counts[model, ADMITTED] += count

    def refused(self, model: str, reason: str, count: int = 1) -> None:
        """Count submits that were refused with the error of this code."""
        self._counts[model, f"{REJECTED}:{reason}"] += count

    def answered(self, route: str, method: str, status: int) -> None:
        """Count an answered request.

        Args:
            route: the template of its path, never the path itself.
            method: as the client sent it.
            status: of the answer.
        """
        self._requests[route, method, status] += 1

    def take(self) -> Counts:
        """Return the counts by model and field of `hr:stats:<model>`, and reset them."""
        taken, self._counts = self._counts, Counter()
        requests, self._requests = self._requests, Counter()
        for (route, method, status), count in requests.items():
            shown = method if method in _METHODS else "other"
            taken[NO_MODEL, f"{REQUESTS}:{shown} {status} {route}"] += count
        if taken:
            # Only with other counts: a report is traffic too, and would cause the next one.
            taken.update({(NO_MODEL, name): n for name, n in TRAFFIC.take("api").items()})
        return taken

    def give_back(self, counts: Counts) -> None:
        """Keep counts that could not be reported for the next report."""
        self._counts.update(counts)
