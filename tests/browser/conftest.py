"""Pages shown in a headless Chromium, and what it complains of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.shown import Show, Shown
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"

# How soon a page answers says what else the machine does.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; without one the tests are left out, and on CI that is a failure."""
    if shutil.which(CHROMIUM) is None:
        text = f"no {CHROMIUM}: as root, 'make readers' installs it"
        if os.environ.get("CI"):
            pytest.fail(f"CI must show the pages to a browser: {text}", pytrace=False)
        pytest.skip(text)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Opens an HTML text as a file; everything is closed at the end."""
    contexts = []

    def opened(html: str, *, before: str = "", **options: object) -> Shown:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(html, encoding="utf-8")
        size = {"width": 1280, "height": 900}
        context = browser.new_context(**{"viewport": size, **options})  # type: ignore[arg-type]
        contexts.append(context)
        shown = Shown(context.new_page())
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.on("console", lambda said: shown.complaints.append(f"{said.type}: {said.text}"))
        shown.page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        shown.page.on(
            "dialog", lambda dialog: (shown.complaints.append("dialog"), dialog.dismiss())
        )
        if before:
            shown.page.add_init_script(before)
        shown.page.goto(path.as_uri())
        return shown

    yield opened
    for context in contexts:
        context.close()
