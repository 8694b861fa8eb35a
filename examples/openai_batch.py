"""A batch with OpenAI's SDK: upload images, run them, read the results, run failed ones again.

    pip install openai
    headrace up &
    python examples/openai_batch.py examples/digits

HEADRACE_URL sets another server, and HEADRACE_API_KEY the key that it requires.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from openai import OpenAI

MODEL = "digits"
ENDPOINT = f"/api/v1/models/{MODEL}/jobs"
ENDED = ("completed", "failed", "expired", "cancelled")


def request(path: Path) -> dict[str, Any]:
    body = {"content_type": "image/png", "base64": base64.b64encode(path.read_bytes()).decode()}
    return {"custom_id": path.name, "method": "POST", "url": ENDPOINT, "body": body}


def ended(client: OpenAI, batch: Any) -> Any:
    while batch.status not in ENDED:
        time.sleep(0.5)
        batch = client.batches.retrieve(batch.id)
    for error in batch.errors.data if batch.errors else ():
        print(f"line {error.line}: {error.message}", file=sys.stderr)
    counts = batch.request_counts
    print(f"{batch.status}: {counts.completed} of {counts.total}, {counts.failed} failed")
    return batch


def rows(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return (
        [json.loads(row) for row in client.files.content(file_id).text.split("\n") if row]
        if file_id
        else []
    )


def main() -> int:
    folder = Path(sys.argv[1])
    client = OpenAI(
        base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080") + "/v1",
        api_key=os.environ.get("HEADRACE_API_KEY", "none"),
    )
    lines = "\n".join(json.dumps(request(path)) for path in sorted(folder.iterdir()))
    file = client.files.create(file=("requests.jsonl", lines.encode()), purpose="batch")
    made: Any = client.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window="24h",  # type: ignore[arg-type]
    )
    batch = ended(client, made)
    for row in sorted(rows(client, batch.output_file_id), key=lambda row: row["custom_id"]):
        print(row["custom_id"], row["response"]["body"]["result"]["digit"])
    failed = rows(client, batch.error_file_id)
    for row in failed:
        print(row["custom_id"], row["error"]["message"], file=sys.stderr)
    if failed:
        again: Any = client.batches.create(
            input_file_id=file.id,
            endpoint=ENDPOINT,
            completion_window="24h",  # type: ignore[arg-type]
            extra_body={"rerun_of": batch.id},
        )
        batch = ended(client, again)
    return 1 if batch.error_file_id else 0


if __name__ == "__main__":
    sys.exit(main())
