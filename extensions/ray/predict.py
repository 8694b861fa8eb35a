"""`headrace.ray.predict`: a dataset through a model that runs in Ray's actors, without a queue."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from extensions.ray.tables import Columns, Ended, Given, inputs, rejected, with_ends
from headrace.config.settings import Settings, load_settings
from headrace.errors import ConfigError, HeadraceError
from headrace.models.catalog import load_models
from headrace.ray import Actor

#: The fewest rows that an actor gets at once, and how many batches they make at least.
ROWS: Final = 256
BATCHES: Final = 8


def predict(
    ds: Any,
    model: str,
    *,
    models_file: str | os.PathLike[str] | None = None,
    input: str | None = None,
    content_type: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    batch_size: int | None = None,
    **ray_options: Any,
) -> Any:
    """Return a dataset with the results of a model added to its rows.

    Ray schedules the actors, retries blocks and limits what is in memory. Each actor has a model
    process, as a worker has one, so handler, batch sizes and `optimize` are those of the models
    file. The columns `status`, `result` (JSON text), `error` and `attempts` are added.

    Args:
        ds: a `ray.data.Dataset`.
        models_file: the models file, at the same path on each node; default as for `headrace up`.
        input: the column that is the input, or several with commas; default all columns.
        content_type: the media type of the inputs.
        parameters: values for the parameters that the model declares.
        concurrency: how many actors, or the fewest and the most.
        num_cpus: of each actor; also the threads of its model process.
        num_gpus: of each actor.
        batch_size: how many rows an actor gets at once. The model's own batches are smaller.
        ray_options: other options of Ray's actors.

    Raises:
        ConfigError: the models file has mistakes, the model is a pipeline, or Ray is missing.
        ModelNotFound: the models file lacks the model.
    """
    file = str(Path(models_file).absolute()) if models_file is not None else None
    settings = _settings(file)
    catalog = load_models(settings)
    config = catalog.get(model)
    if model in catalog.pipelines:
        raise ConfigError(
            f"{model} is a pipeline, and an actor runs one model",
            hint="Use headrace.ray.submit, or predict once for each stage.",
        )
    rows = batch_size or max(ROWS, BATCHES * config.max_batch_size)
    arguments = {
        "model": model, "models_file": str(settings.models_file.absolute()),
        "parameters": dict(parameters or {}), "columns": Columns(input, None, content_type),
    }  # fmt: skip
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, **ray_options}
    return in_actors(ds, "Predictor", arguments, rows, concurrency, options)


def in_actors(
    ds: Any,
    name: str,
    arguments: Mapping[str, Any],
    rows: int,
    concurrency: int | tuple[int, int],
    options: Mapping[str, Any],
) -> Any:
    """Return a dataset whose tables went through a class of this extension, in a pool of actors.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        from ray.data import ActorPoolStrategy
    except ImportError:
        raise ConfigError("Ray Data is not installed", hint="pip install 'headrace[ray]'") from None
    least, most = concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency)
    return ds.map_batches(
        Actor,
        fn_constructor_args=(name, dict(arguments)),
        batch_size=rows,
        batch_format="pyarrow",
        zero_copy_batch=True,
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        **{key: value for key, value in options.items() if value is not None},
    )


class Predictor:
    """What an actor runs; the model process ends with it."""

    def __init__(
        self, model: str, models_file: str, parameters: Mapping[str, Any], columns: Columns
    ) -> None:
        # Here because the driver may be a machine without the extra `worker`.
        from workers.direct import DirectModel

        settings = _settings(models_file)
        catalog = load_models(settings)
        self._columns = columns
        with in_words():
            self._model = DirectModel(catalog.get(model), catalog.base_dir, settings, parameters)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Run the rows of a table."""
        with in_words():
            given = list(inputs(table, self._columns))
            return with_ends(table, self._ends(given))

    def _ends(self, given: Sequence[Given]) -> list[Ended]:
        sent = [
            (str(place), bytes(row.input))
            for place, row in enumerate(given)
            if not isinstance(row.input, HeadraceError)
        ]
        outcomes = iter(self._model.run(sent))
        ends = []
        for row in given:
            if isinstance(row.input, HeadraceError):
                ends.append(rejected(row.input))
                continue
            outcome = next(outcomes)
            if not outcome.code:
                ends.append(Ended("succeeded", outcome.attempts, outcome.result))
                continue
            error = {
                "type": outcome.code, "message": outcome.message, "retryable": outcome.retryable,
                "where": outcome.where or None,
            }  # fmt: skip
            ends.append(Ended("failed", outcome.attempts, error=error))
        return ends


@contextmanager
def in_words() -> Iterator[None]:
    """Raise errors that Ray can pickle, with the hint in their text."""
    try:
        yield
    except HeadraceError as error:
        raise RuntimeError(error.message_with_hint) from None


def _settings(models_file: str | None) -> Settings:
    return load_settings(None, os.environ, {"models_file": models_file})
