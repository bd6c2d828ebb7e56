"""Each line of the table of deadlines is typed, and gets the answer that the table says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import shown
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox

PAGE = (shown.ROOT / "docs" / "use" / "deadlines.md").read_text("utf-8")
ROWS = re.findall(r"^\| `(dlsubmit .*?)` \| ((?:not )?promised)\b.*? \|", PAGE, re.MULTILINE)

pytestmark = [pytest.mark.slurm, pytest.mark.full("asks one daemon under edf again and again")]


@pytest.fixture(scope="module")
def place(sandbox: Sandbox, module_directory: Path) -> Iterator[Schedd]:
    """A cluster of 16 free GPUs whose daemon promises."""
    with schedd_in(sandbox, module_directory) as place:
        place.configure(policy={"order": "edf", "parameters": {}})
        place.start()
        place.until("a look", place.answers)
        yield place


@pytest.mark.parametrize(("line", "answer"), ROWS)
def test_the_line_gets_its_answer(place: Schedd, line: str, answer: str) -> None:
    """In `dlqueue why` of the job, and by the exit status where nothing is submitted."""
    typed = shlex.split(line.replace("python train.py", "sleep 600"))
    submits = not {"--quote", "--or-else"} & set(typed)
    done = place.ask(*typed, check=False)
    if not submits:
        assert (done.returncode, "Submitted" in done.stdout) == (3 * (answer[0] == "n"), False)
        return
    job = re.search(r"Submitted batch job (\d+)", done.stdout)[1]
    told = f"It is {answer} to be done by "
    try:
        place.until(told, lambda: told in place.ask("dlqueue", "why", job, check=False).stdout)
        assert f" {job} " in place.ask("dlctl", "promises").stdout.replace("\n", " ")
    finally:
        place.box.run(["scancel", job])


def test_the_table_is_found() -> None:
    """Both answers are in it."""
    assert len(ROWS) == 8
    assert {answer for _, answer in ROWS} == {"promised", "not promised"}
