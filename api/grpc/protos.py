"""Messages and services of protocols, from the descriptors that protoc has written.

Each set of descriptors has a pool of its own. So a process may also import the generated modules of
a client, which have other versions of the same files. No version of protoc is tied to one of
protobuf either, as it is with generated modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2


class Protos:
    """The messages and services of one file of descriptors; `pool` also has the health service."""

    def __init__(self, file: Path) -> None:
        self.pool: Any = DescriptorPool()
        for proto in FileDescriptorSet.FromString(file.read_bytes()).file:
            self.pool.Add(proto)
        self.pool.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)

    def message(self, name: str) -> Any:
        """Return the class of a message, by its full name."""
        return GetMessageClass(self.pool.FindMessageTypeByName(name))

    def service(self, name: str) -> Any:
        """Return the descriptor of a service, by its full name."""
        return self.pool.FindServiceByName(name)
