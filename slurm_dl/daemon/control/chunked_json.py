"""A large JSON value encoded piece by piece.

The encoder of the standard library holds the interpreter's lock until it is done, half a second at
fifty thousand jobs, and no other thread of the daemon runs meanwhile. Between two pieces one may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

MOST: Final = 2000
"""Values in one piece: less than a millisecond."""

_CHARS: Final = 32
"""So many characters of a string count as one value."""

_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def pieces(
    value: Any,  # noqa: ANN401 - any JSON
    most: int = MOST,
    dumps: Callable[[Any], str] = json.dumps,
) -> Iterator[str]:
    """The JSON of *value*; no call of *dumps* gets more values than *most*, but for one string.

    Args:
        value: Keys of objects are strings.
        most: Numbers, words, keys, lists and objects count as one each, but for the outermost;
            long strings as several. At least 1.
    """
    if not isinstance(value, dict | list) or _size(value, most) <= most:
        yield dumps(value)
        return
    is_list, comma = False, "{"
    groups = _groups(value.items(), most) if isinstance(value, dict) else _columns(value, most)
    if isinstance(value, list):
        is_list, comma = True, "["
    for group in groups:
        yield comma
        comma = ", "
        if len(group) > 1:
            yield dumps(group if is_list else dict(group))[1:-1]
        elif is_list:
            yield from pieces(group[0], most, dumps)
        else:
            key, inner = group[0]
            yield f"{dumps(key)}: "
            yield from pieces(inner, most, dumps)
    yield "]" if is_list else "}"


def _columns(items: list[Any], most: int) -> Iterator[list[Any]]:
    """`_groups` of a list; of numbers none is counted by itself."""
    for at in range(0, len(items), most):
        part = items[at : at + most]
        if set(map(type, part)) <= _NUMBERS:
            yield part
        else:
            yield from _groups(part, most)


def _groups(items: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """The *items* in their order, as many together as have *most* values, or a large one alone."""
    group, room = list[Any](), most
    for item in items:
        size = _size(item, most)
        if group and size > room:
            yield group
            group, room = [], most
        group.append(item)
        room -= size
    if group:
        yield group


def _size(value: Any, most: int) -> int:  # noqa: ANN401 - any JSON
    """Values in *value*, or some number above *most*."""
    if isinstance(value, str):
        return 1 + len(value) // _CHARS
    if not isinstance(value, dict | list | tuple):
        return 1
    inner = value.values() if isinstance(value, dict) else value
    size = 1 + len(value) * (2 if isinstance(value, dict) else 1)
    for one in inner:
        if size > most:
            break
        if type(one) not in _NUMBERS:
            size += _size(one, most) - 1
    return size
