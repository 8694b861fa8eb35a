"""Inputs that lie in the operator's own files and objects, named by `input_ref` over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import InputRef, errors
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.deployments.payloads import BODY, Site, ended, payload_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with payload_site(tmp_path_factory.mktemp("payloads")) as running:
        yield running


def test_a_file_of_the_operators(site: Site) -> None:
    path = site.roots / "a.png"
    path.write_bytes(BODY)
    job = ended(site.named(f"file:{path}"))
    assert site.raw(job).content == BODY
    assert path.read_bytes() == BODY


def test_a_named_input_is_not_read_for_others(site: Site) -> None:
    (site.roots / "later.txt").write_bytes(b"later")
    reference = f"file:{site.roots}/later.txt"
    body = {"model": "echo", "input_ref": reference, "options": {"countdown": 3600}}
    path = f"/api/v1/jobs/{site.api.http.post('/api/v1/jobs', json=body).json()['id']}"
    answer = site.api.http.get(f"{path}/input")
    assert answer.status_code == 410
    assert reference in answer.json()["detail"]
    site.api.http.delete(path)


def test_the_type_of_a_named_file(site: Site) -> None:
    path = site.roots / "said.txt"
    path.write_bytes(b"words")
    assert ended(site.named(f"file:{path}"))["result"] == "words"
    data = ended(site.named(f"file:{path}", content_type="application/x-mine"))["result"]
    assert data == {"content_type": "application/octet-stream", "base64": "d29yZHM="}
    path.write_bytes(b'{"a": 1}')
    assert ended(site.named(f"file:{path}", content_type="application/json"))["result"] == {"a": 1}


def test_an_object_of_the_operators(site: Site) -> None:
    site.s3.client.put_object(Bucket=site.bucket, Key="x/é %.txt", Body=b"from afar")
    assert ended(site.named(f"s3://{site.bucket}/x/é %.txt"))["result"] == "from afar"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_client_names_inputs(site: Site, shell: str) -> None:
    names = [site.roots / f"{shell}{number}.txt" for number in range(3)]
    for path in names:
        path.write_text(path.name)
    site.s3.client.put_object(Bucket=site.bucket, Key="s.txt", Body=b"from afar")
    refs = [f"file:{path}" for path in names]
    with client_of(shell, site.api.url) as client:
        assert client.result(client.submit("echo", input_ref=refs[0])) == names[0].name
        as_bytes = client.submit("echo", input_ref=refs[0], content_type="application/x-mine")
        assert client.result(as_bytes) == names[0].name.encode()
        assert (
            client.result(client.submit("echo", InputRef(f"s3://{site.bucket}/s.txt")))
            == "from afar"
        )
        mixed = [InputRef(refs[1], "application/x-mine"), "as it is", *map(InputRef, refs[1:])]
        found = list(client.map("echo", mixed))
        assert [one.input for one in found] == mixed
        assert [one.value for one in found] == [
            names[1].name.encode(),
            "as it is",
            names[1].name,
            names[2].name,
        ]
        outside = f"file:{site.roots.parent}/secret"
        good, bad = client.submit_many("echo", [InputRef(refs[2]), InputRef(outside)])
        assert client.result(good) == names[2].name
        assert isinstance(bad, errors.InputForbidden)
        with pytest.raises(errors.InputForbidden):
            client.submit("echo", input_ref=outside)


def test_a_named_input_by_put(site: Site) -> None:
    (site.roots / "p.txt").write_bytes(b"put")
    body = {"model": "echo", "input_ref": f"file:{site.roots}/p.txt"}
    first, again = (
        site.api.http.put("/api/v1/jobs/mine", json=body, params={"wait": 30}) for _ in range(2)
    )
    assert ended(first)["result"] == ended(again)["result"] == "put"
    assert again.headers["idempotency-replayed"] == "true"
    other = {**body, "content_type": "image/png"}
    assert site.api.http.put("/api/v1/jobs/mine", json=other).status_code == 409


@pytest.mark.parametrize(
    ("reference", "status", "says"),
    [
        ("file:/etc/passwd", 403, "input_roots"),
        ("file:{roots}/../secret", 400, "in input_roots"),
        ("file:{roots}/%2e%2e/secret", 400, "does not exist"),
        ("file:{roots}/..%2fsecret", 400, "does not exist"),
        ("file:{roots}/link", 403, "symbolic link"),
        ("file:{roots}/folder/x", 403, "symbolic link"),
        ("file:{roots}/fifo", 400, "not a regular file"),
        ("file:{roots}", 403, "input_roots"),
        ("file:{roots}/nothing", 400, "does not exist"),
        ("file:{roots}/a\0.png", 400, "control characters"),
        ("file:relative", 400, "must be absolute"),
        ("file://host{roots}/a.png", 400, "input_roots of the server"),
        ("file:{roots}/large", 413, "the limit is 4194304"),
        ("http://127.0.0.1/", 400, "must begin with file:/ or s3://"),
        ("s3://private/x", 403, "input_buckets"),
        ("s3://{bucket}/../private/x", 400, "in input_buckets"),
        ("s3://{bucket}/nothing", 400, "does not exist"),
        ("s3://{bucket}/large", 413, "the limit is 4194304"),
    ],
)
def test_what_may_not_be_named(site: Site, reference: str, status: int, says: str) -> None:
    (site.roots.parent / "secret").write_bytes(b"secret")
    if not (site.roots / "fifo").exists():
        os.mkfifo(site.roots / "fifo")
        (site.roots / "link").symlink_to("../secret")
        (site.roots / "folder").symlink_to("..")
        with (site.roots / "large").open("wb") as large:
            large.truncate(4 * 1024 * 1024 + 1)
        site.s3.client.put_object(Bucket=site.bucket, Key="large", Body=bytes(4 * 1024 * 1024 + 1))
    answer = site.named(reference.format(roots=site.roots, bucket=site.bucket))
    assert (answer.status_code, says in answer.json()["detail"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"input": 1, "input_ref": "file:/x"}, "both an input and an input_ref"),
        ({}, "missing required field"),
        ({"content_type": "image/png"}, "missing required field"),
        ({"input": 1, "content_type": "image/png"}, "this request has an input"),
        ({"input_ref": "file:/x", "content_type": ""}, "content_type is empty"),
        ({"input_ref": 7}, "input_ref"),
    ],
)
def test_one_input_and_no_more(site: Site, members: dict[str, Any], says: str) -> None:
    answer = site.api.http.post("/api/v1/jobs", json={"model": "echo", **members})
    assert answer.status_code == 400
    assert says in answer.json()["detail"]


def test_a_type_that_is_none(site: Site) -> None:
    answer = site.named("file:/x", content_type="junk")
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media")


def test_a_file_that_is_gone_when_it_runs_is_the_jobs_error(site: Site) -> None:
    path = site.roots / "soon-gone"
    path.write_bytes(b"x")
    body = {"model": "echo", "input_ref": f"file:{path}"}
    site.api.http.post("/api/v1/queues/headrace.echo/pause").raise_for_status()
    try:
        job = site.api.http.post("/api/v1/jobs", json=body).json()
        path.unlink()
    finally:
        site.api.http.post("/api/v1/queues/headrace.echo/resume").raise_for_status()
    answer = site.api.http.get(job["urls"]["self"], params={"wait": 30}).json()
    assert (answer["status"], answer["error"]["type"]) == ("failed", "input-unavailable")
    problem = site.raw(job)
    assert (problem.status_code, problem.json()["type"]) == (502, "/problems/input-unavailable")
