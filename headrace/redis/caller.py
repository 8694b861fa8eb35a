"""Calls of scripts and commands over a client that blocks, with errors as the tree's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace.redis.outages import translate
from headrace.redis.scripts import Arg, script


class ScriptClient:
    """Calls scripts. Its methods block and may be called from any thread.

    What is called is said a second time where a connection broke, and must allow that.

    Args:
        client: Redis, in its own pool of connections.
    """

    def __init__(self, client: redis.Redis) -> None:
        # redis-py types its own replies as unions of all that a command could give.
        self.client: Any = client

    def call(self, name: str, *arguments: Arg) -> list[Any]:
        """Call a script that has no KEYS.

        Raises:
            BrokerError: Redis does not answer, or refuses.
        """
        command = script(name).call([], *arguments)
        try:
            answer = self.execute(*command)
        except _Unknown:
            self.execute(*script(name).load_command())
            answer = self.execute(*command)
        return list(answer)

    def execute(self, *command: Arg, **options: Any) -> Any:
        """Send a command.

        Args:
            command: its words.
            options: how redis-py is to read the answer.

        Raises:
            BrokerError: Redis does not answer, or refuses.
        """
        try:
            try:
                return self.client.execute_command(*command, **options)
            except (RedisConnectionError, RedisTimeoutError):
                return self.client.execute_command(*command, **options)
        except NoScriptError:
            raise _Unknown from None
        except RedisError as error:
            raise translate(error) from error

    def answers(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """Send commands in one round trip; in place of an answer, the error of a command.

        Raises:
            BrokerError: Redis does not answer.
        """
        try:
            try:
                return self._piped(commands, raise_on_error=False)
            except (RedisConnectionError, RedisTimeoutError):
                return self._piped(commands, raise_on_error=False)
        except RedisError as error:
            raise translate(error) from error

    def pipelined(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """Send commands that only read in one round trip; an error of one is raised.

        Raises:
            BrokerError: Redis does not answer, or refuses one.
        """
        try:
            return self._piped(commands, raise_on_error=True)
        except RedisError as error:
            raise translate(error) from error

    def _piped(self, commands: Sequence[tuple[Arg, ...]], *, raise_on_error: bool) -> list[Any]:
        pipe = self.client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return list(pipe.execute(raise_on_error=raise_on_error))


class _Unknown(Exception):
    """The server does not know a script."""
