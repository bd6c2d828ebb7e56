"""What the documents show and tests/docs does not run: why not, and which test runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PLAYED: Final = {
    "docs/start/tutorial.md": ("tests/docs/test_tutorial.py",),
    "docs/develop/add-a-policy.md": (
        "tests/cli/test_tutorial_policy.py",
        "tests/cluster/test_third_party_policy.py",
    ),
    "docs/evaluate/what-if.md": ("tests/cli/test_dlsim_whatif.py",),
}
"""Pages of which every command is run by tests of their own, which read the page."""

COMPARED: Final = {"docs/evaluate/simulator.md": ("tests/cli/test_dlsim.py",)}
"""Pages of which every console, with what is printed, is held against a run by such tests."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One command that cannot be run beside the other tests.

    Attributes:
        text: As shown, from its first word on; what follows may differ.
        reason: Why.
        test: The file that runs it.
        has: What stands in that file if it does.
        without: It is run here after all where this program is installed.
    """

    text: str
    reason: str
    test: str
    has: str
    without: str = ""


_TAKES_LONG: Final = "it takes long: run on something small"
_CONTAINERS: Final = "it needs images and a Docker Engine"
_INDEX: Final = "it asks the package index"

TABLE: Final = (
    *(
        Elsewhere(
            f"dlsim compare traces/tiresias-derived/{trace}.csv --cluster {cluster} --elastic",
            "it takes minutes",
            "tests/docs/test_comparison.py",
            "elastic.md",
        )
        for trace, cluster in (("itp01", "8x8"), ("itp06", "16x8"))
    ),
    Elsewhere(
        "dlsim game traces/elasticflow/cluster10.csv --cluster 4x8",
        "it takes minutes",
        "tests/sim/test_game.py",
        'in_process(main, "game"',
    ),
    Elsewhere(
        "systemd-sysusers",
        "there is no systemd",
        "tests/unit/test_config_etc.py",
        "sysusers.d",
        without="systemd-sysusers",
    ),
    Elsewhere(
        "systemd-analyze security",
        "there is no systemd",
        "tests/unit/test_unit_file.py",
        "Overall exposure level",
        without="systemd-analyze",
    ),
    Elsewhere(
        "dlsim compare traces/tiresias-derived/itp10.csv --cluster 2x8 --policies fifo,srtf "
        "--resamples 3 --on slurm",
        "it needs a folder that all nodes share",
        "tests/cluster/test_sweep_on_slurm.py",
        '"--on", "slurm"',
    ),
    Elsewhere(
        "dlqueue sweep 4711",
        "it is about a job of dlsubmit",
        "tests/cluster/test_sweeps.py",
        '"dlqueue", "sweep"',
    ),
    Elsewhere(
        "dlctl advice nodes",
        "it needs two weeks of accounting",
        "tests/cluster/test_advice.py",
        '"advice", "nodes"',
    ),
    Elsewhere(
        "dlsubmit --hint heterog=a100:2+v100:4",
        "it needs GPUs of two types",
        "tests/cluster/test_hints.py",
        "heterog=",
    ),
    Elsewhere("make demo", _TAKES_LONG, "tests/cluster/test_demo.py", '"-m", "demo"'),
    Elsewhere("make test", "it runs this test", ".ci/run", "make test"),
    Elsewhere("make venv", "it changes what the tests run with", "Makefile", "test: system"),
    Elsewhere("make fuzz", _TAKES_LONG, "tests/unit/test_fuzz_corpus.py", "target.run"),
    Elsewhere("python -m tools.fuzz", _TAKES_LONG, "tests/unit/test_fuzz_corpus.py", "target.run"),
    Elsewhere("make bench", _TAKES_LONG, "tests/cli/test_benchmarks.py", '"bench_plan"'),
    *(
        Elsewhere(
            f".venv/bin/python tools/benchmarks/bench_{name}.py",
            _TAKES_LONG,
            "tests/cli/test_benchmarks.py",
            f'"bench_{name}"',
        )
        for name in ("plan", "place", "ledger", "policies", "poll", "when", "odds", "promises")
    ),
    Elsewhere(
        ".venv/bin/python tools/benchmarks/bench_report.py",
        "it needs Chromium",
        "tests/browser/test_bench_report.py",
        '"bench_report.py"',
    ),
    Elsewhere(
        ".venv/bin/python tools/benchmarks/fidelity.py",
        _TAKES_LONG,
        "tests/cluster/test_fidelity.py",
        '"fidelity.py"',
    ),
    Elsewhere(
        ".venv/bin/python -m tools.chaos",
        _TAKES_LONG,
        "tests/faults/test_chaos.py",
        '"tools.chaos"',
    ),
    Elsewhere("docker/up", _CONTAINERS, "tests/containers.py", 'script("up"'),
    Elsewhere("docker/in", _CONTAINERS, "tests/cli/test_docker_scripts.py", 'DOCKER / "in"'),
    Elsewhere("docker/down", _CONTAINERS, "tests/containers.py", 'script("down"'),
    Elsewhere(
        "docker run",
        _CONTAINERS,
        "tests/docker/test_contract_in_containers.py",
        "/opt/slurm_dl/bin/python",
    ),
    Elsewhere("make lintian", _TAKES_LONG, "tests/docker/test_deb.py", "lintian.OPTIONS"),
    *(
        Elsewhere(text, _INDEX, "tests/packages/test_job_wheel.py", "install = install.replace")
        for text in (
            "python3 -m venv env",
            "env/bin/pip install",
            "timeout --signal=USR1",
        )
    ),
    Elsewhere("make wheel", _INDEX, "tests/packages/test_dist.py", "tools/packaging/dist.py"),
    Elsewhere("make deb", _TAKES_LONG, "tests/docker/test_deb.py", '"deb.py"'),
    Elsewhere("apt-get install", _CONTAINERS, "tests/docker/test_deb.py", "INSTALL"),
    Elsewhere("systemctl", "no systemd runs here", "tests/docker/test_deb.py", "systemctl"),
    Elsewhere("pip install --no-deps", _INDEX, "tests/cli/test_tutorial_policy.py", "--target"),
    Elsewhere("pipx install", _INDEX, "tests/packages/test_pipx.py", '"install"'),
    Elsewhere("pipx run", _INDEX, "tests/packages/test_pipx.py", '"--spec"'),
    Elsewhere("pipx uninstall", _INDEX, "tests/packages/test_pipx.py", '"uninstall"'),
    Elsewhere("python3 -m venv /opt/slurm_dl", _INDEX, "tests/cluster/test_wheel.py", "venv"),
    Elsewhere("/opt/slurm_dl/bin/pip install", _INDEX, "tests/cluster/test_wheel.py", "pip"),
    Elsewhere(
        "python train.py --multirun",
        "it needs Hydra",
        "tests/frameworks/test_resume.py",
        '"--multirun"',
    ),
)
