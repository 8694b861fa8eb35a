"""Models from sources in a real worker: archives, programs, TorchServe's handlers, packages."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from headrace.jobs.job import Job, State
from headrace.models.archive import Limits
from headrace.models.pack import pack
from headrace.models.requirements import prune
from tests.harness.archives import HANDLER, write_folder, write_tar, write_wheel, write_zip
from tests.harness.programs import TENSORS, Scaled, save_exported, save_onnx, save_script
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

PICKLED = """\
import torch
from handlers.common.tensors import load_weights
from headrace import Handler
from tests.harness.programs import Scaled

class Loads(Handler):
    def initialize(self, context):
        super().initialize(context)
        self.model = Scaled()
        load_weights(self.model, context.weights, weights_only=context.weights_only)

    def inference(self, items):
        return self.model.weight.tolist()[: len(items)]
"""
NEEDS_HANDLER = """\
from headrace import Handler

class Needs(Handler):
    overlap = True

    def preprocess(self, inputs):
        import weather  # in the preprocess process

        return [[weather.TODAY, item] for item in inputs]

    def inference(self, items):
        import weather

        return [[weather.TODAY, *item] for item in items]
"""
THEIRS = """\
from ts.torch_handler.base_handler import BaseHandler

class Theirs(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        assert context.system_properties["batch_size"] == 1
        return [{**row["body"], "ids": list(context.request_ids.values())} for row in data]
"""
#: What one archive writes when its code is run, by whichever process that does it.
SPY = (
    """\
import os
import sys

with open(os.environ["SPY_FILE"], "a") as file:
    file.write(" ".join(sys.argv) + "\\n")

"""
    + HANDLER
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Client]]:
    """One worker with a model of each kind."""
    folder = tmp_path_factory.mktemp("served")
    twice = {"model.yaml": "handler: handler.py\nversion: '3'\n", "handler.py": SPY}
    pack(write_folder(folder / "twice", twice), folder / "twice.tar.gz", Limits())
    manifest = {"model": {"modelName": "m", "modelVersion": "2", "handler": "handler.py"}}
    archive = [("MAR-INF/MANIFEST.json", json.dumps(manifest).encode())]
    write_zip(folder / "ours.mar", [*archive, ("handler.py", HANDLER.encode())])
    write_zip(folder / "theirs.mar", [*archive, ("handler.py", THEIRS.encode())])
    save_script(folder / "script.pt", Scaled())
    (folder / "exported").mkdir()
    save_exported(folder / "exported" / "m.pt2")
    write_tar(
        folder / "exported.tgz", [("net/m.pt2", (folder / "exported" / "m.pt2").read_bytes())]
    )
    torch.save(Scaled(), folder / "whole.pt")
    (folder / "loads.py").write_text(PICKLED)
    needs = write_folder(
        folder / "needs",
        {"model.yaml": "handler: handler.py\n", "handler.py": NEEDS_HANDLER},
    )
    (needs / "requirements.txt").write_text("--no-index\n--find-links wheels\nweather==1.0\n")
    (needs / "wheels").mkdir()
    write_wheel(needs / "wheels", "weather", "TODAY = 'rain'\n")
    missing = write_folder(
        folder / "missing",
        {"model.yaml": "handler: echo\n", "requirements.txt": "--no-index\nno-such-package-1\n"},
    )
    models: dict[str, dict[str, Any]] = {
        "twice": {"source": "twice.tar.gz"},
        "ours": {"source": "ours.mar"},
        "theirs": {"source": "theirs.mar"},
        "mine": {"source": "theirs.mar", "handler": "echo"},
        "script": {"source": "script.pt", "tensors": TENSORS, "max_batch_delay_ms": 200},
        "exported": {"source": "exported.tgz", "preprocess_processes": 1},
        "whole": {"handler": "loads.py", "weights": "whole.pt", "weights_only": False},
        "safe": {"handler": "loads.py", "weights": "whole.pt"},
        "needs": {"source": "needs", "load_timeout_s": 300, "preprocess_processes": 1},
        "missing": {"source": str(missing)},
        "echo": {"handler": "echo"},
    }
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        pass
    else:
        models["onnx"] = {"source": str(save_onnx(folder / "m.onnx"))}
    path = write_models(folder, **models)
    environ = {
        "HEADRACE_STATE_DIR": str(folder / "state"),
        "HEADRACE_INSTALL_REQUIREMENTS": "true",
        "SPY_FILE": str(folder / "spy.log"),
    }
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder, environ=environ) as worker,
        Client(server.url, path) as client,
    ):
        worker.wait_ready("echo", timeout_s=120)
        yield worker, client
        nothing_leaks(client.redis)


def results(served: tuple[Worker, Client], model: str, *inputs: Any) -> list[Job]:
    worker, client = served
    worker.wait_ready(model, timeout_s=240)
    return client.wait(*client.submit(model, *inputs), timeout_s=120)


def values(served: tuple[Worker, Client], model: str, *inputs: Any) -> list[Any]:
    return [value_of(job) for job in results(served, model, *inputs)]


def value_of(job: Job) -> Any:
    assert job.state is State.SUCCEEDED, job
    return json.loads(job.result_json or b"")


def load_error(served: tuple[Worker, Client], model: str) -> str:
    def error() -> str:
        state = served[0].states()[model]
        return str(state["error"]) if state["state"] == "failed" else ""

    return wait_until(error, "the load has failed", timeout_s=240)


def test_an_archive_is_served_and_only_its_model_process_runs_it(
    served: tuple[Worker, Client],
) -> None:
    assert values(served, "twice", 21, "ab") == [42, "abab"]
    folder = served[0].folder
    runs = (folder / "spy.log").read_text().splitlines()
    assert len(runs) == 1
    assert runs[0].startswith("workers.model_process ")
    assert len(list((folder / "state" / "models").glob("*/handler.py"))) == 3


def test_an_archive_of_torchserve_with_a_handler_of_ours_is_served(
    served: tuple[Worker, Client],
) -> None:
    assert values(served, "ours", 4) == [8]
    assert values(served, "mine", 4) == [4]


def test_a_handler_of_torchserve_runs_and_its_defaults_count(
    served: tuple[Worker, Client],
) -> None:
    (job,) = results(served, "theirs", {"x": 4})
    assert value_of(job) == {"x": 4, "ids": [job.id]}


def test_a_program_is_served_in_batches_and_a_bad_input_fails_alone(
    served: tuple[Worker, Client],
) -> None:
    good = [{"x": [n, n, n], "scale": 1} for n in range(6)]
    for model in ("script", "exported"):
        *jobs, bad = results(served, model, *good, {"x": [1, 2], "scale": 1})
        totals = [value_of(job)["total"] for job in jobs]
        assert totals == [3 * (n + 1) for n in range(6)]
        assert bad.state is State.FAILED
        assert "input-error" in bad.error_json
        assert "expected the shape [3]" in bad.error_json


def test_a_program_takes_bytes(served: tuple[Worker, Client]) -> None:
    body = base64.b64encode(torch.ones(3).numpy().tobytes()).decode()
    (found,) = values(served, "script", {"x": {"base64": body}, "scale": 2})
    assert found == {"y": [4, 4, 4], "total": 12}


def test_an_onnx_file_is_served(served: tuple[Worker, Client]) -> None:
    pytest.importorskip("onnxruntime")
    assert values(served, "onnx", [1, 2]) == [{"y": [2, 4]}]


def test_pickled_modules_load_only_by_the_operators_option(served: tuple[Worker, Client]) -> None:
    assert values(served, "whole", 0) == [1.0]
    assert "weights_only: false" in load_error(served, "safe")


def test_a_model_has_packages_of_its_own(served: tuple[Worker, Client]) -> None:
    assert values(served, "needs", 1, 2) == [["rain", "rain", 1], ["rain", "rain", 2]]
    environments = served[0].folder / "state" / "environments"
    (installed,) = environments.glob("*/complete")
    packages = next(installed.parent.glob("lib/*/site-packages"))
    assert (packages / "weather.py").exists()
    # numpy was there already, in the server's environment.
    assert not (packages / "numpy").exists()
    # Of the model whose packages cannot be installed one may be left over.
    assert installed.parent.name not in prune(environments, [], unused_s=0), "it is in use"
    assert installed.exists()


def test_packages_that_cannot_be_installed_fail_the_load_alone(
    served: tuple[Worker, Client],
) -> None:
    error = load_error(served, "missing")
    assert "cannot install it" in error
    assert "no-such-package-1" in error
