"""When batches of offline jobs end, seen from beside: how fast a run is between start and end."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Final

from headrace.redis import keys
from tests.harness.servers.redis_servers import RedisServer

OFFLINE: Final = 9
LOOK_S: Final = 0.02


class Ends:
    """When batches of a model end, while the context lasts: by what is left of its jobs.

    Args:
        redis: the server.
        model: the model; its jobs are offline.
    """

    def __init__(self, redis: RedisServer, model: str) -> None:
        queue = keys.queue_name(model)
        self._lengths = (keys.step_key(queue, OFFLINE), keys.lease(queue))
        self._redis = redis
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look)
        self._left: list[tuple[float, int]] = []

    def __enter__(self) -> Ends:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looking.join()

    def _look(self) -> None:
        waiting, leased = self._lengths
        with self._redis.client() as client:
            while not self._over.wait(LOOK_S):
                both = client.pipeline().llen(waiting).zcard(leased).execute()
                left = sum(both)
                if not self._left or left != self._left[-1][1]:
                    self._left.append((time.monotonic(), left))

    def steady(self) -> float:
        """Jobs a second between the ends of the second batch and the last but one; 0 for too few.

        Both from when everything was submitted: before, what is left tells of no end. So it is 0
        too where not everything is under way at once.
        """
        most = max((left for _, left in self._left), default=0)
        whole = next((at for at, one in enumerate(self._left) if one[1] == most), 0)
        ends = self._left[whole + 1 :][1:-1]
        grew = any(one[1] > before[1] for before, one in pairwise(ends))
        if len(ends) < 2 or grew:
            return 0.0
        (first_at, first), (last_at, last) = ends[0], ends[-1]
        return (first - last) / (last_at - first_at)
