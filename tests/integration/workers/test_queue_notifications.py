from __future__ import annotations

import select
import signal
import threading
import time

import pytest

from headrace.redis.connection import connect
from headrace.redis.outages import DISCONNECTED
from tests.harness.fakes.proxy import proxy
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from workers.leases.notifications import ANSWER_MAX_S, QueueNotifications


def pushed(notifications: QueueNotifications) -> set[int]:
    assert select.select([notifications.socket()], [], [], 60)[0], "no push"
    return notifications.read_changes()


def test_each_push_of_anybody_wakes_its_queue_on_each_server(any_redis: RedisServer) -> None:
    with connect(any_redis.url) as client, any_redis.client() as stock:
        notifications = QueueNotifications(client, [["a", "a6"], ["b"]])
        notifications.connect()
        assert notifications.unwatched == {0, 1}
        assert notifications.watch([0, 1]) == set()
        assert notifications.unwatched == set()
        for name, queue in (("a", 0), ("b", 1), ("a6", 0)):
            stock.lpush(name, "x")
            assert pushed(notifications) == {queue}
            assert notifications.unwatched == {queue}
            assert notifications.watch([queue]) == {queue}, "it has something"
        stock.eval("return redis.call('LPUSH', 'b', 'from lua')", 0)
        assert pushed(notifications) == {1}
        notifications.close()
        stock.delete("a", "a6", "b")


def test_a_queue_that_is_not_watched_wakes_nobody(redis_db: RedisServer) -> None:
    with connect(redis_db.url) as client, redis_db.client() as stock:
        notifications = QueueNotifications(client, [["flooded"], ["lone"]])
        notifications.connect()
        assert notifications.watch([1]) == set()
        for _ in range(50):
            stock.lpush("flooded", "x")
        stock.lpush("lone", "x")
        assert pushed(notifications) == {1}
        assert notifications.unwatched == {0, 1}
        notifications.close()
        stock.delete("flooded", "lone")


def test_a_server_that_forgot_everything_wakes_all(redis_db: RedisServer) -> None:
    with connect(redis_db.url) as client, redis_db.client() as stock:
        notifications = QueueNotifications(client, [["a"], ["b"]])
        notifications.connect()
        notifications.watch([0, 1])
        stock.flushdb()
        assert pushed(notifications) == {0, 1}
        notifications.close()


def test_no_push_is_lost_that_comes_while_it_watches(redis_db: RedisServer) -> None:
    """What arrives in the same read as the last length is in no socket any more."""
    with connect(redis_db.url) as client, redis_db.client() as stock:
        notifications = QueueNotifications(client, [["a"]])
        notifications.connect()
        pushes, stop = [0], threading.Event()

        def push() -> None:
            while not stop.is_set():
                stock.lpush("a", "x")
                stock.rpop("a")
                pushes[0] += 1

        pusher = threading.Thread(target=push)
        pusher.start()
        try:
            while pushes[0] < 4_000:
                if not notifications.watch([0]):
                    # Nothing there and nothing said: then the next change must be told.
                    assert notifications.unwatched == set()
                    changed: set[int] = set()
                    while not changed:  # a slow server's length comes before it
                        changed = pushed(notifications)
                    assert changed == {0}
        finally:
            stop.set()
            pusher.join()
            notifications.close()
            stock.delete("a")


def test_a_server_that_takes_long_is_not_waited_for(redis_db: RedisServer) -> None:
    with connect(redis_db.url) as client, redis_db.client() as stock:
        notifications = QueueNotifications(client, [["a"], ["b"], ["odd"]], "channel")
        notifications.connect()
        stock.lpush("a", "x")
        stock.set("odd", "no list")
        assert redis_db.process is not None
        suspend(redis_db.process.pid)
        try:
            assert notifications.watch([0, 2]) == set(), "nothing is known yet"
            assert notifications.watch([0, 1]) == set(), "what was asked before is not asked again"
            assert notifications.unwatched == set()
        finally:
            redis_db.process.send_signal(signal.SIGCONT)
        found: set[int] = set()
        while not found:
            found |= pushed(notifications)
        assert found == {0}
        stock.publish("channel", "word")
        stock.lpush("b", "x")
        wait_until(lambda: 1 in pushed(notifications), "it is told")
        assert notifications.take_messages() == [b"word"]
        notifications.check_timeout(time.monotonic() + 2 * ANSWER_MAX_S)
        assert notifications.watch([0, 1, 2]) == {0, 1}
        notifications.close()
        stock.delete("a", "b", "odd")


def test_a_connection_that_went_silent_is_lost_without_a_wait(redis_db: RedisServer) -> None:
    with (
        proxy(redis_db.port) as carrier,
        connect(f"redis://127.0.0.1:{carrier.port}/0") as client,
    ):
        notifications = QueueNotifications(client, [["a"]])
        notifications.connect()
        carrier.go_silent()
        # Had it waited for the answer, the socket's own limit would have been raised here.
        assert notifications.watch([0]) == set()
        notifications.check_timeout(time.monotonic())
        with pytest.raises(DISCONNECTED):
            notifications.check_timeout(time.monotonic() + ANSWER_MAX_S)
        assert notifications.socket() is None
