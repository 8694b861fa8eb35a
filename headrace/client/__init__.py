"""The client: submits jobs over HTTP, waits for them and reads their results. Knows no Redis.

    from headrace import Client

    with Client() as client:
        print(client.result(client.submit("digits", Path("three.png"))))

One core without I/O (calls.py, exchange.py and what they use) is driven by two thin shells:
`Client` (sync.py) blocks, `AsyncClient` (aio.py) awaits.
"""

from headrace.client.async_client import AsyncClient
from headrace.client.events import JobEvent
from headrace.client.inputs import InputRef
from headrace.client.models import (
    Cancelled,
    DeadLetter,
    Failure,
    Job,
    Model,
    Queue,
    Requeued,
    Result,
    Run,
)
from headrace.client.requests import Options
from headrace.client.sync_client import Client
from headrace.jobs.progress import Progress

__all__ = [
    "AsyncClient",
    "Cancelled",
    "Client",
    "DeadLetter",
    "Failure",
    "InputRef",
    "Job",
    "JobEvent",
    "Model",
    "Options",
    "Progress",
    "Queue",
    "Requeued",
    "Result",
    "Run",
]
