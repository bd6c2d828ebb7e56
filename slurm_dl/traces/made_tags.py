"""Names for the jobs of a trace that has none: jobs of one name run about as long.

A tag is what a site's recurrent jobs have in common, such as the script. How much it tells of a
run time is one number: the standard deviation of the logarithm of the run time within a tag.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.text import shown

_LARGEST_SD = 10.0


def with_tags(trace: Trace, *, log_sd: float, jobs_per_tag: int = 20, seed: int = 0) -> Trace:
    """*trace* with names that tell of run times; users and all else stay.

    Jobs of equal GPU count are sorted by the logarithm of their run time plus normal noise, and
    cut into groups of *jobs_per_tag*; each group has one name. Let s be the standard deviation of
    the logarithm over all jobs of a GPU count. Noise of ``log_sd s / sqrt(s^2 - log_sd^2)`` leaves
    *log_sd* within a group if logarithms are normal. Where s is not above *log_sd*, the names
    tell nothing.

    Args:
        log_sd: Standard deviation of the natural logarithm of the run time within a tag, 0 to 10.
        jobs_per_tag: Jobs of one name, at least 1; the last group of a GPU count has what is left.
        seed: Of the noise.
    """
    noise = np.random.default_rng([seed, 3]).normal(size=len(trace))
    logs = np.log(trace.duration_s)
    model = np.empty(len(trace), dtype=np.int32)
    tags = 0
    for gpus in np.unique(trace.gpus):
        rows = np.flatnonzero(trace.gpus == gpus)
        left = float(logs[rows].var()) - log_sd**2
        if left > 0:
            score = logs[rows] + log_sd * logs[rows].std() / math.sqrt(left) * noise[rows]
        else:
            score = noise[rows]
        model[rows[np.argsort(score)]] = tags + np.arange(len(rows)) // jobs_per_tag
        tags += math.ceil(len(rows) / jobs_per_tag)
    names = tuple(f"tag-{number}" for number in range(tags))
    return dataclasses.replace(trace, model=model, models=names)


def parse_sd(word: str) -> float | None:
    """The ``log_sd`` of `with_tags` from its text; None for ``none``.

    Raises:
        ConfigError: It is neither.
    """
    if word == "none":
        return None
    try:
        log_sd = float(word)
    except ValueError:
        log_sd = math.nan
    if not 0 <= log_sd <= _LARGEST_SD:
        msg = f"--tags {shown(word)}: must be none or 0 to {_LARGEST_SD:g}, as 0.7"
        raise ConfigError(msg)
    return log_sd


def tagged(trace: Trace, word: str) -> Trace:
    """*trace* with the tags that ``--tags`` *word* asks for; itself for ``none``.

    Raises:
        ConfigError: See `parse_sd`.
    """
    log_sd = parse_sd(word)
    return trace if log_sd is None else with_tags(trace, log_sd=log_sd)
