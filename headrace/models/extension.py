"""What an extension knows about the folders and archives of models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headrace.config.extensions import parts
from headrace.config.model.handler_reference import HandlerReference


class ModelFolder(NamedTuple):
    """A model as its folder describes it.

    Attributes:
        folder: where relative paths start.
        name: the model's name; "" if the folder does not name it.
        options: the keys that it sets, among them `handler`.
        requirements: its requirements.txt; None without one.
        kind: what describes it: `model.yaml`, the `described_by` of an extension, or the name of
            its file.
        settings: what the extension reads there besides the options.
        problems: why its handler cannot load it, one sentence each.
        warnings: what is ignored there, and why.
    """

    folder: Path
    name: str
    options: dict[str, Any]
    requirements: Path | None
    kind: str
    settings: Mapping[str, Any] = {}
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()


class PipelineArchive(Protocol):
    """An archive of another server that becomes a pipeline and its models."""

    @property
    def name(self) -> str:
        """The name of the pipeline."""

    @property
    def needed_file(self) -> str:
        """The file of the archive that stages run; "" if they need none."""

    def document(self, folder: str) -> dict[str, Any]:
        """Return a models file's content: the pipeline, and its models with files in `folder`."""

    def text(self, folder: str) -> str:
        """Return `document` as YAML."""

    def lines(self) -> list[str]:
        """Return what it consists of, for people."""


@dataclass(frozen=True, kw_only=True)
class ModelsPart:
    """What an extension knows about models.

    Attributes:
        described_by: the file of a folder, relative to it, that this extension reads; "" for none.
        read: returns the model in such a folder. The arguments are those of `examine_folder`.
        check: refuses options of a model from such a folder.
        handler_problem: returns what is wrong with a handler of this extension in a folder; None
            if nothing is.
        defaults: returns what the options of a model with a handler of this extension are where
            nothing sets them.
        pipelines: for a suffix of archives, what returns the pipeline in the folder of an unpacked
            one; the text names the archive in messages.
    """

    described_by: str = ""
    read: Callable[[Path, str, Collection[str]], ModelFolder] | None = None
    check: Callable[[Mapping[str, Any]], None] | None = None
    handler_problem: Callable[[HandlerReference, Path], str | None] | None = None
    defaults: Callable[[], Mapping[str, Any]] | None = None
    pipelines: Mapping[str, Callable[[Path, str], PipelineArchive]] = field(default_factory=dict)


@cache
def models_parts() -> dict[str, ModelsPart]:
    """Return the parts of all extensions, by the extension's name."""
    return parts("models", ModelsPart)


def descriptions() -> dict[str, ModelsPart]:
    """Return the parts that read folders, by the file that describes one."""
    return {one.described_by: one for one in models_parts().values() if one.described_by}


def pipeline_readers() -> dict[str, Callable[[Path, str], PipelineArchive]]:
    """Return what reads archives of pipelines, by their suffix."""
    return {
        suffix: read for one in models_parts().values() for suffix, read in one.pipelines.items()
    }
