"""Pipelines: several models over one input, declared in the models file or in Python.

A stage runs one model on the input or on results of earlier stages, once or for each element of a
list. Independent of Redis; `headrace.config.model.catalog` reads the file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final

import msgspec
import yaml
from msgspec import Meta

from headrace.config.inputs.input_schema import InputSection, OutputSection
from headrace.config.inputs.json_path import PATH_PATTERN, Step, parse_path
from headrace.config.suggestions import did_you_mean, listing, not_a_choice
from headrace.config.yaml_file import KeyProblem

#: The name of the pipeline's input in a stage's `from`.
INPUT: Final = "input"
#: The handler of a pipeline in lists of models.
HANDLER: Final = "pipeline"
STAGE_NAME_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
STAGES_MAX: Final = 64
DEFAULT_TIMEOUT_S: Final = 600.0

_Name = Annotated[str, Meta(pattern=STAGE_NAME_PATTERN)]
# The pattern is only for editors: `parse_path` has better messages.
_Path = Annotated[str, Meta(max_length=256, extra_json_schema={"pattern": PATH_PATTERN})]
_Names = str | Annotated[list[str], Meta(min_length=1, max_length=64)]


class StageSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage of a pipeline, as written.

    Attributes:
        model: its model; default: the model of its name.
        sources: its input: `input`, a stage, or a list of them, which makes an object by their
            names. Default: the stage before it.
        select: a path to the part of the input that the model gets.
        each: a path with [*] to a list. The model runs once per element, in jobs of their own, and
            the result is the list of their results.
        priority: the priority of its jobs, if the pipeline's job has a better one.
    """

    model: Annotated[str, Meta(min_length=1)] | None = None
    sources: _Names | None = msgspec.field(default=None, name="from")
    select: _Path | None = None
    each: _Path | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 0


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pipeline, as written, without its stages.

    Attributes:
        result: the stage whose result is the pipeline's, or a list of stages, which makes an object
            by their names. Default: the stages that no other uses.
        version: shown with each job.
        max_queue_depth: the most jobs that wait; further ones get 429.
        max_running: the most of its jobs that each background worker runs.
        max_items: the most elements of `each` in one job.
        timeout_s: seconds that a job may take; its own timeout overrides it.
        inputs: what the pipeline takes, as for a model. Default: the inputs of its first stage, if
            that gets the whole input.
        outputs: what the pipeline returns, for the documentation page.
    """

    result: _Names | None = None
    version: Annotated[str, Meta(min_length=1, max_length=64)] = "1.0"
    max_queue_depth: Annotated[int, Meta(ge=1, le=100_000_000)] = 10_000
    max_running: Annotated[int, Meta(ge=1, le=10_000)] = 64
    max_items: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = DEFAULT_TIMEOUT_S
    inputs: InputSection | None = None
    outputs: OutputSection | None = None


class PipelineSection(PipelineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pipeline, as written.

    Attributes:
        stages: its stages, by name, in their order.
    """

    stages: Annotated[dict[_Name, StageSection], Meta(min_length=1, max_length=STAGES_MAX)]


class Stage(msgspec.Struct, frozen=True):
    """One stage, with its defaults.

    Attributes:
        sources: the stages whose results are its input, or `input`.
        joined: whether its input is an object of these results, by name.
        path: the path to the part of the input that the model gets.
        spread: whether each element of the path has its own job.
        priority: the best priority of its jobs, from 0 to 9.
    """

    name: str
    model: str
    sources: tuple[str, ...]
    joined: bool = False
    path: tuple[Step, ...] = ()
    spread: bool = False
    priority: int = 0


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline as the servers use it.

    Attributes:
        stages: each after its sources.
        result: the stages whose results are the pipeline's.
        joined: whether the result is an object of these results, by name.
    """

    name: str
    stages: tuple[Stage, ...]
    result: tuple[str, ...]
    joined: bool
    version: str
    max_queue_depth: int
    max_running: int
    max_items: int
    timeout_s: float
    inputs: InputSection | None = None
    outputs: OutputSection | None = None

    @property
    def models(self) -> list[str]:
        """Return its models."""
        return list(dict.fromkeys(stage.model for stage in self.stages))

    @property
    def whole_to(self) -> str:
        """Return the model of the first stage, if that gets the whole input; else ""."""
        first = self.stages[0]
        whole = first.sources == (INPUT,) and not first.joined and not first.path
        return first.model if whole else ""


def build(name: str, section: PipelineSection) -> PipelineConfig:
    """Build a pipeline of a section and defaults, models unchecked; or raise KeyProblem."""
    if section.outputs is not None and section.outputs.enforce:
        raise KeyProblem(
            ("outputs", "enforce"),
            "a pipeline's outputs only describe; enforce those of its last model",
        )
    before = INPUT
    stages = {}
    for stage_name, written in section.stages.items():
        stages[stage_name] = _stage(stage_name, written, before, section.stages)
        before = stage_name
    order = _ordered(stages)
    result, joined = _result(section, stages)
    _check_used(stages, result)
    values = {
        **msgspec.structs.asdict(section),
        "stages": tuple(stages[stage_name] for stage_name in order),
        "result": result,
    }
    return PipelineConfig(name=name, joined=joined, **values)


def _stage(
    name: str, written: StageSection, before: str, stages: Mapping[str, StageSection]
) -> Stage:
    where = ("stages", name)
    if name == INPUT:
        raise KeyProblem(where, f"{INPUT} is the name of the pipeline's input; choose another name")
    given = before if written.sources is None else written.sources
    sources, joined = _names(given)
    _check_names((*where, "from"), sources, [INPUT, *stages])
    if written.select is not None and written.each is not None:
        raise KeyProblem(where, "select and each exclude each other; use each with the whole path")
    path: tuple[Step, ...] = ()
    for key, text in (("select", written.select), ("each", written.each)):
        if text is None:
            continue
        try:
            path = parse_path(text)
        except ValueError as error:
            raise KeyProblem((*where, key), str(error)) from None
        if key == "each" and None not in path:
            raise KeyProblem((*where, key), f"each needs a list: append [*], as in {text}[*]")
        if key == "select" and None in path:
            raise KeyProblem((*where, key), "[*] matches several values; use each, or an index")
    spread = written.each is not None
    return Stage(name, written.model or name, sources, joined, path, spread, written.priority)


def _names(given: str | list[str]) -> tuple[tuple[str, ...], bool]:
    return ((given,), False) if isinstance(given, str) else (tuple(given), True)


def _check_names(where: tuple[str, ...], names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            near = did_you_mean(name[:64], known)
            raise KeyProblem(
                where, f"there is no stage {name[:64]!r}{near}; use one of {listing(known)}"
            )
    if len(set(names)) < len(names):
        raise KeyProblem(where, "a name is given twice; remove one")


def _ordered(stages: Mapping[str, Stage]) -> list[str]:
    """Return the names, each after its sources, else in the order of the file."""
    graph = {
        name: {source for source in stage.sources if source != INPUT}
        for name, stage in stages.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        way = " -> ".join(circle)
        raise KeyProblem(
            ("stages", circle[0], "from"), f"the stages form a cycle: {way}; remove a source"
        ) from None
    order: list[str] = []
    while len(order) < len(graph):
        done = set(order)
        order.append(next(n for n, before in graph.items() if n not in done and before <= done))
    return order


def _result(section: PipelineSection, stages: Mapping[str, Stage]) -> tuple[tuple[str, ...], bool]:
    if section.result is not None:
        names, joined = _names(section.result)
        _check_names(("result",), names, list(stages))
        return names, joined
    taken = {source for stage in stages.values() for source in stage.sources}
    last = tuple(name for name in stages if name not in taken)
    return last, len(last) > 1


def _check_used(stages: Mapping[str, Stage], result: tuple[str, ...]) -> None:
    used, todo = set(), list(result)
    while todo:
        name = todo.pop()
        if name not in used and name != INPUT:
            used.add(name)
            todo += stages[name].sources
    for name in stages:
        if name not in used:
            text = "its result is unused; add it to `result`, or to the `from` of a stage"
            raise KeyProblem(("stages", name), text)


class Pipeline:
    """Declares a pipeline in Python, as `pipelines:` of the models file does.

    Example::

        faces = Pipeline("faces").then("detect").each("classify", "crops[*]")
        print(faces.yaml())  # for the models file

    The input of a stage is the result of the one before it, unless `take` names others.

    Args:
        name: the pipeline's name.
        options: its other keys, such as `timeout_s`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self._name = name
        self._options = options
        self._stages: dict[str, dict[str, Any]] = {}

    def then(
        self,
        name: str,
        *,
        model: str | None = None,
        take: str | list[str] | None = None,
        select: str | None = None,
        priority: int | None = None,
    ) -> Pipeline:
        """Add a stage that runs once.

        Args:
            name: the stage's name, and its model's if `model` is not given.
            take: its input: `input`, a stage, or a list of them.
            select: a path to the part of the input that the model gets.
            priority: the priority of its job, if the pipeline's job has a better one.
        """
        keys = {"model": model, "from": take, "select": select, "priority": priority}
        return self._add(name, keys)

    def each(
        self,
        name: str,
        path: str = "[*]",
        *,
        model: str | None = None,
        take: str | list[str] | None = None,
        priority: int | None = None,
    ) -> Pipeline:
        """Add a stage that runs once per element of a list; its result is the list of results.

        Args:
            name: the stage's name, and its model's if `model` is not given.
            path: the path to the elements, such as `crops[*]`.
            take: the input that has the list.
            priority: the priority of its jobs, if the pipeline's job has a better one.
        """
        return self._add(name, {"model": model, "from": take, "each": path, "priority": priority})

    def gives(self, *names: str) -> Pipeline:
        """Set the stage whose result is the pipeline's; several make an object by their names."""
        self._options["result"] = names[0] if len(names) == 1 else list(names)
        return self

    def section(self) -> dict[str, Any]:
        """Return the entry for `pipelines` in the models file.

        Raises:
            ValueError: the pipeline cannot run; the message has the key and the reason.
        """
        written = {"stages": self._stages, **self._options}
        try:
            build(self._name, msgspec.convert(written, PipelineSection))
        except KeyProblem as problem:
            place = ".".join(map(str, (self._name, *problem.where)))
            raise ValueError(f"{place}: {problem.text}") from None
        except msgspec.ValidationError as error:
            text = not_a_choice(error, PipelineSection) or str(error)
            raise ValueError(f"{self._name}: {text}") from None
        return {self._name: written}

    def yaml(self) -> str:
        """Return the text for the models file; raise ValueError if the pipeline cannot run."""
        return yaml.safe_dump({"pipelines": self.section()}, sort_keys=False)

    def _add(self, name: str, written: dict[str, Any]) -> Pipeline:
        if name in self._stages:
            raise ValueError(f"{self._name}: there is already a stage {name}; choose another name")
        self._stages[name] = {key: value for key, value in written.items() if value is not None}
        return self


def unknown_models(
    config: PipelineConfig, models: Mapping[str, Any], pipelines: Container[Any] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the stages whose model is not registered, each with a message."""
    for stage in config.stages:
        if stage.model in models:
            continue
        name = stage.model[:64]
        if stage.model in pipelines:
            yield stage.name, f"{name} is a pipeline; a stage needs a model, so use its stages"
        else:
            near = did_you_mean(name, models)
            yield stage.name, f"no model {name!r} is registered{near}"
