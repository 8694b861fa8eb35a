"""What the handler of a model adds to its description: `describe_handle` of TorchServe."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from api.http.messages import Reply, Request
from api.routes.jobs.submission import submit_and_wait
from api.services import Services
from api.submission.job_request import ValidatedRequest, identity_of
from extensions.torchserve.api.errors import INTERNAL, UNAVAILABLE, TorchServeError
from extensions.torchserve.api.management.model_descriptions import serving_of
from extensions.torchserve.api.predictions.predict import handler_headers, runs_torchserve
from extensions.torchserve.api.predictions.results import answer_with
from headrace.jobs.options import DEFAULT_OPTIONS, InputDetails

#: The headers of a request by which a handler knows that it is asked for its description.
_ASKED: Final = {"describe": "True", "explain": "False", "url_path": ""}
#: How much longer than the job may run the request waits for it.
_SLACK_S: Final = 30.0


async def metadata_of(services: Services, request: Request, name: str, version: str) -> Any:
    """Return the description that the handler of a version gives, an object; None for null.

    As in TorchServe it is {} if the handler gives something else.

    Raises:
        TorchServeError: no model process can be asked, or the handler fails.
        HeadraceError: the job cannot be submitted.
        ClientGone: the client has hung up.
    """
    reports = await services.queue.worker_states()
    if not any(one.state.ready for one in serving_of(name, version, reports.values())):
        raise TorchServeError(
            UNAVAILABLE,
            f"The model {name} has no worker for version {version} that could describe it. "
            "Scale it up, or leave customized out",
        )
    model = services.model_statuses.for_version(services.catalog.get(name), version)
    if not runs_torchserve(model):
        return None
    headers = handler_headers(services, request, _ASKED)
    job_request = ValidatedRequest(
        model, b"null", DEFAULT_OPTIONS, identity_of(None, "", owner=request.caller.key_id),
        version, None, caller=request.caller, details=InputDetails(headers=headers),
    )  # fmt: skip
    wait_s = model.timeout_s + _SLACK_S
    job, _ = await submit_and_wait(services, job_request, request.receive, wait_s)
    if not job.state.final:
        await services.queue.cancel_one(job.id)
        raise TorchServeError(
            INTERNAL, f"The handler of {name} has not described it within {wait_s:g} s"
        )
    answer = await answer_with(services, request, job)
    try:
        found = msgspec.json.decode(answer.body) if isinstance(answer, Reply) else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if found is None or isinstance(found, dict) else {}
