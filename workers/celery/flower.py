"""Flower for a deployment: `celery -A workers.celery.flower flower`, as `headrace flower`.

This module adapts stock Flower:

- Its Broker page shows the queues of the models file, not only those that workers have reported.
  The page also gets the certificates of a `rediss://` URL, which it reads from Celery's
  configuration.
- Jobs that its API sends (`/api/task/apply/headrace.predict`) go to the queue of their model.
- A worker's reply to `Soft` and `Hard` is shown. The page reads the reply as HTML, and would show
  nothing of plain text.
- Without a password its buttons show that one is missing. Stock Flower names a variable instead,
  which would let every web page use the buttons.
- Its API sends the same challenge for the password as its pages. Otherwise the buttons of a page
  that was opened directly fail silently.
- `/api/task/abort` refuses, as it would overwrite a job's result and end nothing.
- Results are read from the deployment's Redis (`/api/task/result`), as Flower uses the current app.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from celery import Celery
from flower import urls
from flower.api import BaseApiHandler
from flower.api.control import TaskTimout
from flower.api.tasks import TaskAbort
from flower.views import BaseHandler
from tornado.escape import xhtml_escape
from tornado.web import HTTPError, authenticated
from typing_extensions import override

from headrace.config.model.catalog import Catalog
from headrace.redis import keys
from workers.celery.app import CONTROL_QUEUE, create_app
from workers.celery.config import built_on_demand, deployment

#: The text of a button's error while Flower has no password.
CLOSED: Final = (
    "Flower has no password, so it is read-only: start it with "
    "FLOWER_BASIC_AUTH=user:password (docs/flower.md)"
)


class TimeLimits(TaskTimout):  # type: ignore[misc] # Flower has no types
    """Flower's reply to `Soft` and `Hard`, in a form that its page can show."""

    @override
    def write(self, chunk: object) -> None:
        """Write text as HTML, and anything else as it is."""
        super().write(f"<p>{xhtml_escape(chunk)}</p>" if isinstance(chunk, str) else chunk)


class Abort(TaskAbort):  # type: ignore[misc] # Flower has no types
    """Flower's reply to a request to abort a job."""

    @authenticated
    async def post(self, taskid: str) -> None:
        """Refuse with an HTTPError."""
        raise HTTPError(403, f"jobs cannot be aborted: POST /api/task/revoke/{taskid} cancels one")


_REPLACED: Final[Mapping[type, type]] = {TaskTimout: TimeLimits, TaskAbort: Abort}


def route(
    queues: Mapping[str, str], name: str, args: object, kwargs: object
) -> dict[str, str] | None:
    """Return the queue of a task that is sent without a queue; a router for Celery.

    `queues` are those of the models. The first of `args` may be the model.
    """
    model: object = None
    if isinstance(kwargs, Mapping):
        model = kwargs.get("model")
    if model is None and isinstance(args, list | tuple) and args:
        model = args[0]
    if name != keys.TASK_NAME or not isinstance(model, str) or model not in queues:
        return None
    return {"queue": queues[model]}


def adapt(app: Celery, catalog: Catalog) -> None:
    """Adapt Flower in this process, as the module's docstring lists."""
    queues = {model.name: model.queue for model in catalog.served}

    def router(name: str, args: Any, kwargs: Any, *_: Any, **__: Any) -> dict[str, str] | None:
        return route(queues, name, args, kwargs)

    app.conf.task_routes = (router,)
    url = urlsplit(str(app.conf.broker_url))
    if url.scheme == "rediss":
        given = parse_qsl(url.query)
        app.conf.broker_use_ssl = {k: v for k, v in given if k.startswith("ssl_")}
    for place, handler in enumerate(urls.handlers):
        if isinstance(handler, tuple) and handler[1] in _REPLACED:
            urls.handlers[place] = (handler[0], _REPLACED[handler[1]])
    prepare, bare = BaseApiHandler.prepare, BaseApiHandler.write_error

    def closed(answer: Any) -> None:
        try:
            prepare(answer)
        except HTTPError as error:
            raise HTTPError(error.status_code, CLOSED) from None

    def challenge(answer: Any, status_code: int, **details: Any) -> None:
        if status_code == HTTPStatus.UNAUTHORIZED and answer.application.options.basic_auth:
            answer.set_header("WWW-Authenticate", 'Basic realm="flower"')
        bare(answer, status_code, **details)

    BaseApiHandler.prepare, BaseApiHandler.write_error = closed, challenge
    of_workers = BaseHandler.get_active_queue_names
    ours = {CONTROL_QUEUE, keys.BACKGROUND_TASKS, *queues.values()}
    BaseHandler.get_active_queue_names = lambda page: sorted({*of_workers(page), *ours})


@cache
def deployed() -> Celery:
    """Return the app of `deployment`, and adapt Flower to it; raises as `deployment` does."""
    settings, catalog = deployment(sources="unread")
    app = create_app(settings, catalog)
    adapt(app, catalog)
    app.set_default()
    return app


__getattr__ = built_on_demand(__name__, deployed)
