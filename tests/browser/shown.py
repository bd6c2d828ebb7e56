"""A page in a browser, as tests look at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page


@dataclass
class Shown:
    """A page, and all that it has asked for or complained of since it was opened.

    Attributes:
        requests: Addresses.
        complaints: Errors and warnings on the console, and exceptions.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def data(self, name: str) -> str:
        """What the chart says of itself under this name."""
        return self.page.locator("#gantt").evaluate(f"chart => chart.dataset.{name} ?? ''")

    def number(self, name: str) -> float:
        """The same as a number."""
        return float(self.data(name))

    def at(self, time_s: float, row: float) -> tuple[float, float]:
        """Where on the page the chart has this time and row."""
        left, top, width, height = map(float, self.data("plot").split())
        self.page.locator("#gantt").scroll_into_view_if_needed()
        box = self.page.locator("#gantt").bounding_box()
        from_s, to_s = self.number("fromS"), self.number("toS")
        first, last = self.number("firstRow"), self.number("lastRow")
        return (
            box["x"] + left + width * (time_s - from_s) / (to_s - from_s),
            box["y"] + top + height * (row - first) / (last - first),
        )


Show = Callable[..., Shown]
"""Opens an HTML text, with a script to run *before* its own, and options of the context."""
