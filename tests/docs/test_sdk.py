"""docs/sdk.md is held to the code: no method, argument or error class is left out or made up."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from headrace import AsyncClient, Client, errors
from headrace.client import Options
from headrace.client.map import map_inputs
from headrace.jobs.options import JobOptions

TEXT = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text("utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def test_every_method_is_documented_and_both_shells_have_it() -> None:
    methods = public(Client) - {"run", "iterate", "session"}
    assert methods == public(AsyncClient) - {"run", "iterate", "session"}
    for name in methods:
        assert re.search(rf"[`.]{name}\(", TEXT), name
    named = set(re.findall(r"client\.(\w+)\(", TEXT))
    assert named <= methods


def test_every_argument_of_the_client_is_documented_with_its_default() -> None:
    arguments = inspect.signature(Client).parameters
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.+?) \|$", section("The server"), re.MULTILINE)
    assert [name for name, _ in rows] == list(arguments)
    for name, default in rows:
        if isinstance(arguments[name].default, float):
            assert float(default) == arguments[name].default


def test_every_argument_of_map_is_documented() -> None:
    text = section("Many inputs: map")
    for name, argument in inspect.signature(map_inputs).parameters.items():
        if argument.kind is inspect.Parameter.KEYWORD_ONLY:
            assert f"`{name}`" in text, name
            if isinstance(argument.default, int):
                assert re.search(rf"^\| `{name}` .*`?{argument.default}`? \|$", text, re.MULTILINE)


def test_the_options_are_those_of_the_api() -> None:
    assert list(Options.__annotations__) == list(JobOptions.__struct_fields__)
    for name in Options.__annotations__:
        assert f"`{name}`" in section("Submit")


def test_the_errors_that_are_named_exist() -> None:
    text = section("Errors")
    for row in re.findall(r"^\| `.*$", text, re.MULTILINE):
        for name in re.findall(r"`([A-Z]\w+)`", row):
            assert issubclass(getattr(errors, name), errors.HeadraceError), name
