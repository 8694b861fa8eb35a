"""Any management request and any archive: an answer of the contract, and nothing left behind."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from headrace.models.store import UnpackedModels
from tests.extensions.torchserve.harness.site import ANSWERS, TorchServeSite, torchserve_site
from tests.harness.servers.redis_servers import redis_server

#: What the contract has for errors of the management interface, by code.
TYPES = {
    400: {
        "BadRequestException", "DownloadArchiveException", "InvalidModelException",
        "ModelException",
    },
    403: {"InvalidModelVersionException"},
    404: {
        "ModelNotFoundException", "ModelVersionNotFoundException", "ResourceNotFoundException",
        "WorkflowNotFoundException",
    },
    405: {"MethodNotAllowedException"},
    409: {"ConflictStatusException"},
    500: {"IndexOutOfBoundsException", "InternalServerException"},
    503: {"ServiceUnavailableException"},
}  # fmt: skip
#: The message of an error that nobody has foreseen.
UNFORESEEN = "the API failed on this request"
QUICK = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

names = st.sampled_from(
    [
        "fuzz",
        "fuzz",
        "fuzz",
        "other",
        "other",
        "echo",
        "none",
        "a b",
        ".x",
        "x" * 65,
        "\u00fc",
        "%00",
    ]
)
versions = st.sampled_from(["", "1.0", "2.0", "9", "all", "set-default", "..", "\u00fc"])
texts = st.one_of(
    st.text(max_size=20), st.integers().map(str), st.sampled_from(["true", "false", "-1", "0"])
)
urls = st.one_of(
    st.sampled_from(
        [
            "fuzz.mar", "fuzz.mar", "two.mar", "fuzz", "sub/fuzz.mar", "/etc",
            "file:///etc/passwd", "file://",
            "http://127.0.0.1:1/x.mar", "http://[::1/x.mar", "file:///nothing/x.mar", "",
            "https://", "notes.txt",
        ]
    ),
    st.text(max_size=30),
)  # fmt: skip
#: No workers: a request then waits for none.
parameters = st.fixed_dictionaries(
    {},
    optional={
        "model_name": names, "runtime": st.sampled_from(["python", "LSP", "x"]),
        "handler": texts, "batch_size": texts, "max_batch_delay": texts, "response_timeout": texts,
        "startup_timeout": texts, "limit": texts, "next_page_token": texts, "customized": texts,
        "model_version": versions, "nonsense": texts,
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeSite]:
    with redis_server("valkey9") as redis:
        folder = tmp_path_factory.mktemp("fuzz")
        with torchserve_site(redis.url, folder, worker=False) as site:
            yield site


@pytest.fixture
def site(_site: TorchServeSite) -> Iterator[TorchServeSite]:
    _site.archive("fuzz")
    _site.archive("fuzz", version="2.0", file="two.mar")
    (_site.store / "notes.txt").write_text("no archive")
    yield _site
    _site.clear()


def check(found: Any) -> None:
    """An answer is one of the contract, in its form."""
    body = found.json()
    assert found.text == json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    if found.status_code < 400:
        assert found.status_code in (200, 202, 206)
        return
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == found.status_code
    assert body["type"] in TYPES[found.status_code], body
    assert UNFORESEEN not in body["message"], body


def remove_registered(site: TorchServeSite) -> int:
    """Unregister all but version 1.0 of echo, which every test expects; return how many."""
    removed = 0
    for name in site.names():
        described = site.http.get(f"/models/{name}/all")
        check(described)
        assert described.status_code == 200
        for version in reversed([one["modelVersion"] for one in described.json()]):
            if (name, version) != ("echo", "1.0"):
                found = site.http.delete(f"/models/{name}/{version}")
                assert found.status_code == 200, found.text
                removed += 1
    assert site.names() == ["echo"]
    return removed


@QUICK
@given(parameters, urls, st.booleans(), st.sampled_from(["0", "x", "-3", "1.5"]))
@example({"batch_size": "99999999999"}, "fuzz.mar", False, "0")
@example({"model_name": "echo"}, "two.mar", False, "0")
def test_any_registration(
    site: TorchServeSite, query: dict[str, str], url: str, as_json: bool, workers: str
) -> None:
    given = {"url": url, **query, "initial_workers": workers}
    if as_json:
        check(site.http.post("/models", json=given))
    else:
        check(site.http.post("/models", params=given))
    assert {path.name for path in site.store.iterdir()} == {"fuzz.mar", "two.mar", "notes.txt"}
    remove_registered(site)


@QUICK
@given(st.sampled_from(["GET", "PUT", "DELETE", "POST", "PATCH", "HEAD"]), names, versions,
       parameters, st.sampled_from(["0", "-1", "x", "99999999999", "-"]))  # fmt: skip
def test_any_path(
    site: TorchServeSite, method: str, name: str, version: str, query: dict[str, str], least: str
) -> None:
    if "fuzz" not in site.names():
        check(site.register("fuzz.mar", initial_workers=0))
        check(site.register("two.mar", initial_workers=0))
    path = f"/models/{name}" + (f"/{version}" if version else "")
    if "/.." in path:
        return  # the client resolves it
    if (method, name) == ("DELETE", "echo"):
        return  # the other tests need it
    found = site.http.request(method, path, params={**query, "min_worker": least})
    if method != "HEAD":
        check(found)


@QUICK
@given(st.binary(max_size=200))
@example(b"{'url': fuzz.mar, 'initial_workers': !!int ''}")
@example(b'{"url": {"a": 1}}')
@example(b"[" * 10_000)
def test_any_body(site: TorchServeSite, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    check(site.http.post("/models", content=body, headers=headers))


# What schemathesis draws takes long on a busy machine.
@settings(QUICK, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_request_of_the_description(site: TorchServeSite, data: st.DataObject) -> None:
    """What `OPTIONS /` describes, with what schemathesis makes of it."""
    if "fuzz" not in site.names():
        check(site.register("fuzz.mar", initial_workers=0))
    described = schemathesis.openapi.from_dict(site.http.request("OPTIONS", "/").json())
    operations = [one.ok() for one in described.get_all_operations() if isinstance(one, Ok)]
    managed = [one for one in operations if one.path.startswith("/models") and one.method != "post"]
    assert {one.method for one in managed} == {"get", "put", "delete"}
    registers = [one for one in operations if (one.method, one.path) == ("post", "/models")]
    operation = data.draw(st.sampled_from([*managed, *registers]))
    case = data.draw(operation.as_strategy())
    if "model_name" in case.path_parameters:
        case.path_parameters["model_name"] = data.draw(st.sampled_from(["fuzz", "none"]))
    # No worker runs here that a request could wait for.
    sent = {**case.query, "synchronous": "false"}
    path = quote(case.formatted_path, safe="/%")
    check(site.http.request(case.method, path, params=sent))


def archive() -> bytes:
    manifest = {"model": {"modelName": "fuzz", "handler": "answers.py", "modelVersion": "1.0"}}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        opened.writestr("answers.py", ANSWERS)
    return file.getvalue()


WHOLE = archive()


@QUICK
@given(
    st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8
    ),
    st.integers(0, len(WHOLE)),
)
def test_any_archive(site: TorchServeSite, changes: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(WHOLE)
    for place, byte in changes:
        damaged[place] = byte
    # Half of them are cut too.
    cut = damaged[:length] if length % 2 else damaged
    (site.store / "damaged.mar").write_bytes(cut)
    found = site.register("damaged.mar", initial_workers=0)
    check(found)
    assert remove_registered(site) == (found.status_code == 200)


manifests = st.dictionaries(
    st.sampled_from(["runtime", "model", "archiverVersion", "x"]),
    st.one_of(
        st.none(), st.integers(), st.text(max_size=10),
        st.dictionaries(
            st.sampled_from(
                ["modelName", "handler", "modelVersion", "serializedFile", "configFile",
                 "requirementsFile", "modelFile"]
            ),
            st.one_of(st.none(), st.integers(), st.text(max_size=12), names, versions,
                      st.sampled_from(["answers.py", "config.yaml", "../x", "/etc/passwd"])),
        ),
    ),
)  # fmt: skip


@QUICK
@given(manifests, st.text(max_size=60))
@example({"model": {"modelName": "echo", "modelVersion": "9", "handler": "answers.py"}}, "")
@example({"model": {"modelName": "fuzz", "configFile": "config.yaml"}}, "minWorkers: 1\nx: *a")
def test_any_manifest(site: TorchServeSite, manifest: dict[str, Any], config: str) -> None:
    site.members(
        "made.mar",
        {
            "MAR-INF/MANIFEST.json": json.dumps(manifest), "answers.py": ANSWERS,
            "config.yaml": config,
        },
    )  # fmt: skip
    found = site.register("made.mar", initial_workers=0, synchronous="false")
    check(found)
    assert remove_registered(site) == (found.status_code < 400)


def test_nothing_is_left_of_what_was_not_registered(site: TorchServeSite) -> None:
    """Only what a start removes again: unpacked archives that no model uses."""
    unpacked = UnpackedModels(site.folder / "state" / "models")
    assert not list(unpacked.folder.glob(".new-*"))
