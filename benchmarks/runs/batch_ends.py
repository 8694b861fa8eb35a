"""Find out from Redis when batches of a run end: its rate without start and end."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Final

from headrace.redis import keys
from tests.harness.servers.redis_servers import RedisServer

OFFLINE: Final = 9
POLL_S: Final = 0.02


class Ends:
    """The times at which batches of a model end within the context, from the number of jobs left.

    Args:
        model: the model; its jobs have the batch priority.
    """

    def __init__(self, redis: RedisServer, model: str) -> None:
        queue = keys.queue_name(model)
        self._lengths = (keys.step_key(queue, OFFLINE), keys.lease(queue))
        self._redis = redis
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._left: list[tuple[float, int]] = []

    def __enter__(self) -> Ends:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _poll(self) -> None:
        waiting, leased = self._lengths
        with self._redis.client() as client:
            while not self._done.wait(POLL_S):
                both = client.pipeline().llen(waiting).zcard(leased).execute()
                left = sum(both)
                if not self._left or left != self._left[-1][1]:
                    self._left.append((time.monotonic(), left))

    def steady(self) -> float:
        """Return jobs per second between the ends of the second batch and the last but one.

        Only the time after the last submit counts: before it, the number of jobs left shows no
        ends. The result is 0 for too few batches, and if jobs are submitted all the time.
        """
        most = max((left for _, left in self._left), default=0)
        whole = next((at for at, one in enumerate(self._left) if one[1] == most), 0)
        ends = self._left[whole + 1 :][1:-1]
        grew = any(one[1] > before[1] for before, one in pairwise(ends))
        if len(ends) < 2 or grew:
            return 0.0
        (first_at, first), (last_at, last) = ends[0], ends[-1]
        return (first - last) / (last_at - first_at)
