"""Notes who changes what: each operation that manages leaves an entry in Redis.

An operation is noted after it has succeeded. The log cannot undo it: an entry that Redis does not
take is a warning in the server's log, with the same members.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from api.http.messages import Answer, Request
from api.routes.table import Operation
from api.services import Services
from headrace.access.api_key import Scope
from headrace.access.audit import NO_KEY, Note, noted
from headrace.errors import BrokerError

logger = logging.getLogger(__name__)

_READING: Final = ("GET", "HEAD")
_REFUSED: Final = 400


def with_audit(operation: Operation) -> Operation:
    """Return an operation that is noted, if it manages and is not noted elsewhere."""
    audited = operation.audited
    if audited is None:
        audited = operation.needs is Scope.MANAGE and operation.method not in _READING
    if not audited:
        return operation

    async def endpoint(services: Services, request: Request, *parameters: str) -> Answer:
        answer = await operation.endpoint(services, request, *parameters)
        # Who may not manage can only cancel its own jobs.
        noted = request.noted
        succeeded = getattr(answer, "status", _REFUSED) < _REFUSED
        if request.caller.sees_all and succeeded and noted is not None:
            by = request.caller.key_id or NO_KEY
            target = parameters[0] if parameters else request.target
            await _note(services, Note(by, operation.name, target, noted))
        return answer

    return operation._replace(endpoint=endpoint)


async def _note(services: Services, note: Note) -> None:
    members: dict[str, Any] = {"by": note.by, "action": note.action, "target": note.target}
    try:
        await services.queue.call_once(noted(note))
    except BrokerError as error:
        extra = {**members, "detail": note.detail}
        logger.warning("audit entry not written: %s", error.message, extra=extra)
