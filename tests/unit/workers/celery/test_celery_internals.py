"""The private names of Celery, kombu and redis-py that the workers use are still there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from celery import Celery
from celery.app import trace
from celery.exceptions import Reject
from celery.states import REJECTED
from celery.worker import heartbeat
from celery.worker import state as celery_state
from celery.worker.consumer import Consumer
from celery.worker.control import Panel
from kombu import transport as kombu_transport
from kombu.clocks import LamportClock
from kombu.transport import redis as kombu_redis
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError

from headrace.redis.keys import TASK_NAME
from workers.background.transport import QoS, install
from workers.celery import celery_internals
from workers.celery.app import CONTROL_QUEUE
from workers.celery.celery_internals import treat_as_lost_connections
from workers.celery.remote_control import REFUSED

REPLACED = ("active", "dump_active", "reserved", "dump_reserved", "query_task", "active_queues",
            "stats", "revoke", "terminate", "add_consumer", "cancel_consumer",
            *REFUSED)  # fmt: skip
COMMON = ("_brpop_start", "_brpop_read", "_queue_bind", "_size", "conn_or_acquire",
          "from_transport_options")  # fmt: skip


@pytest.mark.parametrize("command", REPLACED)
def test_celery_has_each_command_that_is_replaced(command: str) -> None:
    assert callable(Panel.data[command])


def test_a_heartbeat_takes_the_length_of_what_its_module_has() -> None:
    assert "len(active_requests)" in inspect.getsource(vars(heartbeat.Heart)["_send"])
    assert isinstance(celery_state.total_count[TASK_NAME], int)
    assert isinstance(celery_state.all_total_count[0], int)


def test_the_logical_clock_is_advanced_by_many_ticks_at_once() -> None:
    clock = LamportClock()
    first = clock.forward()
    assert celery_internals.take_ticks(clock, 3) == first + 1
    assert clock.forward() == first + 4


def test_a_task_that_is_requeued_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace, "log_policy_reject", trace.log_policy_reject)
    celery_internals.log_no_rejections()
    app = Celery(set_as_current=False, broker="memory://", backend="cache+memory://")

    @app.task
    def rejects() -> None:
        raise Reject("Redis does not answer", requeue=True)

    with caplog.at_level("INFO"):
        result: Any = rejects.apply()
        assert result.state == REJECTED
    assert not caplog.records


def test_task_events_go_where_kombu_reads_them() -> None:
    channel = kombu_redis.Channel.keyprefix_fanout.format(db=3)
    assert celery_internals.event_channel(3) == f"{channel}celeryev/task.multi"


def test_a_consumer_has_what_the_patient_one_overrides() -> None:
    for name in ("before", "after"):
        assert f"self.on_connection_error_{name}_connected(exc)" in inspect.getsource(Consumer)
    assert "transport.register_with_event_loop(" in inspect.getsource(Consumer.connect)


@pytest.mark.parametrize("kind", [kombu_redis.Channel, kombu_redis.SentinelChannel])
def test_a_channel_has_what_the_reliable_transport_overrides(kind: type) -> None:
    assert [name for name in COMMON if not hasattr(kind, name)] == []
    source = inspect.getsource(kombu_redis.Channel)
    for name in ("_in_poll", "_queue_cycle", "_brpop_sent_at", "brpop_timeout"):
        assert f"self.{name}" in source or f"{name} =" in source, name


def test_a_quality_of_service_has_what_the_reliable_transport_overrides() -> None:
    for name in ("append", "ack", "reject", "restore_by_tag", "restore_visible", "pipe_or_acquire"):
        assert callable(getattr(kombu_redis.QoS, name)), name
    assert QoS.restore_at_shutdown is False


def test_transports_are_found_by_the_schemes_of_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    aliases = dict(kombu_transport.TRANSPORT_ALIASES)
    assert {"redis", "rediss", "sentinel"} <= set(aliases)
    assert isinstance(vars(kombu_transport)["_transport_cache"], dict)
    monkeypatch.setattr(kombu_transport, "TRANSPORT_ALIASES", aliases)
    install()
    assert aliases["redis"].startswith("workers.background.transport")


@pytest.mark.parametrize("code", ["READONLY", "UNBLOCKED", "OOM", "MISCONF", "NOREPLICAS", "BUSY"])
def test_redis_py_raises_connection_errors_for_these_codes(code: str) -> None:
    treat_as_lost_connections()
    parser: Any = BaseParser
    assert isinstance(parser.parse_error(f"{code} for a reason"), RedisConnectionError)


def test_the_control_queue_is_no_models() -> None:
    assert ":" in CONTROL_QUEUE
