"""Redis hangs, dies, goes silent, moves and is full under two workers and an API at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx2
import pytest

from headrace.redis import keys
from tests.harness.clients.celery_client import stock_client
from tests.harness.deployments.outage import DURABLE, QUEUE, Site, outage_site
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.refusals import REFUSALS, refusing
from tests.harness.wait import wait_until


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One deployment for all of these tests; each leaves it in order."""
    with outage_site(tmp_path_factory.mktemp("away")) as running:
        yield running


def assert_unavailable(response: httpx2.Response) -> None:
    assert response.status_code == 503, response.text
    assert response.json()["type"] == "/problems/broker-unavailable"
    assert int(response.headers["retry-after"]) >= 1


def test_a_server_that_hung_past_every_lease_reaps_nothing_when_it_goes_on(site: Site) -> None:
    """The sweeps that were sent meanwhile are read before anybody can renew."""
    with site.at_work() as (ids, gate):
        poll = site.wait(ids[0])
        until_us = site.leased_until_us()
        with site.stopped_server():
            wait_until(lambda: site.told("Redis is away"), "both workers have noticed", 60)
            assert_unavailable(site.api.http.get(f"/api/v1/jobs/{ids[0]}"))
            gate.touch()
            site.wait_until_leases_are_over(until_us)
        assert poll.result(120).json()["status"] == "succeeded"
        site.assert_each_ran_once(ids)


@pytest.mark.slow
def test_an_outage_of_many_leases_costs_no_job_a_second_run(site: Site) -> None:
    """Nor a result that is to lie in the payload store, which is away too."""
    with site.at_work(padding=20_000) as (ids, gate):
        poll = site.wait(ids[0])
        until_us = site.leased_until_us()
        site.server.stop(kill=True)
        try:
            wait_until(lambda: site.told("Redis is away"), "both workers have noticed", 60)
            gate.touch()
            site.wait_until_leases_are_over(until_us, more=3)
        finally:
            site.server.start()
        assert poll.result(120).json()["status"] == "succeeded"
        site.assert_each_ran_once(ids)


@pytest.mark.slow
def test_a_network_that_was_cut_without_a_word_is_noticed_and_left(site: Site) -> None:
    with site.at_work() as (ids, gate):
        polls = [site.wait(job_id) for job_id in ids[:2]]
        until_us = site.leased_until_us()
        site.path.go_silent()
        try:
            for _ in range(2):
                assert_unavailable(site.api.http.get(f"/api/v1/jobs/{ids[0]}"))
            wait_until(lambda: site.told("Redis is away"), "both workers have noticed", 60)
            gate.touch()
            site.wait_until_leases_are_over(until_us)
        finally:
            site.path.speak()
        assert [poll.result(120).json()["status"] for poll in polls] == ["succeeded"] * 2
        site.assert_each_ran_once(ids)
    with stock_client(site.server.url) as app:
        wait_until(
            lambda: len(app.control.ping(timeout=5, limit=2) or []) == 2,
            "Celery's own part is back",
            90,
        )


def test_a_failover_behind_the_same_name(site: Site) -> None:
    """The old primary stays up, as a replica; the new one is read-only for a while."""
    with ExitStack() as stack:
        old = site.server
        new = stack.enter_context(
            redis_server("valkey9", *DURABLE, "--replicaof", f"127.0.0.1 {old.port}")
        )
        client, old_client = (stack.enter_context(server.client()) for server in (new, old))
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a link", 30)
        with site.at_work() as (ids, gate):
            poll = site.wait(ids[0])
            assert old_client.wait(1, 30_000) == 1
            site.path.lead_to(new.port)
            old_client.replicaof("127.0.0.1", new.port)
            try:
                refused = site.api.http.post("/api/v1/jobs", json={"model": "gated", "input": 1})
                assert_unavailable(refused)
                assert "READONLY" in refused.text
                wait_until(lambda: site.told("takes no writes"), "both workers have noticed", 60)
                gate.touch()
                wait_until(lambda: site.runs().keys() >= set(ids), "all are run meanwhile", 60)
            finally:
                client.replicaof("NO", "ONE")
            assert poll.result(120).json()["status"] == "succeeded"
            site.assert_each_ran_once(ids)
        # The roles are changed back, so that this test's own server may go.
        wait_until(lambda: old_client.info("replication")["master_link_status"] == "up", "it", 60)
        with site.at_work() as (ids, gate):
            assert client.wait(1, 30_000) == 1
            old_client.replicaof("NO", "ONE")
            site.path.lead_to(old.port)
            new.stop(kill=True)
            gate.touch()
            site.assert_each_ran_once(ids)
        assert old_client.zcard(keys.lease(QUEUE)) == 0


@pytest.mark.parametrize("code", REFUSALS)
def test_a_server_that_takes_no_writes_for_now(site: Site, code: str) -> None:
    """Model processes go on meanwhile, and what they gave is settled once it takes writes again."""
    with site.at_work() as (ids, gate):
        poll = site.wait(ids[0])
        with refusing(site.server, code):
            refused = site.api.http.post("/api/v1/jobs", json={"model": "gated", "input": 1})
            assert_unavailable(refused)
            assert code in refused.text
            wait_until(lambda: site.told("takes no writes"), "both workers have noticed", 60)
            gate.touch()
            wait_until(lambda: site.runs().keys() >= set(ids), "all are run meanwhile", 60)
        assert poll.result(120).json()["status"] == "succeeded"
        site.assert_each_ran_once(ids)


def test_a_full_server_refuses_submits_and_lets_all_else_end(site: Site) -> None:
    """Also what a worker held that is gone is reaped, by the one that is left."""
    with site.at_work() as (ids, gate), site.server.client() as client:
        lost = site.workers[1]
        client.config_set("maxmemory", 1)
        try:
            for where in ("/api/v1/jobs", "/api/v1/jobs?wait=5"):
                refused = site.api.http.post(where, json={"model": "gated", "input": 1})
                assert refused.status_code == 503
                assert refused.json()["type"] == "/problems/broker-full"
                assert "maxmemory" in refused.json()["detail"]
                assert int(refused.headers["retry-after"]) >= 1
            client.delete(keys.WORKERS)  # so that what is found there was said since
            lost.kill()
            gate.touch()
            assert {job["status"] for job in site.jobs(ids)} == {"succeeded"}
            assert sorted(job["attempts"] for job in site.jobs(ids)) == [1, 1, 2, 2]
            ready = site.api.http.get("/ready")
            assert ready.status_code == 200
            assert ready.json()["models"]["gated"]["state"] == "ready"
        finally:
            client.config_set("maxmemory", 0)
            lost.start()
            lost.wait_ready("gated")
