"""Every page, typed: each command that it shows, in order, on a cluster of its own.

``docs/elsewhere.py`` has what cannot be run here, and where it is run.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import shown
from click.testing import CliRunner
from docs.elsewhere import COMPARED, PLAYED, TABLE, Elsewhere
from docs.stage import SPEC, Stage, stage
from docs.typed import Shell, environment, follow
from patience import eventually

from slurm_dl.sandbox import Sandbox
from tools.fuzz.targets import TARGETS

pytestmark = [pytest.mark.full("types each command of each page"), pytest.mark.timeout(900)]


def name(page: Path) -> str:
    """*page* as a path in the checkout."""
    return page.relative_to(shown.ROOT).as_posix()


def is_policy(page: Path) -> bool:
    """Is it one that is generated, with one simulation?"""
    return page.parent.name == "policies"


def plain(command: str) -> str:
    """*command* without what it sets for itself alone."""
    return re.sub(r"^(?:\w+=\S+ +)+", "", command.strip())


def is_elsewhere(command: str) -> bool:
    """Does the table have *command*, on this host?"""
    command = plain(command)
    return any(
        _is_or_begins(entry.text, command) and not (entry.without and shutil.which(entry.without))
        for entry in TABLE
    )


def _is_or_begins(text: str, command: str) -> bool:
    """Whole words of it: ``make demo`` is not the beginning of ``make demo-docker``."""
    return bool(re.match(rf"{re.escape(text)}(?![\w-])", command))


def compared(page: Path) -> set[str]:
    """Statements of *page* of which another test compares what they print."""
    consoles = [inside for kind, inside in shown.fences(page) if kind == "console"]
    lines = {x[2:] for inside in consoles for x in inside.splitlines() if x.startswith("$ ")}
    # These the other test leaves out, too.
    lines = {line for line in lines if "--on slurm" not in line}
    return lines if name(page) in COMPARED else set()


BLOCKS: Final = {page: [[*shown.statements(b)] for b in shown.blocks(page)] for page in shown.PAGES}
POLICIES: Final = [page for page in BLOCKS if is_policy(page) and page.name != "index.md"]
TYPED: Final = [p for p in BLOCKS if BLOCKS[p] and not is_policy(p) and name(p) not in PLAYED]

_BETWEEN: Final = r"\s&&\s|;\s(?!do)"

PARTS: Final = [
    plain(part)
    for page in TYPED
    for block in BLOCKS[page]
    for statement in block
    for part in re.split(_BETWEEN, statement)
]
"""Each command of the pages that are typed, by itself."""

SAYS: Final = (
    (
        r"dlsubmit (?!.*--(data-ready|diff|dry-run|list-hints|quote|when))",
        r"Submitted batch job \d+",
    ),
    (r"dlsubmit --list-hints", r"shape_locked"),
    (r"dlsubmit .*--dry-run", r"#!/bin/"),
    (r"dlsubmit .*--sizes 1,2,4,2x4 ", r"any of 1x1, 1x2, 1x4, 2x4 [^$]*Submitted batch job"),
    (r"dlqueue -o jobid,rank,gpus,size,wantedsize", r"JOBID +RANK +GPUS +SIZE +WANTED_SIZE"),
    (r"dlsubmit --when", r"8 GPUs|GPUs"),
    (r"dlsubmit --quote", r"not promised: best effort"),
    (r"dlqueue why", r"Job|job"),
    (r"dlqueue when", r"Job \d+ "),
    (r"dlqueue( --?\w[\w-]*( [\w,-]+)?)*\s*(#.*)?$", r"RANK"),
    (r"dlctl check-config", r": ok"),
    (r"dlctl test-signal", r"It works\."),
    (r"dlctl status", r"dlschedd:"),
    (r"dlctl doctor(?! --json)", r"ok"),
    (r"dlctl shadow-report(?!.*--(json|html))", r"recorded:"),
    (r"dlsim run", r"finished jobs"),
    (r"dlsim compare", r"on \dx\d"),
    (r"dlsim replay .*--diff", r"0 |none|same|equal"),
    (r"systemd-analyze", r"Overall exposure level for dlschedd.service"),
)
"""What a command's output must have in it, by the beginning of the command."""


@pytest.fixture(scope="module")
def theatre(module_directory: Path) -> Iterator[Stage]:
    """One cluster and one daemon for all pages."""
    home = module_directory
    try:
        box = Sandbox.up(home / "c", SPEC)
        with stage(box, home) as there:
            yield there
    finally:
        # The second one a page leaves behind if it breaks off.
        for box_at in (home / "c", home / "try"):
            if (box_at / "sandbox.json").exists():
                Sandbox.open(box_at).down(remove=True)


def _without(statement: str) -> str:
    """*statement* without those of its commands that are run elsewhere; empty if none is left."""
    bare = re.sub(r"\s+#.*", "", statement) if "\n" not in statement else statement
    kept = [":" if is_elsewhere(part) else part for part in re.split(rf"({_BETWEEN})", bare)]
    return "" if all(k.strip() in {":", "&&", ";"} for k in kept) else "".join(kept)


def _watch(there: Stage, shell: Shell, statement: str) -> None:
    """The queue is shown, and Ctrl-C ends it."""
    assert shell.process.poll() is None
    env = environment({**there.place.env, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
    argv = there.here(statement).partition("#")[0].split()
    follow(argv, cwd=there.desk, env=env, until=lambda text: there.job in text)


def _shadow(there: Stage, shell: Shell, statement: str) -> None:
    """A daemon of its own looks on until it has seen the queue; it goes on meanwhile."""
    shell.type(f"{there.here(statement).partition('#')[0]} &>{there.home}/shadow.log &")
    there.shadow.until("a look", there.shadow.answers)


def _background(there: Stage, shell: Shell, statement: str) -> None:
    """The training has begun before the next line is typed."""
    shell.type(f"export SLURM_DL_RUN_DIR={there.home}/alone; {statement}")
    eventually((there.home / "alone" / "loss.jsonl").exists, 60, what="the training")


def _signalled(there: Stage, shell: Shell, statement: str) -> None:
    """It saves, and resumes at once."""
    shell.type(statement)
    eventually((there.home / "alone" / "asked.json").exists, 60, what="a checkpoint")
    shell.type("wait $!")
    assert "done: 200 steps" in (there.home / "typed.out").read_text("utf-8")


def _script(there: Stage, shell: Shell, statement: str) -> None:
    """As a batch script it trains in the directory that it names."""
    (there.desk / "job.sh").write_text(statement, "utf-8")
    job = shell.type("sbatch --parsable --test-only job.sh 2>&1; sbatch --parsable job.sh")
    assert job.split()[-1].isdigit()


SPECIAL: Final[dict[str, Callable[[Stage, Shell, str], None]]] = {
    "dlqueue --watch": _watch,
    "dlschedd --shadow": _shadow,
    "dlrun -- python3 examples/train_toy.py": _background,
    "kill -USR1 $!": _signalled,
    "#!/bin/bash": _script,
}
"""Statements that do not simply end."""

STATUS: Final = {
    "dlctl doctor": frozenset({0, 1}),
    "dlsubmit --quote": frozenset({3}),  # the policy of these pages promises nothing
}
"""Other exit statuses than 0 which are an answer."""


@pytest.mark.slurm
@pytest.mark.parametrize("page", TYPED, ids=name)
def test_the_page_can_be_typed(page: Path, theatre: Stage) -> None:
    """Each statement ends as it should and prints what its kind prints."""
    place = theatre.shadow if page.name == "shadow-report.md" else theatre.place
    with theatre.shell(place) as shell:
        try:
            for block in BLOCKS[page]:
                shell.type(f"cd {theatre.desk}")
                for statement in block:
                    if statement not in compared(page) and (typed := _without(statement)):
                        _type(theatre, shell, typed)
        finally:
            theatre.clear()


def _type(there: Stage, shell: Shell, typed: str) -> None:
    for begins, play in SPECIAL.items():
        if typed.startswith(begins):
            play(there, shell, typed)
            return
    allowed = next((s for text, s in STATUS.items() if typed.startswith(text)), frozenset({0}))
    here = there.here(typed)
    printed = shell.type(here, 300, allowed)
    if here.endswith(" --help"):
        # It was not run, but what the page gives it must be there.
        assert [x for x in re.findall(r"(?<=\s)--[a-z-]+", here) if x not in printed] == []
    for begins, wanted in SAYS:
        if re.match(begins, typed):
            assert re.search(wanted, printed), f"{typed}\n{printed}"


@pytest.mark.parametrize("page", POLICIES, ids=name)
def test_the_page_of_a_policy_can_be_typed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its one simulation, under the policy that the page is about."""
    [[statement]] = BLOCKS[page]
    words = shlex.split(statement)
    monkeypatch.chdir(shown.ROOT)

    done = CliRunner().invoke(shown.ours()[words[0]], words[1:])

    assert done.exit_code == 0, done.output
    assert words[-1] == page.stem
    assert f"\n{page.stem} on " in done.output


def test_whatever_is_shown_is_run_or_named() -> None:
    """No page is left out, and the pages of each kind are there."""
    left = [p for p in BLOCKS if BLOCKS[p] and p not in {*TYPED, *POLICIES}]

    assert {name(p) for p in left} == set(PLAYED)
    assert len(TYPED) > 25
    assert len(POLICIES) > 40


def test_fences_say_what_they_hold() -> None:
    """A block without a kind could hide commands."""
    bare = [f"{name(p)}: {x}" for p in shown.PAGES for kind, x in shown.fences(p) if not kind]

    assert bare == []


@pytest.mark.parametrize("kinds", [PLAYED, COMPARED], ids=["played", "compared"])
def test_tests_of_their_own_read_the_page(kinds: dict[str, tuple[str, ...]]) -> None:
    """One of them names it."""
    for page, tests in kinds.items():
        texts = [(shown.ROOT / test).read_text("utf-8") for test in tests]
        # Two of them find it by a constant of tests/third_party.py.
        assert all(Path(page).name in text or "TUTORIAL" in text for text in texts), page


@pytest.mark.parametrize("entry", TABLE, ids=lambda e: e.text)
def test_what_is_run_elsewhere_is(entry: Elsewhere) -> None:
    """The test is there and speaks of it, and a page shows the command."""
    assert entry.has in (shown.ROOT / entry.test).read_text("utf-8")
    assert entry.reason
    assert any(_is_or_begins(entry.text, part) for part in PARTS)


def shown_with(program: str) -> list[list[str]]:
    """The words after *program* wherever it is shown."""
    return [
        shlex.split(part.removeprefix(program), comments=True)
        for part in PARTS
        if _is_or_begins(program, part)
    ]


def test_targets_of_make_that_are_shown_are_there() -> None:
    """An entry of the table speaks for one of them, not for what is called alike."""
    makefile = (shown.ROOT / "Makefile").read_text("utf-8")
    there = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", makefile, re.MULTILINE))
    there = {name for names in there for name in names.split()}
    wanted = {word for words in shown_with("make") for word in words[:1]}

    assert len(wanted) > 3
    assert wanted - there == set()


def test_fuzzers_that_are_shown_are_there() -> None:
    """By name, with the options that the program has."""
    lines = shown_with("python -m tools.fuzz") + shown_with(".venv/bin/python -m tools.fuzz")
    names = set(TARGETS)
    asked = {word for words in lines for word in words}

    assert lines
    assert {w for w in asked if not w.startswith("-") and not w.isdigit()} <= names
    assert {w for w in asked if w.startswith("-")} <= {"--seconds", "--keep", "--table"}


@pytest.mark.parametrize("begins", [*(b for b, _ in SAYS), *SPECIAL, *STATUS])
def test_what_is_expected_is_of_something(begins: str) -> None:
    """No expectation outlives its command."""
    typed = [s for page in TYPED for block in BLOCKS[page] for s in block]

    assert any(s.startswith(begins) or re.match(begins, s) for s in typed)


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("dlctl status  # now", "dlctl status"),
        ("make demo # five minutes", ""),
        ("make venv; dlsim policies", ":; dlsim policies"),
        ("install a b && systemctl enable c", "install a b && :"),
        ("make venv && make test", ""),
        ("SLURM_DL_PROJECT=bench docker/up 26.05", ""),
        ("until dlctl status; do sleep 1; done", "until dlctl status; do sleep 1; done"),
    ],
)
def test_what_is_run_elsewhere_is_taken_out(statement: str, left: str) -> None:
    """And nothing else is."""
    assert _without(statement) == left
