"""Ending jobs that wait though they must have begun by now.

A worker ends those that it has claimed. What lies in a queue that nobody serves, or waits there for
its time, is ended by whoever sweeps: every worker, of whatever models, and every API process.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import NOT_STARTED, JobExpired
from headrace.redis import keys
from headrace.redis.scripts import Arg

#: How often it is looked, in seconds.
INTERVAL_S: Final = 1.0
#: The most jobs that one call looks at: bounds how long it holds Redis.
EXPIRE_MAX_JOBS: Final = 200
#: What jobs/expire.lua is given; it answers how many it has looked at.
EXPIRE_ARGUMENTS: Final[tuple[Arg, ...]] = (
    keys.QUEUE_PREFIX,
    EXPIRE_MAX_JOBS,
    JobExpired.code,
    JobExpired.__name__,
    NOT_STARTED,
)
