"""`transformers serve --continuous-batching`, and chats read as streams from any server."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from benchmarks.common.systems import answers, process
from headrace.server.ports import free_port
from tests.harness.wait import wait_until

#: Tokens of a page of the cache, as Headrace's engine has them.
_PAGE: Final = 32
#: A token that the model never writes: there is no `ignore_eos`.
_NO_END: Final = 0


@contextmanager
def transformers_serve(
    python: str, folder: Path, slots: int, environ: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Run it; yield its URL, and the name of its model.

    Args:
        python: a Python that has `transformers[serving]`.
        slots: for so many requests of 1,024 tokens there is memory.
    """
    with TemporaryDirectory() as made:
        model = Path(made, "model")
        shutil.copytree(folder, model)
        for name in ("config.json", "generation_config.json"):
            settings = json.loads((model / name).read_text())
            (model / name).write_text(json.dumps({**settings, "eos_token_id": _NO_END}))
        port = free_port()
        command = [
            python, "-m", "transformers.cli.transformers", "serve", str(model),
            "--continuous-batching", "--device", "cpu", "--dtype", "float32",
            "--attn-implementation", "sdpa", "--cb-block-size", str(_PAGE),
            "--cb-num-blocks", str(slots * 1024 // _PAGE), "--cb-max-batch-tokens", "512",
            "--host", "127.0.0.1", "--port", str(port), "--log-level", "error",
        ]  # fmt: skip
        log = Path(made, "log")
        try:
            with process(command, log, PYTHONPATH="", **environ):
                url = f"http://127.0.0.1:{port}"
                wait_until(lambda: answers(url + "/health"), "transformers serve answers", 120)
                yield url, str(model)
        except (AssertionError, subprocess.SubprocessError) as error:
            error.add_note(log.read_text()[-4000:])
            raise


def ask_chat(url: str, model: str, tokens: int, asked: dict[str, Any]) -> float:
    """Read a chat as a stream to its end, and return the seconds to its first text.

    Args:
        url: the server's.
        model: the model's name there.
        tokens: the new tokens of the answer.
        asked: its messages, and what else the server takes.

    Raises:
        AssertionError: the answer is not whole.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    first, finish = 0.0, ""
    try:
        started = time.perf_counter()
        body = {"model": model, "stream": True, "max_tokens": tokens, "temperature": 0, **asked}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", msgspec.json.encode(body), headers)
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                if choice.get("delta", {}).get("content") and not first:
                    first = time.perf_counter() - started
                finish = choice.get("finish_reason") or finish
    finally:
        connection.close()
    if finish != "length" or not first:
        raise AssertionError(f"{url}: the answer ended with {finish!r}")
    return first
