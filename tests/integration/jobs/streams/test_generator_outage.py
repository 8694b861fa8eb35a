"""Redis is away while a generator streams: its pieces wait, in bounded memory, and none is lost."""

from __future__ import annotations

from pathlib import Path

from headrace.config.model.catalog import load_catalog
from tests.harness.deployments.outage import DURABLE
from tests.harness.http.events import reading
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, celery_worker, write_models
from tests.integration.jobs.streams.test_generator import model
from workers.leases.manager import PIECES_MAX_BYTES

#: Letters of a piece: each makes an entry of the log.
PAD = 1 << 18
#: How many pieces reach the limit, and how many there are.
LIMIT = PIECES_MAX_BYTES // PAD
WORDS = 3 * LIMIT


def test_a_generator_waits_with_its_pieces_until_redis_is_back(tmp_path: Path) -> None:
    gate, count = tmp_path / "gate", tmp_path / "count"
    gate.mkdir()
    path = write_models(tmp_path, m=model())
    asked = {"words": WORDS, "pad": PAD, "count": str(count), "until": str(gate)}
    with (
        redis_server("valkey9", *DURABLE) as server,
        celery_worker(server.url, path, tmp_path) as worker,
        Client(server.url, path) as client,
        api_server(server.url, load_catalog(path)) as api,
    ):
        worker.wait_ready("m")
        (job_id,) = client.submit("m", asked)
        (gate / "0").touch()
        with reading(f"{api.url}/api/v1/jobs/{job_id}/stream") as reader:
            reader.wait_for("pieces")
            server.stop(kill=True)
            try:
                wait_until(lambda: "Redis is away" in worker.log, "the outage is noticed", 60)
                for n in range(1, WORDS):
                    (gate / str(n)).touch()
                wait_until(lambda: "many pieces wait for Redis" in worker.log, "it is enough", 60)
                made = [-1]

                def waits() -> bool:
                    made.append(int(count.read_text() or 0))
                    return made[-1] == made[-2]

                wait_until(waits, "the generator waits", 60)
            finally:
                server.start()
            # Beyond the limit there is what was read at once, and what the sockets hold.
            assert LIMIT <= made[-1] <= LIMIT + 8
            ended = reader.wait_for("ended").data
        assert ended["status"] == "succeeded"
        assert ended["batch_size"] == 1
        pieces = [
            piece for event in reader.events if event.name == "pieces" for piece in event.data
        ]
        assert "".join(pieces) == "".join(f"w{n} " + "x" * PAD for n in range(WORDS))
        assert "restarted" not in reader.names
        nothing_leaks(client.redis)
