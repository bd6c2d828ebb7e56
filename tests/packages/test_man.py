"""The manual pages: one for every command, complete, and as groff prints them word for word."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import man
import pytest
from commands import CLICK, SECTIONS, described
from hypothesis import example, given, settings
from hypothesis import strategies as st

EPOCH_S = 1_700_000_000
PAGES = man.pages(EPOCH_S)
GROFF = shutil.which("groff") or ""
needs_groff = pytest.mark.skipif(not GROFF, reason="groff is not installed")


def rendered(page: str) -> str:
    """What groff prints of *page*, on lines too wide to break.

    Its warnings end the test.
    """
    done = subprocess.run(
        [GROFF, "-man", "-ww", "-Tutf8", "-Kutf8", "-P-c", "-rLL=2000n", "-rLT=2000n"],
        input=page,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    # Bold is printed as a letter over itself where -c asks for a typewriter.
    return re.sub(".\b", "", done.stdout)


def test_every_command_has_a_page_in_its_section() -> None:
    """Those of users in 1, those of administrators in 8; hidden ones have none."""
    names = {f"man{d.section}/{d.page}.{d.section}" for d in described()}

    assert set(PAGES) == names | {"man1/dlrun.1"}
    assert {f"man{at}/{name}.{at}" for name, at in SECTIONS.items()} <= set(PAGES)
    assert "man8/dlctl-profile-learn.8" in PAGES
    assert set(CLICK) | {"dlrun"} == set(SECTIONS)
    assert not any(d.command.hidden for d in described())


@needs_groff
@pytest.mark.parametrize("name", sorted(PAGES))
def test_groff_prints_the_page_without_a_warning(name: str) -> None:
    """Name, usage and sections are there, and nothing of our own marks."""
    text = rendered(PAGES[name])

    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"):
        assert f"\n{heading}\n" in text, heading
    page = name.partition("/")[2].rpartition(".")[0]
    assert f"{page} - " in text
    assert "\b" not in PAGES[name]


@needs_groff
@pytest.mark.parametrize("found", list(described()), ids=lambda d: d.page)
def test_each_option_is_told_as_help_tells_it(found: man.Described) -> None:
    """Its spellings and its sentence, word by word."""
    text = " ".join(rendered(PAGES[f"man{found.section}/{found.page}.{found.section}"]).split())

    for param in found.command.get_params(found.context):
        record = param.get_help_record(found.context)
        if not isinstance(param, click.Option) or record is None:
            continue
        spelt, told = record
        assert spelt in text
        assert " ".join(told.split()) in text


@needs_groff
@settings(max_examples=25, deadline=None)
@example([".SH", "x"])
@example(["'br", "\\fB", '"a"'])
@given(
    st.lists(
        st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    )
)
def test_any_words_are_printed_as_they_are(words: list[str]) -> None:
    """Backslashes, dots and quotes in front, hyphens and tildes: nothing is taken for a macro."""
    page = f'.TH X 1 "" "" ""\n.SH A\n{man.escaped(" ".join(words))}\n.SH B\nend\n'

    shown = rendered(page).split("\nA\n", 1)[1].split("\nB\n", 1)[0]

    assert shown.split() == words


def test_hyphens_can_be_copied() -> None:
    """Groff's plain hyphen is another character than that of an option on some terminals."""
    assert man.escaped("--gpus") == "\\-\\-gpus"


def test_equal_sources_give_equal_pages() -> None:
    """No page has the time of its making in it."""
    assert man.pages(EPOCH_S) == PAGES
    assert "2023-11-14" in PAGES["man8/dlctl.8"].replace("\\-", "-")
