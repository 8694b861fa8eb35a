from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from headrace.config.model.catalog import Catalog, check_config, load_catalog
from headrace.config.model.handler_reference import HandlerKind, parse_handler
from headrace.config.model.models_schema import models_schema, schema_text
from headrace.errors import ConfigError, ModelNotFound
from headrace.redis.keys import queue_name

CONFIGS = Path(__file__).parents[5] / "configs"


@pytest.fixture
def models_file(tmp_path: Path) -> Path:
    return tmp_path / "models.yaml"


def problems(path: Path, text: str) -> list[str]:
    """What `load_catalog` says of this text, without the file's name."""
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_catalog(path)
    lines = caught.value.message.splitlines()
    assert all(line.startswith(str(path)) for line in lines)
    assert check_config(path) == lines
    return [line.removeprefix(f"{path}:").strip() for line in lines]


def catalog(path: Path, text: str) -> Catalog:
    path.write_text(text)
    return load_catalog(path)


def test_defaults_of_a_model(models_file: Path) -> None:
    model = catalog(models_file, "models: {digits: {handler: digits}}").get("digits")
    assert model.name == "digits"
    assert model.queue == queue_name("digits")
    assert (model.version, model.device, model.replicas) == ("1.0", "auto", 1)
    assert (model.max_batch_size, model.max_batch_delay_ms) == (32, 10.0)
    assert (model.max_queue_depth, model.timeout_s) == (10_000, 60.0)
    assert (model.weights, model.max_retries, model.options) == (None, None, {})


def test_the_servers_timeout_is_for_models_that_name_none(models_file: Path) -> None:
    models_file.write_text("models: {a: {handler: echo}, b: {handler: echo, timeout_s: 5}}")
    models = load_catalog(models_file, timeout_s=9).models
    assert {name: model.timeout_s for name, model in models.items()} == {"a": 9, "b": 5}


def test_weights_are_taken_from_the_files_folder(models_file: Path) -> None:
    text = "models: {a: {handler: m.py, weights: w/a.pt}, b: {handler: m.py, weights: /w/b.pt}}"
    models = catalog(models_file, text).models
    assert models["a"].weights == str(models_file.parent / "w/a.pt")
    assert models["b"].weights == "/w/b.pt"


def test_a_relative_models_file_gives_absolute_paths(
    models_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models_file.write_text("models: {a: {handler: m.py, weights: a.pt}}")
    monkeypatch.chdir(models_file.parent)
    loaded = load_catalog(Path(models_file.name))
    assert loaded.base_dir == models_file.parent
    assert loaded.get("a").weights == str(models_file.parent / "a.pt")


def test_allowed_sizes_are_sorted_and_the_largest_is_the_most(models_file: Path) -> None:
    text = "models: {m: {handler: echo, allowed_batch_sizes: [16, 1, 4]}}"
    model = catalog(models_file, text).get("m")
    assert (model.allowed_batch_sizes, model.max_batch_size) == ([1, 4, 16], 16)
    text = "models:\n  m: {handler: echo, max_batch_size: 8, allowed_batch_sizes: [4, 16]}\n"
    assert problems(models_file, text) == [
        "2: models.m.allowed_batch_sizes: the largest is 16, but max_batch_size is 8; "
        "make them the same, or leave max_batch_size out"
    ]


def test_the_keys_of_a_model_with_a_bad_name_are_checked_too(models_file: Path) -> None:
    found = problems(models_file, "models:\n  a b:\n    handlr: echo\n")
    assert [text.partition(":")[0] for text in found] == ["2", "2", "3"]
    assert "did you mean handler?" in found[2]


def test_unknown_keys_are_named_with_line_and_nearest(models_file: Path) -> None:
    text = "models:\n  digits:\n    handler: digits\n    max_batchsize: 3\nmodel: 4\n"
    assert problems(models_file, text) == [
        "4: models.digits.max_batchsize: unknown key; did you mean max_batch_size?",
        "5: model: unknown key; did you mean models?",
    ]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("version", "1.0", 'expected str, got float; write it in quotes: "1.0"'),
        ("replicas", "-1", "expected int >= 0, got -1"),
        ("replicas", "two", "expected int >= 0 or auto, got 'two'"),
        ("replicas", "true", "expected int | str, got bool"),
        ("max_batch_delay_ms", "-1", "expected float >= 0.0, got -1"),
        ("max_queue_depth", '"5"', "expected int, got '5'"),
        ("allowed_batch_sizes", "[]", "expected list of length >= 1, got []"),
        ("allowed_batch_sizes", "[8, 0]", "expected int >= 1, got [8, 0]"),
        ("allowed_batch_sizes", "[8, 1, 8]", "a size is given twice; remove one"),
        ("max_batch_cost", "0", "expected int >= 1, got 0"),
        ("cost", "bytes", "it needs max_batch_cost; add that key"),
        ("min_replicas", "2", "it needs max_replicas; add that key"),
        (
            "min_replicas",
            "2\n    max_replicas: 1",
            "it is 2, more than max_replicas, 1; change one of them",
        ),
        (
            "replicas",
            "3\n    max_replicas: 2",
            "it is 3, more than max_replicas, 2; change one of them",
        ),
        (
            "max_replicas",
            "2\n    total_replicas: 4",
            "it does not go with total_replicas; leave one of them out",
        ),
        ("scale_down_s", "9", "it needs max_replicas; add that key"),
        (
            "min_replicas",
            "0\n    max_replicas: 2",
            "0 needs `load: on_demand`; add that key, or give 1 or more",
        ),
        ("cost", "words", "expected bytes, pixels, rows or tokens, got 'words'"),
        (
            "batch_key",
            "lang",
            "expected str matching regex '^(content_type|(/[^/]*)+)$', got 'lang'",
        ),
        ("channels_last", '"off"', "expected true, false or auto, got 'off'"),
        ("events", "some", "expected true, false or sampled, got 'some'"),
        ("timeout_s", "0", "expected float > 0.0, got 0"),
        ("timeout_s", ".inf", "expected float <= 86400.0, got inf"),
        ("max_retries", "1.5", "expected int, got float"),
        ("device", "gpu", "expected str matching regex '^(auto|cpu|cuda(:[0-9]+)?)$', got 'gpu'"),
        ("options", "[1]", "expected mapping, got list"),
        ("options", "", "expected mapping, got nothing"),
        ("options", "{1: a}", "expected str, got int"),
        ("options", "&a {x: *a}", "not plain data: it contains itself"),
        ("weights", "7", 'expected str, got int; write it in quotes: "7"'),
    ],
)
def test_wrong_values_are_named_with_their_line(
    models_file: Path, key: str, value: str, expected: str
) -> None:
    text = f"models:\n  m:\n    handler: echo\n    {key}: {value}\n"
    assert problems(models_file, text) == [f"4: models.m.{key}: {expected}"]


def test_every_mistake_is_named_at_once_in_order(models_file: Path) -> None:
    text = "models:\n  a:\n    replicas: -1\n    handlr: x\n  b: [1]\n  c: {handler: nope}\n"
    found = problems(models_file, text)
    assert [line.split(": ")[:2] for line in found] == [
        ["2", "models.a"], ["3", "models.a.replicas"], ["4", "models.a.handlr"],
        ["5", "models.b"], ["6", "models.c.handler"],
    ]  # fmt: skip
    assert found[0] == "2: models.a: the key `handler` is missing, or `source`"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the models file is empty"),
        ("# nothing\n", "the models file is empty"),
        ("- a\n", "1: the models file must be a mapping (`key: value`), not a list"),
        ("text\n", "1: the models file must be a mapping (`key: value`), not a single value"),
        ("models:\n  a: [\n", "3: not valid YAML: expected the node content, but found "
         "'<stream end>'"),
        ("a: 1\n---\nb: 2\n", "2: not valid YAML: but found another document"),
        ("models: {a: {}}\nb: \x01\n", "2: not valid YAML: U+0001 is not allowed"),
        ("x: !!python/name:os.system\n", "1: not valid YAML: could not determine a constructor for "
         "the tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("models:\n", "1: models: expected a mapping of models, got nothing"),
        ("models: [a]\n", "1: models: expected a mapping of models, got ['a']"),
        ("models:\n  a: 3\n", "2: models.a: expected a mapping (`key: value`), got 3"),
    ],
)  # fmt: skip
def test_files_of_the_wrong_form(models_file: Path, text: str, expected: str) -> None:
    assert problems(models_file, text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models:\n  a: {handler: echo}\n  a: {handler: echo}\n", "3: a: ... 2"),
        ("models: {a: {handler: echo, handler: echo}}\n", "1: handler: ... 1"),
        ("models:\n  a:\n    options: {x: [{y: 1, y: 2}]}\n", "3: y: ... 3"),
    ],
)
def test_a_key_may_stand_once(models_file: Path, text: str, expected: str) -> None:
    said = expected.replace("...", "this key is already at line")
    assert problems(models_file, text) == [said]


@pytest.mark.parametrize("name", ["..", ".a", "-a", "a b", "a/b", "é", "", "a" * 65, "a\\n"])
def test_names_that_no_url_or_queue_can_bear(models_file: Path, name: str) -> None:
    (found,) = problems(models_file, f'models:\n  "{name}": {{handler: echo}}\n')
    assert found.startswith("2: models.")
    assert found.endswith("does not begin with . or -")


def test_a_name_that_is_a_number_must_be_quoted(models_file: Path) -> None:
    expected = "1: models.12: a model's name must be text; write 12 in quotes"
    assert problems(models_file, "models: {12: {handler: echo}}") == [expected]
    assert "12" in catalog(models_file, 'models: {"12": {handler: echo}}').models


def test_merge_keys_are_understood(models_file: Path) -> None:
    text = (
        "models:\n  a: &base {handler: echo, replicas: 2}\n  b:\n    <<: *base\n    version: '2'\n"
    )
    model = catalog(models_file, text).get("b")
    assert (model.handler, model.replicas, model.version) == ("echo", 2, "2")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match="the models file does not exist"):
        load_catalog(path)
    assert check_config(path) == [f"{path}: the models file does not exist"]


def test_a_folder_and_a_binary_file_are_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "models.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert check_config(tmp_path) == [f"{tmp_path}: the models file cannot be read: Is a directory"]
    (found,) = check_config(binary)
    assert found.startswith(f"{binary}: the models file is not UTF-8 text")


def test_an_unknown_model_is_answered_with_those_there_are(models_file: Path) -> None:
    names = ", ".join(f"model_{index:02}: {{handler: echo}}" for index in range(30))
    loaded = catalog(models_file, f"models: {{{names}}}")
    with pytest.raises(ModelNotFound) as caught:
        loaded.get("model_3")
    assert "no model 'model_3' is registered; did you mean model_" in caught.value.message
    assert caught.value.hint.endswith("model_09 and 20 more")
    with pytest.raises(ModelNotFound) as long:
        loaded.get("x" * 10_000)
    assert len(long.value.message) < 200


def test_check_config_looks_for_the_files(models_file: Path) -> None:
    (models_file.parent / "here.py").write_text("class Mine: ...\n")
    models_file.write_text(
        "models:\n"
        "  a:\n    handler: gone.py:Class\n    weights: gone.pt\n"
        "  b: {handler: here.py}\n"
        "  c: {handler: 'package.module:Class'}\n"
    )
    folder = models_file.parent
    assert check_config(models_file) == [
        f"{models_file}:3: models.a.handler: the file {folder / 'gone.py'} does not exist",
        f"{models_file}:4: models.a.weights: the file {folder / 'gone.pt'} does not exist",
    ]


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("", "def f(:\n", "line 1: not valid Python: invalid syntax"),
        ("", "x = '\0'\n", "not valid Python: source code "),
        ("", "x = 1\n", "defines no class"),
        (
            "",
            "def handle(data, context):\n    return data\n",
            "`handle`, but no class; see docs/torchserve.md",
        ),
        ("Mine", "class Main: ...\n", "has no Mine; did you mean Main?"),
        ("Mine", "class Other: ...\nclass More: ...\n", "has no Mine; classes in it: More, Other"),
        ("Mine.Inner", "class Main: ...\n", "has no Mine; did you mean Main?"),
        ("", "class Mine: ...\n", None),
        ("", "from base import *\n", None),
        ("", "Mine = type('Mine', (), {})\n", None),
        ("Mine", "from base import Mine\n", None),
        ("Mine", "from base import Other as Mine\n", None),
        ("Mine", "if True:\n    Mine = make()\n", None),
        ("Mine", "def __getattr__(name): ...\n", None),
        ("Mine", "from base import *\n", None),
        ("Mine", "globals()['Mine'] = make()\n", None),
        ("Mine", "exec('class Mine: ...')\n", None),
    ],
)
def test_check_config_reads_the_handlers_file(
    models_file: Path, name: str, source: str, problem: str | None
) -> None:
    (models_file.parent / "mine.py").write_text(source)
    spec = f"mine.py:{name}" if name else "mine.py"
    models_file.write_text(f"models:\n  a:\n    handler: {spec}\n")
    found = check_config(models_file)
    if problem is None:
        assert found == []
        return
    (line,) = found
    assert line.startswith(f"{models_file}:3: models.a.handler: {models_file.parent / 'mine.py'}")
    assert problem in line


@pytest.mark.parametrize(
    ("handler", "hint"),
    [("x.mar", "`source`"), ("a/b.MAR", "`source`"), ("w.pt", "`weights`")],
)
def test_archives_and_weights_are_no_handlers(handler: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_handler(handler)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind", "target", "name"),
    [
        ("echo", HandlerKind.BUILTIN, "echo", ""),
        ("mine.py", HandlerKind.FILE, "mine.py", ""),
        ("../a/mine.py:Mine", HandlerKind.FILE, "../a/mine.py", "Mine"),
        ("a/mine:Mine", HandlerKind.FILE, "a/mine", "Mine"),
        ("package.module:Mine", HandlerKind.MODULE, "package.module", "Mine"),
        ("module:Mine", HandlerKind.MODULE, "module", "Mine"),
        ("package.module", HandlerKind.MODULE, "package.module", ""),
        ("module:Outer.Inner", HandlerKind.MODULE, "module", "Outer.Inner"),
    ],
)
def test_forms_of_a_handler(text: str, kind: HandlerKind, target: str, name: str) -> None:
    spec = parse_handler(text)
    assert (spec.kind, spec.target, spec.name) == (kind, target, name)


@pytest.mark.parametrize("text", ["digts", "a b", "mine.py:", ":Mine", "a..b:C", "mine.py:1x"])
def test_handlers_of_no_form(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_handler(text)
    assert repr(text) in caught.value.message
    assert "path/to/file.py:Class" in caught.value.hint


def test_the_models_file_that_comes_with_headrace_is_right() -> None:
    path = CONFIGS / "models.yaml"
    assert check_config(path) == []
    assert list(load_catalog(path).models) == ["echo", "digits", "image_classifier", "python_docs"]
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=models.schema.json"


def test_the_schema_file_is_current() -> None:
    assert (CONFIGS / "models.schema.json").read_text() == schema_text(), (
        "run: python -m headrace.config.model.models_schema > configs/models.schema.json"
    )


def valid_by_schema(data: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(models_schema()).is_valid(data))


def test_the_schema_is_valid_and_judges_as_the_loader_does() -> None:
    jsonschema.Draft202012Validator.check_schema(models_schema())
    assert valid_by_schema(yaml.safe_load((CONFIGS / "models.yaml").read_text()))
    assert not valid_by_schema({"models": {"a": {}}})
    assert not valid_by_schema({"models": {"a": {"handler": "echo", "replica": 1}}})
    assert not valid_by_schema({"models": {"..": {"handler": "echo"}}})
    assert not valid_by_schema({"models": {"a": {"handler": "echo", "device": "gpu"}}})


def test_every_key_is_described_for_editors() -> None:
    for kind, section in json.loads(schema_text())["$defs"].items():
        for name, schema in section["properties"].items():
            assert schema["description"].endswith("."), (kind, name)


@pytest.mark.parametrize("options", ["handler: echo, weights: %s", "handler: %s.py"])
def test_a_file_that_cannot_be_looked_at_is_a_mistake(tmp_path: Path, options: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models: {m: {%s}}\n" % (options % ("x" * 300)))  # no file has such a name

    (line,) = check_config(path)
    assert "cannot be read: File name too long; correct it, or let" in line
