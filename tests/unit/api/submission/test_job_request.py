from __future__ import annotations

from typing import Any

import pytest

from api.submission.job_request import InputChecks, JobIdentity, request_from_input
from headrace.config.inputs.input_schema import InputSection
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidInput
from headrace.jobs.options import DEFAULT_OPTIONS


def model(**more: Any) -> ModelConfig:
    return ModelConfig(name="m", handler="echo", **more)


def check(checks: InputChecks, config: ModelConfig, text: bytes) -> None:
    identity = JobIdentity("a", chosen=False)
    checks.check(request_from_input(config, text, DEFAULT_OPTIONS, identity))


def test_a_model_without_inputs_takes_anything_and_nothing_is_parsed() -> None:
    check(InputChecks(), model(), b"no JSON at all")


def test_a_model_that_changes_is_checked_by_its_new_schema() -> None:
    checks = InputChecks()
    old = model(inputs=InputSection(schema={"type": "integer"}))
    new = model(inputs=InputSection(schema={"type": "string"}))
    check(checks, old, b"7")
    with pytest.raises(InvalidInput) as caught:
        check(checks, new, b"7")
    assert caught.value.errors[0].expected == "type: string"
    check(checks, new, b'"7"')


def test_inputs_of_a_version_that_only_workers_know_are_left_to_them() -> None:
    one = model(inputs=InputSection(schema={"type": "integer"}))
    check(InputChecks(), one.of_version("2"), b'"7"')
    with pytest.raises(InvalidInput):
        check(InputChecks(), one.of_version("1.0"), b'"7"')


def test_each_version_has_its_own_schema() -> None:
    checks = InputChecks()
    one = model(inputs=InputSection(schema={"type": "integer"}))
    two = model(inputs=InputSection(schema={"type": "string"}), version="2")
    for _ in range(2):
        check(checks, one, b"7")
        check(checks, two, b'"7"')
