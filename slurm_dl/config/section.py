"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """What all sections have in common: frozen, strict, no unknown keys, no infinite numbers."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        # pydantic's own text of an error is not read, and values may be long.
        hide_input_in_errors=True,
    )
