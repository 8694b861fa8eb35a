"""The asyncio client: runs plans on httpx2.AsyncClient."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from functools import wraps
from os import PathLike
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

import httpx2
from typing_extensions import Unpack

from headrace.client import admin, bulk, calls, registry
from headrace.client import map as mapping
from headrace.client.http import events
from headrace.client.http.retries import Session
from headrace.client.http.transport import ClientBase, EventReader
from headrace.client.models import Cancelled, Job
from headrace.client.offline import (
    RUN_ASYNC,
    OfflineOptions,
    OfflineRow,
    OfflineRun,
    Table,
    implementation,
)
from headrace.client.sansio import Plan, Stream

P = ParamSpec("P")
T = TypeVar("T")


def _awaiting(
    plan: Callable[Concatenate[Session, P], Plan[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @wraps(plan)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(plan(self.session, *args, **kwargs))

    return call


def _iterating(
    stream: Callable[Concatenate[Session, P], Stream[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    @wraps(stream)
    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(stream(self.session, *args, **kwargs))

    return call


class AsyncClient(ClientBase):
    """`Client` for asyncio: methods are awaited, and iterators are asynchronous."""

    _http_class = httpx2.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Jobs continue."""
        await self._http.aclose()

    submit = _awaiting(calls.submit)
    wait = _awaiting(calls.wait)
    result = _awaiting(calls.result)
    submit_many = _iterating(bulk.submit_many)
    map = _iterating(mapping.map_inputs)
    stream = _iterating(events.stream)
    events = _iterating(events.events)
    jobs = _iterating(calls.jobs)
    failures = _awaiting(admin.failures)
    retry_failures = _awaiting(admin.retry_failures)
    discard_failures = _awaiting(admin.discard_failures)
    retry = _awaiting(admin.retry)
    job_input = _awaiting(admin.job_input)
    models = _awaiting(calls.models)
    model = _awaiting(calls.model)
    demand = _awaiting(calls.demand)
    series = _awaiting(calls.series)
    overview = _awaiting(calls.overview)
    findings = _awaiting(calls.findings)
    queues = _awaiting(calls.queues)
    pause_queue = _awaiting(admin.pause_queue)
    resume_queue = _awaiting(admin.resume_queue)
    purge_queue = _awaiting(admin.purge_queue)
    dead_letters = _iterating(admin.dead_letters)
    dead_letter = _awaiting(admin.dead_letter)
    requeue_dead_letters = _awaiting(admin.requeue_dead_letters)
    purge_dead_letters = _awaiting(admin.purge_dead_letters)
    ready = _awaiting(calls.ready)
    runs = _awaiting(admin.runs)
    run_record = _awaiting(admin.run_record)
    cancel_run = _awaiting(admin.cancel_run)
    request_profile = _awaiting(admin.request_profile)
    profiles = _awaiting(admin.profiles)
    profile = _awaiting(admin.profile)
    profile_file = _awaiting(admin.profile_file)
    webhooks = _awaiting(admin.webhooks)
    redeliver_webhook = _awaiting(admin.redeliver_webhook)
    recent_webhooks = _awaiting(admin.recent_webhooks)
    workers = _awaiting(admin.workers)
    drain_worker = _awaiting(admin.drain_worker)
    resume_worker = _awaiting(admin.resume_worker)
    own_key = _awaiting(admin.own_key)
    api_keys = _awaiting(admin.api_keys)
    create_api_key = _awaiting(admin.create_api_key)
    revoke_api_key = _awaiting(admin.revoke_api_key)
    audit = _iterating(admin.audit)
    model_versions = _awaiting(registry.model_versions)
    register_model = _awaiting(registry.register_model)
    set_model_options = _awaiting(registry.set_model_options)
    promote_model = _awaiting(registry.promote_model)
    reload_model = _awaiting(registry.reload_model)
    remove_model = _awaiting(registry.remove_model)
    model_changes = _awaiting(registry.model_changes)
    model_events = _iterating(registry.model_events)
    model_differences = _awaiting(registry.model_differences)
    model_traffic = _awaiting(registry.model_traffic)
    route_model = _awaiting(registry.route_model)
    clear_traffic = _awaiting(registry.clear_traffic)

    @overload
    async def status(self, job: str | Job) -> Job: ...  # type: ignore[overload-overlap]
    @overload
    async def status(self, job: Iterable[str | Job]) -> list[Job | None]: ...
    async def status(self, job: str | Job | Iterable[str | Job]) -> Job | list[Job | None]:
        """Return a job's present status; for several jobs a list with None for unknown ids.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return await self._run(calls.status(self.session, job))
        return await self._run(bulk.statuses(self.session, job))

    @overload
    async def cancel(self, job: str | Job) -> Cancelled: ...  # type: ignore[overload-overlap]
    @overload
    async def cancel(self, job: Iterable[str | Job]) -> list[Cancelled]: ...
    async def cancel(self, job: str | Job | Iterable[str | Job]) -> Cancelled | list[Cancelled]:
        """Cancel a job, or several, and return the outcome.

        Raises:
            JobNotFound: no job has this id. Not raised for several jobs.
        """
        if isinstance(job, (str, Job)):
            return await self._run(calls.cancel(self.session, job))
        return await self._run(bulk.cancel_many(self.session, job))

    @overload
    def offline(
        self,
        model: str,
        source: object,
        sink: str | PathLike[str],
        **options: Unpack[OfflineOptions],
    ) -> Awaitable[OfflineRun]: ...
    @overload
    def offline(
        self, model: str, source: Table, sink: None = None, **options: Unpack[OfflineOptions]
    ) -> Awaitable[Table]: ...
    @overload
    def offline(
        self,
        model: str,
        source: str | PathLike[str] | Iterable[Any] | AsyncIterable[Any],
        sink: None = None,
        **options: Unpack[OfflineOptions],
    ) -> AsyncIterator[OfflineRow]: ...
    def offline(
        self,
        model: str,
        source: Any,
        sink: str | PathLike[str] | None = None,
        **options: Unpack[OfflineOptions],
    ) -> Any:
        """Run every input of a source through a model, as `Client.offline` does.

        A source may be an asynchronous iterable too. Threads do the work; one of them calls
        `progress`.

        Returns:
            With a sink, or for a DataFrame, what can be awaited; else an asynchronous iterator.

        Raises:
            HeadraceError, OSError: as for `Client.offline`.
        """
        return implementation(RUN_ASYNC)(self, model, source, sink, **options)

    async def _iterate(self, stream: Stream[T]) -> AsyncIterator[T]:
        opened: list[EventReader] = []
        try:
            while (items := await self._advance(stream, opened)) is not None:
                for item in items:
                    yield item
        finally:
            for reader in opened:
                await reader.close()
