"""Hooks of MkDocs: pages of commands, lists of pages, links out of docs/, redirects, search.

The page of a command is its ``--help``. Search works without a web server, too: a browser loads
neither JSON nor a worker from ``file:``, so both are also written as scripts.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT: Final = Path(__file__).parents[1]
_LINK_OUT: Final = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)

_WORKER: Final = "assets/javascripts/worker.js"
_REDIRECT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Moved</title>
<script>
const sections = {sections}
location.replace(sections[location.hash] || "{page}" + location.hash)
</script>
<meta http-equiv="refresh" content="1; url={page}"></head>
<body><p>This page has moved: <a href="{page}">{page}</a></p></body></html>
"""
"""With a script the part of the address behind ``#`` is kept."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the pages that are made here, and those of policies, frameworks and decisions."""
    docs = Path(config.docs_dir)
    commands = [{name: f"reference/{name}.md"} for name in _commands()]
    _section(config, "Use").append({"Each framework": _titled(docs, "use/frameworks")})
    _section(config, "Operate").append({"Options of each command": commands})
    _section(config, "Evaluate").append({"Each policy": _titled(docs, "evaluate/policies")})
    _section(config, "Develop").append({"Each decision": _titled(docs, "adr", but="README")})
    config.extra["polyfills"] = [_WORKER]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of each command."""
    for name, text in _commands().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to what is in the sources and not on the site become the names of files."""
    inside = {file.src_uri for file in files}

    def named(found: re.Match[str]) -> str:
        target = (Path(config.docs_dir, page.file.src_uri).parent / _path_of(found)).resolve()
        if target.is_relative_to(config.docs_dir):
            uri = target.relative_to(config.docs_dir).as_posix()
            if uri in inside:
                return found[0]
        where = target.relative_to(_ROOT).as_posix()
        return found[1] if where in found[1] else f"{found[1]} (`{where}`)"

    return _LINK_OUT.sub(named, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Write a redirect for each former address, and what search needs without a web server."""
    site = Path(config.site_dir)
    _redirect(site, config.extra["moved"])
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    (site / "search/search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.min.js")
    script = json.dumps(worker.read_text(encoding="utf-8"))
    (site / _WORKER).write_text(
        f"""if (location.protocol === "file:") {{
  const script = URL.createObjectURL(new Blob([{script}]))
  window.Worker = class extends Worker {{ constructor() {{ super(script) }} }}
}}
""",
        encoding="utf-8",
    )


def _redirect(site: Path, moved: dict[str, str]) -> None:
    """Write a page for each key of *moved*; one that ends in ``/`` means all pages below.

    Raises:
        FileNotFoundError: A new page is not there.
        PluginError: A new page has no such heading.
    """
    sections: dict[str, dict[str, str]] = defaultdict(dict)
    pages: dict[str, str] = {}
    for old, new in moved.items():
        old_page, _, anchor = old.replace(".md", ".html").partition("#")
        target = new.replace(".md", ".html")
        if anchor:
            sections[old_page][f"#{anchor}"] = target
        elif old.endswith("/"):
            pages |= {old + page.name: target + page.name for page in (site / target).iterdir()}
        else:
            pages[old_page] = target
    for old, new in pages.items():
        for target in (new, *sections[old].values()):
            page, _, anchor = target.partition("#")
            if f'id="{anchor}"' not in (site / page).read_text(encoding="utf-8") and anchor:
                message = f"mkdocs.yml: extra.moved: {target} is not there"
                raise PluginError(message)
        (site / old).parent.mkdir(exist_ok=True)
        text = _REDIRECT.format(
            page=posixpath.relpath(new, posixpath.dirname(old) or "."),
            sections=json.dumps(sections[old]),
        )
        (site / old).write_text(text, encoding="utf-8")


def _path_of(found: re.Match[str]) -> str:
    return found[0].rpartition("](")[2].rstrip(")").partition("#")[0]


def _section(config: MkDocsConfig, name: str) -> list[object]:
    assert config.nav is not None  # noqa: S101 - it is in mkdocs.yml
    return next(entry[name] for entry in config.nav if name in entry)


def _titled(docs: Path, directory: str, but: str = "") -> list[dict[str, str]]:
    """Each page of a directory by its title."""
    pages = sorted(path for path in (docs / directory).glob("*.md") if path.stem != but)
    titles = (_TITLE.search(path.read_text(encoding="utf-8")) for path in pages)
    return [
        {title[1].strip("`") if title else path.stem: f"{directory}/{path.name}"}
        for path, title in zip(pages, titles, strict=True)
    ]


def _commands() -> dict[str, str]:
    """The page of each command, subcommands in it."""
    sys.path.insert(0, str(_ROOT / "tools" / "packaging"))
    try:
        from commands import described  # noqa: PLC0415 - it lies there
    finally:
        sys.path.pop(0)
    from slurm_dl.job.options import dlrun_parser  # noqa: PLC0415

    pages: dict[str, list[str]] = {}
    for found in described():
        name = found.words[0]
        head = "#" if len(found.words) == 1 else "##"
        text = click.unstyle(found.command.get_help(found.context))
        part = [f"{head} `{' '.join(found.words)}`", "", "```text", text, "```", ""]
        pages.setdefault(name, []).extend(part)
    pages["dlrun"] = ["# `dlrun`", "", "```text", dlrun_parser().format_help(), "```", ""]
    return {name: "\n".join(lines) for name, lines in sorted(pages.items())}
