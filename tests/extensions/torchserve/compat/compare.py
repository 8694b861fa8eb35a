"""Send a scenario to a server, and compare the answers of two servers by form."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from tests.extensions.torchserve.compat.cases.table import Scenario, manage, register
from tests.extensions.torchserve.compat.servers import Answer, Ask, Server

Exchange = tuple[Ask, list[Answer]]
#: How many models a server loads at once: each takes a core until it is loaded.
AT_ONCE: Final = 3
#: Headers that only say how an answer travels.
_TRANSPORT: Final = frozenset({"content-length", "transfer-encoding", "connection", "x-request-id"})
#: Members of descriptions whose value is each server's own.
_OWN: Final = frozenset({"id", "startTime", "memoryUsage", "pid", "message"})
#: TorchServe says UNLOADING of a worker for a moment after a registration has been answered.
_WORKER_STATES: Final = ("READY", "UNLOADING")
#: TorchServe describes this on each port, and has it on that of the metrics only.
_OF_METRICS: Final = "/metrics"
#: Parameters that TorchServe describes and does not read, and one for encrypted buckets.
_IGNORED: Final = frozenset({"number_gpu", "timeout", "synchronous", "s3_sse_kms"})
#: Both answer 200 when the model is gone.
_NEVER_SENT: Final = ("delete", "202")
_SAMPLE: Final = re.compile(r'(\w+)\{((?:\w+="[^"]*",)*)\} -?[\d.]+(E-?\d+)?')


@contextmanager
def registered(server: Server, models: Sequence[str]) -> Iterator[None]:
    """Have models registered, several at once.

    Raises:
        AssertionError: a model could not be registered, or is still there at the end.
    """
    try:
        for name, answer in _each(server, models, register):
            assert answer.status == 200, f"{name}: {answer}"
        yield
    finally:
        unregister(server)


def perform(scenario: Scenario, server: Server, kept: Sequence[str]) -> list[Exchange]:
    """Send the requests of a scenario, and unregister what they have registered."""
    try:
        return [(ask, server.ask(ask)) for ask in scenario.asks]
    finally:
        unregister(server, kept)


def unregister(server: Server, kept: Sequence[str] = ()) -> None:
    """Unregister all models but noop and some others.

    Raises:
        AssertionError: a model is still there.
    """
    (listed,) = server.ask(manage("GET", "/models"))
    found = {one["modelName"] for one in json.loads(listed.body)["models"]}
    names = sorted(found - {"noop", *kept})
    for name, answer in _each(server, names, lambda n: manage("DELETE", f"/models/{quote(n)}")):
        assert answer.status == 200, f"{name}: {answer}"


def _each(
    server: Server, names: Sequence[str], ask: Callable[[str], Ask]
) -> Iterator[tuple[str, Answer]]:
    """Send a request for each model, some at once; return the answers."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, (answer,) in zip(names, pool.map(server.ask, map(ask, names)), strict=True):
            yield name, answer


def mismatches(ask: Ask, theirs: Sequence[Answer], ours: Sequence[Answer]) -> list[str]:
    """What is not alike in the answers to one request; nothing if all is."""
    if ask.look == "class":
        digits = [{one.status // 100 for one in answers} for answers in (theirs, ours)]
        return _unequal("first digit of the status", *digits)
    if ask.look == "status":
        return _unequal("status", {one.status for one in theirs}, {one.status for one in ours})
    found: list[str] = []
    for one, other in zip(sorted(theirs, key=_order), sorted(ours, key=_order), strict=True):
        found += _unequal("status", one.status, other.status)
        if not found and one.status:
            found += [*_headers(one, other), *_body(ask, one, other)]
    return found


def _order(answer: Answer) -> tuple[int, bytes]:
    return answer.status, answer.body


def _unequal(what: str, theirs: object, ours: object) -> list[str]:
    return [] if theirs == ours else [f"{what}: TorchServe has {theirs!r}, Headrace {ours!r}"]


def _headers(theirs: Answer, ours: Answer) -> list[str]:
    found = []
    if _is_uuid(theirs.header("x-request-id")) and not _is_uuid(ours.header("x-request-id")):
        found.append(f"x-request-id is no uuid: {ours.header('x-request-id')}")
    names = {name.lower() for name, _ in theirs.headers} - _TRANSPORT | {"content-type"}
    for name in sorted(names):
        found += _unequal(f"header {name}", theirs.header(name), ours.header(name))
    return found


def _is_uuid(text: str | None) -> bool:
    try:
        return text is not None and str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _body(ask: Ask, theirs: Answer, ours: Answer) -> list[str]:
    if ask.look == "described":
        return _described(ask, json.loads(theirs.body), json.loads(ours.body))
    if ask.look == "text":
        return _metrics(theirs.body.decode(), ours.body.decode())
    document = _json(theirs)
    if document is None:
        return _unequal("body", theirs.body, ours.body)
    ours_document = _json(ours)
    if ours_document is None:
        return [f"body: Headrace has no JSON: {ours.body!r}"]
    if ask.look != "shape" and ask.port == "inference" and not _is_error(document):
        return _unequal("body", theirs.body, ours.body)
    pretty = _is_pretty(theirs.body, document)
    found = _unequal("indented JSON with a newline", pretty, _is_pretty(ours.body, ours_document))
    return found + _shape(document, ours_document, "body")


def _json(answer: Answer) -> Any:
    """The document of an answer that says it has one; else None."""
    if answer.header("content-type") != "application/json":
        return None
    try:
        return json.loads(answer.body)
    except ValueError:
        return None


def _is_error(document: Any) -> bool:
    return isinstance(document, dict) and list(document) == ["code", "type", "message"]


def _is_pretty(body: bytes, document: Any) -> bool:
    # Both write some characters as escapes, and not the same ones.
    lines = json.dumps(document, indent=2, ensure_ascii=False).count("\n") + 1
    return body.endswith(b"\n") and body.count(b"\n") == lines


def _shape(theirs: Any, ours: Any, where: str) -> list[str]:
    """Compare members, their order, types and values; of a server's own values the types only."""
    if type(theirs) is not type(ours):
        return _unequal(f"type of {where}", theirs, ours)
    if isinstance(theirs, dict):
        if list(theirs) == ["status"] and theirs["status"] not in ("Healthy", "Unhealthy"):
            return _unequal(f"members of {where}", ["status"], list(ours))
        # Clients ignore members that they do not know.
        found = _unequal(
            f"members of {where}", list(theirs), [one for one in ours if one in theirs]
        )
        for name in theirs:
            if name in ours:
                found += _shape(theirs[name], ours[name], f"{where}.{name}")
        return found
    if isinstance(theirs, list):
        theirs, ours = (sorted(one, key=_version) for one in (theirs, ours))
        found = _unequal(f"length of {where}", len(theirs), len(ours))
        for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
            found += _shape(one, other, f"{where}[{number}]")
        return found
    own = where.rpartition(".")[2] in _OWN or theirs in _WORKER_STATES
    if own:
        return [] if bool(str(theirs)) == bool(str(ours)) else [f"{where} is empty"]
    return _unequal(where, theirs, ours)


def _described(ask: Ask, theirs: Any, ours: Any) -> list[str]:
    """Compare OpenAPI documents: paths, methods, parameters and successes; ours may have more."""
    lacking = _operations(theirs) - _operations(ours)
    lacking = {one for one in lacking if one[1:] != _NEVER_SENT}
    if ask.port != "metrics":
        lacking = {one for one in lacking if one[0] != _OF_METRICS}
    return [f"Headrace does not describe {' '.join(one)}" for one in sorted(lacking)]


def _operations(description: Any) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = {("openapi", description["openapi"])}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            found.add((path, method))
            named = {one["name"] for one in operation.get("parameters", ())}
            found |= {(path, method, name) for name in named - _IGNORED}
            found |= {(path, method, one) for one in {"200", "202"} & operation["responses"].keys()}
    return found


def _version(description: Any) -> str:
    """What sorts the versions of a model: TorchServe lists them in no order."""
    return description.get("modelVersion", "") if isinstance(description, dict) else ""


def _metrics(theirs: str, ours: str) -> list[str]:
    """Compare families, their types and labels; ours may have more families and more series."""
    found: list[str] = []
    for text, name in ((theirs, "TorchServe"), (ours, "Headrace")):
        found += [
            f"{name} has the line {line!r}"
            for line in text.splitlines()
            if not line.startswith("#") and not _SAMPLE.fullmatch(line)
        ]
    helped = {line for line in theirs.splitlines() if line.startswith("#")}
    found += [f"there is no line {line!r}" for line in sorted(helped - set(ours.splitlines()))]
    labels = _labels(theirs)
    own = _labels(ours)
    for family, names in labels.items():
        found += _unequal(f"labels of {family}", names, own.get(family))
    if not theirs:
        found += _unequal("text", theirs, ours)
    return found


def _labels(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match:
            found[match[1]] = re.findall(r'(\w+)="', match[2])
    return found
