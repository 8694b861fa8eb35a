"""A server that takes no writes for now: the error is an outage, and nothing is half done."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from headrace.redis.outages import outage_code
from tests.harness.clients.script_calls import Job, Queue
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.refusals import REFUSALS, refusing


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_for_now_is_known_and_leaves_all_as_it_was(
    any_flavour: RedisServer, code: str
) -> None:
    with any_flavour.client() as client:
        queue = Queue(client)
        ids = [queue.submit_one() for _ in range(3)]
        held = queue.claim_one()

        def all_there_is() -> dict[bytes, Any]:
            raw: Any = client
            return {key: raw.dump(key) for key in raw.keys("*")}

        before = all_there_is()
        with refusing(any_flavour, code):
            for call in (
                lambda: queue.submit(Job()),
                queue.claim_one,
                lambda: queue.settle(held),
                lambda: queue.renew(held),
                lambda: queue.release(held),
                lambda: queue.cancel(ids[1]),
            ):
                with pytest.raises(ResponseError) as refused:
                    call()
                assert outage_code(refused.value) == code
        after = all_there_is()
        # Named one by one: the difference of such long values is more than pytest can show.
        assert [
            key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
        ] == []
        assert queue.settle(held) == [1]
        assert queue.cancel(ids[1]) == ["removed"]
        assert queue.settle(queue.claim_one()) == [1]
