"""Nodes of a job, and GPUs on each: NODESxGPUS."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_SHAPE = r"([1-9][0-9]{0,4})x([1-9][0-9]{0,3})"


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Nodes of a job, with the same number of GPUs on each."""

    nodes: int  # Nodes, at least 1
    gpus_per_node: int  # GPUs on each, at least 1

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            msg = f"a shape has at least one node and one GPU on each (got {self})"
            raise ValueError(msg)

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node

    @classmethod
    def of(cls, text: str) -> Shape:
        """The shape written ``NODESxGPUS``.

        Raises:
            ValueError: It is written otherwise.
        """
        found = re.fullmatch(_SHAPE, text)
        if found is None:
            msg = "must be NODESxGPUS, such as 2x4"
            raise ValueError(msg)
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> dict[str, object]:
        """That files have it as text; pydantic asks for it, and is not imported."""
        return {
            "type": "function-after",
            "schema": {"type": "str"},
            "function": {"type": "no-info", "function": cls.of},
            "serialization": {"type": "to-string"},
        }


def by_gpus(shapes: Collection[Shape]) -> tuple[Shape, ...]:
    """Each of *shapes* once, fewest GPUs first, of as many fewest nodes first."""
    return tuple(sorted(set(shapes), key=lambda shape: (shape.gpus, shape.nodes)))
