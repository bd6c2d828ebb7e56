"""Commands that run on another host, by ssh: a fake ssh says what it was given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAKE = f"""#!{sys.executable}
import json, os, subprocess, sys
json.dump(sys.argv[1:], open(os.environ["SAID"], "w"))
# As sshd does it: the words are joined, and the shell of the user takes them apart.
command = " ".join(sys.argv[sys.argv.index("--") + 2:])
sys.exit(subprocess.run(["sh", "-c", command], env={{"PATH": os.environ["THERE"]}}).returncode)
"""
THERE = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]))
sys.exit(7)
"""
WORDS = [
    *("--", "a b", "$(touch x)", "`touch x`", ";touch x", "'", '"', "\\", "-oProxyCommand=touch x"),
    *("--", "", "é\x1b[31m", "*", "~root", "a\nb", "!!", "--via", "ssh:other", "&", ">x"),
]
COMMANDS = Path(sys.executable).parent


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Directories ``here`` with the fake ssh, and ``there`` with the fake commands."""
    for name, text in (("here/ssh", FAKE), *((f"there/{n}", THERE) for n in NAMES)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
        (tmp_path / name).chmod(0o755)
    return tmp_path


NAMES = ("dlqueue", "dlsubmit", "dlctl")


def typed(
    place: Path, name: str, *words: str, argv: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    (place / "at").mkdir(exist_ok=True)
    return subprocess.run(
        argv or [str(COMMANDS / name), *words],
        env={
            "PATH": f"{place}/here:/usr/bin:/bin",
            "THERE": f"{place}/there:/usr/bin:/bin",
            "SAID": f"{place}/said",
            "LC_ALL": "C.UTF-8",
            "SLURM_DL_CLIENT": f"{place}/client.yaml",
            **environ,
        },
        cwd=place / "at",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("via", [("--via", "ssh:ctl1"), ("--via=ssh:me@ctl-1.site.org",)])
def test_the_command_there_gets_each_word_as_it_was_typed(
    name: str, via: tuple[str, ...], place: Path
) -> None:
    done = typed(place, name, *via, *WORDS)

    assert done.returncode == 7, done.stderr
    ran, words, cwd, environ = json.loads(done.stdout)
    assert (ran, words) == (name, WORDS)
    # A job runs, and looks for its files, where it is submitted.
    assert cwd == str(place / "at")
    assert environ["SLURM_DL_BY_SSH"] == "1"
    argv = json.loads((place / "said").read_text("utf-8"))
    assert argv[:2] == ["--", via[-1].rpartition("ssh:")[2]]
    assert ("--chdir=" in argv[2]) == (name == "dlsubmit")
    assert not list((place / "at").iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--via", "ssh:-oProxyCommand=x"), "no host"),
        (("--via", "ssh:a b"), "no host"),
        (("--via", "ssh:a\n"), "no host"),
        (("--via", "ssh:$(x)"), "no host"),
        (("--via", "ssh:-x@a"), "no host"),
        (("--via", "ssh:"), "no host"),
        (("--via", "ctl1"), "before all"),
        (("--version", "--via"), ""),
        (("--json", "--via", "ssh:ctl1"), "before all"),
    ],
)
@pytest.mark.parametrize("name", ["dlqueue", "dlsubmit"])
def test_a_host_that_could_be_something_else_is_refused(
    name: str, words: tuple[str, ...], says: str, place: Path
) -> None:
    done = typed(place, name, *words)

    assert done.returncode == 2
    assert says in done.stderr
    assert not (place / "said").exists()


@pytest.mark.parametrize("said", ["environment", "client.yaml"])
def test_a_site_can_say_it_for_all_commands_that_ask_the_daemon(said: str, place: Path) -> None:
    environ = {"SLURM_DL_SERVER": "ssh:ctl1"} if said == "environment" else {}
    (place / "client.yaml").write_text("" if environ else "server: ssh:ctl1\n", "utf-8")

    for name, words in (
        ("dlqueue", ["why", "47 11"]),
        ("dlctl", ["status"]),
        ("dlsubmit", ["--when", "--gpus", "8"]),
    ):
        done = typed(place, name, *words, **environ)
        assert done.returncode == 7, done.stderr
        assert json.loads(done.stdout)[:2] == [name, words]
        (place / "said").unlink()
    # On that host, which may have the same file; and where a socket is named.
    for words, more in ((["--me"], {"SLURM_DL_BY_SSH": "1"}), (["--socket=/no/such"], {})):
        done = typed(place, "dlqueue", *words, **environ, **more)
        assert "does not listen" in done.stderr
    # These ask nobody.
    assert typed(place, "dlctl", "policies", **environ).returncode == 0
    assert not (place / "said").exists()


def test_ssh_keeps_a_terminal_and_a_host_without_ssh_says_so(place: Path) -> None:
    (place / "here/ssh").unlink()
    done = typed(place, "dlqueue", "--via", "ssh:ctl1", PATH=f"{place}/here")
    assert (done.returncode, "ssh:ctl1" in done.stderr) == (2, True)

    (place / "here/ssh").write_text(FAKE, "utf-8")
    (place / "here/ssh").chmod(0o755)
    # script(1) gives it a terminal.
    line = f"{COMMANDS}/dlqueue --via ssh:ctl1 --watch"
    typed(place, "dlqueue", argv=("script", "-qec", line, f"{place}/typescript"))
    assert json.loads((place / "said").read_text("utf-8"))[0] == "-t"
