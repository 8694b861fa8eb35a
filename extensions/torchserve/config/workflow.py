"""Workflow archives (.war) of `torch-workflow-archiver`, and the pipelines that they become.

An archive has a YAML file with its models and its graph, and a Python file with the functions among
its nodes. Each node becomes a model `<workflow>__<node>` and a stage of the pipeline. A function
runs as a handler of TorchServe.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from extensions.torchserve.config.archive import TORCHSERVE
from headrace.config.model.pipelines import (
    INPUT,
    STAGE_NAME_PATTERN,
    PipelineSection,
)
from headrace.config.model.pipelines import build as build_pipeline
from headrace.config.suggestions import did_you_mean, listing
from headrace.config.yaml_file import KeyProblem
from headrace.errors import ConfigError
from headrace.jobs.ids import MODEL_NAME

SUFFIX: Final = ".war"
#: Below the state directory: the unpacked archives of `headrace torchserve`.
WORKFLOWS: Final = "workflows"
#: In that folder: which archive a pipeline comes from.
_ARCHIVES: Final = "archives.json"
MANIFEST: Final = "WAR-INF/MANIFEST.json"
#: The option of a model whose inputs are results of other nodes: their names.
SOURCES_OPTION: Final = "workflow_from"
_MAX_BYTES: Final = 1024 * 1024
_PACK_AGAIN: Final = "pack the workflow again with torch-workflow-archiver"


class _Files(msgspec.Struct):
    name: str = msgspec.field(name="workflowName")
    spec_file: str = msgspec.field(name="specFile")
    handler: str | None = None


class _Manifest(msgspec.Struct):
    workflow: _Files


class _Setting(NamedTuple):
    """A key of a model, or of all: the option that it becomes."""

    option: str
    least: int
    convert: Callable[[int], Any] = int


_SETTINGS: Final = {
    "min-workers": _Setting("min_replicas", 1),
    "max-workers": _Setting("max_replicas", 1),
    "batch-size": _Setting("max_batch_size", 1),
    "max-batch-delay": _Setting("max_batch_delay_ms", 0),
    "retry-attempts": _Setting("max_retries", 0),
    "timeout-ms": _Setting("timeout_s", 1, lambda value: value / 1000),
}


class Node(NamedTuple):
    """A node of the graph.

    Attributes:
        sources: the nodes whose results it takes; empty for the input of the workflow.
        source: the model's archive; "" for a function.
    """

    name: str
    sources: tuple[str, ...]
    source: str
    options: dict[str, Any]


class Workflow(NamedTuple):
    """A workflow; `handler` is the file of its functions."""

    name: str
    handler: str
    nodes: tuple[Node, ...]

    @property
    def needed_file(self) -> str:
        """The file of its functions; "" if no node is one."""
        return self.handler if any(not node.source for node in self.nodes) else ""

    def lines(self) -> list[str]:
        """Return its name and its nodes, for people."""
        nodes = [
            f"node:         {node.name}: {node.source or f'a function of {self.handler}'}"
            for node in self.nodes
        ]
        return [f"workflow:     {self.name}", *nodes]

    def document(self, folder: str) -> dict[str, Any]:
        """Return its models and its pipeline as a models file; `folder` has its own files."""
        return {
            "models": {self.model_name(node): self._section(node, folder) for node in self.nodes},
            "pipelines": {self.name: {"stages": dict(map(self._stage, self.nodes))}},
        }

    def text(self, folder: str) -> str:
        """Return `document` as YAML."""
        return yaml.safe_dump(self.document(folder), sort_keys=False, width=100)

    def model_name(self, node: Node) -> str:
        """Return the name of a node's model."""
        return f"{self.name}__{node.name}"

    def _section(self, node: Node, folder: str) -> dict[str, Any]:
        section: dict[str, Any] = {"source": node.source or folder}
        if not node.source:
            section["handler"] = f"{TORCHSERVE}{self.handler}:{node.name}"
        section |= node.options
        if node.sources:
            section["options"] = {SOURCES_OPTION: list(node.sources)}
        return section

    def _stage(self, node: Node) -> tuple[str, dict[str, Any]]:
        sources: Any = list(node.sources) or INPUT
        if len(node.sources) == 1:
            (sources,) = node.sources
        return node.name, {"model": self.model_name(node), "from": sources}


def write_archives(folder: Path, archives: Mapping[str, str]) -> None:
    """Write the archives of pipelines, by the names of these."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ARCHIVES).write_bytes(msgspec.json.encode(archives))


def read_archives(folder: Path) -> dict[str, str]:
    """Return the archives of pipelines, by the names of these; empty if none were written."""
    try:
        return msgspec.json.decode((folder / _ARCHIVES).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def read_workflow(folder: Path, label: str) -> Workflow:
    """Return the workflow in a folder, which is an unpacked archive. Nothing is imported.

    Raises:
        ConfigError: it is no workflow, or no pipeline can express it; one line for each mistake,
            with the node.
    """
    name, spec_file, handler = _manifest(folder, label)
    spec = _spec(folder / spec_file, f"{label}: {spec_file}")
    models, shared, problems = _models(spec.get("models"))
    graph = _graph(spec.get("dag"), problems)
    functions = _functions(folder / handler) if handler else set()
    nodes = []
    for node, sources in graph.items():
        if node not in models and node not in functions and "*" not in functions:
            known = [*models, *sorted(functions)]
            where = f"a function of {handler}" if handler else "a function, as it has no handler"
            problems.append(
                f"dag: the node {node!r} is neither a model of `models` nor {where}"
                f"{did_you_mean(node, known) or f'; known: {listing(known)}'}"
            )
        section = models.get(node, {})
        options = _options({**shared, **section}) if section else {}
        nodes.append(Node(node, tuple(sources), section.get("url", ""), options))
    if not problems:
        problems += _pipeline_problems(Workflow(name, handler, tuple(nodes)))
    if problems:
        raise ConfigError("\n".join(f"{label}: {spec_file}: {text}" for text in problems))
    return Workflow(name, handler, tuple(nodes))


def _manifest(folder: Path, label: str) -> tuple[str, str, str]:
    """Return the name, the file of the graph and the file of the functions."""
    path = folder / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes()[:_MAX_BYTES], type=_Manifest).workflow
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(
            f"{label}: {MANIFEST}: it cannot be read: {error}", hint=_PACK_AGAIN
        ) from error
    name, spec_file, handler = found.name, found.spec_file, found.handler or ""
    if not re.fullmatch(MODEL_NAME, name):
        raise ConfigError(f"{label}: {MANIFEST}: {name[:64]!r} cannot be the name of a pipeline")
    for file in [spec_file, *([handler] if handler else [])]:
        if "/" in file or not os.path.isfile(folder / file):
            raise ConfigError(
                f"{label}: there is no file {file[:64]!a}, which {MANIFEST} names",
                hint=_PACK_AGAIN,
            )
    return name, spec_file, handler


def _spec(path: Path, label: str) -> dict[str, Any]:
    try:
        text = path.read_bytes()
        if len(text) > _MAX_BYTES:
            raise ConfigError(f"{label}: it is larger than {_MAX_BYTES} bytes")
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            raise ConfigError(f"{label}: aliases (*) are not accepted", hint="write the values out")
        found = yaml.safe_load(text)
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{label}: it is no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{label}: expected a mapping with `models` and `dag`")
    return found


def _models(section: object) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the models by name, the settings of all models, and what is wrong."""
    problems: list[str] = []
    if section is not None and not isinstance(section, dict):
        return {}, {}, ["models: expected a mapping of models"]
    models, shared = {}, {}
    for key, value in (section or {}).items():
        if isinstance(value, dict):
            models[str(key)] = value
            if not isinstance(value.get("url"), str) or not value["url"]:
                problems.append(f"models: {key}: the key `url`, the model's archive, is missing")
            problems += _wrong(value, f"models: {key}: ")
        else:
            shared[key] = value
    problems += _wrong(shared, "models: ")
    return models, shared, problems


def _wrong(section: Mapping[Any, Any], where: str) -> Iterator[str]:
    for key, value in section.items():
        if key == "url":
            continue
        setting = _SETTINGS.get(key)
        if setting is None:
            yield f"{where}{key}: unknown key; known: url, {listing(_SETTINGS)}"
        elif not isinstance(value, int) or isinstance(value, bool) or value < setting.least:
            yield f"{where}{key}: expected a number from {setting.least}, got {value!r}"


def _options(section: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        setting.option: setting.convert(section[key])
        for key, setting in _SETTINGS.items()
        if key in section
    }
    least, most = (found.pop(key, None) for key in ("min_replicas", "max_replicas"))
    if least is not None and most is not None and least < most:
        return {"min_replicas": least, "max_replicas": most, **found}
    number = least if most is None else most
    return found if number is None else {"replicas": number, **found}


def _graph(section: object, problems: list[str]) -> dict[str, list[str]]:
    if not isinstance(section, dict) or not section:
        problems.append("dag: expected a mapping of each node to a list of the next ones")
        return {}
    sources: dict[str, list[str]] = {}
    for node, following in section.items():
        sources.setdefault(str(node), [])
        names = [following] if isinstance(following, str) else following
        if not isinstance(names, list):
            problems.append(f"dag: the node {node!r}: expected a list of the next nodes")
            continue
        for name in map(str, names):
            taken = sources.setdefault(name, [])
            if str(node) not in taken:
                taken.append(str(node))
    problems.extend(
        f"dag: the node {node[:64]!r} cannot be the name of a stage; use letters, digits, '_' and "
        f"'-', and not {INPUT!r}"
        for node in sources
        if not re.fullmatch(STAGE_NAME_PATTERN, node) or node == INPUT
    )
    return sources


def _functions(path: Path) -> set[str]:
    """Return the names at the top of a Python file; `*` if it has those of another module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names: set[str] = set()
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(statement.name)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name for alias in statement.names}
            case ast.Assign():
                names |= {one.id for one in statement.targets if isinstance(one, ast.Name)}
    return names


def _pipeline_problems(workflow: Workflow) -> Iterator[str]:
    """Yield why no pipeline can express a workflow."""
    section = workflow.document("")["pipelines"][workflow.name]
    for node in workflow.nodes:
        name = workflow.model_name(node)
        if not re.fullmatch(MODEL_NAME, name):
            yield f"dag: the node {node.name!r}: {name!r} is too long for the name of a model"
    try:
        build_pipeline(workflow.name, msgspec.convert(section, PipelineSection))
    except KeyProblem as problem:
        stage = problem.where[1] if len(problem.where) > 1 else ""
        yield f"dag: the node {stage!r}: {problem.text}"
    except msgspec.ValidationError as error:
        yield f"dag: {error}"
