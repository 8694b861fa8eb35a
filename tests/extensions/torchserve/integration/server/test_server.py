"""`headrace torchserve`: start, messages, models, snapshots and stop, as scripts see them."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from extensions.torchserve.config.properties import read_properties
from extensions.torchserve.config.snapshot import read_models
from headrace._version import __version__
from tests.extensions.torchserve.harness.server import (
    RunningTorchServe,
    torchserve_folder,
    write_archive,
)
from tests.harness.archives import write_zip
from tests.harness.processes.processes import descendants, environment, gone
from tests.harness.servers.certificates import Authority
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningTorchServe]:
    with torchserve_folder(tmp_path / "run") as found:
        yield found


def test_messages_and_statuses_without_a_server(server: RunningTorchServe) -> None:
    assert server.says("--version") == (
        0,
        f"TorchServe Version is 0.12.0\nIt is served by Headrace {__version__}",
    )
    assert server.says("--stop") == (0, "TorchServe is not currently running.")
    assert server.says("--start") == (1, "Missing mandatory parameter --model-store")
    # It starts without --start too.
    assert server.says() == (1, "Missing mandatory parameter --model-store")
    assert server.says("--foreground", "--ncs") == (1, "Missing mandatory parameter --model-store")
    assert server.says("--start", "--model-store", "nowhere") == (
        1,
        "--model-store directory not found: nowhere",
    )
    assert server.says("--start", "--ts-config", "no.properties") == (
        1,
        "--ts-config file not found: no.properties",
    )
    assert server.says("--start", "--log-config", "log4j.xml") == (
        1,
        "--log-config file not found: log4j.xml",
    )
    server.write_config("job_queue_size=many", f"model_store={server.store}")
    status, text = server.says("--start")
    assert status == 1
    assert f"{server.config}: job_queue_size: expected int, got 'many'" in text


def test_a_server_is_started_changed_stopped_and_started_again(server: RunningTorchServe) -> None:
    write_archive(server.store, "a", config="batchSize: 4\nmaxBatchDelay: 7\n")
    write_archive(server.store, "b", "2.5")
    (server.store / "junk.mar").write_bytes(b"junk")
    (server.store / "notes.txt").write_text("notes")
    server.write_config(
        "vmargs=-Xmx1g",
        "async_logging=true",
        "job_size=1",
        "job_queue_size=7",
        "load_models=all",
        "default_workers_per_model=1",
        "blacklist_env_vars=.*PASSWORD",
    )
    printed = server.start(MY_PASSWORD="x", MY_WORD="y")
    assert f"{server.config}: no effect here: vmargs, async_logging" in printed
    assert f"{server.config}: job_size: TorchServe has no such key" in printed
    assert "junk.mar: it is not a zip file" in printed
    assert "notes.txt in the model store is left out" in printed

    assert server.submit("a", {"x": 1}) == {"says": "1.0", "input": {"x": 1}}
    assert server.submit("b", 2) == {"says": "2.5", "input": 2}
    status, text = server.says("--start", "--model-store", str(server.store))
    assert status == 1
    # The server that runs writes to the same output, so there may be other lines.
    running = "TorchServe is already running, please use torchserve --stop to stop TorchServe."
    assert running in text.splitlines()
    pid = server.pid
    assert pid is not None
    variables = [environment(one) for one in descendants(pid)]
    models = [one for one in variables if b"HEADRACE_MODEL_PARENT" in b" ".join(one)]
    assert models
    assert all(b"MY_WORD=y" in one and b"MY_PASSWORD=x" not in one for one in models)

    (started,) = server.snapshots
    assert started.name.endswith("-startup.cfg")
    values = read_properties(started)
    assert values["job_queue_size"] == "7"
    found = {one.name: one for one in read_models(values["model_snapshot"], "")}
    assert (found["a"].archive, found["a"].version, found["a"].is_default) == ("a.mar", "1.0", True)
    assert found["a"].settings["batchSize"] == 4
    assert found["a"].settings["maxBatchDelay"] == 7
    assert found["b"].settings["minWorkers"] == 1

    request = urllib.request.Request(
        f"http://127.0.0.1:{server.ports[0]}/api/v1/models/b", method="DELETE",
        headers=server.authorization("management"),
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=60).close()
    wait_until(lambda: len(server.snapshots) == 2, "the change is in a snapshot")
    below = descendants(pid)
    keys = json.loads((server.folder / "key_file.json").read_text())
    assert keys.keys() == {"management", "inference", "API"}
    assert server.post("/predictions/a", b"1") == (400, "InvalidKeyException")
    assert server.post("/predictions/a", b"1", token=keys["inference"]["key"])[0] == 200
    server.stop()
    assert gone(pid, *below)
    assert not (server.folder / "key_file.json").exists()
    kinds = [path.stem.partition("-")[2] for path in server.snapshots]
    assert kinds == ["startup", "snapshot", "shutdown"]

    printed = server.start()
    assert f"snapshot {server.snapshots[2]}" in printed
    assert server.submit("a", 3)["input"] == 3
    assert list(server.get("/ready")["models"]) == ["a"]
    server.stop()

    (server.folder / "wf-store").mkdir()
    printed = server.start("--ncs", "--models", "other=b.mar", "--workflow-store", "wf-store")
    assert list(server.get("/ready")["models"]) == ["other"]
    server.stop()
    assert len(server.snapshots) == 5


def test_a_change_whose_snapshot_was_not_written_is_kept(server: RunningTorchServe) -> None:
    write_archive(server.store, "a")
    server.write_config()
    server.start("--models", "a.mar")
    pid = server.pid
    assert pid is not None
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid, *below), "everything has ended")
    (snapshot,) = server.snapshots
    text = snapshot.read_text()
    snapshot.write_text(text.replace("headrace_registry=", "headrace_registry=0 "))
    assert "the models are those of the last change" in server.start()
    assert server.submit("a", 1)["input"] == 1
    server.stop()


def test_a_model_that_was_registered_is_there_after_a_restart(server: RunningTorchServe) -> None:
    write_archive(server.store, "a", handler="")
    write_archive(server.store, "b")
    write_archive(server.store, "c")
    server.write_config("default_service_handler=handler.py", "enable_model_api=true")
    server.start("--models", "a.mar", "--disable-token-auth")
    assert not (server.folder / "key_file.json").exists()
    assert server.post("/models?url=b.mar&handler=other.py&initial_workers=1", port=1)[0] == 200
    # The answer to a change comes after its snapshot, which a kill leaves.
    assert len(server.snapshots) == 2
    assert server.post("/models?url=c.mar&initial_workers=0", port=1)[0] == 200
    assert "c.mar" in server.snapshots[-1].read_text()
    assert server.post("/predictions/b", b"1")[0] == 200
    server.stop()
    server.start("--disable-token-auth")
    assert server.get("/models", 1)["models"] == [
        {"modelName": "a", "modelUrl": "a.mar"},
        {"modelName": "b", "modelUrl": "b.mar"},
        {"modelName": "c", "modelUrl": "c.mar"},
    ]
    assert server.post("/predictions/a", b"1")[0] == 200
    assert server.post("/predictions/b", b"1")[0] == 200
    (described,) = server.get("/models/b", 1)
    assert described["minWorkers"] == 1
    assert described["loadedAtStartup"] is False
    server.stop()


def test_several_versions_and_one_address(server: RunningTorchServe) -> None:
    write_archive(server.store, "m", "1.0", file="first.mar")
    write_archive(server.store, "m", "2.0", file="second.mar")
    server.ports = (server.ports[0],) * 3
    server.write_config()
    write_archive(server.store, "broken", handler="missing.py")
    printed = server.start("--models", "first.mar", "second.mar", "broken.mar")
    assert "model broken version 1.0 cannot be loaded: " in printed
    assert server.submit("m", 1)["says"] == "1.0"
    assert server.submit("m", 1, "2.0")["says"] == "2.0"
    server.stop()


def test_a_start_with_a_mistake_ends_with_its_message(server: RunningTorchServe) -> None:
    server.write_config()
    (server.store / "junk.mar").write_bytes(b"junk")
    store = ("--start", "--foreground", "--model-store", str(server.store))
    status, text = server.says(*store, "--models", "missing.mar")
    assert status == 1
    assert "missing.mar: it does not exist" in text
    status, text = server.says(*store, "--models", "junk.mar")
    assert status == 1
    assert "junk.mar: it is not a zip file" in text
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", server.ports[1]))
        taken.listen()
        status, text = server.says(*store)
    assert status == 1
    assert f"management_address: port {server.ports[1]} on 127.0.0.1 is already in use" in text
    server.write_config("blacklist_env_vars=*")
    status, text = server.says(*store)
    assert status == 1
    assert "blacklist_env_vars: it is no regular expression: nothing to repeat" in text
    server.write_config("inference_address=https://127.0.0.1:1", "keystore=a.p12")
    status, text = server.says(*store)
    assert status == 1
    assert "the keystore a.p12 cannot be read" in text
    assert server.pid is None


def test_the_entry_point_of_the_container(server: RunningTorchServe) -> None:
    write_archive(server.store, "a")
    server.write_config(f"model_store={server.store}")
    with server.container("serve", "--models", "all", "--ncs") as main:
        server.wait_until_started("")
        assert server.pid == main.pid
        assert server.submit("a", 1)["input"] == 1
        main.terminate()
        assert main.wait(60) == 0
    before = server.text()
    command = f"torchserve --start --ncs --model-store {server.store} --models a.mar"
    with server.container("sh", "-c", command) as main:
        server.wait_until_started(before)
        pid = server.pid
        assert pid not in (None, main.pid)
        assert server.submit("a", 1)["input"] == 1
        main.terminate()
        assert main.wait(60) == 0
        wait_until(lambda: server.pid is None, "the server has ended")
    with server.container("echo", "a command") as main:
        assert main.wait(60) == 0
    assert server.text().endswith("a command\n")


def test_https_beside_http_and_a_unix_socket(server: RunningTorchServe) -> None:
    authority = Authority(server.folder)
    certificate = authority.sign()
    write_archive(server.store, "a")
    path = server.folder / "management.sock"
    server.write_config(
        f"inference_address=https://127.0.0.1:{server.ports[0]}",
        f"management_address=unix:{path}",
        f"certificate_file={certificate.cert_file}",
        f"private_key_file={certificate.key_file}",
        "enable_metrics_api=true",
    )
    server.start("--models", "a.mar")
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    url = f"https://127.0.0.1:{server.ports[0]}/ready"
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        assert b'"ready"' in answer.read()
    with socket.create_connection(("127.0.0.1", server.ports[2]), timeout=60) as plain:
        plain.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert plain.recv(100).startswith(b"HTTP/1.1 404")
    with socket.socket(socket.AF_UNIX) as local:
        local.settimeout(60)
        local.connect(str(path))
        local.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert local.recv(100).startswith(b"HTTP/1.1 40")
    server.stop()
    assert not path.exists()


def test_many_archives_start_serve_and_start_again(server: RunningTorchServe) -> None:
    names = [f"model-{number}" for number in range(20)]
    for name in names:
        write_archive(server.store, name)
    server.write_config("default_workers_per_model=1")
    server.start("--models", "all", "--disable-token-auth")
    assert [server.submit(name, 1)["input"] for name in names] == [1] * len(names)
    pid = server.pid
    assert pid is not None
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid, *below), "everything has ended")
    server.start("--disable-token-auth")
    assert [server.submit(name, 1)["input"] for name in names] == [1] * len(names)
    assert sorted(server.get("/ready")["models"]) == sorted(names)
    server.stop()


def test_a_script_starts_a_server_with_ts_launcher(server: RunningTorchServe) -> None:
    """With the package `ts` of the distribution headrace-torchserve, outside of model processes."""
    write_archive(server.store, "a")
    server.write_config()
    output = server.script(
        "from ts.launcher import start, stop\n"
        "from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext\n"
        "assert start('nowhere').get(timeout=60) is None\n"  # it has not started
        f"lines = start({str(server.store)!r}, 'config.properties', no_config_snapshots=True,\n"
        "    disable_token=True, models='a.mar', enable_model_api=True)\n"
        "import json, sys, urllib.request\n"
        f"url = 'http://127.0.0.1:{server.ports[1]}/models'\n"
        "models = json.load(urllib.request.urlopen(url))['models']\n"
        "sys.stdout.write(f'found {models}\\n')\n"  # at once: a thread writes the server's lines
        "stop()\n"
        "while lines.get(timeout=60) is not None: pass\n"
        "print('all lines are read')\n",
        ROOT / "deploy/torchserve",
    )
    assert "\nModel server started.\n" in output
    assert "found [{'modelName': 'a', 'modelUrl': 'a.mar'}]" in output
    assert output.endswith("all lines are read\n")
    assert server.pid is None


STEPS = """
def length(data, context):
    return data and [{"n": len(row["body"])} for row in data]

def shout(data, context):
    return data and [bytes(row["body"]).decode().upper() for row in data]

def join(data, context):
    return data and [bytes(row["length"] + row["shout"]).decode() for row in data]
"""


def test_the_workflows_of_the_store_are_pipelines(server: RunningTorchServe) -> None:
    store = server.folder / "wf-store"
    store.mkdir()
    about = {"workflowName": "loud", "specFile": "flow.yaml", "handler": "steps.py"}
    flow = "dag: {length: [join], shout: [join]}\n"
    members = {"WAR-INF/MANIFEST.json": json.dumps({"workflow": about}), "flow.yaml": flow,
               "steps.py": STEPS}  # fmt: skip
    write_zip(store / "loud.war", [(name, text.encode()) for name, text in members.items()])
    # Its pipeline has another name than the archive, and no node of it can be loaded.
    members |= {"WAR-INF/MANIFEST.json": json.dumps({"workflow": {**about, "workflowName": "bad"}}),
                "steps.py": STEPS + "raise RuntimeError('no such luck')\n"}  # fmt: skip
    write_zip(store / "other.war", [(name, text.encode()) for name, text in members.items()])
    write_zip(store / "gone.war", [
        ("WAR-INF/MANIFEST.json", json.dumps({"workflow": {**about, "workflowName": "gone"}})
         .encode()),
        ("flow.yaml", b"models: {a: {url: gone.mar}}\ndag: {a: []}\n"),
        ("steps.py", b""),
    ])  # fmt: skip
    write_archive(server.store, "a")
    server.write_config("decode_input_request=false", f"workflow_store={store}")
    for _ in range(2):  # the second start is from the snapshot of the first
        printed = server.start("--disable-token-auth", "--models", "a.mar")
        assert "gone.war in the workflow store is not loaded" in printed
        for node in ("length", "shout", "join"):
            assert f"model bad__{node} version 1.0 cannot be loaded: " in printed
        assert (
            server.predict("/wfpredict/loud", b"three words here")
            == b'{\n  "n": 16\n}THREE WORDS HERE'
        )
        listed = server.get("/workflows", 1)["workflows"]
        assert listed == [
            {"workflowName": "bad", "workflowUrl": "other.war"},
            {"workflowName": "loud", "workflowUrl": "loud.war"},
        ]
        assert server.submit("a", 1)["says"] == "1.0"
        server.stop()
