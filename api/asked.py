"""What a client asks for, before it is a job: model, input, options, and under which id."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from api.bodies import not_json
from api.options import checked, reworded
from headrace.catalog import Catalog, ModelConfig
from headrace.errors import InvalidRequest, ModelNotFound
from headrace.ids import check_id, check_key, id_of_key
from headrace.jobs import DEFAULT_OPTIONS, JobOptions, new_id
from headrace.submission import hash_request


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a submit: the body of `POST /api/v1/jobs`, or a line of a bulk request."""

    model: str
    input: msgspec.Raw
    id: str | None = None
    version: str | None = None
    options: JobOptions = DEFAULT_OPTIONS


_MEMBERS: Final = frozenset(JobRequest.__struct_fields__)
_JOB_REQUEST: Final = msgspec.json.Decoder(JobRequest)


class Identity(NamedTuple):
    """The id of a job to be.

    Attributes:
        chosen: the client gave it, or a key that it follows from, so that there can be a repeat.
    """

    job_id: str
    chosen: bool


class Asked(NamedTuple):
    """One job that is asked for, checked.

    Attributes:
        version: the version that the client insists on; None for any.
    """

    model: ModelConfig
    input_json: bytes
    options: JobOptions
    identity: Identity
    version: str | None = None

    @property
    def request_hash(self) -> str:
        """By which a repeat is known; "" where there can be none."""
        if not self.identity.chosen:
            return ""
        return hash_request(self.model.name, self.input_json, self.options, self.version)


def identity_of(given_id: str | None, key: str) -> Identity:
    """The id by what the client gave: an id, an idempotency key, or neither.

    Raises:
        InvalidId: a job cannot have it.
        InvalidRequest: both are given.
    """
    if given_id is None:
        if key:
            return Identity(id_of_key(check_key(key)), chosen=True)
        return Identity(new_id(), chosen=False)
    if key:
        raise InvalidRequest(
            "the request has both an id and an Idempotency-Key",
            hint="Give one of them: either makes a repeat harmless.",
        )
    return Identity(check_id(given_id), chosen=True)


def read_job_request(body: bytes) -> JobRequest:
    """Read the JSON of a submit.

    Raises:
        InvalidRequest: it is not JSON in UTF-8, or a member does not fit.
    """
    try:
        asked = _JOB_REQUEST.decode(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError as error:
        raise reworded(error, "member", _MEMBERS) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None
    return asked


def model_for(catalog: Catalog, request: JobRequest) -> ModelConfig:
    """The model that a request names.

    Raises:
        ModelNotFound: there is none of that name, or not in the version that is asked for.
    """
    model = catalog.get(request.model)
    if request.version is not None and request.version != model.version:
        raise ModelNotFound(
            f"model {model.name} has no version {request.version[:64]!r}",
            hint=f"Its version is {model.version}.",
        )
    return model


def asked_by(request: JobRequest, model: ModelConfig, identity: Identity) -> Asked:
    """What a request asks of its model.

    Raises:
        InvalidRequest: an option does not fit.
    """
    options = checked(request.options)
    return Asked(model, bytes(request.input), options, identity, request.version)
