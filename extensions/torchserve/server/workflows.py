"""The workflows of `headrace torchserve`: the archives of the workflow store, as pipelines."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from extensions.torchserve.config.workflow import SUFFIX, read_workflow, write_archives
from headrace.errors import ConfigError
from headrace.models.archive import Limits, unpack
from headrace.models.source import SourceReader


def read_workflows(
    store: Path, folder: Path, limits: Limits, reader: SourceReader, report: Callable[[str], None]
) -> str:
    """Return the models file with the workflows of a store; without any, it has no models.

    Args:
        folder: where the archives are unpacked; what is there is removed.
        report: prints which workflow is left out, and why.
    """
    shutil.rmtree(folder, ignore_errors=True)
    document: dict[str, Any] = {"models": {}, "pipelines": {}}
    archives = {}
    for path in sorted(store.glob(f"[!.]*{SUFFIX}")):
        target = folder / path.stem
        try:
            unpack(path, target, limits)
            workflow = read_workflow(target, path.name)
            for source in filter(None, (node.source for node in workflow.nodes)):
                reader.read(source)
        except ConfigError as error:
            report(f"{path.name} in the workflow store is not loaded: {error.message}")
            continue
        if workflow.name in document["pipelines"]:
            report(f"{path.name} in the workflow store is not loaded: {workflow.name} is there")
            continue
        for key, members in workflow.document(str(target)).items():
            document[key] |= members
        archives[workflow.name] = path.name
        report(f"{path.name} in the workflow store is the pipeline {workflow.name}")
    write_archives(folder, archives)
    if not document["pipelines"]:
        del document["pipelines"]  # a models file has at least one, or no such section
    return yaml.safe_dump(document, sort_keys=False)
