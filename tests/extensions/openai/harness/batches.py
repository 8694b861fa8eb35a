"""Batches as a user of OpenAI's SDK has them: made, waited for, and read."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import openai

from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until

ENDED = ("completed", "failed", "expired", "cancelled")


def sdk(url: str, api_key: str = "none", *, max_retries: int = 0) -> openai.OpenAI:
    """OpenAI's SDK for a server that speaks no TLS."""
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key=api_key, max_retries=max_retries,
        http_client=openai.DefaultHttpxClient(verify=PLAIN),
    )  # fmt: skip


def line(custom_id: str, model: str, body: Any, query: str = "") -> dict[str, Any]:
    """A request whose body is the input."""
    return {
        "custom_id": custom_id, "method": "POST", "url": f"/api/v1/models/{model}/jobs{query}",
        "body": body,
    }  # fmt: skip


def job_line(custom_id: str, **body: Any) -> dict[str, Any]:
    """A request whose body is a job."""
    return {"custom_id": custom_id, "method": "POST", "url": "/api/v1/jobs", "body": body}


class Batches:
    """A server's batches."""

    def __init__(self, client: openai.OpenAI) -> None:
        # The SDK types `endpoint` and `completion_window` as what OpenAI's own API knows.
        self.client: Any = client

    def upload(self, lines: Iterable[dict[str, Any]] | bytes) -> str:
        body = lines if isinstance(lines, bytes) else "\n".join(map(json.dumps, lines)).encode()
        return str(
            self.client.files.create(file=("in.jsonl", io.BytesIO(body)), purpose="batch").id
        )

    def create(
        self,
        lines: Iterable[dict[str, Any]] | bytes,
        endpoint: str,
        window: Any = "24h",
        **more: Any,
    ) -> Any:
        made: Any = self.client.batches.create(
            input_file_id=self.upload(lines), endpoint=endpoint,
            completion_window=window, **more,
        )  # fmt: skip
        return made

    def ended(self, batch: Any, timeout_s: float = 90) -> Any:
        """The batch, once it has ended."""

        def look() -> Any:
            try:
                found = self.client.batches.retrieve(batch.id)
            except (openai.APIConnectionError, openai.InternalServerError):
                return None
            return found if found.status in ENDED else None

        return wait_until(look, f"{batch.id} ends", timeout_s, poll_s=0.1)

    def rows(self, file_id: str | None) -> dict[str, dict[str, Any]]:
        """The rows of a file by their custom_id, none of which may be there twice."""
        if file_id is None:
            return {}
        text = self.client.files.content(file_id).read()
        found = [json.loads(row) for row in text.splitlines()]
        rows = {row["custom_id"]: row for row in found}
        assert len(rows) == len(found), "a line has two rows"
        return rows

    def both(self, batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The rows that succeeded and those that did not, as the counts have them."""
        good, bad = self.rows(batch.output_file_id), self.rows(batch.error_file_id)
        counts = batch.request_counts
        assert (counts.completed, counts.failed) == (len(good), len(bad))
        assert counts.total == counts.completed + counts.failed
        assert not good.keys() & bad.keys()
        return good, bad


@contextmanager
def batches_at(url: str) -> Iterator[Batches]:
    """The batches of a server."""
    with sdk(url, max_retries=2) as client:
        yield Batches(client)
