"""A real S3 protocol server (moto's) on loopback, and buckets on it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from headrace.payloads.s3_client import s3_client

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

#: What boto's own chain finds.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class S3Server:
    """A server that may be stopped and started again.

    All servers of a process have one memory, which is moto's and outlives them. So the buckets of
    each have names of their own, whichever tests ran before or run beside it.
    """

    url: str
    server: ThreadedMotoServer
    mark: str = field(default_factory=lambda: secrets.token_hex(4))

    @cached_property
    def client(self) -> Any:
        # To make one takes longer than most tests.
        return s3_client(self.url, 4)

    def bucket(self, name: str) -> str:
        """A new, empty bucket; its whole name, which is this server's alone."""
        whole = f"{name}-{self.mark}"
        self.client.create_bucket(Bucket=whole)
        return whole

    def keys(self, bucket: str) -> list[str]:
        """What lies in the bucket of this whole name."""
        found = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return [item["Key"] for item in found]

    def stop(self) -> None:
        self.server.stop()

    def start_again(self) -> None:
        port = int(self.url.rpartition(":")[2])
        self.server = _started(port)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server, with credentials for it in this process' environment while it runs."""
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    server = _started(0)
    _, port = server.get_host_and_port()
    running = S3Server(f"http://127.0.0.1:{port}", server)
    try:
        yield running
    finally:
        running.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@cache
def share_descriptions() -> None:
    """Let all sessions of boto in this process share what they read of S3, 0.1 s of CPU each."""
    from botocore.loaders import JSONFileLoader

    read = cache(JSONFileLoader().load_file)

    def load_file(self: JSONFileLoader, file_path: str) -> Any:
        del self
        return read(file_path)

    JSONFileLoader.load_file = load_file  # type: ignore[method-assign]


def _started(port: int) -> ThreadedMotoServer:
    # It takes half a second to import.
    from moto.server import ThreadedMotoServer

    share_descriptions()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    return server
