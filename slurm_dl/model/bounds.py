"""Bounds of fields, for `typing.Annotated`: pydantic reads them where a file or request is checked.

Pydantic asks an annotation for its schema, which is a plain dict: nothing is imported here.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

_Schema: TypeAlias = "dict[str, Any]"


class Bound:
    """Constraints by pydantic's names for them: ``ge``, ``gt``, ``le``, ``max_length``, ``strict``.

    They stand in the schema of the type itself, so it must be a number, text or a collection.
    """

    def __init__(self, **constraints: float) -> None:
        self._constraints = constraints

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> _Schema:  # noqa: ANN401 - pydantic's
        return {**handler(source), **self._constraints}


class Spelled:
    """Text that matches *pattern* from end to end; *words* say what it must be."""

    def __init__(self, pattern: str, words: str) -> None:
        self._pattern, self._words = pattern, words

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> _Schema:  # noqa: ANN401
        function = {"type": "no-info", "function": self._check}
        return {"type": "function-after", "function": function, "schema": handler(source)}

    def _check(self, text: str) -> str:
        if not re.fullmatch(self._pattern, text):
            raise ValueError(self._words)
        return text
