"""The requests that the daemon understands on its control socket.

What they mean is in docs/develop/control-protocol.md.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from slurm_dl.daemon.control.reception import RequestError
from slurm_dl.daemon.control.wire_format import QueueRequest, RefusalKind
from slurm_dl.json_types import JsonObject
from slurm_dl.model.breaker import BreakerName
from slurm_dl.text import safe

_Name = Annotated[str, Field(max_length=256)]
_MOST_S = 20.0
_Limit = Annotated[float, Field(gt=0, le=1e9)]
_Shape = Annotated[str, Field(pattern=r"\A[0-9]{1,6}(?:x[0-9]{1,4})?\z")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StatusRequest(_Request):
    """The daemon's state."""

    request: Literal["status"]


class WhyRequest(_Request):
    """Everything about one job."""

    request: Literal["why"]
    job: Annotated[str, Field(max_length=40)]


class _OfJobs(_Request):
    """A job that was submitted, or the shapes of some that were not."""

    job: Annotated[str, Field(max_length=40)] = ""
    shapes: list[_Shape] = Field(default_factory=list, max_length=8)
    partition: _Name = ""
    gpu_type: _Name = ""
    limit_s: _Limit | None = None
    name: _Name = ""
    within_s: Annotated[float, Field(gt=0, le=_MOST_S)] | None = None


class WhenRequest(_OfJobs):
    """Forecast of a job's start and end, submitted or not; see `slurm_dl.forecast`."""

    request: Literal["when"]
    jobs: list[Annotated[int, Field(ge=0, le=2**32)]] = Field(default_factory=list, max_length=200)

    @model_validator(mode="after")
    def _check_one_of(self) -> Self:
        if sum(map(bool, (self.job, self.jobs, self.shapes))) != 1:
            msg = "give a job, jobs, or shapes"
            raise ValueError(msg)
        if self.within_s is not None and not self.shapes:
            msg = "within_s goes with shapes"
            raise ValueError(msg)
        return self


class PromisesRequest(_Request):
    """Promises that jobs are done by their deadlines."""

    request: Literal["promises"]


class QuoteRequest(_OfJobs):
    """The verdict on a deadline: of jobs that nobody has submitted, or of one that somebody has."""

    request: Literal["quote"]
    due_s: Annotated[int, Field(gt=0, le=10**11)] | None = None
    account: _Name = ""
    qos: _Name = ""
    no_preempt: bool = False
    odds: bool = False
    limits_s: list[_Limit | None] = Field(default_factory=list, max_length=8)

    @model_validator(mode="after")
    def _check_one_of(self) -> Self:
        if bool(self.job) == bool(self.shapes and self.due_s):
            msg = "give a job, or shapes and due_s"
            raise ValueError(msg)
        if self.limits_s and (self.limit_s or len(self.limits_s) != len(self.shapes)):
            msg = "give limits_s for each shape, or limit_s"
            raise ValueError(msg)
        return self


class ConfigRequest(_Request):
    """The configuration in force, with origins."""

    request: Literal["config"]


class PauseRequest(_Request):
    """Stop acting."""

    request: Literal["pause"]
    reason: Annotated[str, Field(max_length=500)] = ""


class ResumeRequest(_Request):
    """Act again."""

    request: Literal["resume"]


class ReloadRequest(_Request):
    """Read the configuration again."""

    request: Literal["reload"]


class ResetBreakerRequest(_Request):
    """Let a circuit breaker go."""

    request: Literal["reset_breaker"]
    breaker: BreakerName


class SnapshotRequest(_Request):
    """The last snapshot, whole, for a bug report; or a recording of all from now on."""

    request: Literal["snapshot", "record"]


Request = (
    StatusRequest
    | QueueRequest
    | WhyRequest
    | WhenRequest
    | PromisesRequest
    | QuoteRequest
    | ConfigRequest
    | PauseRequest
    | ResumeRequest
    | ReloadRequest
    | ResetBreakerRequest
    | SnapshotRequest
)

_ADAPTER: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="request")])

FOR_ADMINS = (PauseRequest, ResumeRequest, ReloadRequest, ResetBreakerRequest, SnapshotRequest)


def parse(request: JsonObject) -> Request:
    """*request* as one of them.

    Raises:
        RequestError: It is none of them.
    """
    try:
        return _ADAPTER.validate_python(request)
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "request"
        msg = f"{safe(where, 80)}: {first['msg']}"
        raise RequestError(RefusalKind.BAD_REQUEST, safe(msg)) from None
