"""Values from the words of options: numbers, ``KEY=VALUE`` and parameters of what has a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import yaml

from slurm_dl.config.parameters import Family
from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.slurm.overheads import table_of
from slurm_dl.text import shown

T = TypeVar("T")


def numbers(option: str, words: str, form: str, make: Callable[..., T], *, at: str = ",") -> T:
    """What *make* makes of the finite numbers in *words*.

    Args:
        form: Of *words*, for the error.
        make: Takes as many as may be there; raises `ValueError` if they will not do.
        at: Stands between them.

    Raises:
        ConfigError: They are not of that form.
    """
    try:
        found = [float(word) for word in words.split(at)]
        if all(map(math.isfinite, found)):
            return make(*found)
    except (TypeError, ValueError):
        pass
    msg = f"{option} {shown(words)}: must be {form}"
    raise ConfigError(msg)


def parse_amounts(
    option: str, words: str, form: str, *, most: float = math.inf
) -> tuple[float, ...]:
    """Numbers from 0 to *most*, each once; see `numbers`."""

    def make(*found: float) -> tuple[float, ...]:
        if not all(0 <= value <= most for value in found):
            raise ValueError
        return tuple(dict.fromkeys(found))

    return numbers(option, words, form, make)


def pairs(option: str, words: Iterable[str], form: str, read: Callable[[str], T]) -> dict[str, T]:
    """The values of ``KEY=VALUE`` words by key.

    Args:
        form: Of a word, for the error.
        read: A value; raises `ValueError` if it is none.

    Raises:
        ConfigError: A word is not of that form, or a key comes twice.
    """
    found: dict[str, T] = {}
    for word in words:
        key, equals, text = (part.strip() for part in word.partition("="))
        try:
            value = read(text)
        except ValueError:
            key = ""
        if not (key and equals) or key in found:
            msg = f"{option} {shown(word)}: must be {form}"
            raise ConfigError(msg)
        found[key] = value
    return found


def parse_value(text: str) -> object:
    """The value of a parameter as YAML reads it: 8, 0.5, true, [3250, 7200].

    Raises:
        ConfigError: It is no value.
    """
    try:
        return table_of(text)
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        msg = f"-p: {text!r} is no value, such as 8, true or [3250, 7200]"
        raise ConfigError(msg) from err


def parse_parameters(words: Iterable[str]) -> dict[str, object]:
    """Parameters from the words of ``-p``.

    Raises:
        ConfigError: One is no parameter, or comes twice.
    """
    return pairs("-p", words, "key=value with no key twice, as promote_knob=8", parse_value)


def made(family: Family[T], option: str, name: str, given: Mapping[str, object]) -> T:
    """The member *name* of *family*, with the parameters *given*.

    Raises:
        ConfigError: It cannot be used, or some of them are wrong; says all of it.
    """
    family.usable(name)
    whole, mistakes = family.complete(name, given)
    if mistakes:
        told = (f"{option} {'.'.join(map(str, m.loc)) or name}: {m.text}" for m in mistakes)
        raise ConfigError("; ".join(told))
    return family.make(name, whole)
