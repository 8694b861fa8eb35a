"""An offline run from Python: what `headrace run` does, with a callback for its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from extensions.runs.registry import sink_for, source_for
from extensions.runs.sources.options import LimitedSource, SourceOptions
from headrace.client.inputs import Options
from headrace.client.sync_client import Client
from headrace.runs.engine import Engine
from headrace.runs.spec import BATCH_PRIORITY, IN_FLIGHT, RunProgress, RunSpec


def run_offline(
    client: Client,
    model: str,
    source: str | Path,
    output: str | Path,
    *,
    on_progress: Callable[[RunProgress], None] = lambda _: None,
    input: str | None = None,
    key: str | None = None,
    glob: Sequence[str] = (),
    content_type: str | None = None,
    delimiter: str | None = None,
    limit: int | None = None,
    by_ref: bool = False,
    only_failed: bool = False,
    run_id: str | None = None,
    in_flight: int = IN_FLIGHT,
    version: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> RunProgress:
    """Run every input of a source through a model into an output; the same call resumes.

    It blocks until all inputs have a row. docs/cli.md describes the options of `headrace run`.

    Args:
        client: the server. The run waits for at most its `retry_s` while the server is away.
        source: a folder, a file, a pattern or a URL of S3.
        output: a file or a URL of S3; its name sets the format.
        on_progress: is called about twice a second, and at the end.
        input: the column that is the input, or several with commas.
        key: the column with the key of an input.
        glob: only files of a folder that match one of these.
        content_type: the media type of the inputs.
        delimiter: what separates the columns of CSV.
        limit: run only so many inputs.
        by_ref: send file names to a server that shares the disk.
        only_failed: run the failed inputs of an ended run again.
        run_id: the run's id; None for a new one.
        in_flight: the most inputs in flight.
        version: the version of the model that must run the jobs.
        options: of each job, as for `Client.submit`; the priority is 9 by default.

    Returns:
        The progress at the end.

    Raises:
        HeadraceError: the model does not exist, source or output cannot be used, the output belongs
            to another run, or the server was away for too long.
        OSError: the output cannot be written.
    """
    options.setdefault("priority", BATCH_PRIORITY)
    spec = RunSpec(
        model=model, version=version, options=options, content_type=content_type, run_id=run_id,
        in_flight=in_flight, only_failed=only_failed, by_ref=by_ref,
        parameters=dict(parameters or {}),
    )  # fmt: skip
    engine = engine_for(client, spec, str(source), limit, SourceOptions(
        input=input, key=key, glob=tuple(glob), content_type=content_type, delimiter=delimiter,
        output=str(output), by_ref=by_ref,
    ))  # fmt: skip
    try:
        engine.open()
        engine.run(on_progress)
        on_progress(engine.progress)
    finally:
        engine.close()
    return engine.progress


def engine_for(
    client: Client, spec: RunSpec, source: str, limit: int | None, options: SourceOptions
) -> Engine:
    """Return the engine of a run from a source into the output of the options; it is not open yet.

    Raises:
        HeadraceError: the model does not exist, or source or output cannot be used.
    """
    inputs = source_for(source, options)
    rows = sink_for(options.output, inputs)
    # A misspelt model name must not leave an output file behind.
    client.model(spec.model)
    return Engine(client, spec, inputs if limit is None else LimitedSource(inputs, limit), rows)
