"""docs/configuration.md is held to the code: every key, variable, default and bound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config.extensions import found, settings_types
from headrace.config.inputs.input_schema import TYPES, OutputSection
from headrace.config.model.catalog import check_config
from headrace.config.model.options import ModelOptions
from headrace.config.settings import (
    ENV_PREFIX,
    FIELDS,
    OTHER_VARIABLES,
    VARIABLES,
    extension_variables,
    load_settings,
)

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "configuration.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, title
    return found.group(1)


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the section's table by their first cell, without its back quotes."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip(" `"): row[1:] for row in cells}


_MODELS, _, _BELOW = section("The models file").partition("\n### Inputs and outputs\n")
MODEL_ROWS = rows(_MODELS)
INPUT_ROWS = rows(_BELOW.partition("\n### ")[0])
SETTING_ROWS = rows(section("Settings"))
OTHER_ROWS = rows(section("Other variables"))
EXTENSION_VARIABLES = extension_variables()
NO_SETTINGS = {name for one in found().extensions.values() for name in one.variables}
ALL_VARIABLES = {
    *VARIABLES, *EXTENSION_VARIABLES, *OTHER_VARIABLES, *NO_SETTINGS
}  # fmt: skip


def written(default: Any) -> str:
    """A default as the tables write it."""
    if default is None or default == ():
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return str(default)


def plain(cell: str) -> str:
    return cell.strip('`"')


def bounds(kind: Any) -> str | None:
    """The bounds of a number as the tables write them."""
    info = msgspec.inspect.type_info(kind)
    for part in getattr(info, "types", (info,)):
        if isinstance(part, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
            low = part.ge if part.gt is None else f"over {part.gt:g}"
            low = f"{low:g}" if isinstance(low, (int, float)) else low
            return f"{low} to {part.le:.0f}"
    return None


def fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(struct)


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.required:
        return "required"
    if field.default is not msgspec.NODEFAULT:
        return field.default
    assert callable(field.default_factory)
    return field.default_factory()


def test_every_key_of_the_models_file_is_there_in_order() -> None:
    assert list(MODEL_ROWS) == [field.name for field in fields(ModelOptions)]


def test_every_key_of_inputs_and_outputs_is_there_in_order() -> None:
    assert list(INPUT_ROWS) == [field.name for field in fields(OutputSection)]
    assert all(f"`{name}`" in _BELOW for name in TYPES)


def test_every_setting_is_there_in_order() -> None:
    of_extensions = [
        f"{name}.{field}" if field else name for name, field, _ in EXTENSION_VARIABLES.values()
    ]
    assert list(SETTING_ROWS) == [*FIELDS, *of_extensions]


@pytest.mark.parametrize("field", fields(ModelOptions), ids=lambda field: field.name)
def test_a_models_key_has_its_default_and_bounds(field: msgspec.structs.FieldInfo) -> None:
    kind, default, meaning = MODEL_ROWS[field.name]
    assert plain(default) == written(default_of(field))
    assert bounds(field.type) in (None, kind.removesuffix(", `auto`"))
    assert meaning


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_a_setting_has_its_variable_default_and_bounds(field: msgspec.structs.FieldInfo) -> None:
    variable, kind, default, meaning = SETTING_ROWS[field.name]
    assert f"`{ENV_PREFIX}{field.name.upper()}`" in variable
    assert plain(default) == written(default_of(field))
    assert bounds(field.type) in (None, kind)
    assert meaning


@pytest.mark.parametrize("name", settings_types())
def test_a_value_of_an_extension_has_its_variables(name: str) -> None:
    of_it = {
        variable: f"{name}.{field}" if field else name
        for variable, (extension, field, _) in EXTENSION_VARIABLES.items()
        if extension == name
    }
    for variable, key in of_it.items():
        assert f"`{variable}`" in SETTING_ROWS[key][0]
        assert SETTING_ROWS[key][-1]


def test_every_variable_that_is_named_is_known_and_every_known_one_is_named() -> None:
    named = set(re.findall(r"HEADRACE_[A-Z_]+", TEXT))
    named -= {"HEADRACE_NAME_FIELD"}
    assert named == ALL_VARIABLES


def test_the_other_variables_that_people_set_have_a_row() -> None:
    assert {"HEADRACE_CONFIG", "REDIS_URL", "FLOWER_BASIC_AUTH"} <= set(OTHER_ROWS)


def test_every_variable_that_the_code_names_is_one_that_the_servers_take() -> None:
    known = ALL_VARIABLES
    used = {
        name: path.name
        for folder in ("headrace", "api", "workers", "handlers", "extensions", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\bHEADRACE_[A-Z_]*[A-Z]\b", path.read_text())
    }
    assert "HEADRACE_REDIS_URL" in used
    assert {name: where for name, where in used.items() if name not in known} == {}


def test_the_log_levels_are_named() -> None:
    kind = SETTING_ROWS["log_level"][1]
    assert re.findall(r"`(\w+)`", kind) == ["debug", "info", "warning", "error"]
    for level in re.findall(r"`(\w+)`", kind):
        assert load_settings(None, {"HEADRACE_LOG_LEVEL": level}, {}).log_level == level


def test_the_models_file_that_is_shown_is_right(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", section("The models file"), re.DOTALL)
    assert found
    (tmp_path / "mine").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "mine" / "sentiment.py").write_text("class Sentiment: ...\n")
    (tmp_path / "mine" / "sentiment.safetensors").touch()
    path = tmp_path / "configs" / "models.yaml"
    path.write_text(found.group(1))
    assert check_config(path) == []


def test_the_mistakes_that_are_shown_read_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.findall(r"^headrace: (.*)$", section("When something is wrong"), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    path = Path("configs/models.yaml")
    path.write_text(
        "models:\n  digits:\n    handler: digits\n"
        "    max_batchsize: 3\n    version: 1.0\n    replicas: -1\n"
    )
    assert check_config(path) == shown
