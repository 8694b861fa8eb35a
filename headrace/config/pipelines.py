"""Pipelines: several models over one input, as the models file or Python declares them.

A stage runs one model over what comes from the input or from earlier stages, once or for each
element of a list. Knows no Redis and no YAML; `headrace.config.model_catalog` reads the file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final

import msgspec
import yaml
from msgspec import Meta

from headrace.config.json_path import PATH_PATTERN, Step, parse_path
from headrace.config.suggestions import did_you_mean, listing

#: What a stage's `from` calls the input of the whole.
INPUT: Final = "input"
#: What the handler of a pipeline is called where models are shown.
HANDLER: Final = "pipeline"
STAGE_NAME_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
STAGES_MAX: Final = 64
DEFAULT_TIMEOUT_S: Final = 600.0

_Name = Annotated[str, Meta(pattern=STAGE_NAME_PATTERN)]
# The pattern is for editors alone: `parse_path` says more of what is none.
_Path = Annotated[str, Meta(max_length=256, extra_json_schema={"pattern": PATH_PATTERN})]
_Names = str | Annotated[list[str], Meta(min_length=1, max_length=64)]


class StageSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage of a pipeline, as it is written."""

    model: (
        Annotated[str, Meta(min_length=1, description="The model that it runs; else of its name.")]
        | None
    ) = None
    sources: (
        Annotated[
            _Names,
            Meta(
                description="Where its input comes from: `input`, a stage, or a list of them, "
                "which gives an object by their names. Left out: the stage before it.",
            ),
        ]
        | None
    ) = msgspec.field(default=None, name="from")
    select: (
        Annotated[_Path, Meta(description="A path to the part of that which is passed on.")] | None
    ) = None
    each: (
        Annotated[
            _Path,
            Meta(
                description="A path with [*] to the list whose elements the model runs over, one "
                "job for each; the stage then gives the list of their results."
            ),
        ]
        | None
    ) = None


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pipeline, as it is written, without its stages."""

    result: (
        Annotated[
            _Names,
            Meta(
                description="The stage whose result is the whole's, or a list of stages, which "
                "gives an object by their names. Left out: those that no stage takes from.",
            ),
        ]
        | None
    ) = None
    version: Annotated[
        str, Meta(min_length=1, max_length=64, description="Shown with each job.")
    ] = "1.0"
    max_queue_depth: Annotated[
        int,
        Meta(ge=1, le=100_000_000, description="Jobs that may wait; one more is answered 429."),
    ] = 10_000
    max_running: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Jobs of it that each background worker has under way."),
    ] = 64
    max_items: Annotated[
        int,
        Meta(ge=1, le=100_000, description="The most elements that `each` may find in one job."),
    ] = 1_000
    timeout_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Seconds that a job may take in all; its own wins."),
    ] = DEFAULT_TIMEOUT_S


class PipelineSection(PipelineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pipeline, as it is written."""

    stages: Annotated[
        dict[_Name, StageSection],
        Meta(
            min_length=1, max_length=STAGES_MAX, description="Its stages, by name, in their order."
        ),
    ]


class Stage(msgspec.Struct, frozen=True):
    """One stage, with what was left out filled in.

    Attributes:
        sources: whose results are its input; `input` for that of the whole.
        joined: several are given as an object by their names.
        path: to what is passed on.
        spread: each element that the path finds has a job of its own.
    """

    name: str
    model: str
    sources: tuple[str, ...]
    joined: bool = False
    path: tuple[Step, ...] = ()
    spread: bool = False


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline as the servers see it.

    Attributes:
        stages: each behind those that it takes from.
        result: the stages whose results are the whole's.
        joined: they are given as an object by their names.
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

    @property
    def models(self) -> list[str]:
        """The models that it runs."""
        return list(dict.fromkeys(stage.model for stage in self.stages))


class PipelineProblem(Exception):
    """What is wrong with a declaration.

    Attributes:
        where: the keys below the pipeline's own.
        text: what, and what to do.
    """

    def __init__(self, where: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.where = where
        self.text = text


def build(name: str, section: PipelineSection) -> PipelineConfig:
    """Fill in what a section leaves out.

    Raises:
        Problem: it has no shape that could run. Which models there are is not looked at.
    """
    before = INPUT
    stages = {}
    for stage_name, written in section.stages.items():
        stages[stage_name] = _stage(stage_name, written, before, section.stages)
        before = stage_name
    order = _ordered(stages)
    result, joined = _result(section, stages)
    _check_used(stages, result)
    return PipelineConfig(
        name=name,
        stages=tuple(stages[stage_name] for stage_name in order),
        result=result,
        joined=joined,
        version=section.version,
        max_queue_depth=section.max_queue_depth,
        max_running=section.max_running,
        max_items=section.max_items,
        timeout_s=section.timeout_s,
    )


def _stage(
    name: str, written: StageSection, before: str, stages: Mapping[str, StageSection]
) -> Stage:
    where = ("stages", name)
    if name == INPUT:
        raise PipelineProblem(
            where, f"{INPUT} is what the pipeline is given; name the stage otherwise"
        )
    given = before if written.sources is None else written.sources
    sources, joined = _names(given)
    _check_names((*where, "from"), sources, [INPUT, *stages])
    if written.select is not None and written.each is not None:
        raise PipelineProblem(
            where, "select and each exclude each other; each takes the whole path"
        )
    path: tuple[Step, ...] = ()
    for key, text in (("select", written.select), ("each", written.each)):
        if text is None:
            continue
        try:
            path = parse_path(text)
        except ValueError as error:
            raise PipelineProblem((*where, key), str(error)) from None
        if key == "each" and None not in path:
            raise PipelineProblem(
                (*where, key), f"a list is meant: write [*] behind it, as in {text}[*]"
            )
        if key == "select" and None in path:
            raise PipelineProblem((*where, key), "[*] leads to many values; use each, or an index")
    return Stage(name, written.model or name, sources, joined, path, written.each is not None)


def _names(given: str | list[str]) -> tuple[tuple[str, ...], bool]:
    return ((given,), False) if isinstance(given, str) else (tuple(given), True)


def _check_names(where: tuple[str, ...], names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            near = did_you_mean(name[:64], known)
            raise PipelineProblem(where, f"there is no stage {name[:64]!r}{near}; {listing(known)}")
    if len(set(names)) < len(names):
        raise PipelineProblem(where, "a name stands there twice")


def _ordered(stages: Mapping[str, Stage]) -> list[str]:
    """Their names, each behind those that it takes from, else as they are written."""
    graph = {
        name: {source for source in stage.sources if source != INPUT}
        for name, stage in stages.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        way = " -> ".join(circle)
        raise PipelineProblem(
            ("stages", circle[0], "from"), f"the stages wait in a circle: {way}"
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
            raise PipelineProblem(
                ("stages", name), "nothing comes of it: no stage takes its result, and "
                          "`result` does not name it")  # fmt: skip


class Pipeline:
    """Declares a pipeline in Python, as `pipelines:` of the models file does.

    Example::

        faces = Pipeline("faces").then("detect").each("classify", "crops[*]")
        print(faces.yaml())  # for the models file

    A stage takes from the one before it, unless `take` says otherwise.

    Args:
        name: the pipeline's.
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
    ) -> Pipeline:
        """A stage that runs once.

        Args:
            name: the stage's, and its model's unless `model` says.
            model: the model.
            take: where its input comes from: `input`, a stage, or a list of them.
            select: a path to the part of that which is passed on.
        """
        return self._add(name, {"model": model, "from": take, "select": select})

    def each(
        self,
        name: str,
        path: str = "[*]",
        *,
        model: str | None = None,
        take: str | list[str] | None = None,
    ) -> Pipeline:
        """A stage that runs for each element of a list, and gives the list of the results.

        Args:
            name: the stage's, and its model's unless `model` says.
            path: to the elements, such as `crops[*]`.
            model: the model.
            take: where the list comes from.
        """
        return self._add(name, {"model": model, "from": take, "each": path})

    def gives(self, *names: str) -> Pipeline:
        """The stage whose result is the whole's; several give an object by their names."""
        self._options["result"] = names[0] if len(names) == 1 else list(names)
        return self

    def section(self) -> dict[str, Any]:
        """What stands in the models file below `pipelines`.

        Raises:
            ValueError: it could not run; the message says where and why.
        """
        written = {"stages": self._stages, **self._options}
        try:
            build(self._name, msgspec.convert(written, PipelineSection))
        except PipelineProblem as problem:
            place = ".".join((self._name, *problem.where))
            raise ValueError(f"{place}: {problem.text}") from None
        except msgspec.ValidationError as error:
            raise ValueError(f"{self._name}: {error}") from None
        return {self._name: written}

    def yaml(self) -> str:
        """The same as text of the models file.

        Raises:
            ValueError: it could not run.
        """
        return yaml.safe_dump({"pipelines": self.section()}, sort_keys=False)

    def _add(self, name: str, written: dict[str, Any]) -> Pipeline:
        if name in self._stages:
            raise ValueError(f"{self._name}: a stage {name} is there already")
        self._stages[name] = {key: value for key, value in written.items() if value is not None}
        return self


def unknown_models(
    config: PipelineConfig, models: Mapping[str, Any], pipelines: Container[Any] = ()
) -> Iterator[tuple[str, str]]:
    """The stages whose model there is not, each with a sentence.

    Args:
        config: the pipeline.
        models: the models, by name.
        pipelines: the names of all pipelines.
    """
    for stage in config.stages:
        if stage.model in models:
            continue
        name = stage.model[:64]
        if stage.model in pipelines:
            yield stage.name, f"{name} is a pipeline, and a stage runs a model: write its stages"
        else:
            near = did_you_mean(name, models)
            yield stage.name, f"no model {name!r} is registered{near}"
