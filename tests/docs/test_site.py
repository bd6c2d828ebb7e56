"""The site that is made of docs/: it builds with warnings as errors, and needs no network."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs.site import build

from slurm_dl.policies.registry import POLICIES

pytestmark = pytest.mark.full("needs MkDocs")

ROOT = Path(__file__).parents[2]
FETCHES = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""What makes a browser ask for something by itself, and where the address stands."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    directory = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, directory)
    assert done.returncode == 0, done.stderr
    return directory


class Fetched(HTMLParser):
    """Collects what a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what *tag* fetches."""
        at = dict(attrs)
        if tag == "link" and at.get("rel") in {"canonical", "prev", "next"}:
            return
        if address := at.get(FETCHES.get(tag, "")):
            self.found.append(address)


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """A site without a way out reads it like any other: fonts, scripts and pictures are there."""
    # A web server's page for what is not there: it can be asked for at any depth.
    pages = sorted(page for page in site.rglob("*.html") if page.name != "404.html")
    assert len(pages) > 60
    for page in pages:
        reader = Fetched()
        reader.feed(page.read_text(encoding="utf-8"))
        outside = [x for x in reader.found if re.match(r"(https?:)?//", x)]
        assert outside == [], page
        for address in reader.found:
            if not address.startswith("data:"):
                assert (page.parent / address.partition("?")[0].partition("#")[0]).exists(), page


def test_each_policy_and_each_command_has_a_page(site: Path) -> None:
    """And its page is in the navigation."""
    start = (site / "index.html").read_text(encoding="utf-8")
    wanted = [f"evaluate/policies/{name}.html" for name in POLICIES]
    wanted += [
        f"reference/{n}.html"
        for n in ("dlctl", "dlqueue", "dlrun", "dlschedd", "dlsim", "dlsubmit")
    ]
    for page in wanted:
        assert (site / page).is_file(), page
        assert f'href="{page}"' in start, page


def test_every_page_can_be_found(site: Path) -> None:
    """No page of docs/ is left out of the navigation."""
    start = (site / "index.html").read_text(encoding="utf-8")
    pages = [p for p in (ROOT / "docs").rglob("*.md") if p.name != "index.md"]
    for page in pages:
        at = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        at = at.replace("README.html", "index.html")
        assert f'href="{at}"' in start, page


def test_a_dead_link_is_an_error(tmp_path: Path) -> None:
    """A page, a heading and a picture that are not there are each named."""
    for name in ("docs", "tools/packaging"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    dead = ("nowhere.md", "monitor.md#nowhere", "no.png")
    with (tmp_path / "docs" / "use" / "questions.md").open("a", encoding="utf-8") as page:
        page.write(
            "".join(f"\n![x]({link})\n" if "png" in link else f"\n[x]({link})\n" for link in dead)
        )

    done = build(tmp_path, tmp_path / "site")

    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for link in dead:
        assert any("questions.md" in line and link in line for line in said), (link, said)
