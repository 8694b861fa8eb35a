"""Thousands of prompts as one batch: ask in the evening, read in the morning.

    pip install openai
    headrace up &
    python examples/prompts_overnight.py prompts.txt answers.jsonl

A line of the first file is a prompt; empty lines are left out. A line of the second file is an
answer. A batch runs when no other job waits, so people who use the model by day do not notice it.
The script may be stopped: the batch goes on, and with `--batch ID` another call writes its answers.

HEADRACE_URL sets another server, and HEADRACE_API_KEY the key that it requires.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from openai import OpenAI

ENDPOINT: Final = "/v1/chat/completions"
ENDED: Final = ("completed", "failed", "expired", "cancelled")


def request(number: int, prompt: str, model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 200}
    return {"custom_id": str(number), "method": "POST", "url": ENDPOINT, "body": body}


def start(client: Any, prompts: list[str], model: str) -> str:
    """Upload the prompts and create the batch; return its id."""
    lines = "\n".join(json.dumps(request(n, prompt, model)) for n, prompt in enumerate(prompts))
    file = client.files.create(file=("prompts.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    return str(batch.id)


def wait(client: Any, batch_id: str) -> Any:
    """Wait until the batch has ended, and show how far it is."""
    while (batch := client.batches.retrieve(batch_id)).status not in ENDED:
        counts = batch.request_counts
        print(f"\r{batch.status}: {counts.completed} of {counts.total}", end="", file=sys.stderr)
        time.sleep(2)
    counts = batch.request_counts
    print(f"\r{batch.status}: {counts.completed} of {counts.total}, {counts.failed} failed")
    for error in batch.errors.data if batch.errors else ():
        print(f"line {error.line}: {error.message}", file=sys.stderr)
    return batch


def rows(client: Any, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.split("\n") if line]


def answer(prompt: str, row: dict[str, Any]) -> dict[str, Any]:
    if row["error"]:
        return {"prompt": prompt, "error": row["error"]["message"]}
    body = row["response"]["body"]
    text = body["choices"][0]["message"]["content"]
    return {"prompt": prompt, "answer": text, "tokens": body["usage"]["completion_tokens"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts", type=Path, help="one prompt on each line")
    parser.add_argument("answers", type=Path, help="the file to write, in JSON lines")
    parser.add_argument("--model", default="python_docs")
    parser.add_argument("--batch", metavar="ID", help="a batch of these prompts that has begun")
    given = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080") + "/v1",
        api_key=os.environ.get("HEADRACE_API_KEY", "none"),
    )
    try:
        prompts = [line for line in given.prompts.read_text().split("\n") if line.strip()]
    except OSError as error:
        parser.error(f"{given.prompts} cannot be read: {error.strerror}")
    batch_id = given.batch or start(client, prompts, given.model)
    print(batch_id)
    batch = wait(client, batch_id)
    found = [*rows(client, batch.output_file_id), *rows(client, batch.error_file_id)]
    found.sort(key=lambda row: int(row["custom_id"]))
    lines = [json.dumps(answer(prompts[int(row["custom_id"])], row)) + "\n" for row in found]
    given.answers.write_text("".join(lines))
    return 0 if batch.request_counts.completed == len(prompts) else 1


if __name__ == "__main__":
    sys.exit(main())
