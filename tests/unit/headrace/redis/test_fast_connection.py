"""The private parts of redis-py and asyncio that `fast_connection` uses still exist."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio
from redis._parsers.hiredis import NOT_ENOUGH_DATA, _AsyncHiredisParser, _HiredisParser
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection


def test_the_private_parts_are_there() -> None:
    async def names() -> list[tuple[object, str]]:
        pool: Any = redis.asyncio.Redis(protocol=3).connection_pool
        connection = pool.make_connection()
        parser: Any = connection._parser
        assert type(connection._parser) is _AsyncHiredisParser
        parser.on_connect(connection)
        assert isinstance(connection, AbstractConnection)
        return [
            (pool, "connection_class"),
            (connection, "_reader"),
            (connection, "socket_timeout"),
            (parser, "_connected"),
            (parser, "_reader"),
            (parser, "handle_push_response"),
            (parser, "set_pubsub_push_handler"),
            (parser._reader, "has_data"),
            (parser._reader, "gets"),
            (asyncio.StreamReader(), "_buffer"),
            (PubSub, "_reconnect"),
        ]

    blocking: Any = redis.Redis(protocol=3).connection_pool.make_connection()
    parser: Any = blocking._parser
    assert type(blocking._parser) is _HiredisParser
    found = [
        *asyncio.run(names()),
        (blocking, "_sock"),
        (parser, "set_invalidation_push_handler"),
        (parser, "set_pubsub_push_handler"),
    ]
    assert [name for owner, name in found if not hasattr(owner, name)] == []


def test_a_parser_without_data_says_so() -> None:
    async def reply() -> object:
        pool: Any = redis.asyncio.Redis(protocol=3).connection_pool
        connection = pool.make_connection()
        connection._parser.on_connect(connection)
        found: object = connection._parser._reader.gets()
        return found

    assert asyncio.run(reply()) is NOT_ENOUGH_DATA
