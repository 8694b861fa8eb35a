"""The descriptors are those of the .proto files, and serve Triton's and KServe's clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tritonclient.grpc import service_pb2

from extensions.inference_protocols.grpc.messages import PROTOS
from extensions.inference_protocols.grpc.service import METHODS, SERVICE

FOLDER = Path(__file__).parents[4] / "extensions" / "inference_protocols" / "grpc" / "protos"
UNLOADED = "RepositoryModelUnloadResponse"
KSERVES = {"model_name", "isLoaded", "isUnloaded"}


def test_the_descriptors_are_of_the_files(tmp_path: Path) -> None:
    written = tmp_path / "inference.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(FOLDER), "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={written}", "grpc_service.proto"], check=True)
    assert written.read_bytes() == (FOLDER / "inference.binpb").read_bytes(), "run `make protos`"


def test_the_messages_are_those_of_triton() -> None:
    for name, theirs in service_pb2.DESCRIPTOR.message_types_by_name.items():
        ours = PROTOS.message(theirs.full_name).DESCRIPTOR
        added = KSERVES if name in ("RepositoryModelLoadResponse", UNLOADED) else set()
        found = {(f.name, f.number, f.type) for f in ours.fields if f.name not in added}
        assert found == {(f.name, f.number, f.type) for f in theirs.fields}, name


def test_every_method_is_there() -> None:
    assert [one.name for one in PROTOS.service(SERVICE).methods if one.name not in METHODS] == []
