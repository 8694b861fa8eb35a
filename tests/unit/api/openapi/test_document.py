"""The description of the API: complete, valid, and true as far as that shows without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest
from jsonschema import (  # type: ignore[import-untyped]
    Draft202012Validator,
    FormatChecker,
)
from openapi_spec_validator import validate
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from api.extension import examples, operations
from api.http.problems import PROBLEMS
from api.openapi import components, document
from api.openapi.problems import problem_schemas
from api.openapi.schemas import CONDITIONS, answer_schemas, parameter_schemas, request_schemas
from api.routes.media import IDEMPOTENCY_KEY
from headrace.errors import InvalidId
from headrace.jobs.ids import check_key, is_id
from headrace.jobs.options import JobOptions

DOCUMENT = document("1.2.3")
REGISTRY: Registry[Any] = Registry().with_resource(
    "urn:api", Resource.from_contents(DOCUMENT, default_specification=DRAFT202012)
)
#: No described route answers with these. They are of paths and methods that do not exist, or keep
#: the server from starting.
OF_NO_ROUTE = {"method-not-allowed", "broker-unsupported"}
#: Of routes whose errors are written as OpenAI's API does.
OF_OPENAI = {"file-not-found", "batch-not-found", "model-not-loaded"}


def described_operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                yield method.upper(), path, operation


def absolute(schema: Any) -> Any:
    """The schema with references that lead into the document from anywhere."""
    if isinstance(schema, list):
        return [absolute(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: f"urn:api{value}" if name == "$ref" else absolute(value)
        for name, value in schema.items()
    }


def fits(schema: dict[str, Any], value: Any) -> None:
    validator = Draft202012Validator(
        absolute(schema), registry=REGISTRY, format_checker=FormatChecker()
    )
    validator.validate(value)


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """What a node is, or what its reference leads to."""
    found: Any = node
    if "$ref" in node:
        found = DOCUMENT
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
    assert isinstance(found, dict)
    return found


def nodes(node: Any, where: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the document other than what examples hold, with where it stands."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from nodes(item, f"{where}/{number}")
    elif isinstance(node, dict):
        yield where, node
        for name, value in node.items():
            if name not in ("example", "examples"):
                yield from nodes(value, f"{where}/{name}")


def shown_examples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every example with what it is an example of: where it stands, the schema, the value."""
    for where, node in nodes(DOCUMENT):
        given = node.get("examples")
        if isinstance(given, list):
            for value in given:
                yield where, {k: v for k, v in node.items() if k != "examples"}, value
        elif "schema" in node:
            named = [resolved(example)["value"] for example in (given or {}).values()]
            for value in [*([node["example"]] if "example" in node else []), *named]:
                yield where, node["schema"], value


def test_it_is_openapi() -> None:
    validate(DOCUMENT)


def test_every_route_is_described_and_no_other() -> None:
    routed = {
        (one.method, one.path.replace(":path", "")): one.name for one in operations() if one.name
    }
    described = {(method, path): one["operationId"] for method, path, one in described_operations()}
    assert described == routed
    assert len(set(routed.values())) == len(routed)


def test_every_problem_is_a_component_and_belongs_to_a_route() -> None:
    named: set[str] = set()
    for method, path, operation in described_operations():
        for status, response in operation["responses"].items():
            media = response.get("content", {}).get("application/problem+json")
            if path.startswith("/v1/"):
                assert media is None
                if int(status) >= 400:
                    error = {"schema": {"$ref": "#/components/schemas/OpenAIError"}}
                    assert response["content"]["application/json"] == error
                continue
            if media is None:
                assert int(status) < 400, (method, path, status)
                continue
            for code in media["examples"]:
                assert str(PROBLEMS[code].status) == status, (method, path, code)
                named.add(code)
    assert named == PROBLEMS.keys() - OF_NO_ROUTE - OF_OPENAI
    assert set(DOCUMENT["components"]["examples"]) == set(PROBLEMS)
    schemas = {f"{cls.__name__}Problem" for cls in PROBLEMS.values()}
    assert set(problem_schemas()) == {"Problem", *schemas}


def test_every_example_is_one() -> None:
    found = list(shown_examples())
    assert len(found) > 100
    for where, schema, value in found:
        try:
            fits(schema, value)
        except Exception as error:
            raise AssertionError(f"the example at {where} does not fit: {error}") from error


def test_a_problem_of_another_type_does_not_fit() -> None:
    queue_full = DOCUMENT["components"]["examples"]["queue-full"]["value"]
    with pytest.raises(Exception, match="/problems/conflict"):
        fits({"$ref": "#/components/schemas/ConflictProblem"}, queue_full)


class Kept(msgspec.Struct):
    always: int | None = None
    never_absent: int = 0
    sometimes: int | msgspec.UnsetType = msgspec.UNSET


class Omitted(msgspec.Struct, omit_defaults=True):
    never_null: Annotated[int | None, msgspec.Meta(description="A number.")] = None


class Both(msgspec.Struct):
    kept: Kept
    omitted: list[Omitted] | None


def test_an_answer_has_what_msgspec_writes() -> None:
    schemas = answer_schemas([Both])
    assert schemas["Both"]["required"] == ["kept", "omitted"]
    assert schemas["Kept"]["required"] == ["always", "never_absent"]
    assert schemas["Kept"]["properties"]["always"] == {"type": ["integer", "null"]}
    assert schemas["Omitted"]["required"] == []
    number = {"type": "integer", "description": "A number."}
    assert schemas["Omitted"]["properties"]["never_null"] == number


def test_a_request_has_what_msgspec_reads() -> None:
    schemas = request_schemas([Both])
    assert schemas["Kept"]["required"] == []
    assert schemas["Kept"]["properties"]["never_absent"] == {"type": "integer", "default": 0}
    assert schemas["Omitted"]["properties"]["never_null"]["type"] == ["integer", "null"]
    priority = components()["JobOptions"]["properties"]["priority"]
    assert (priority["minimum"], priority["maximum"]) == (0, 9)


def test_every_example_and_condition_is_of_a_type() -> None:
    assert examples().keys() <= components().keys()
    assert CONDITIONS.keys() <= components().keys()


def test_a_query_parameter_is_never_null() -> None:
    for name, schema in parameter_schemas(JobOptions).items():
        assert isinstance(schema["type"], str), name
        assert schema.get("default", "") is not None, name


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a", "A-Z_0.9:@", "a" * 128, "a" * 129, "a/b", "a b", "ä"]
)
def test_ids_and_keys_have_the_grammar_that_they_are_checked_by(text: str) -> None:
    schema = components()["JobRequest"]["properties"]["id"]
    assert Draft202012Validator(schema).is_valid(text) == is_id(text)
    try:
        check_key(text)
        taken = True
    except InvalidId:
        taken = False
    assert Draft202012Validator(IDEMPOTENCY_KEY.schema).is_valid(text) == taken
