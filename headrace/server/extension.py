"""What an extension adds to the processes of a deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from headrace.config.extensions import parts

if TYPE_CHECKING:
    import redis

    from headrace.redis.light_client import Asks


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that the core does not have.

    Attributes:
        name: in `headrace up` and `headrace health`. Its incarnations begin with it.
        command: the arguments of `headrace` that run it. It gets the API's address as HEADRACE_URL.
        is_ready: whether an incarnation serves.
        release: releases what a dead incarnation held: the URL of Redis, the incarnation, and what
            reports a line.
        check: returns a line about those of this host; raises a HeadraceError if none serves.
        stop_timeout_s: how long it may take to stop.
        essential: whether everything stops if it cannot be started at first.
    """

    name: str
    command: Sequence[str]
    is_ready: Callable[[redis.Redis, str], bool]
    release: Callable[[str, str, Callable[[str], None]], None]
    check: Callable[[Asks], str]
    stop_timeout_s: float
    essential: bool = False


@dataclass(frozen=True, kw_only=True)
class ServerPart:
    """What an extension adds to `headrace up` and to `headrace health`.

    Attributes:
        processes: those that run once in a deployment of one machine.
        pages: the paths of the API that people open in a browser, by a name of at most 7 letters.
    """

    processes: Sequence[Process] = ()
    pages: Mapping[str, str] = field(default_factory=dict)


@cache
def processes() -> dict[str, Process]:
    """Return the processes of all extensions, by name."""
    found = parts("server", ServerPart).values()
    return {process.name: process for part in found for process in part.processes}


def pages() -> dict[str, str]:
    """Return the pages of all extensions: their paths, by name."""
    found = parts("server", ServerPart).values()
    return {name: path for part in found for name, path in part.pages.items()}
