"""A drawing on a page that follows the reader's light or dark scheme."""

from __future__ import annotations

from pathlib import Path

_STYLE = """
.page { fill: #ffffff; } .zone { fill: #f3f6f7; stroke: #b8c4c8; }
.slurm { fill: #dfe7f5; stroke: #4a68a5; } .ours { fill: #d8efec; stroke: #00796b; }
.plain { fill: #ffffff; stroke: #7d8a8e; }
.dot-slurm { fill: #4a68a5; } .dot-ours { fill: #00897b; }
text { font: 14px sans-serif; fill: #1d2629; text-anchor: middle; }
.left { text-anchor: start; } .right { text-anchor: end; }
.head { font-weight: bold; } .small { font-size: 12.5px; }
.zone-name { font-size: 12.5px; fill: #56656a; text-anchor: start; }
.grid { stroke: #d5dcdf; } .link { stroke: #9aa7ab; stroke-width: 3; }
.wire { stroke: #3c4a4f; fill: none; stroke-width: 1.5; marker-end: url(#end); }
marker path { fill: #3c4a4f; }
@media (prefers-color-scheme: dark) {
  .page { fill: #1e2129; } .zone { fill: #272b35; stroke: #4c5563; }
  .slurm { fill: #2c3b5c; stroke: #8aa6df; } .ours { fill: #174640; stroke: #4db6a8; }
  .plain { fill: #323744; stroke: #8d98a8; }
  .dot-slurm { fill: #8aa6df; } .dot-ours { fill: #4db6a8; }
  text { fill: #e6e9ee; } .zone-name { fill: #aab4c0; }
  .grid { stroke: #3a414e; } .link { stroke: #69747f; }
  .wire { stroke: #b9c3cf; } marker path { fill: #b9c3cf; }
}
"""


def write_svg(path: Path, width: int, height: int, label: str, *parts: str) -> None:
    """Write *parts* to *path*; *label* is the text for readers who do not see the picture."""
    body = "\n".join(parts)
    path.write_text(
        f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
  aria-label="{label}">
<style>{_STYLE}</style>
<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
  orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>
<rect class="page" width="{width}" height="{height}" rx="10"/>
{body}
</svg>
""",
        encoding="utf-8",
    )
