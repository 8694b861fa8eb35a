"""The blocking client: runs plans on httpx2.Client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from os import PathLike
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

import httpx2
from typing_extensions import Unpack

from headrace.client import admin, bulk, calls, registry
from headrace.client import map as mapping
from headrace.client.http import events
from headrace.client.http.retries import Session
from headrace.client.http.transport import ClientBase, EventReader, finished
from headrace.client.models import Cancelled, Job
from headrace.client.offline import (
    RUN,
    OfflineOptions,
    OfflineRow,
    OfflineRun,
    Table,
    implementation,
)
from headrace.client.sansio import ConnectionFailed, HttpRequest, HttpResponse, Plan, Stream

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    plan: Callable[Concatenate[Session, P], Plan[T]],
) -> Callable[Concatenate[Client, P], T]:
    @wraps(plan)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_plan(self, plan(self.session, *args, **kwargs))

    return call


def _iterating(
    stream: Callable[Concatenate[Session, P], Stream[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @wraps(stream)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._iterate(stream(self.session, *args, **kwargs))

    return call


class Client(ClientBase):
    """Submits jobs, waits for them and reads their results. Threads may share a client."""

    _http_class = httpx2.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Jobs continue."""
        self._http.close()

    submit = _blocking(calls.submit)
    wait = _blocking(calls.wait)
    result = _blocking(calls.result)
    submit_many = _iterating(bulk.submit_many)
    map = _iterating(mapping.map_inputs)
    stream = _iterating(events.stream)
    events = _iterating(events.events)
    jobs = _iterating(calls.jobs)
    failures = _blocking(admin.failures)
    retry_failures = _blocking(admin.retry_failures)
    discard_failures = _blocking(admin.discard_failures)
    retry = _blocking(admin.retry)
    job_input = _blocking(admin.job_input)
    models = _blocking(calls.models)
    model = _blocking(calls.model)
    demand = _blocking(calls.demand)
    series = _blocking(calls.series)
    overview = _blocking(calls.overview)
    findings = _blocking(calls.findings)
    queues = _blocking(calls.queues)
    pause_queue = _blocking(admin.pause_queue)
    resume_queue = _blocking(admin.resume_queue)
    purge_queue = _blocking(admin.purge_queue)
    dead_letters = _iterating(admin.dead_letters)
    dead_letter = _blocking(admin.dead_letter)
    requeue_dead_letters = _blocking(admin.requeue_dead_letters)
    purge_dead_letters = _blocking(admin.purge_dead_letters)
    ready = _blocking(calls.ready)
    runs = _blocking(admin.runs)
    run_record = _blocking(admin.run_record)
    cancel_run = _blocking(admin.cancel_run)
    request_profile = _blocking(admin.request_profile)
    profiles = _blocking(admin.profiles)
    profile = _blocking(admin.profile)
    profile_file = _blocking(admin.profile_file)
    webhooks = _blocking(admin.webhooks)
    redeliver_webhook = _blocking(admin.redeliver_webhook)
    recent_webhooks = _blocking(admin.recent_webhooks)
    workers = _blocking(admin.workers)
    drain_worker = _blocking(admin.drain_worker)
    resume_worker = _blocking(admin.resume_worker)
    own_key = _blocking(admin.own_key)
    api_keys = _blocking(admin.api_keys)
    create_api_key = _blocking(admin.create_api_key)
    revoke_api_key = _blocking(admin.revoke_api_key)
    audit = _iterating(admin.audit)
    model_versions = _blocking(registry.model_versions)
    register_model = _blocking(registry.register_model)
    set_model_options = _blocking(registry.set_model_options)
    promote_model = _blocking(registry.promote_model)
    reload_model = _blocking(registry.reload_model)
    remove_model = _blocking(registry.remove_model)
    model_changes = _blocking(registry.model_changes)
    model_events = _iterating(registry.model_events)
    model_differences = _blocking(registry.model_differences)
    model_traffic = _blocking(registry.model_traffic)
    route_model = _blocking(registry.route_model)
    clear_traffic = _blocking(registry.clear_traffic)

    @overload
    def status(self, job: str | Job) -> Job: ...  # type: ignore[overload-overlap]
    @overload
    def status(self, job: Iterable[str | Job]) -> list[Job | None]: ...
    def status(self, job: str | Job | Iterable[str | Job]) -> Job | list[Job | None]:
        """Return a job's present status; for several jobs a list with None for unknown ids.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return run_plan(self, calls.status(self.session, job))
        return run_plan(self, bulk.statuses(self.session, job))

    @overload
    def cancel(self, job: str | Job) -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    def cancel(self, job: Iterable[str | Job]) -> list[Cancelled]: ...
    def cancel(self, job: str | Job | Iterable[str | Job]) -> Cancelled | list[Cancelled]:
        """Cancel a job, or several, and return the outcome.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return run_plan(self, calls.cancel(self.session, job))
        return run_plan(self, bulk.cancel_many(self.session, job))

    @overload
    def offline(
        self,
        model: str,
        source: object,
        sink: str | PathLike[str],
        **options: Unpack[OfflineOptions],
    ) -> OfflineRun: ...
    @overload
    def offline(
        self, model: str, source: Table, sink: None = None, **options: Unpack[OfflineOptions]
    ) -> Table: ...
    @overload
    def offline(
        self,
        model: str,
        source: str | PathLike[str] | Iterable[Any],
        sink: None = None,
        **options: Unpack[OfflineOptions],
    ) -> Iterator[OfflineRow]: ...
    def offline(
        self,
        model: str,
        source: Any,
        sink: str | PathLike[str] | None = None,
        **options: Unpack[OfflineOptions],
    ) -> Any:
        """Run every input of a source through a model; docs/offline.md describes the arguments.

        Args:
            source: a folder, file, pattern or URL of S3; a DataFrame; or an iterable of inputs, in
                which a file is a `pathlib.Path`.
            sink: a file or a URL of S3, whose name sets the format. The same call resumes.

        Returns:
            With a sink the ended run. Without one a DataFrame of the kind of the source, with the
            columns of rows added; of any other source the rows, as inputs end.

        Raises:
            HeadraceError: the model does not exist, source or sink cannot be used, the sink belongs
                to another run, or the server was away for longer than the client's `retry_s`.
            OSError: the sink cannot be written.
        """
        return implementation(RUN)(self, model, source, sink, **options)

    def _iterate(self, stream: Stream[T]) -> Iterator[T]:
        opened: list[EventReader] = []
        try:
            while (items := finished(self._advance(stream, opened))) is not None:
                yield from items
        finally:
            for reader in opened:
                finished(reader.close())


def run_plan(client: Client, plan: Plan[T]) -> T:
    """Run a plan to its end and return its result."""
    return finished(client._run(plan))


def send_once(client: Client, request: HttpRequest) -> HttpResponse | ConnectionFailed:
    """Send one request without retries, for callers that run a plan's actions themselves."""
    return finished(client._send(request))
