"""Schedules as one HTML page that needs nothing beside it."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Final

# The page itself: skeleton, style and script from `slurm_dl/report/page`, and the data as JSON.
#
# Nothing of the data is ever markup. It stands in a block that no browser executes, without a
# ``<``, and the script shows it as text only. The page's own policy (CSP) allows its one script and
# its one style by their hashes, and no request at all.
STYLE: Final = "page.css"
SCRIPTS: Final = (
    "format.js", "schedule.js", "theme.js", "gantt.js", "view.js", "charts.js", "tables.js",
    "job.js", "page.js",
)  # fmt: skip
"""In the order in which they stand in one script."""


def page(data: Mapping[str, object]) -> str:
    """A whole HTML document that shows *data*, of `page_data.page_data`."""
    style = _read(STYLE)
    script = '"use strict";\n(() => {\n' + "\n".join(map(_read, SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    filling = {"policy": policy, "style": style, "data": inert_json(data), "script": script}
    parts = _read("page.html").split("{{")
    text = parts[0]
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        text += filling[name] + rest
    return text


def inert_json(data: Mapping[str, object]) -> str:
    """*data* as JSON in ASCII, without any character that HTML or a script could mind."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _read(name: str) -> str:
    return (resources.files("slurm_dl.report") / "page" / name).read_text(encoding="utf-8")
