"""The benchmark of a job's bytes in Redis still runs, and what is longer takes more."""

from __future__ import annotations

from benchmarks.redis.job_memory import A_CALL, STATES, measure
from tests.harness.servers.redis_servers import redis_server


def test_a_job_takes_its_record_and_its_input_or_its_result() -> None:
    with redis_server() as server, server.client() as client:
        measure(client, 16, 16, A_CALL)  # so that the scripts are there already
        short, long = (measure(client, 1000, size, 2 * A_CALL) for size in (100, 10_000))
    assert list(short) == list(STATES)
    assert short["queued"] > 1000 + 500, "a record and a message with its input"
    assert short["running"] >= short["queued"]
    assert short["ended"] < short["queued"], "the input has gone"
    assert long["ended"] > short["ended"] + 9_000
