"""What goes with a job to sbatch: its environment, comment and template, each word quoted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.job_comment import comment
from slurm_dl.submit.job_environment import clean
from slurm_dl.submit.script_templates import Owner, TemplateDirectory, find, names, places
from slurm_dl.submit.shell_quoting import UnquotedError, UserText, quote, word

SHELL = {"PATH": "/usr/bin", "HOME": "/home/ann", "SLURM_CONF": "/etc/slurm.conf"}


def test_sbatch_variables_are_left_out_and_named() -> None:
    """SBATCH_* would override the script, so they go, and the user learns which."""
    cleaned = clean(SHELL | {"SBATCH_QOS": "x", "SLURM_CLUSTERS": "y"}, keep_sbatch=False)

    assert cleaned.environ == SHELL
    assert cleaned.ignored == ("SBATCH_QOS", "SLURM_CLUSTERS")


def test_kept_variables_never_touch_what_dlsubmit_sets() -> None:
    """Even on request, what would break the contract is left out."""
    cleaned = clean(
        SHELL | {"SBATCH_QOS": "x", "SBATCH_NO_REQUEUE": "1", "SBATCH_SIGNAL": "KILL"},
        keep_sbatch=True,
    )

    assert cleaned.environ == SHELL | {"SBATCH_QOS": "x"}
    assert cleaned.ignored == ("SBATCH_NO_REQUEUE", "SBATCH_SIGNAL")


def test_a_job_submitted_from_a_job_starts_afresh() -> None:
    """Nothing of the outer job reaches the new one; the cluster's own variables do."""
    outer = {
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "3",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURMD_NODENAME": "n1",
        "SLURM_DL_RUN_DIR": "/runs/7",
        "SLURM_DL_ATTEMPT": "1",
    }

    assert clean(SHELL | outer, keep_sbatch=False).environ == SHELL


def test_outside_a_job_the_users_slurm_variables_stay() -> None:
    """Settings of srun stay; counts of a job that is not there go all the same."""
    settings = {"SLURM_CPU_BIND": "none", "SLURM_DL_ACK_WAIT": "30"}
    stale = {"SLURM_RESTART_COUNT": "3", "SLURM_ARRAY_JOB_ID": "1"}

    assert clean(SHELL | settings | stale, keep_sbatch=False).environ == SHELL | settings


CONTRACT = Contract()


@pytest.mark.parametrize(
    ("contract", "model", "most_nodes", "expected"),
    [
        (
            CONTRACT,
            "resnet50",
            None,
            '"sig":"USR1","to":"batch","grace_s":120,"by":"daemon","model":"resnet50"',
        ),
        (
            Contract(grace_s=0.5),
            None,
            None,
            '"sig":"USR1","to":"batch","grace_s":0.5,"by":"daemon"',
        ),
        (None, "vgg16", 4, '"model":"vgg16","nodes":4'),
    ],
)
def test_the_metadata_is_compact_json(
    contract: Contract | None, model: str | None, most_nodes: int | None, expected: str
) -> None:
    """These keys, in this order, without blanks; no signal without a contract."""
    text = comment(None, contract=contract, model=model, most_nodes=most_nodes)

    assert text == f'{{"slurm_dl":{{"v":1,{expected}}}}}'
    due = comment(None, contract=contract, model=model, most_nodes=most_nodes, due_s=1_790_090_000)
    assert due == f'{{"slurm_dl":{{"v":1,{expected},"due":1790090000}}}}'


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        (
            '{"OccupiedIdleGPUsJobReaper": {"exempt": true}}',
            {"OccupiedIdleGPUsJobReaper": {"exempt": True}},
        ),
        ("please keep | this", {"comment": "please keep | this"}),
        ('[1, "a"]', {"comment": '[1, "a"]'}),
        ('{"a": NaN}', {"comment": '{"a": NaN}'}),
        ('{"a": 1e999}', {"comment": '{"a": 1e999}'}),
        ('{"a": ', {"comment": '{"a": '}),
        ("grüße", {"comment": "grüße"}),
        ("", {"comment": ""}),
    ],
)
def test_the_users_comment_stays_beside_ours(theirs: str, kept: dict[str, object]) -> None:
    """A JSON object keeps its keys; any other text is kept under ``comment``."""
    read = json.loads(comment(theirs, contract=CONTRACT, model=None))

    assert read.pop("slurm_dl")["sig"] == "USR1"
    assert read == kept


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ('{"slurm_dl": {"v": 1}}', "'slurm_dl' is written by dlsubmit"),
        ('{"slurm_dl": 1, "slurm_dl": 2}', "'slurm_dl' is written by dlsubmit"),
        ('{"slurm\\u005fdl": 1}', "'slurm_dl' is written by dlsubmit"),
        ("x" * 500, "at most 511 fit; shorten it by"),
        ("a\nb", "control character"),
        ('{"a":' * 500 + "1" + "}" * 500, "at most 511"),
        ('{"a":' + "[" * 2000 + "]" * 2000 + "}", "nested too deeply|at most 511"),
    ],
)
def test_bad_comments_get_their_line(theirs: str, message: str) -> None:
    """Our key cannot be forged, and the whole fits into Slurm's field."""
    with pytest.raises(ConfigError, match=message):
        comment(theirs, contract=CONTRACT, model=None)


@given(st.text())
def test_a_comment_is_one_short_line_of_ascii(theirs: str) -> None:
    """Whatever the user writes, the field is printable ASCII of less than 512 bytes."""
    try:
        text = comment(theirs, contract=CONTRACT, model="m")
    except ConfigError:
        return

    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 512
    assert json.loads(text)["slurm_dl"]["grace_s"] == 120


def write(directory: Path, name: str, text: str = "#!/bin/bash\n") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.sbatch.j2"
    path.write_text(text)
    return path


def test_users_then_sites_then_wheels_then_checkouts(tmp_path: Path) -> None:
    """The first place that has the file wins, and the others are named."""
    order: tuple[Owner, ...] = ("user", "site", "wheel", "checkout")
    where = [TemplateDirectory(owner=owner, directory=tmp_path / owner) for owner in order]
    files = {owner: write(tmp_path / owner, "plain", owner) for owner in order}

    for n, owner in enumerate(order):
        found = find("plain", where)
        assert (found.owner, found.path, found.text()) == (owner, str(files[owner]), owner)
        assert found.hides == tuple((o, str(files[o])) for o in order[n + 1 :])
        files[owner].unlink()
    with pytest.raises(ConfigError, match=r"no template plain\.sbatch\.j2 in .*there are: none"):
        find("plain", where)


def test_places_follow_the_environment(tmp_path: Path) -> None:
    """The user's and the site's places can be moved; the checkout's templates are found."""
    usual = places({"HOME": "/home/ann"})
    moved = places({"HOME": "/x", "XDG_CONFIG_HOME": "/cfg", "SLURM_DL_TEMPLATES": str(tmp_path)})

    assert [p.owner for p in usual] == ["user", "site", "wheel", "checkout"]
    assert str(usual[0].directory) == "/home/ann/.config/slurm_dl/templates"
    assert str(usual[1].directory) == "/etc/slurm_dl/templates"
    assert str(usual[2].directory).endswith("slurm_dl/_data/templates")
    assert str(moved[0].directory) == "/cfg/slurm_dl/templates"
    assert moved[1].directory == tmp_path
    assert {"plain", "srun", "torchrun"} <= set(names(usual))


def test_a_relative_site_directory_is_refused() -> None:
    """What a template is must not depend on the directory that the user stands in."""
    with pytest.raises(ConfigError, match="SLURM_DL_TEMPLATES"):
        places({"HOME": "/x", "SLURM_DL_TEMPLATES": "templates"})


@pytest.mark.parametrize("name", ["../plain", "/etc/passwd", "-x", "", "a/b", ".hidden"])
def test_a_name_is_not_a_path(tmp_path: Path, name: str) -> None:
    """No name leads out of the template directories."""
    with pytest.raises(ConfigError, match="--template"):
        find(name, [TemplateDirectory(owner="user", directory=tmp_path)])


def test_a_file_that_everyone_may_write_is_refused(tmp_path: Path) -> None:
    """Somebody else could put a command into everybody's jobs."""
    write(tmp_path, "plain").chmod(0o666)

    with pytest.raises(ConfigError, match="chmod o-w"):
        find("plain", [TemplateDirectory(owner="site", directory=tmp_path)]).text()


def test_a_file_that_cannot_be_read_gets_its_line(tmp_path: Path) -> None:
    """A template that is not UTF-8 is the reader's fault to mend, not a traceback."""
    write(tmp_path, "plain").write_bytes(b"\xff")

    with pytest.raises(ConfigError, match="cannot be read"):
        find("plain", [TemplateDirectory(owner="site", directory=tmp_path)]).text()


def test_a_directory_that_nobody_lets_us_see_holds_no_templates(tmp_path: Path) -> None:
    """Sites close /etc/slurm_dl to users; here the system refuses even to look."""
    closed = Path("/", "x" * 300)
    with pytest.raises(OSError, match="too long"):
        closed.is_dir()
    (tmp_path / "mine.sbatch.j2").write_text("#!/bin/sh\n")
    where = [
        TemplateDirectory(owner="site", directory=closed),
        TemplateDirectory(owner="wheel", directory=tmp_path),
    ]

    assert find("mine", where).owner == "wheel"
    assert names(where) == ["mine"]


arguments = st.one_of(
    st.binary(max_size=30).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
    st.text(alphabet="a'\"\\$`!{}%#* \n\r\t\x1b~=é\u2028", max_size=20),
)


def through_bash(line: str) -> list[str]:
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True
    )
    return [os.fsdecode(part) for part in done.stdout.split(b"\0")[:-1]]


@settings(deadline=None, max_examples=60)
@given(st.lists(arguments, min_size=1, max_size=12))
def test_bash_reads_back_what_was_quoted(texts: list[str]) -> None:
    """Any arguments at all, bytes that are not UTF-8 included, come back from bash."""
    assert through_bash(quote([UserText(text) for text in texts])) == texts


@given(arguments)
def test_a_quoted_word_is_one_printable_line(text: str) -> None:
    """No line of a script can begin inside a value, so none can begin with #SBATCH."""
    assert word(text).isprintable()


def test_an_octal_escape_does_not_swallow_the_digit_after_it() -> None:
    """A newline before a digit stays a newline before a digit."""
    assert through_bash(word("\n7\\n'")) == ["\n7\\n'"]


def test_a_nul_cannot_be_quoted() -> None:
    """There is no shell word with a NUL in it."""
    with pytest.raises(ValueError, match="NUL"):
        word("a\0b")


@pytest.mark.parametrize("leak", [str, repr, format, "{}".format, "%s".__mod__, "%r".__mod__])
def test_text_cannot_be_printed_unquoted(leak: object) -> None:
    """No way of making text of it gives the text away."""
    assert callable(leak)
    with pytest.raises(UnquotedError):
        leak(UserText("x"))
