"""A model without a queue: bad inputs fail alone, whatever they do to its process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.config.settings import load_settings
from headrace.errors import ConfigError, InvalidRequest
from headrace.models.catalog import load_models
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, write_models
from workers.direct import DirectModel, DirectOutcome

#: It waits for a timeout.
pytestmark = pytest.mark.slow

TRICKY = f"{HANDLERS / 'trouble/tricky.py'}:Tricky"
COUNT = 40


def direct(folder: Path, parameters: Mapping[str, Any], **options: Any) -> DirectModel:
    models = write_models(folder, m={"handler": TRICKY, "max_batch_size": 8, **options})
    settings = load_settings(
        None, {}, {"models_file": str(models), "state_dir": str(folder / "state")}
    )
    catalog = load_models(settings)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return DirectModel(catalog.get("m"), catalog.base_dir, settings, parameters, environ)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "begun.log"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[DirectModel]:
    found = direct(
        tmp_path_factory.mktemp("direct"), {},
        timeout_s=10, max_retries=2, retry_backoff_s=0.01, options={"log": str(log)},
        batch_key="/key",
    )  # fmt: skip
    yield found
    found.close()


def run(model: DirectModel, rows: list[dict[str, Any]]) -> list[DirectOutcome]:
    return model.run([(str(n), json.dumps(row).encode()) for n, row in enumerate(rows)])


def test_each_bad_input_fails_alone(model: DirectModel) -> None:
    rows: list[dict[str, Any]] = [{"n": n} for n in range(COUNT)]
    rows[3]["do"] = "raise"
    rows[11]["do"] = "segfault"
    rows[20]["do"] = "transient"
    rows[30]["do"] = "hang"
    ended = run(model, rows)
    failed = {n: outcome.code for n, outcome in enumerate(ended) if outcome.code}
    assert failed == {3: "handler-error", 11: "replica-lost", 20: "transient-error", 30: "timeout"}
    assert ended[3].where.startswith("tricky.py:")
    assert ended[20].attempts >= 3
    assert [json.loads(one.result or b"")["n"] for one in ended if not one.code] == [
        n for n in range(COUNT) if n not in failed
    ]


def test_only_inputs_of_a_key_share_a_batch(model: DirectModel, log: Path) -> None:
    log.write_text("")
    assert not any(one.code for one in run(model, [{"key": n % 3} for n in range(COUNT)]))
    sizes = [int(line.split()[1]) for line in log.read_text().splitlines()]
    # 14, 13 and 13 inputs.
    assert sorted(set(sizes)) == [5, 6, 8]


def test_a_kill_from_outside_costs_no_input(model: DirectModel) -> None:
    (mine,) = (
        child
        for child in psutil.Process().children(recursive=True)
        if "workers.model_process" in child.cmdline()
    )
    mine.kill()
    wait_until(lambda: mine.status() == psutil.STATUS_ZOMBIE, "it is dead")
    assert not any(one.code for one in run(model, [{"n": n} for n in range(COUNT)]))


def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="these weights are for another model"):
        direct(tmp_path, {}, options={"load": "fail"})
    with pytest.raises(InvalidRequest, match="k"):
        direct(tmp_path, {"k": 1})
