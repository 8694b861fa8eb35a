"""The memory of a job in Redis: `python -m benchmarks.redis.job_memory [--flavour F] [--write]`.

Jobs are created by the scripts of API and workers. The memory is the difference of `used_memory`,
the least of three rounds, because Redis allocates ahead.
`--write` puts the table into docs/operations.md.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, Final

from benchmarks.common.tables import Table, write_tables
from headrace.config.model.catalog import ModelConfig
from headrace.config.settings import Settings
from headrace.jobs.ids import new_id
from headrace.queue.submission import SubmitKind, submission, submit_arguments
from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import script
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.servers.redis_servers import FLAVOURS, redis_server
from tests.harness.servers.up import ROOT

MODEL: Final = ModelConfig(name="sized", handler="echo", max_queue_depth=10_000_000)
SIZES: Final = (16, 256, 1024, 4096, 16_384, 65_536)
RESULT: Final = 128
STATES: Final = ("queued", "running", "ended")
ROUNDS: Final = 3
A_CALL: Final = 200
DOC: Final = ROOT / "docs" / "operations.md"


def text_of(size: int) -> bytes:
    """Return a JSON string of `size` bytes."""
    return json.dumps("x" * (size - 2)).encode()


def used_bytes(client: Any) -> int:
    """Return the memory that Redis has allocated."""
    return int(client.info("memory")["used_memory"])


def measure(client: Any, input_bytes: int, result_bytes: int, jobs: int) -> dict[str, float]:
    """Return bytes per job, queued, running and ended, for `jobs` jobs of these sizes."""
    client.execute_command("FLUSHALL", "SYNC")
    body, answer = text_of(input_bytes), Answer(result=text_of(result_bytes))
    client.execute_command(*script("jobs/submit").load_command())
    found = {}
    before = used_bytes(client)
    for _ in range(0, jobs, A_CALL):
        kind = SubmitKind(MODEL, 86_400)
        made = [submission(kind, new_id(), body, now_s=time.time()) for _ in range(A_CALL)]
        index = Settings().job_index_max
        client.execute_command(*job_scripts.submit(index, submit_arguments(made)))
    found["queued"] = (used_bytes(client) - before) / jobs
    # A claim returns as many jobs as fit into its bytes.
    claimed = []
    while some := claim(client, MODEL.name, A_CALL):
        claimed += some
    if len(claimed) != jobs:
        raise RuntimeError(f"{len(claimed)} of {jobs} jobs were claimed")
    found["running"] = (used_bytes(client) - before) / jobs
    for at in range(0, jobs, A_CALL):
        some = claimed[at : at + A_CALL]
        settle(client, MODEL.name, some, [answer] * len(some))
    found["ended"] = (used_bytes(client) - before) / jobs
    if client.llen(keys.queue_name(MODEL.name)) or client.exists(f"hr:held:{MODEL.queue}"):
        raise RuntimeError("not all jobs have ended")
    return found


def jobs_of(size: int, most: int) -> int:
    """Return the number of jobs of a size; with more jobs the hash tables matter less."""
    return max(A_CALL, min(most, 64 * 1024 * 1024 // size) // A_CALL * A_CALL)


def least(client: Any, input_bytes: int, result_bytes: int, most: int) -> dict[str, float]:
    """Return the least of ROUNDS rounds."""
    jobs = jobs_of(max(input_bytes, result_bytes), most)
    measure(client, 16, 16, A_CALL)  # loads the scripts
    rounds = [measure(client, input_bytes, result_bytes, jobs) for _ in range(ROUNDS)]
    return {state: min(one[state] for one in rounds) for state in STATES}


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flavour", choices=FLAVOURS, default="valkey9")
    parser.add_argument("--jobs", type=int, default=40_000, help="the most jobs of a size")
    parser.add_argument("--write", action="store_true", help="put it into docs/operations.md")
    arguments = parser.parse_args()
    table = Table("input", "result", "queued", "running", "ended")
    with redis_server(arguments.flavour) as server, server.client() as client:
        about = client.info("server")
        version = about.get("valkey_version", about["redis_version"])
        cases = [(size, RESULT) for size in SIZES] + [(RESULT, size) for size in SIZES[2:]]
        for input_bytes, result_bytes in cases:
            found = least(client, input_bytes, result_bytes, arguments.jobs)
            shown = [f"{found[state]:,.0f}" for state in STATES]
            table.add(f"{input_bytes:,}", f"{result_bytes:,}", *shown)
    if arguments.write:
        description = f"{arguments.flavour} ({version}), bytes per job."
        write_tables("sizing", description, table, doc=DOC)


if __name__ == "__main__":
    main()
