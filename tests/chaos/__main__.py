"""`make chaos`: the long run. `SEED=… make chaos` repeats a schedule."""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.chaos.run import run
from tests.harness.redis_servers import FLAVOURS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    parser.add_argument("--flavour", choices=FLAVOURS, default="valkey9")
    parser.add_argument("--fsync", choices=("always", "everysec"), default="always")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as folder:
        run(
            Path(folder), seed, jobs=given.jobs, kills=given.kills, hangs=12, poison=12,
            flavour=given.flavour, fsync=given.fsync,
        )  # fmt: skip


if __name__ == "__main__":
    main()
