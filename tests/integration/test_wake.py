from __future__ import annotations

import select
import threading

from headrace.connections import connect
from tests.harness.redis_servers import RedisServer
from workers.wake import Wake


def pushed(wake: Wake) -> set[int]:
    assert select.select([wake.socket()], [], [], 5)[0], "no push"
    return wake.drain()


def test_each_push_of_anybody_wakes_its_queue_on_each_server(any_redis: RedisServer) -> None:
    with connect(any_redis.url) as client, any_redis.client() as stock:
        wake = Wake(client, [["a", "a6"], ["b"]])
        wake.connect()
        assert wake.unwatched == {0, 1}
        assert wake.watch([0, 1]) == set()
        assert wake.unwatched == set()
        for name, queue in (("a", 0), ("b", 1), ("a6", 0)):
            stock.lpush(name, "x")
            assert pushed(wake) == {queue}
            assert wake.unwatched == {queue}
            assert wake.watch([queue]) == {queue}, "it has something"
        stock.eval("return redis.call('LPUSH', 'b', 'from lua')", 0)
        assert pushed(wake) == {1}
        wake.close()
        stock.delete("a", "a6", "b")


def test_a_queue_that_is_not_watched_wakes_nobody(redis_db: RedisServer) -> None:
    with connect(redis_db.url) as client, redis_db.client() as stock:
        wake = Wake(client, [["flooded"], ["lone"]])
        wake.connect()
        assert wake.watch([1]) == set()
        for _ in range(50):
            stock.lpush("flooded", "x")
        stock.lpush("lone", "x")
        assert pushed(wake) == {1}
        assert wake.unwatched == {0, 1}
        wake.close()
        stock.delete("flooded", "lone")


def test_a_server_that_forgot_everything_wakes_all(redis_db: RedisServer) -> None:
    with connect(redis_db.url) as client, redis_db.client() as stock:
        wake = Wake(client, [["a"], ["b"]])
        wake.connect()
        wake.watch([0, 1])
        stock.flushdb()
        assert pushed(wake) == {0, 1}
        wake.close()


def test_no_push_is_lost_that_comes_while_it_watches(redis_db: RedisServer) -> None:
    """What arrives in the same read as the last length is in no socket any more."""
    with connect(redis_db.url) as client, redis_db.client() as stock:
        wake = Wake(client, [["a"]])
        wake.connect()
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
                if not wake.watch([0]):
                    # Nothing there and nothing said: then the next change must be told.
                    assert wake.unwatched == set()
                    assert pushed(wake) == {0}, "a push was lost"
        finally:
            stop.set()
            pusher.join()
            wake.close()
            stock.delete("a")
