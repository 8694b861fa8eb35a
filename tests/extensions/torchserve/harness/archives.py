"""Archives of TorchServe's handlers for tests, run by the executor of a model process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.handlers.handler import TorchServeHandler
from handlers.loader import load_handler
from headrace.handler import Context
from headrace.jobs.options import InputDetails
from headrace.jobs.values.encoding import binary_input
from workers.model_process.executor import BatchExecutor
from workers.model_process.outcomes import Outcome


def write_archive(
    folder: Path, handler: str, files: Mapping[str, str | bytes], **model: str
) -> Path:
    """Write an unpacked archive; `model` has further members of its manifest."""
    members = {"modelName": "m", "modelVersion": "1.0", "handler": handler, **model}
    manifest = json.dumps({"runtime": "python", "model": members})
    for name, text in {"MAR-INF/MANIFEST.json": manifest, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def loaded(
    folder: Path,
    handler: str = "handler.py",
    *,
    config: TorchServeConfig | None = None,
    device: str = "cpu",
    max_batch_size: int = 8,
    weights_only: bool = True,
) -> BatchExecutor:
    """Load an archive's handler as a model process does."""
    found = load_handler(f"torchserve:{handler}", folder)
    assert isinstance(found, TorchServeHandler)
    if config is not None:
        found = type(found)(found._reference, config)
    context = Context(
        "m", "1.0", device, folder, max_batch_size=max_batch_size, weights_only=weights_only
    )
    found.initialize(context)
    return BatchExecutor(found, context)


def request(
    body: Any = None,
    kind: str = "",
    *,
    form: Mapping[str, tuple[bytes, str]] | None = None,
    headers: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> tuple[bytes, str, bytes]:
    """Return a job's input as it reaches a model process.

    Args:
        body: bytes with their `kind`, or a JSON value.
        kind: the content type of bytes.
        form: the fields of a form, with their content types, instead of a body.
    """
    details = InputDetails(
        headers=msgspec.json.encode(dict(headers or {})),
        parameters=msgspec.json.encode(dict(parameters or {})),
        nested=form is not None,
    ).text()
    if form is not None:
        parts = [
            b"%b:%b" % (msgspec.json.encode(name), binary_input(*part))
            for name, part in form.items()
        ]
        return b"{%b}" % b",".join(parts), "", details
    if kind:
        return body, kind, details
    return msgspec.json.encode(body), "", details


def run(executor: BatchExecutor, requests: Sequence[tuple[bytes, str, bytes]]) -> list[Outcome]:
    """Run a batch; the jobs are job-0, job-1 and so on."""
    items = [
        [f"job-{n}", raw, kind, float("inf"), details]
        for n, (raw, kind, details) in enumerate(requests)
    ]
    return executor.run(items).outcomes


def json_of(outcome: Outcome) -> Any:
    """Return the JSON of an item that has succeeded."""
    assert outcome[0], outcome
    assert not outcome[2]
    return json.loads(outcome[1])
