"""dlsim whatif, dlsim tune and dumps of accounting, as people run them, and the page about them."""

from __future__ import annotations

import json
import re
import shlex
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import Result
from in_process import in_process
from on_terminal import on_terminal

from slurm_dl.cli.dlsim.command import main
from slurm_dl.slurm.accounting.past_jobs import HEADER
from slurm_dl.slurm.accounting.query import FIELDS

Command = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
DAY_S = 86_400
T0 = 1_767_225_600
"""Midnight of 2026-01-01, UTC."""


def dump(days: int = 20, short: int = 12) -> str:
    """A site of one GPU: each day a job of six hours, and short ones behind it."""
    lines = [HEADER]
    fixed = {"User": "ann", "Account": "vision", "State": "COMPLETED"}
    fixed |= dict.fromkeys(("ReqTRES", "AllocTRES"), "cpu=1,gres/gpu=1")
    for day in range(days):
        begin_s = T0 + day * DAY_S
        jobs = [(begin_s, 21_600)]
        jobs += [(begin_s + 60 + 30 * n, 600 + 47 * ((7 * n) % short)) for n in range(short)]
        for number, (submit_s, took_s) in enumerate(jobs, start=1000 * day + 1):
            start_s = submit_s + 10
            times = {"Submit": submit_s, "Start": start_s, "End": start_s + took_s}
            values = {**fixed, **times, "JobID": number, "ElapsedRaw": took_s}
            lines.append("|".join(str(values[name]) for name in FIELDS))
    return "\n".join(lines) + "\n"


def dlsim(*args: str) -> Result:
    """Output and end of ``dlsim ARGS``, its output piped; in this process."""
    return in_process(main, *args)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with ``dump.txt`` and the repository's traces."""
    (tmp_path / "dump.txt").write_text(dump(), "utf-8")
    (tmp_path / "values.txt").write_text("8h 10\n12h 8\n24h 2\n", "utf-8")
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_dump_to_a_recommendation(site: Path, command: Command) -> None:
    """Dump, what-if, tune, and a configuration that check-config takes."""
    (site / "dump.txt").write_text(dump(26), "utf-8")
    (site / "dl.yaml").write_text(
        "manage: {partitions: [gpu]}\n"
        "policy: {order: discrete_las, parameters: {thresholds_gpu_s: [1.0e8]}}\n",
        "utf-8",
    )
    ranked = command(
        "sim", "whatif", "--from-sacct", "dump.txt", "--cluster", "1x1",
        "--policies", "fifo,srtf", "--thresholds", "2000", "--json", "whatif.json",
    )  # fmt: skip
    assert ranked.returncode == 0, ranked.stderr
    assert ranked.stderr == ""
    assert "\x1b" not in ranked.stdout
    assert re.search(r"(?m)^srtf: better: mean JCT [\d.]+% less than fifo", ranked.stdout)
    told = json.loads((site / "whatif.json").read_text("utf-8"))
    assert told["policies"][-1]["policy"] == "fifo"
    assert {row["verdict"] for row in told["policies"]} == {"first", "better"}
    assert told["block_from"][0] == "2026-01-03"

    tuned = command(
        "sim", "tune", "--from-sacct", "dump.txt", "--cluster", "1x1", "--config", "dl.yaml",
        "--candidates", "12", "--out", "policy.yaml", "--json", "-",
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    found = json.loads(tuned.stdout)
    assert found["recommended"] is True
    assert found["in_use"]["thresholds_gpu_s"] == [1e8]
    lines = (site / "policy.yaml").read_text("utf-8")
    assert lines == found["yaml"]
    (site / "new.yaml").write_text(f"manage: {{partitions: [gpu]}}\n{lines}", "utf-8")
    checked = command("ctl", "check-config", "new.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr

    again = command(
        "sim", "tune", "--from-sacct", "dump.txt", "--cluster", "1x1", "--config", "new.yaml",
        "--candidates", "3", "--out", "other.yaml",
    )  # fmt: skip
    assert again.returncode == 0
    assert "Leave it as it is" in again.stdout
    assert "was not written" in again.stderr
    assert not (site / "other.yaml").exists()


def test_a_dump_is_made_into_a_history(site: Path, command: Command) -> None:
    """By a command for a shell; what is left out is told with its line, the file is the owner's."""
    asked = command("sim", "history", "--sacct-command", "--since", "2026-01-01", "--anonymous")
    assert (asked.returncode, asked.stdout.count("\n")) == (0, 1)
    words = shlex.split(asked.stdout)
    assert words[2] == "sacct"
    (fields,) = [word for word in words if word.startswith("--format=")]
    assert not {"User", "Account", "JobName"} & set(fields.removeprefix("--format=").split(","))

    with (site / "dump.txt").open("a", encoding="utf-8") as file:
        file.write("9|ann\n")
        file.write("7_[0-4]|ann|vision|1767225600|None|1767225700|COMPLETED|0||gres/gpu=1\n")
        file.write("1|ann|vision|1767229200|1767229300|1767229400|FAILED|100||gres/gpu=1\n")
    done = command("sim", "history", "--from-sacct", "dump.txt", "--anonymous", "history.txt")

    assert done.returncode == 0, done.stderr
    assert "261 runs in history.txt, 261 of them with GPUs" in done.stdout
    assert "1 jobs ran more than once" in done.stdout
    assert "260 jobs" in done.stdout
    assert "dump.txt:262: 2 fields, expected 10; left out" in done.stderr
    assert "dump.txt:263: job '7_[0-4]' ended and has no Start; left out" in done.stderr
    assert stat.S_IMODE((site / "history.txt").stat().st_mode) == 0o600
    assert "ann" not in (site / "history.txt").read_text("utf-8")


JOB = ("--gpus", "1", "--time", "1h")
ASK, OF_JOB = "whatif --from-sacct dump.txt --cluster 1x1", " ".join(JOB)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("whatif --cluster 1x1", "give a TRACE or --from-sacct DUMP"),
        ("whatif dump.txt --from-sacct dump.txt --cluster 1x1", "give a TRACE"),
        ("whatif dump.txt --cluster 1x1 --policies fifo", "nothing to compare"),
        ("whatif dump.txt --cluster 1x1 --policies fifo,fufo", "fufo"),
        ("whatif dump.txt --cluster 1x1 --thresholds 9,3", "GPU-seconds"),
        ("whatif dump.txt --cluster 0x1", "0x1"),
        ("whatif --from-sacct dump.txt --cluster 1x1 --warm-up 20", "none is left"),
        ("whatif dump.txt --cluster 1x1 --json no/x", "there is no directory"),
        ("whatif --from-sacct bad.txt --cluster 1x1", "--sacct-command"),
        (f"{ASK} --by 5x {OF_JOB}", "no figure (mean-jct, "),
        (f"{ASK} --by 0h {OF_JOB}", "no deadline such as 5h"),
        (f"{ASK} --gpus 1", "--gpus is for one more job"),
        (f"{ASK} --plot p.png", "--plot is for one more job"),
        (f"{ASK} --by 5h", "give --gpus N and --time TIME"),
        (f"{ASK} --by 5h --gpus 1", "give --gpus N and --time TIME"),
        (f"{ASK} --by 5h --gpus 1 --time soon", "'soon' is no time"),
        (f"{ASK} --by 30m {OF_JOB}", "the job runs 60.0 min: it can't be done"),
        (f"{ASK} --by 5h {OF_JOB} --block-days 2", "--block-days is for ranking"),
        (f"{ASK} --by mean-jct --curve values.txt {OF_JOB}", "--by mean-jct ranks policies"),
        (f"{ASK} --by 5h --gpus 2 --time 1h", "--gpus 2: the cluster has 1"),
        (f"{ASK} --by 5h {OF_JOB} --plot p.jpg", "--plot p.jpg: name a file that ends"),
        (f"{ASK} --by 5h {OF_JOB} --instants 0", "'--instants'"),
        (f"{ASK} --curve none.txt {OF_JOB}", "does not exist"),
        (f"{ASK} --curve bad.txt {OF_JOB}", "bad.txt:1: 'a|b': must be TIME VALUE"),
        ("tune dump.txt --cluster 1x1 --thresholds x", "--thresholds"),
        ("tune dump.txt --cluster 1x1 --promote -1", "--promote"),
        ("tune --from-sacct dump.txt --cluster 1x1 --config las.yaml", "policy.order is las"),
        ("history --from-sacct dump.txt", "OUT"),
        ("history --from-sacct dump.txt --since 2026-01-01 x", "whole dump"),
        ("history --from-sacct bad.txt x", "bad.txt:1: no column JobID"),
        ("history --sacct-command --since 2026-01-01 x", "leave OUT away"),
    ],
)
def test_mistakes_are_named(site: Path, words: str, said: str) -> None:
    (site / "bad.txt").write_text("a|b\n1|2\n", "utf-8")
    (site / "las.yaml").write_text("manage: {partitions: [g]}\npolicy: {order: las}\n", "utf-8")
    done = dlsim(*words.split())

    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (site / "x").exists()


def test_a_bar_on_a_terminal_and_none_in_the_results(site: Path) -> None:
    """Standard error is a terminal here, standard output a file."""
    with (site / "out").open("wb") as out:
        shown = on_terminal("dlsim", *ASK.split(), "--json", "-", stdout=out)
    assert "what if" in shown
    assert json.loads((site / "out").read_text("utf-8"))["days"] == 20


def test_a_deadline_before_a_site_decides(site: Path) -> None:
    """Table, picture and figures; with other processes the same, and another seed another."""
    asked = (*ASK.split(), "--policies", "edf,fifo", *JOB, "--curve", "values.txt")
    asked = (*asked, "--instants", "6")
    done = dlsim(*asked, "--plot", "p.svg", "--json", "1.json")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert re.search(r"(?m)^edf .* 100\.0% +100\.0% +100\.0%$", done.stdout)
    assert "<svg" in (site / "p.svg").read_text("utf-8")

    told = json.loads((site / "1.json").read_text("utf-8"))
    more = [json.loads(dlsim(*asked, "--json", "-", *words).stdout) for words in
            (("-j", "2"), ("--seed", "1"))]  # fmt: skip
    for one in (told, *more):
        del one["manifest"]
    assert told == more[0]
    assert told["instants_s"] != more[1]["instants_s"]
    assert told["curve"] == [[28_800, 10], [43_200, 8], [86_400, 2]]
    hard = (*ASK.split(), "--policies", "fifo", *JOB, "--by", "5h", "--instants", "2")
    assert dlsim(*hard, "--plot", "p.png").exit_code == 0


EXAMPLES = re.findall(
    r"^```console\n\$ dlsim (.*)\n((?:.*\n)*?)```$",
    (ROOT / "docs" / "evaluate" / "what-if.md").read_text("utf-8"),
    re.MULTILINE,
)
"""Commands of the page, and what they print there."""


def alike(printed: Sequence[str], shown: Sequence[str]) -> bool:
    """The same lines, where a number with decimals may differ by one in its last digit.

    The ends of ranges do, between processors.
    """
    number = re.compile(r"-?\d+\.(\d+)")
    one, other = "\n".join(printed), "\n".join(shown)
    return number.sub("#", one) == number.sub("#", other) and all(
        len(mine[1]) == len(theirs[1])
        and abs(float(mine[0]) - float(theirs[0])) <= 1.5 * 10.0 ** -len(theirs[1])
        for mine, theirs in zip(number.finditer(one), number.finditer(other), strict=True)
    )


@pytest.mark.usefixtures("site")
def test_the_page_shows_what_is_printed() -> None:
    """One command after the other, line by line; dots stand for lines that are left away."""
    assert {typed.split()[0] for typed, _ in EXAMPLES} == {"generate", "history", "whatif", "tune"}
    for typed, shown in EXAMPLES:
        done = dlsim(*shlex.split(typed))
        printed = [line.rstrip() for line in done.stdout.strip().splitlines()]

        assert done.exit_code == 0, done.output
        for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE):
            lines = [line.rstrip() for line in part.strip().splitlines()]
            at = printed.index(lines[0])
            assert alike(printed[at : at + len(lines)], lines), (printed, lines)
            printed = printed[at + len(lines) :]
        assert not printed or "\n...\n" in shown


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("name", "more"), [
    ("whatif", ()), ("whatif", ("--by", "5h", *JOB, "--instants", "2")),
    ("tune", ("--candidates", "3")),
])  # fmt: skip
def test_the_page_names_every_key_of_the_json(name: str, more: Sequence[str]) -> None:
    text = (ROOT / "docs" / "evaluate" / "what-if.md").read_text("utf-8")
    done = dlsim(name, "--from-sacct", "dump.txt", "--cluster", "1x1", "--json", "-", *more)

    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told.pop("manifest")["command"].startswith(f"dlsim {name} ")
    missing = {key for key in _keys(told) if f"`{key}`" not in text}
    assert not missing


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_keys(one) for one in value.values()))
    if isinstance(value, list):
        return set().union(*(_keys(one) for one in value))
    return set()
