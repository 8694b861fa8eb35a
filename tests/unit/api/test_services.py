"""The parts of an API process start, are dismissed and stop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from api.services import Part, Services


def test_parts_stop_in_the_opposite_order_of_their_start() -> None:
    done: list[str] = []

    def part(name: str) -> Part:
        async def stop() -> None:
            done.append(f"stop {name}")

        return Part(stop, lambda: done.append(f"start {name}"), lambda: done.append(name))

    async def run(services: Any) -> None:
        await Services.start(services)
        Services.dismiss(services)
        await Services.stop(services)

    parts = [part("a"), Part(lambda: done.append("closed")), part("b")]
    asyncio.run(run(SimpleNamespace(parts=parts)))
    starts, stops = ["start a", "start b"], ["stop b", "closed", "stop a"]
    assert done == [*starts, "a", "b", *stops]
