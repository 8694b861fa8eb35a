"""`make chaos`: the long run. `SEED=… make chaos` repeats a schedule."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import run
from tests.harness.servers.redis_servers import FLAVOURS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    parser.add_argument("--flavour", choices=FLAVOURS, default="valkey9")
    parser.add_argument("--fsync", choices=("always", "everysec"), default="always")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    try:
        run(
            folder, seed, jobs=given.jobs, kills=given.kills, hangs=given.jobs // 1500,
            poison=given.jobs // 1500, flavour=given.flavour, fsync=given.fsync,
        )  # fmt: skip
    except BaseException:
        sys.stdout.write(f"the logs are kept in {folder}\n")
        raise
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
