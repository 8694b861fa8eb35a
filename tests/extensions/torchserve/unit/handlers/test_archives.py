"""The archives of `compat`, unmodified, each with a request: no server and no TorchServe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.models.archive import Limits, unpack
from headrace.models.folder import read_folder
from tests.extensions.torchserve.compat.archives import ARCHIVES, build
from tests.extensions.torchserve.harness.archives import json_of, loaded, request, run
from workers.model_process.executor import BatchExecutor

TEXT = request(b"text", "text/plain")
NUMBERS = request([1, 2, 3])
BYTES = request(b"[1,2,3]", "application/octet-stream")


def of(name: str, folder: Path) -> BatchExecutor:
    """The handler of an archive, as a server would load it."""
    path, given = build(ARCHIVES[name], folder), ()
    if path.is_file():
        unpack(path, folder / "unpacked", Limits())
        path = folder / "unpacked"
    if not ARCHIVES[name].manifest:
        return loaded(path, "noop_function:handle")
    found = read_folder(path, name, given)
    assert found.name == name
    return loaded(found.folder, found.options["handler"].removeprefix("torchserve:"))


@pytest.mark.parametrize(
    ("name", "sent", "expected"),
    [
        ("noop", TEXT, "OK"),
        ("noop_function", TEXT, "OK"),
        ("entry_point", TEXT, "OK"),
        ("entry_point_file", TEXT, "OK"),
        ("handler_name", TEXT, "OK"),
        ("no_archive", TEXT, "OK"),
        ("tgz", TEXT, "OK"),
        ("no_manifest", TEXT, "OK"),
        ("echo", NUMBERS, [1, 2, 3]),
        ("text_of_data", BYTES, "{'body': bytearray(b'[1,2,3]')}"),
        ("fields", request(form={"data": (b"a", "text/plain")}), {"data": ["str", "a"]}),
        ("returns", request(b"tuple", "text/plain"), [1, ["a", "b"]]),
        ("raises", TEXT, "OK"),
        ("batch_sizes", TEXT, {"batch": 1, "row": 0}),
        ("customized", request(1, headers={"describe": "True"}),
         {"data1": "data1", "limits": {"longest": 512}}),
        ("explained", request("abc", headers={"explain": "True"}), {"insight": 1, "target": 0}),
        ("request_headers", request("a", headers={"X-One": "1"}),
         {"x-one": "1", "missing": None, "explain": "False",
          "type": {"content-type": "application/json"}}),
        ("all_headers", request("a", headers={"x-a": "b", "url_path": "a/b"}),
         {"names": ["body", "explain", "url_path", "x-a"], "url_path": "a/b", "id length": 5,
          "same id": True}),
        ("relative_files", TEXT,
         {"names": ["labels.txt", "relative_files.py"], "labels": ["cat", "dog"]}),
        ("first_model", TEXT, {"classes": ["First"], "says": "first"}),
        ("second_model", TEXT, {"classes": ["Second"], "says": "second"}),
        ("micro_batched", BYTES, {"value": "[1,2,3]", "micro": True}),
        ("eager", NUMBERS, [pytest.approx(0.83548, abs=1e-4), pytest.approx(0.16452, abs=1e-4)]),
        ("script", NUMBERS, [2.0, 4.0, 6.0]),
        ("custom_metrics", TEXT, "OK"),
        ("prints", TEXT, "OK"),
        ("async_handle", BYTES, {"body": "[1,2,3]"}),
        ("pieces", request({"pieces": ["a ", "b"]}), "a b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_archive_runs_unmodified(
    name: str, sent: tuple[bytes, str, bytes], expected: Any, tmp_path: Path
) -> None:
    assert json_of(run(of(name, tmp_path), [sent])[0]) == expected


def test_the_archives_configuration_reaches_its_handler(tmp_path: Path) -> None:
    (found,) = run(of("yaml_config", tmp_path), [TEXT])
    config = json.loads(found[1])["config"]
    assert config["unknownKey"] == {"kept": [1, 2.5, True, None]}


def test_the_archives_labels_name_its_results(tmp_path: Path) -> None:
    (found,) = run(of("labelled", tmp_path), [request({"x": [1, 2, 3]})])
    assert json_of(found) == {"cat": pytest.approx(0.83548, abs=1e-4), "dog": pytest.approx(
        0.16452, abs=1e-4
    )}  # fmt: skip
