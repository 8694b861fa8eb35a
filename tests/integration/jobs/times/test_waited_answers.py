"""Every answer that waits for a job shows what `GET` shows of it, member by member.

A waited answer is built from what the worker publishes, and `GET` reads the record. A member that
only one of the two has is found here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from api.extension import operations
from api.submission.waiting import WaitQuery
from headrace.jobs.ids import new_id
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.http.events import events_of

HANDLER = '''
from headrace import Handler, Response, errors

class Ends(Handler):
    """Ends each job as its input asks."""

    def inference(self, items):
        return [self.one(item, n) for n, item in enumerate(items)]

    def one(self, item, n):
        how = item["how"]
        if how == "progress":
            self.context.progress(1, 2, "half", item=n)
        if how == "raises":
            raise KeyError("customer_id")
        if how == "transient":
            raise errors.TransientError("try again")
        if how == "refused":
            return errors.InputError("wrong")
        return {
            "null": None, "text": "words", "bytes": b"\\0\\1", "large": "x" * 50_000,
            "response": Response(b"\\x89PNG", content_type="image/png"),
        }.get(how, {"n": 1})
'''
#: How a job ends, and options of its submit.
ENDS: list[tuple[str, dict[str, Any]]] = [
    ("object", {}),
    ("null", {}),
    ("text", {"metadata": {"order": 7}}),
    ("bytes", {"version": "1.0"}),
    ("response", {}),
    ("large", {}),
    ("progress", {"priority": 9}),
    ("raises", {}),
    ("refused", {"metadata": {"order": 8}}),
    ("transient", {"max_retries": 0}),
]
JOBS = "/api/v1/jobs"
MODEL_PATHS = ("/api/v1/models/{model}/jobs", "/api/v1/models/{model}/versions/{version}/jobs")
MODEL_JOBS = "/api/v1/models/m/jobs"
Form = Callable[[Site, dict[str, Any], dict[str, Any]], Any]


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("waited")
    (folder / "ends.py").write_text(HANDLER)
    options = {"handler": "ends.py:Ends", "version": "1.0", "allowed_batch_sizes": [2, 4]}
    with shared_deployment.site(folder, {"m": options}) as site:
        yield site


def job_body(value: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    others = dict(options)
    version = {"version": others.pop("version")} if "version" in others else {}
    return {"model": "m", "input": value, "options": others, **version}


def submit_with_wait(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    body = job_body(value, options)
    return site.api.http.post(f"{JOBS}?wait=60", json=body).json()


def put_with_wait(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    body = job_body(value, options)
    return site.api.http.put(f"{JOBS}/{new_id()}?wait=60", json=body).json()


def submit_to_the_model(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    metadata = options.get("metadata")
    query = {key: option for key, option in options.items() if key != "metadata"}
    if metadata is not None:
        query["metadata"] = json.dumps(metadata)
    headers = {"Prefer": "wait=60"}
    version = query.pop("version", None)
    path = MODEL_JOBS if version is None else f"/api/v1/models/m/versions/{version}/jobs"
    return site.api.http.post(path, params=query, json=value, headers=headers).json()


def repeat_with_wait(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    body = job_body(value, options)
    headers = {"Idempotency-Key": new_id()}
    site.api.http.post(JOBS, json=body, headers=headers).raise_for_status()
    return site.api.http.post(f"{JOBS}?wait=60", json=body, headers=headers).json()


def get_with_wait(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    body = job_body(value, options)
    job = site.api.http.post(JOBS, json=body).json()
    return site.api.http.get(f"{JOBS}/{job['id']}?wait=60").json()


def last_event(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    body = job_body(value, options)
    job = site.api.http.post(JOBS, json=body).json()
    with site.api.http.stream("GET", f"{JOBS}/{job['id']}/events") as response:
        return list(events_of(response.iter_lines()))[-1].data


def last_event_of_a_submit(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    body = job_body(value, options)
    headers = {"Accept": "text/event-stream"}
    with site.api.http.stream("POST", JOBS, json=body, headers=headers) as response:
        return list(events_of(response.iter_lines()))[-1].data


def status_of_many(site: Site, value: dict[str, Any], options: dict[str, Any]) -> Any:
    job = get_with_wait(site, value, options)
    return site.api.http.post(f"{JOBS}/status", json={"ids": [job["id"]]}).json()["jobs"][0]


FORMS: list[Form] = [
    submit_with_wait,
    put_with_wait,
    submit_to_the_model,
    repeat_with_wait,
    get_with_wait,
    last_event,
    last_event_of_a_submit,
    status_of_many,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.__name__))
def test_a_waited_answer_is_what_get_shows(site: Site, form: Form) -> None:
    for how, options in ENDS:
        waited = form(site, {"how": how}, options)
        assert waited["status"] in ("succeeded", "failed"), (how, waited)
        assert waited == site.shown(waited["id"]), how


def test_every_route_that_waits_is_compared() -> None:
    waits = {
        (operation.method, operation.path)
        for operation in operations()
        if any(issubclass(query, WaitQuery) for query in operation.query)
    }
    assert waits == {
        ("POST", JOBS),
        ("PUT", f"{JOBS}/{{job_id}}"),
        ("GET", f"{JOBS}/{{job_id}}"),
        ("GET", f"{JOBS}/{{job_id}}/result"),  # it has the result alone
        *((method, path) for method in ("POST", "PUT") for path in MODEL_PATHS),
    }
