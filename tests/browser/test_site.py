"""The site read from a disk, without a web server."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.site import build
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.full("needs MkDocs and Chromium")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    directory = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, directory)
    assert done.returncode == 0, done.stderr
    return directory


def test_search_works_from_a_file(browser: Browser, site: Path) -> None:
    """A browser lets a page of ``file:`` fetch nothing and start no worker."""
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.get_by_role("textbox", name="Search").fill("circuit breakers")

    found = page.locator(".md-search-result__item h1")

    expect(found.filter(has_text="breakers").first).to_be_visible()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("admin-guide.html", "operate/first-day.html"),
        ("admin-guide.html#circuit-breakers", "operate/operate.html#circuit-breakers"),
        ("policies/fifo.html", "evaluate/policies/fifo.html"),
        ("faq.html#fairness", "use/questions.html#fairness"),
    ],
)
def test_a_former_address_leads_to_the_page_of_today(
    browser: Browser, site: Path, old: str, new: str
) -> None:
    """The part behind ``#`` is kept, or leads to the page that has the section now."""
    page = browser.new_page()
    page.goto(f"{site.as_uri()}/{old}")

    page.wait_for_url(f"{site.as_uri()}/{new}")
