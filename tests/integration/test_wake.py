from __future__ import annotations

import select
import threading

from headrace.connections import connect
from tests.harness.redis_servers import RedisServer
from workers.wake import Wake


def test_each_push_of_anybody_wakes_on_each_server(any_redis: RedisServer) -> None:
    with connect(any_redis.url) as client, any_redis.client() as stock:
        wake = Wake(client, [("a", "LLEN"), ("b", "LLEN")])
        wake.connect()
        assert wake.arm() == [0, 0]
        assert wake.armed
        for key in ("a", "b", "a"):
            stock.lpush(key, "x")
            assert select.select([wake.socket()], [], [], 5)[0], f"no push for {key}"
            assert wake.drain()
            wake.arm()
        stock.eval("return redis.call('LPUSH', 'b', 'from lua')", 0)
        assert select.select([wake.socket()], [], [], 5)[0]
        assert wake.drain()
        assert wake.arm() == [2, 2]
        wake.close()
        stock.delete("a", "b")


def test_no_push_is_lost_that_comes_while_it_arms(redis_db: RedisServer) -> None:
    """What arrives in the same read as the last length is in no socket any more."""
    with connect(redis_db.url) as client, redis_db.client() as stock:
        wake = Wake(client, [("a", "LLEN")])
        wake.connect()
        pushes, stop = [0], threading.Event()

        def push() -> None:
            while not stop.is_set():
                stock.lpush("a", "x")
                pushes[0] += 1

        pusher = threading.Thread(target=push)
        pusher.start()
        try:
            seen = 0
            while seen < 2_000:
                (length,) = wake.arm()
                assert length >= seen
                seen = length
                if wake.armed:
                    assert select.select([wake.socket()], [], [], 5)[0], "a push was lost"
                    wake.drain()
        finally:
            stop.set()
            pusher.join()
            wake.close()
            stock.delete("a")
