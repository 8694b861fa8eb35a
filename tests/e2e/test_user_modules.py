"""A user's code imports the user's `handlers`, `workers`, `api` and `extensions`, never ours."""

from __future__ import annotations

from pathlib import Path

from tests.harness.servers.up import ROOT, running_up, write_models
from tests.harness.user_project import MODELS, expected, write_project


def test_in_a_checkout(tmp_path: Path) -> None:
    models = write_models(write_project(tmp_path), MODELS)
    with running_up(tmp_path, models=models, PYTHONWARNINGS="ignore") as up:
        jobs = {model: up.submit(model, 5) for model in MODELS}
        given = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        for model, job_id in jobs.items():
            assert up.result_of(job_id) == expected(model, 5, **given), model
