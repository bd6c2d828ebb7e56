"""What dlsim is told on its command line and in tables of costs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from click import ClickException

from slurm_dl.experiments.cluster_presets import find, is_slurm
from slurm_dl.experiments.option_words import parse_value
from slurm_dl.experiments.oracle import parse_foresight
from slurm_dl.experiments.placement_choice import parse_contention, parse_named
from slurm_dl.experiments.policy_words import parse_loads, parse_policies
from slurm_dl.experiments.whatif_deadline import read_curve
from slurm_dl.model.errors import ConfigError
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.service import read_rates
from slurm_dl.simulation.slurm.overheads import read_costs
from slurm_dl.traces.format_registry import read_trace
from tools.fuzz.target import Target, a_file, text

_WORDS: tuple[Callable[[str], object], ...] = (
    parse_value,
    parse_loads,
    lambda word: parse_foresight(word, 0.0, None),
    lambda word: parse_foresight(None, 0.0, word),
    parse_shape,
    parse_contention,
    lambda word: parse_named("--place", word),
    lambda word: parse_policies(word, {}),
)


def _words(data: bytes) -> None:
    for read in _WORDS:
        with contextlib.suppress(ConfigError, ClickException):
            read(text(data))


def _curve(data: bytes) -> object:
    return read_curve(a_file(data, "values.txt"))


def _rates(data: bytes) -> object:
    return read_rates(a_file(data, "rates.csv"))


def _costs(data: bytes) -> object:
    path = a_file(data, "costs.yaml")
    with contextlib.suppress(ConfigError):
        read_costs(path)
    is_slurm(str(path))
    trace = read_trace(
        a_file(b"job_id,submission_time,duration,num_gpu\n1,0,9,1\n", "t.csv"), "itp"
    )
    return find(str(path), "none", trace)


TARGETS = (
    Target(
        name="dlsim-words",
        parse=_words,
        source="sizes, loads, policies, schemes and values on dlsim's command line",
        parser="cli.dlsim.command, simulation.cluster_shape.parse_shape",
        seeds=(
            b"4x8",
            b"2x4:a100+4x8:v100",
            b"0.5,1,2",
            b"v100=4,k80=1",
            b"0.3:1.5",
            b"fifo,discrete_las:ideal",
            b"consolidate:skew_threshold=0.5",
            b"[3250, 7200]",
            b"{a: !!set {b}, c: 2020-01-02}",
        ),
    ),
    Target(
        name="value-curve",
        parse=_curve,
        own=(ConfigError,),
        source="values of a job by its end, for dlsim whatif",
        parser="experiments.whatif_deadline.read_curve",
        seeds=(b"8h 10\n12h 8\n24h 2\n", b"# time value\n\n90m 1e9 # full\n", b"8h nan\n0d -1\n"),
    ),
    Target(
        name="rates",
        parse=_rates,
        own=(ConfigError,),
        source="rates of a service, for dlsim service and the daemon",
        parser="simulation.service.read_rates, estimates.replicas.rates_in",
        seeds=(b"epoch_s,requests_per_s\n0,1\n60,2.5\n", b"0,nan\n1,-1\n\n", b"1e300,1\n0,0,0\n"),
    ),
    Target(
        name="costs",
        parse=_costs,
        own=(ConfigError,),
        source="tables of costs for the simulator",
        parser="experiments.cluster_presets.find, simulation.slurm.overheads.read_costs",
        seeds=(
            b"preset: production\nsave_s: 30\n",
            b'{"seconds": [1, 2, 3], "origin": "x"}',
            b"restart_s: 5\nlarge_restart_s: 9\nlarge_gpus: 8\n",
        ),
    ),
)
