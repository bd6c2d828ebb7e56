"""The section ``replicas``: services whose replicas come before batch jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, PlainSerializer, ValidationInfo, field_validator

from slurm_dl.config.value_types import (
    FrozenMapping,
    NumberUnit,
    OptionalName,
    Seconds,
    Section,
    ServiceName,
    Whole,
    absolute,
    refuse,
)
from slurm_dl.estimates.replicas import MOST_REPLICAS, ServiceLevel, attainable
from slurm_dl.text import number, shown

WEB: Final = ("http://", "https://")  # Begins of a rate that is asked for and no file


def _source(rate: str) -> str:
    if not rate.isprintable() or " " in rate:
        refuse(f"must be an absolute path or an http(s) URL (got {shown(rate)})")
    return rate if rate.startswith(WEB) else str(absolute(Path(rate)))


class ServiceEntry(Section):
    """One service: whose arrays are its replicas, its rate, and what was agreed."""

    user: OptionalName = ""  # Whose arrays of the service's name are its replicas; empty: anybody's
    account: OptionalName = ""  # Of which account; empty: any. One of the two must be given.
    rate: Annotated[str, AfterValidator(_source)]  # File or URL with the requests per second
    service_s: Seconds = Field(gt=0, le=1e9)
    service_scv: Annotated[float, NumberUnit("variance over mean squared")] = Field(
        default=1, ge=0, le=100
    )
    sla_s: Seconds = Field(gt=0, le=1e9)
    quantile: float = Field(default=0.99, gt=0, lt=1)
    setup_s: Seconds = Field(default=120, ge=0, le=1e6)
    least_replicas: Whole = Field(default=1, ge=1, le=MOST_REPLICAS)
    most_replicas: Whole = Field(ge=1, le=MOST_REPLICAS)

    @field_validator("account")
    @classmethod
    def _check_owner(cls, account: str, info: ValidationInfo) -> str:
        if not account and info.data.get("user") == "":
            refuse("user or account must be given, or anybody could make its jobs")
        return account

    @field_validator("quantile")
    @classmethod
    def _check_attainable(cls, quantile: float, info: ValidationInfo) -> float:
        told = info.data
        if not {"service_s", "service_scv", "sla_s"} <= told.keys():
            return quantile
        level = ServiceLevel(
            service_s=told["service_s"], scv=told["service_scv"], sla_s=told["sla_s"]
        )
        if (best := attainable(level)) < quantile:
            refuse(
                f"no number of replicas keeps it: service alone is in time for {best:.4g} of the "
                f"requests; give a longer sla_s or a lower quantile (got {number(quantile)})"
            )
        return quantile

    @field_validator("most_replicas")
    @classmethod
    def _check_most(cls, most: int, info: ValidationInfo) -> int:
        least = info.data.get("least_replicas", 1)
        if most < least:
            refuse(f"must be at least least_replicas, {least} (got {most})")
        return most

    def level(self) -> ServiceLevel:
        """The agreement, for the formula."""
        return ServiceLevel(
            service_s=self.service_s,
            scv=self.service_scv,
            sla_s=self.sla_s,
            quantile=self.quantile,
            setup_s=self.setup_s,
            least=self.least_replicas,
            most=self.most_replicas,
        )


class ReplicasSection(Section):
    """Services, whose replicas follow their rate and come before batch jobs."""

    services: Annotated[
        Mapping[ServiceName, ServiceEntry],
        AfterValidator(lambda given: FrozenMapping(tuple(given.items()))),
        PlainSerializer(dict, return_type=dict[str, ServiceEntry]),
    ] = Field(
        default={},
        description=(
            "Services by name, which is the job name of their arrays, each with user or account, "
            "rate (a file or an http URL), service_s, sla_s and most_replicas, and if need be "
            "service_scv, quantile, setup_s and least_replicas: see services.md. Not with "
            "preemption.mode native."
        ),
    )
