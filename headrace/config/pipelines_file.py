"""One pipeline out of the models file, with each mistake at its line and key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.config.pipelines import (
    STAGE_NAME_PATTERN,
    STAGES_MAX,
    PipelineConfig,
    PipelineOptions,
    PipelineProblem,
    PipelineSection,
    StageSection,
    build,
    unknown_models,
)
from headrace.config.yaml_file import Document, read_fields, shown

_NAME: Final = re.compile(STAGE_NAME_PATTERN)


def read_pipeline(
    document: Document, name: str, models: Mapping[Any, Any]
) -> PipelineConfig | None:
    """The pipeline of that name; None where something is wrong, which was reported.

    Args:
        document: the models file.
        name: its name below `pipelines`.
        models: the models that there are, by name.
    """
    before = len(document.problems)
    keys = ("pipelines", name)
    written = document.data["pipelines"][name]
    if not isinstance(written, dict):
        document.report(keys, f"expected a mapping with the key `stages`, got {shown(written)}")
        return None
    stages = _stages(document, name, written)
    # The rest is read without them, so that each mistake stands at its own key.
    document.data["pipelines"][name] = {k: v for k, v in written.items() if k != "stages"}
    values = read_fields(document, keys, PipelineOptions)
    document.data["pipelines"][name] = written
    if len(document.problems) > before:
        return None
    try:
        pipeline = build(name, PipelineSection(stages=stages, **values))
    except PipelineProblem as problem:
        document.report((*keys, *problem.where), problem.text)
        return None
    for stage, text in unknown_models(pipeline, models, document.data["pipelines"]):
        own = stages[stage].model is not None
        where = ("stages", stage, "model") if own else ("stages", stage)
        document.report((*keys, *where), text)
    return pipeline if len(document.problems) == before else None


def _stages(document: Document, name: str, written: dict[Any, Any]) -> dict[str, StageSection]:
    keys = ("pipelines", name, "stages")
    sections = written.get("stages")
    if not isinstance(sections, dict) or not sections:
        given = f"got {shown(sections)}" if "stages" in written else "the key is missing"
        document.report(keys, f"expected a mapping of at least one stage, {given}")
        return {}
    found = {}
    if len(sections) > STAGES_MAX:
        document.report(keys, f"{len(sections)}, where a pipeline has at most {STAGES_MAX} stages")
    for stage, section in sections.items():
        if not isinstance(stage, str) or not _NAME.fullmatch(stage):
            text = "a stage's name has 1 to 64 of A-Z a-z 0-9 _ - and begins with none of 0-9 -"
            document.report((*keys, stage), text)
        if section is None:  # `detect:` alone: the model of that name
            sections[stage] = {}
        values = read_fields(document, (*keys, stage), StageSection)
        found[stage] = msgspec.convert(values, StageSection)
    return found
