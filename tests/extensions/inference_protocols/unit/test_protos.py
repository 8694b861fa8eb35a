"""The descriptors are those of the .proto files, and serve Triton's and KServe's clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from extensions.inference_protocols.grpc.messages import PROTOS
from extensions.inference_protocols.grpc.service import METHODS, SERVICE
from extensions.inference_protocols.tensorflow.service import SERVICES

ROOT = Path(__file__).parents[4]
UNLOADED = "RepositoryModelUnloadResponse"
KSERVES = {"model_name", "isLoaded", "isUnloaded"}


@pytest.mark.parametrize("extension", ["inference_protocols", "torchserve"])
def test_the_descriptors_are_of_the_files(tmp_path: Path, extension: str) -> None:
    """`make protos` gives what is there."""
    folder = f"extensions/{extension}/grpc/protos"
    (written,) = (ROOT / folder).glob("*.binpb")
    made = subprocess.run(
        ["make", "-n", "protos", f"PY={sys.executable}"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    (command,) = (line for line in made.splitlines() if folder in line and "protoc" in line)
    output = f"--descriptor_set_out={folder}/{written.name}"
    assert output in command
    command = command.replace(output, f"--descriptor_set_out={tmp_path / written.name}")
    subprocess.run(["bash", "-c", command], cwd=ROOT, check=True)
    assert (tmp_path / written.name).read_bytes() == written.read_bytes(), "run `make protos`"


def test_the_messages_are_those_of_triton() -> None:
    for name, theirs in service_pb2.DESCRIPTOR.message_types_by_name.items():
        ours = PROTOS.message(theirs.full_name).DESCRIPTOR
        added = KSERVES if name in ("RepositoryModelLoadResponse", UNLOADED) else set()
        found = {(f.name, f.number, f.type) for f in ours.fields if f.name not in added}
        assert found == {(f.name, f.number, f.type) for f in theirs.fields}, name


@pytest.mark.parametrize("service", [SERVICE, *SERVICES])
def test_every_method_is_there(service: str) -> None:
    methods = {SERVICE: METHODS, **SERVICES}[service]
    assert [one.name for one in PROTOS.service(service).methods if one.name not in methods] == []
