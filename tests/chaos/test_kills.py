"""The short run under kills; `make chaos` is the long one."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.chaos.run import run


def test_kills_at_random_lose_no_job_end_none_twice_and_leave_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    run(tmp_path, seed, jobs=1_200, kills=10, hangs=1, poison=2)
