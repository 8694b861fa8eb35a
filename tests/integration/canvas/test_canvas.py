"""Chains, groups, chords and links of our jobs beside a stock Celery worker's tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from headrace import errors
from headrace.jobs.ids import new_id
from headrace.jobs.job import State
from headrace.redis import keys
from tests.harness.clients.celery_client import GET_TIMEOUT_S, state_of
from tests.harness.deployments.deployment import Deployment
from tests.harness.wait import wait_until
from tests.harness.workers.stock_worker import ours, stock, stock_worker

FAILS = {"do": "raise", "n": 7}


@pytest.fixture(scope="module", autouse=True)
def _stock(site: Deployment) -> Iterator[None]:
    with stock_worker(site.url, site.folder, site.app):
        yield


@pytest.fixture
def where(site: Deployment) -> str:
    """The name of a list for the task `stock.note`."""
    return f"notes-{new_id()}"


def notes(site: Deployment, where: str) -> list[str]:
    return [line.decode() for line in site.ours.redis.lrange(where, 0, -1)]


def noted(site: Deployment, where: str) -> list[str]:
    """What was noted, once there is anything."""
    return wait_until(lambda: notes(site, where), "something was noted", timeout_s=GET_TIMEOUT_S)


def meta(site: Deployment, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.ours.redis.get(keys.meta(job_id)))
    return found


def all_of(result: Any) -> list[Any]:
    """The results of a chain, the first in front."""
    found = [result]
    while found[0].parent is not None:
        found.insert(0, found[0].parent)
    return found


def itself(app: Celery, result: Any) -> Any:
    """The result without its parents, whose errors `.get()` would raise for its own."""
    return app.AsyncResult(result.id)


def test_a_chain_of_stock_ours_and_stock(app: Celery, site: Deployment) -> None:
    sent = chain(stock(app, "add", 2, 3), ours(app, "tricky"), stock(app, "add", 10), app=app)()
    assert sent.get(timeout=GET_TIMEOUT_S) == 15
    first, second, third = all_of(sent)
    assert second.get(timeout=GET_TIMEOUT_S) == 5
    assert [child.id for child in second.children] == [third.id]
    assert meta(site, second.id)["parent_id"] == first.id
    assert meta(site, third.id)["parent_id"] == second.id


def test_a_chain_of_ours(app: Celery, site: Deployment) -> None:
    value = {"x": [1, 2.5, "é", None], "big": 123456789012345678}
    sent = chain(ours(app, "tricky", value), ours(app, "one"), ours(app, "echo"), app=app)()
    assert sent.get(timeout=GET_TIMEOUT_S) == value
    for result in all_of(sent):
        assert site.ours.job(result.id).state is State.SUCCEEDED


def test_a_group_and_a_chord_of_both(app: Celery) -> None:
    members = [ours(app, "tricky", 1), stock(app, "same", 2), ours(app, "echo", 3)]
    assert group(members, app=app).apply_async().get(timeout=GET_TIMEOUT_S) == [1, 2, 3]
    by_stock = chord(members, stock(app, "total"), app=app)()
    by_ours = chord([stock(app, "same", n) for n in range(3)], ours(app, "tricky"), app=app)()
    assert by_stock.get(timeout=GET_TIMEOUT_S) == 6
    assert by_ours.get(timeout=GET_TIMEOUT_S) == [0, 1, 2]


def test_groups_within_chains_and_groups(app: Celery) -> None:
    header = group([ours(app, "tricky"), stock(app, "add", 1), ours(app, "echo")], app=app)
    steps = chain(ours(app, "tricky", 5), header, stock(app, "total"), ours(app, "one"), app=app)
    assert steps().get(timeout=GET_TIMEOUT_S) == 16
    # Celery joins such a header by the results of its members, not by what they have returned.
    inner = chord([ours(app, "tricky", 1), ours(app, "tricky", 2)], stock(app, "total"), app=app)
    pair = chain(stock(app, "same", 3), group([ours(app, "tricky"), ours(app, "echo")]), app=app)
    nested = chord([inner, pair, ours(app, "one", 4)], ours(app, "tricky"), app=app)()
    assert nested.get(timeout=GET_TIMEOUT_S) == [3, [3, 3], 4]


def test_links_are_called_with_the_result(app: Celery, site: Deployment, where: str) -> None:
    linked = ours(app, "tricky", 4)
    linked.link(stock(app, "note", where))
    linked.link(ours(app, "echo", task_id="the-linked-job"))
    linked.link_error(stock(app, "note", where))
    sent = linked.apply_async()
    assert sent.get(timeout=GET_TIMEOUT_S) == 4
    assert app.AsyncResult("the-linked-job").get(timeout=GET_TIMEOUT_S) == 4
    (line,) = noted(site, where)
    assert line.endswith(" 4")
    assert len(sent.children) == 1, "several callbacks are a group, as Celery has it"
    assert {child.id for child in sent.children[0]} == {line.split()[0], "the-linked-job"}


def test_a_failure_calls_the_errbacks_and_breaks_the_chain(
    app: Celery, site: Deployment, where: str
) -> None:
    steps = chain(stock(app, "same", FAILS), ours(app, "tricky"), stock(app, "note", where),
                  ours(app, "echo"), app=app)  # fmt: skip
    sent = steps.apply_async(link_error=[stock(app, "note", f"{where}-error")])
    with pytest.raises(errors.HandlerError, match="cannot do 7"):
        sent.get(timeout=GET_TIMEOUT_S)
    _, failing, *rest = all_of(sent)
    (line,) = noted(site, f"{where}-error")
    assert line.endswith(f" {failing.id}"), "an errback takes the id of what has failed"
    for result in rest:
        with pytest.raises(errors.HandlerError, match="cannot do 7"):
            result.get(timeout=GET_TIMEOUT_S, propagate=True)
        assert state_of(result) == "FAILURE"
        assert "cannot do 7" in str(result.traceback)
    assert not notes(site, where)
    assert not site.record_exists(rest[-1].id), "it was never sent"


def test_a_failing_stock_task_calls_our_errback(app: Celery, site: Deployment) -> None:
    failing = stock(app, "fail", 1)
    failing.link_error(ours(app, "echo", task_id="the-errback"))
    sent = chain(ours(app, "tricky", 1), failing, app=app)()
    with pytest.raises(ValueError, match="the stock task fails"):
        sent.get(timeout=GET_TIMEOUT_S)
    assert app.AsyncResult("the-errback").get(timeout=GET_TIMEOUT_S) == sent.id


@pytest.mark.parametrize("where_it_fails", ["ours", "stock"])
def test_a_chord_with_a_failing_member(
    app: Celery, site: Deployment, where: str, where_it_fails: str
) -> None:
    bad = ours(app, "tricky", FAILS) if where_it_fails == "ours" else stock(app, "fail", 1)
    body = stock(app, "note", where)
    body.link_error(stock(app, "note", f"{where}-error"))
    sent = chord([ours(app, "echo", 1), bad, ours(app, "tricky", 2)], body, app=app)()
    with pytest.raises(ChordError, match=r"Dependency .* raised"):
        itself(app, sent).get(timeout=GET_TIMEOUT_S)
    (line,) = noted(site, f"{where}-error")
    assert line.endswith(f" {sent.id}")
    assert not notes(site, where)


def test_what_the_next_one_gets_of_binary_and_large_results(app: Celery) -> None:
    body = b"\x89PNG\x00" * 10
    assert chain(ours(app, "tricky", body), stock(app, "kind"), app=app)().get(
        timeout=GET_TIMEOUT_S
    ) == f"bytes {len(body)}"  # fmt: skip
    assert chain(ours(app, "tricky", body), ours(app, "tricky"), app=app)().get(
        timeout=GET_TIMEOUT_S
    ) == body  # fmt: skip
    # Over 16 MiB the result lies in the payload store, and `.get()` says only where.
    large = "x" * (16 * 1024 * 1024)
    sent = chain(stock(app, "same", large), ours(app, "echo"), stock(app, "kind"), app=app)()
    assert sent.get(timeout=60) == f"str {len(large)}"
    assert sent.parent.get(timeout=GET_TIMEOUT_S)["size"] == len(large) + 2


def test_ignored_results_and_other_arguments(app: Celery, site: Deployment, where: str) -> None:
    first = ours(app, "tricky", 5).set(ignore_result=True)
    assert chain(first, stock(app, "note", where), app=app)().get(timeout=GET_TIMEOUT_S) == 5
    members = [ours(app, "tricky", n).set(ignore_result=True) for n in range(2)]
    assert chord(members, ours(app, "echo"), app=app)().get(timeout=GET_TIMEOUT_S) == [0, 1]
    # An immutable signature keeps its own input, whatever came before.
    alone = ours(app, "tricky", "own").set(immutable=True)
    assert chain(stock(app, "same", 1), alone, app=app)().get(timeout=GET_TIMEOUT_S) == "own"
    twice = chain(stock(app, "same", 1), ours(app, "tricky", "own"), stock(app, "same"), app=app)()
    with pytest.raises(errors.InvalidRequest, match="given twice: input"):
        twice.get(timeout=GET_TIMEOUT_S)


def test_a_retried_member_calls_nothing_until_it_has_ended(
    app: Celery, site: Deployment, where: str
) -> None:
    linked = ours(app, "one", {"do": "transient"})
    linked.link_error(stock(app, "note", where))
    sent = linked.apply_async()
    with pytest.raises(errors.TransientError):
        sent.get(timeout=GET_TIMEOUT_S)
    noted(site, where)
    assert site.ours.job(sent.id).attempts == 2
    assert len(notes(site, where)) == 1


# Jobs that end without having run, or not in a worker.


def _chained(app: Celery, first: Any) -> tuple[Any, Any]:
    """A chord with a member that is a chain from `first`; the chord's result and the chain's."""
    member = chain(first, ours(app, "tricky"), app=app)
    sent: Any = chord([member, ours(app, "echo", 1)], ours(app, "echo"), app=app)()
    return sent, sent.parent.results[0]


def _revoke(site: Deployment, job_id: str) -> None:
    """As a client does, until our worker has said that it knows; the stock one answers too."""
    replies = site.app.control.revoke(
        job_id, destination=[site.worker.node], reply=True, timeout=20
    )
    assert replies


def _broken(site: Deployment, sent: Any, member: Any, state: str) -> None:
    with pytest.raises(ChordError):
        itself(site.app, sent).get(timeout=GET_TIMEOUT_S)
    wait_until(lambda: state_of(member) == state, f"the rest of the chain is {state}")
    assert not site.record_exists(member.id)


def test_a_member_that_is_revoked_before_it_was_claimed(app: Celery, site: Deployment) -> None:
    with site.busy():
        sent, member = _chained(app, ours(app, "one", 1))
        _revoke(site, member.parent.id)
    _broken(site, sent, member, "REVOKED")
    assert state_of(member.parent) == "REVOKED"


def test_a_member_that_is_revoked_while_it_runs(app: Celery, site: Deployment) -> None:
    gate = site.folder / new_id()
    sent, member = _chained(app, ours(app, "one", {"until": str(gate)}))
    wait_until(lambda: member.parent.id in site.runs(), "it runs")
    _revoke(site, member.parent.id)
    gate.touch()
    with pytest.raises(TaskRevokedError):
        member.parent.get(timeout=GET_TIMEOUT_S)
    _broken(site, sent, member, "REVOKED")


def test_a_member_that_is_cancelled_by_a_script(app: Celery, site: Deployment) -> None:
    """It waits in Redis for its second try, where no worker has it."""
    sent, member = _chained(app, ours(app, "one", 1).set(countdown=600))
    parked = keys.parked(keys.queue_name("one"))
    wait_until(lambda: site.ours.redis.hexists(parked, member.parent.id), "it is parked")
    _revoke(site, member.parent.id)
    _broken(site, sent, member, "REVOKED")


def test_a_member_that_expires(app: Celery, site: Deployment) -> None:
    sent, member = _chained(app, ours(app, "one", 1).set(countdown=0.5, expires=0.1))
    _broken(site, sent, member, "FAILURE")


def test_a_member_that_takes_its_process_with_it(app: Celery, site: Deployment) -> None:
    sent, member = _chained(app, ours(app, "tricky", {"do": "exit"}))
    with pytest.raises(errors.ReplicaLost):
        member.parent.get(timeout=60)
    _broken(site, sent, member, "FAILURE")


def test_a_member_that_is_refused(app: Celery, site: Deployment) -> None:
    other = app.signature("shop.charge", args=[1], queue=keys.queue_name("tricky"))
    sent, member = _chained(app, other)
    _broken(site, sent, member, "FAILURE")
    unusable = chord(
        [ours(app, "tricky", 1).set(task_id="ü"), ours(app, "tricky", 2)],
        ours(app, "echo"), app=app,
    )()  # fmt: skip
    with pytest.raises(ChordError, match="no id that can be used"):
        itself(app, unusable).get(timeout=GET_TIMEOUT_S)


@pytest.mark.parametrize("options", [{"expires": "no time at all"}, {"queue": "no-queue-at-all"}])
def test_what_can_never_be_sent_is_a_failure_with_errbacks(
    app: Celery, site: Deployment, where: str, options: dict[str, str]
) -> None:
    site.ours.redis.set("no-queue-at-all", "a string", ex=600)
    linked = ours(app, "tricky", 1)
    linked.link(stock(app, "same").set(**options))
    linked.link_error(stock(app, "note", where))
    sent = linked.apply_async()
    with pytest.raises(errors.InvalidRequest, match="callbacks cannot be sent"):
        sent.get(timeout=GET_TIMEOUT_S)
    assert noted(site, where)
