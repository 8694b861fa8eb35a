"""The JSON Schema of the models file, for editors.

`python -m headrace.config.model.models_schema > configs/models.schema.json` writes it again.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any, Final

import msgspec

from headrace.config.inputs.input_schema import InputSection, OutputSection
from headrace.config.inputs.parameters import Parameter
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.config.model.catalog import ModelsFile
from headrace.config.model.optimize import Optimize
from headrace.config.model.options import ModelOptions, ProfileOption, Tensors, TensorSpec
from headrace.config.model.pipelines import PipelineSection, StageSection
from headrace.config.model.traffic import Sticky, Traffic

#: An attribute in a docstring: its name, and its description on one or more lines.
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def models_schema() -> dict[str, Any]:
    """Return the JSON Schema of the models file, for editors."""
    schema = msgspec.json.schema(ModelsFile)
    for struct in (
        ModelsFile, ModelOptions, Parameter, Tensors, TensorSpec, PipelineSection, StageSection,
        InputSection, OutputSection, DeclaredTensor, Traffic, Sticky, Optimize, ProfileOption,
    ):  # fmt: skip
        _describe(schema["$defs"][struct.__name__], struct)
    model = schema["$defs"][ModelOptions.__name__]
    model["anyOf"] = [{"required": ["handler"]}, {"required": ["source"]}]
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "Headrace models file", **schema}


def _describe(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Describe a struct and its keys by the docstrings of the struct and its bases."""
    schema["description"], *_ = inspect.cleandoc(struct.__doc__ or "").splitlines()
    text = "\n".join(inspect.cleandoc(kind.__doc__ or "") for kind in struct.__mro__)
    written = dict(_ATTRIBUTE.findall(text))
    for key in msgspec.structs.fields(struct):
        about = " ".join(written[key.name].split())
        schema["properties"][key.encode_name]["description"] = about[:1].upper() + about[1:]


def schema_text() -> str:
    """Return the text of `configs/models.schema.json`."""
    return json.dumps(models_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
