"""Checks of values: what fits, what a mistake says, and that no schema or value makes it slow."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import FieldError, InvalidRequest
from headrace.jobs.values.encoding import binary_input
from headrace.jobs.values.value_check import (
    DEPTH_MAX,
    ERRORS_MAX,
    TEXT_MAX_CHARS,
    VALUES_MAX,
    SchemaProblem,
    ValueCheck,
    summary,
)

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 5, "pattern": "^[a-z]*$"},
        "top_k": {"type": ["integer", "null"], "minimum": 1},
        "kind": {"enum": ["a", "b"]},
        "rows": {"type": "array", "items": {"type": "object", "required": ["x/y"]}},
    },
    "required": ["text"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
}


def mistakes(check: ValueCheck, value: Any) -> list[tuple[str, str, str]]:
    found = check.of_input(json.dumps(value).encode())
    return [(one.path, one.message, one.expected) for one in found]


def test_what_fits_has_no_mistakes() -> None:
    check = ValueCheck(SEARCH)
    assert mistakes(check, {"text": "a"}) == []
    assert mistakes(check, {"text": "a", "top_k": None, "rows": [{"x/y": 1}]}) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, ("/text", "the field is missing", "required")),
        ({"text": 7}, ("/text", 'the value is not of type "string"', "type: string")),
        ({"text": "toolong"}, ("/text", "the value is longer than 5 characters", "maxLength: 5")),
        ({"text": "A"}, ("/text", 'the value does not match "^[a-z]*$"', "pattern: ^[a-z]*$")),
        (
            {"text": "a", "topk": 1},
            ("/topk", "the field is unknown", "one of text, top_k, kind, rows"),
        ),
        (
            {"text": "a", "top_k": 0},
            ("/top_k", "the value is less than the minimum of 1", "minimum: 1"),
        ),
        (
            {"text": "a", "kind": "c"},
            ("/kind", 'the value is not one of "a" or "b"', 'enum: ["a","b"]'),
        ),
        ({"text": "a", "rows": [{}]}, ("/rows/0/x~1y", "the field is missing", "required")),
        ([], ("", 'the value is not of type "object"', "type: object")),
    ],
)
def test_a_mistake_says_where_and_what(value: Any, expected: tuple[str, str, str]) -> None:
    assert mistakes(ValueCheck(SEARCH), value) == [expected]


def test_a_small_value_gets_all_of_its_mistakes() -> None:
    found = mistakes(ValueCheck(SEARCH), {"text": 7, "top_k": 0, "q": 1})
    assert sorted(path for path, *_ in found) == ["/q", "/text", "/top_k"]


def test_a_mistake_has_no_value_and_no_long_name() -> None:
    secret = "s3cret" * 1000
    check = ValueCheck({**SEARCH, "propertyNames": {"maxLength": 9}})
    for value in (
        secret,
        {"text": [secret]},
        {"text": "a", secret: 1},
        {"text": "a", "kind": secret},
    ):
        found = check.of_input(json.dumps(value).encode())
        assert found
        for one in found:
            assert max(map(len, (one.path, one.message, one.expected))) <= TEXT_MAX_CHARS
            assert "s3cret" * 30 not in f"{one.path}{one.message}{one.expected}"


def test_a_large_value_gets_one_mistake_and_a_small_one_ten() -> None:
    check = ValueCheck({"items": {"type": "integer"}})
    assert len(check.of_input(json.dumps(["a"] * 30).encode())) == ERRORS_MAX
    assert len(check.of_input(json.dumps(["a"] * 30_000).encode())) == 1


def test_alternatives_have_one_mistake() -> None:
    check = ValueCheck({"anyOf": [{"type": "string"}, {"type": "integer"}]})
    assert mistakes(check, []) == [
        ("", "the value does not fit one of the alternatives", "anyOf"),
    ]


def test_bytes_have_their_content_types() -> None:
    check = ValueCheck(None, ["image/*", "application/pdf"])
    for kind in ("image/png", "IMAGE/PNG", "image/png; q=1", "application/pdf"):
        assert check.of_input(binary_input(b"x", kind)) == []
        assert check.of_payload(b"x", kind) == []
        assert check.of_reference(kind) == []
    wrong = [
        FieldError(
            "",
            "the value is audio/wav, not image/* or application/pdf",
            "image/* or application/pdf",
        )
    ]
    assert check.of_input(binary_input(b"x", "audio/wav")) == wrong
    assert check.of_payload(b"x", "audio/wav") == wrong
    assert check.of_reference("audio/wav") == wrong
    assert check.of_input(b"{}") == [
        FieldError(
            "", "the value is JSON, not image/* or application/pdf", "image/* or application/pdf"
        )
    ]
    assert check.of_reference("application/json") != []


def test_bytes_are_refused_where_json_is_declared() -> None:
    found = ValueCheck({"type": "object"}).of_input(binary_input(b"x", "image/png"))
    assert found == [FieldError("", "the value is image/png, not JSON", "JSON")]


def test_the_schema_is_for_what_the_handler_gets() -> None:
    check = ValueCheck({"type": "string", "maxLength": 3})
    assert check.of_input(b'"abc"') == []
    assert check.of_input(binary_input(b"abc", "text/plain")) == []
    assert check.of_input(binary_input(b"abcd", "text/plain")) != []
    assert check.of_payload(b"abc", "text/plain; charset=utf-8") == []
    assert check.of_payload(b'"abcd"', "") != []
    assert check.of_input(binary_input(b'"abcd"', "application/json")) != []
    # Of a file that is named, nothing is read here.
    assert check.of_reference("text/plain") == check.of_reference("application/json") == []
    # The order of the members does not matter.
    body = base64.b64encode(b"abcd").decode()
    turned = json.dumps({"base64": body, "content_type": "text/plain"}).encode()
    assert check.of_input(turned) != []


def test_both_a_schema_and_content_types() -> None:
    check = ValueCheck({"type": "object"}, ["image/png"])
    assert check.of_input(b"{}") == []
    assert check.of_input(binary_input(b"x", "image/png")) == []
    assert check.of_input(b"7") == [
        FieldError("", 'the value is not of type "object"', "type: object")
    ]
    assert check.of_input(binary_input(b"x", "image/gif")) == [
        FieldError("", "the value is image/gif, not image/png or JSON", "image/png or JSON")
    ]


def test_an_input_that_cannot_be_decoded_is_no_mistake_of_a_schema() -> None:
    broken = b'{"content_type": "application/json", "base64": "aGk="}'
    with pytest.raises(InvalidRequest):
        ValueCheck({"type": "object"}).of_input(broken)


@pytest.mark.parametrize(
    "text", [b"NaN", b"[NaN]", b"[-Infinity]", b'["\\ud800"]', b'{"\\ud800": 1}']
)
@pytest.mark.parametrize("schema", [{"type": "integer"}, {"items": {"type": "integer"}}, TREE])
def test_what_only_pythons_json_writes_is_refused(text: bytes, schema: dict[str, Any]) -> None:
    # In a Celery client's message.
    check = ValueCheck(schema)
    assert check.read(text)[2] or schema.get("items")


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "urn:a", "$ref": "urn:b", "$defs": {"b": {"$id": "urn:b", **SEARCH}}},
        {"$dynamicRef": "#x", "$defs": {"b": {"$dynamicAnchor": "x", **SEARCH}}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": SEARCH}},
    ],
)
def test_a_field_behind_a_reference_is_unknown_too(schema: dict[str, Any]) -> None:
    (found,) = ValueCheck(schema).of_input(b'{"text": "a", "topk": 1}')
    assert (found.path, found.message) == ("/topk", "the field is unknown")


@pytest.mark.parametrize("depth", [DEPTH_MAX + 2, 900, 100_000])
@pytest.mark.parametrize("carried", [False, True])
def test_deep_values_are_refused_and_not_followed(depth: int, carried: bool) -> None:
    text = b"[" * depth + b"]" * depth
    raw = binary_input(text, "application/json") if carried else text
    try:
        found = ValueCheck(TREE).of_input(raw)
    except InvalidRequest:
        assert depth == 100_000  # no parser reads it
        return
    assert [one.message for one in found] == [
        f"the value is nested more than {DEPTH_MAX} levels deep"
    ]


def test_the_deepest_value_that_is_checked() -> None:
    depth = DEPTH_MAX + 1
    assert ValueCheck(TREE).of_input(b"[" * depth + b"]" * depth) == []
    deepest = b"[" * DEPTH_MAX + b"7" + b"]" * DEPTH_MAX
    assert ValueCheck(TREE).of_input(deepest)[0].path.startswith("/0/0")


@pytest.mark.parametrize("carried", [False, True])
def test_a_value_of_many_values_is_refused_before_it_is_parsed(carried: bool) -> None:
    text = b"[" + b"[]," * VALUES_MAX + b"0"  # no end: a parser would complain
    raw = binary_input(text, "application/json") if carried else text
    (found,) = ValueCheck({"type": "array"}).of_input(raw)
    assert str(VALUES_MAX) in found.message


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(x+x+)+y"])
def test_patterns_match_in_linear_time(pattern: str) -> None:
    check = ValueCheck({"type": "string", "pattern": pattern})
    # A backtracking engine takes 2^50000 steps.
    assert check.of_input(json.dumps("a" * 50_000 + "x" * 50_000).encode()) != []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_that_refers_to_itself_ends(schema: dict[str, Any]) -> None:
    assert ValueCheck(schema).of_input(b'{"a": [1]}') == []


@pytest.fixture
def nobody_connects(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that fails the test when something connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_nothing_is_fetched(nobody_connects: str) -> None:
    for schema in (
        {"$ref": f"{nobody_connects}/schema.json"},
        {"$schema": f"{nobody_connects}/meta.json"},
        {"$id": f"{nobody_connects}/a.json", "properties": {"a": {"$ref": "b.json"}}},
        {"$ref": "file:///etc/hostname"},
        {"$dynamicRef": f"{nobody_connects}/schema.json"},
    ):
        with pytest.raises(SchemaProblem):
            ValueCheck(schema)


@pytest.mark.parametrize(
    ("schema", "where", "text"),
    [
        ({"type": "strin"}, ("type",), "strin is no type; use string, number"),
        (
            {"properties": {"a": {"type": "int"}}},
            ("properties", "a", "type"),
            "int is no type",
        ),
        ({"properties": {"a": "string"}}, ("properties", "a"), "is not of types"),
        ({"pattern": "("}, ("pattern",), "not a pattern that matches in linear time"),
        ({"pattern": "(?=a)b"}, ("pattern",), "leave out look-around"),
        ({"$ref": "#/$defs/a"}, (), "its $ref is not in the schema"),
        ({"$schema": "http://example.com/x"}, (), "its $schema is unknown"),
    ],
)
def test_a_wrong_schema_says_where(
    schema: dict[str, Any], where: tuple[str, ...], text: str
) -> None:
    with pytest.raises(SchemaProblem) as caught:
        ValueCheck(schema)
    assert caught.value.where == where
    assert text in caught.value.text


def test_a_summary_has_three_mistakes() -> None:
    found = [FieldError(f"/{n}", "is wrong") for n in range(5)]
    assert summary(found) == "/0: is wrong; /1: is wrong; /2: is wrong; and 2 more"
    assert summary([FieldError("", "is wrong")]) == "is wrong"
