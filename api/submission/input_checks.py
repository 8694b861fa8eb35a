"""Check inputs against the `inputs` of their models, before they are queued."""

from __future__ import annotations

from collections.abc import Iterable

from api.submission.job_request import ValidatedRequest
from headrace.config.inputs.input_schema import InputSection
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidInput
from headrace.jobs.values.value_check import ValueCheck, summary


class InputChecks:
    """The checks of one process; each schema is compiled once.

    Args:
        models: the models at the start, whose schemas are compiled now.

    Raises:
        ConfigError: the library that checks schemas is not installed.
    """

    def __init__(self, models: Iterable[ModelConfig] = ()) -> None:
        self._checks: dict[tuple[str, str], tuple[InputSection, ValueCheck]] = {}
        for model in models:
            if model.inputs is not None:
                self._check_of(model, model.inputs)

    def check(self, request: ValidatedRequest) -> None:
        """Check the input of a request; of an `input_ref`, only the type is known.

        Raises:
            InvalidInput: it does not fit.
            InvalidRequest: it cannot be decoded.
        """
        if request.model.inputs is None:
            return
        check = self._check_of(request.model, request.model.inputs)
        payload, source = request.payload, request.source
        if source is not None:
            mistakes = check.of_reference(source.type)
        elif payload is not None:
            mistakes = check.of_payload(payload.body, payload.kind)
        else:
            mistakes = check.of_input(request.input_json)
        if mistakes:
            name = request.model.name
            raise InvalidInput(
                f"the input does not fit model {name}: {summary(mistakes)}",
                hint=f"GET /api/v1/models/{name} shows its inputs.",
                errors=mistakes,
            )

    def _check_of(self, model: ModelConfig, inputs: InputSection) -> ValueCheck:
        key = (model.name, model.version)
        known = self._checks.get(key)
        # The models may change while the server runs.
        if known is None or known[0] is not inputs:
            known = self._checks[key] = (inputs, inputs.value_check())
        return known[1]
