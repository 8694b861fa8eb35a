"""What a client without our package sees, and jobs of ours on a stock Celery worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery

from headrace import errors
from headrace.jobs.ids import new_id
from headrace.jobs.job import State
from headrace.redis import keys
from tests.harness.clients.celery_client import GET_TIMEOUT_S, caught, send, state_of
from tests.harness.deployments.deployment import Deployment
from tests.harness.wait import wait_until
from tests.harness.workers.worker import ROOT, Client, write_models

OUTSIDER = """
import json, sys
from celery import Celery
url, ids = sys.argv[1], sys.argv[2:]
app = Celery(broker=url, backend=url)
sent = app.send_task(
    "headrace.predict", kwargs={"model": "echo", "input": [1]}, queue="headrace.echo"
)
seen = [["sent", sent.get(timeout=50)]]
for id in ids:
    result = app.AsyncResult(id)
    try:
        seen.append([result.get(timeout=50)])
    except Exception as error:
        kinds = [cls.__module__ + "." + cls.__name__ for cls in type(error).__mro__[:2]]
        seen.append([kinds, [str(arg) for arg in error.args], result.state, bool(result.traceback)])
assert not [name for name in sys.modules if name.startswith("headrace")], "our package was imported"
print(json.dumps(seen))
app.backend.result_consumer.stop()
"""


def test_a_client_without_our_package_sees_type_and_message(app: Celery, site: Deployment) -> None:
    failed = send(app, "tricky", {"do": "raise", "n": 3})
    expired = send(app, "tricky", 1, countdown=0.3, expires=0.1)
    crashed = send(app, "tricky", {"do": "exit"})
    revoked = send(app, "tricky", 1, countdown=60)
    wait_until(lambda: site.record_exists(revoked.id), "a worker has parked it")
    app.control.revoke(revoked.id)
    ids = [result.id for result in (failed, expired, crashed, revoked)]
    with pytest.raises(errors.ReplicaLost):
        crashed.get(timeout=GET_TIMEOUT_S)
    # Isolated: neither the working directory nor PYTHONPATH is on the path.
    done = subprocess.run(
        [sys.executable, "-I", "-c", OUTSIDER, site.url, *ids],
        capture_output=True, text=True, timeout=120, cwd="/", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    base = "celery.exceptions"
    assert json.loads(done.stdout) == [
        ["sent", [1]],
        [
            [f"{base}.HandlerError", "builtins.Exception"],
            ["ValueError: cannot do 3"], "FAILURE", True,
        ],
        [
            [f"{base}.JobExpired", "builtins.Exception"],
            ["the job was not started before its `expires`"], "FAILURE", False,
        ],
        [
            [f"{base}.ReplicaLost", "builtins.Exception"],
            ["the model process died each of the 3 times that it ran this input alone; "
             "attempt 4 ended with exit status 3"], "FAILURE", False,
        ],
        [[f"{base}.TaskRevokedError", f"{base}.TaskError"], ["cancelled"], "REVOKED", False],
    ]  # fmt: skip
    assert crashed.id in site.letters()


def test_the_example_of_the_documentation(site: Deployment) -> None:
    text = (ROOT / "docs" / "celery.md").read_text("utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    assert "redis://127.0.0.1:6379/0" in example
    done = subprocess.run(
        [sys.executable, "-I", "-c", example.replace("redis://127.0.0.1:6379/0", site.url)],
        capture_output=True, text=True, timeout=120, cwd="/", check=False,
    )  # fmt: skip
    assert done.stdout == "{'x': 1}\n", done.stderr


def test_states_and_expiry_of_results(app: Celery, site: Deployment) -> None:
    with site.busy() as (result, _):
        assert state_of(result) == "PENDING"
    assert result.get(timeout=GET_TIMEOUT_S)
    assert state_of(result) == "SUCCESS"
    assert 86400 - 60 < site.ours.redis.ttl(keys.meta(result.id)) <= 86400
    (quick,) = site.ours.submit("one", 1, result_ttl=77)
    assert app.AsyncResult(quick).get(timeout=GET_TIMEOUT_S) == 1
    assert 0 < site.ours.redis.ttl(keys.meta(quick)) <= 77
    result.forget()
    assert state_of(result) == "PENDING"
    assert site.ours.job(result.id).state is State.SUCCEEDED


def test_times_that_no_clock_shows_end_no_worker(app: Celery, site: Deployment) -> None:
    message = json.loads(caught(app, "headrace.echo", kwargs={"model": "echo", "input": 2}))
    never = "9999-12-31T23:59:59-12:00"
    for header in ({"expires": never}, {"expires": 1e300}, {"eta": -1e300}):
        message["headers"] |= {"id": new_id(), "expires": None, "eta": None, **header}
        site.ours.redis.lpush("headrace.echo", json.dumps(message))
        assert app.AsyncResult(message["headers"]["id"]).get(timeout=GET_TIMEOUT_S) == 2


def test_a_stock_worker_that_has_the_task_runs_our_jobs(site: Deployment, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(
        "import os\n"
        "from celery import Celery\n"
        "app = Celery(broker=os.environ['URL'], backend=os.environ['URL'])\n"
        "@app.task(name='headrace.predict')\n"
        "def predict(model, input):\n"
        "    return [model, input]\n"
    )
    catalogue = write_models(tmp_path, elsewhere={"handler": "echo"})
    value = {"x": [1, "é"], "big": 123456789012345678}
    with Client(site.url, catalogue) as ours:
        ids = ours.submit("elsewhere", value) + ours.submit("elsewhere", 2, priority=5)
        command = [
            sys.executable, "-m", "celery", "-A", "elsewhere", "worker", "-P", "solo",
            "-Q", "headrace.elsewhere", "--without-gossip", "--without-mingle",
            "--without-heartbeat",
        ]  # fmt: skip
        with (tmp_path / "log").open("wb") as log:
            stock = subprocess.Popen(
                command, cwd=tmp_path, stdout=log, stderr=log,
                env={"URL": site.url, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
            )  # fmt: skip
        try:
            results = [site.app.AsyncResult(job_id).get(timeout=GET_TIMEOUT_S) for job_id in ids]
            assert results == [["elsewhere", value], ["elsewhere", 2]]
            # It knows nothing of our records: to the API the job still waits.
            assert ours.job(ids[0]).state is State.QUEUED
        finally:
            stock.terminate()
            stock.wait(60)
        ours.redis.delete(*map(keys.job, ids))
