"""The Python client: submits jobs over HTTP, waits for them and reads their results.

    from headrace import Client

    with Client() as client:
        print(client.result(client.submit("digits", Path("three.png"))))

Start with calls.py: every call is a plan without I/O (sansio.py). transport.py has the I/O. Two
thin classes run the plans: `Client` (sync_client.py) blocks, `AsyncClient` (async_client.py)
awaits. Neither connects to Redis.
"""

from headrace.client.async_client import AsyncClient
from headrace.client.http.events import JobEvent
from headrace.client.inputs import InputRef, Options
from headrace.client.models import (
    Cancelled,
    DeadLetter,
    Job,
    Model,
    Result,
)
from headrace.client.offline import OfflineRow, OfflineRun, RunProgress
from headrace.client.registry import ModelChange
from headrace.client.sync_client import Client
from headrace.jobs.job import JobFailure as Failure
from headrace.jobs.progress import Progress
from headrace.schema.deployment import AuditEntry, Worker
from headrace.schema.operation import FailuresOfGroup as FailureGroup
from headrace.schema.operation import Queue, Requeued, Retried
from headrace.schema.runs import Run

__all__ = [
    "AsyncClient",
    "AuditEntry",
    "Cancelled",
    "Client",
    "DeadLetter",
    "Failure",
    "FailureGroup",
    "InputRef",
    "Job",
    "JobEvent",
    "Model",
    "ModelChange",
    "OfflineRow",
    "OfflineRun",
    "Options",
    "Progress",
    "Queue",
    "Requeued",
    "Result",
    "Retried",
    "Run",
    "RunProgress",
    "Worker",
]
