"""The report as one HTML file: nothing is fetched, nothing runs, and it prints.

All text is escaped where it is put in; `Markup` is what has been, and nothing else is joined to it.
A policy in the head forbids the browser to load or run anything, should something have got by.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final, NewType

from slurm_dl.shadow.counterfactual import Balance
from slurm_dl.shadow.report_data import Report
from slurm_dl.shadow.terminal_report import (
    balance_cells,
    doubts,
    figures,
    gained,
    model,
    sample,
    touched_cells,
    utc,
    wish_cells,
)
from slurm_dl.text import ago, safe

Markup = NewType("Markup", str)

MOST_WISHES: Final = 500
MOST_GROUPS: Final = 100
_LONGEST: Final = 1000
_HOUR_S: Final = 3600.0
_MOST_BARS: Final = 48

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #fff;
  --card: #f6f8fa; --good: #0072b2; --bad: #d55e00; --same: #c4cad1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #30363d;
  --back: #0d1117; --card: #161b22; --good: #56b4e9; --bad: #e69f00; --same: #484f58; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 72rem; color: var(--ink);
  background: var(--back); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; max-width: 60rem; } .soft { color: var(--soft); }
.cards { display: grid; gap: .75rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .7rem .9rem; }
.card b { display: block; font-size: 1.5rem; font-weight: 600; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; } td.n, th.n { text-align: right;
  white-space: nowrap; font-variant-numeric: tabular-nums; } td.t { white-space: nowrap; }
dl { display: grid; grid-template-columns: 7rem 1fr; gap: .25rem 1rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; } li { margin: .35rem 0; max-width: 60rem; }
svg { display: block; max-width: 100%; } .wish { fill: var(--soft); }
.ends { display: flex; justify-content: space-between; max-width: none; font-size: .75rem;
  color: var(--soft); }
table.even, table.few { table-layout: fixed; } table.even { min-width: 62rem; }
table.few { max-width: 46rem; min-width: 30rem; }
table.even th, table.few th { white-space: normal; vertical-align: bottom; }
table.even th:first-child { width: 20%; } table.even th:nth-child(2) { width: 8rem; }
table.few th:first-child { width: 34%; }
td svg { margin-top: .35em; min-width: 60px; }
.good { fill: var(--good); background: var(--good); } .bad { fill: var(--bad);
  background: var(--bad); } .same { fill: var(--same); background: var(--same); }
.axis { stroke: var(--line); vector-effect: non-scaling-stroke; }
.key i { display: inline-block; width: .8em; height: .8em;
  margin: 0 .35em 0 1em; border-radius: 2px; } .key i:first-child { margin-left: 0; }
@media print { body { padding: 0; max-width: none; font-size: 11px; } .wide { overflow: visible; }
  tr, .card, svg { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def page(report: Report) -> bytes:
    """The whole file."""
    parts = [
        Markup("<h1>What dlschedd would have done</h1>"),
        _p(f"{utc(report.from_s)} to {utc(report.to_s)}, watched in shadow mode: nothing was done"),
        _cards(report),
        _facts(figures(report)),
        *([_bars(report)] if report.wishes else []),
        *_simulated(report),
        *_touched(report),
        _h2("How sure this is"),
        _tag("ul", [_tag("li", [_text(doubt)]) for doubt in doubts(report)]),
        *_wishes(report),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>Shadow report</title><style>{_STYLE}</style></head><body>\n"
    )
    return (head + "\n".join(parts) + "\n</body></html>\n").encode("utf-8")


def _cards(report: Report) -> Markup:
    sim = report.simulated
    cards = [
        ("hand-overs it would have begun", f"{len(report.wishes):,}"),
        ("runs it would have stopped", f"{report.loss.runs:,}"),
        ("GPU-hours lost, at most, if all save", f"{report.loss.if_saved_gpu_h:,.1f}"),
    ]
    if sim is not None:
        cards += [
            (f"of {sim.total.jobs:,} jobs helped, in the simulator", f"{sim.total.helped:,}"),
            (f"of {sim.total.jobs:,} jobs hurt, in the simulator", f"{sim.total.hurt:,}"),
        ]
    shown = [
        _tag("div", [_tag("b", [_text(value)]), _text(name)], css="card") for name, value in cards
    ]
    return _tag("div", shown, css="cards")


def _facts(facts: Iterable[tuple[str, str]]) -> Markup:
    rows = [m for title, text in facts for m in (_tag("dt", [_text(title)]), _dd(text))]
    return _tag("dl", rows)


def _wishes(report: Report) -> list[Markup]:
    if not report.wishes:
        return []
    titles = ("when", "what", "for", "from", "GPUs", "in reality", "why", "sooner by at least")
    rows = [[*wish_cells(w, report.to_s), gained(w, report.to_s)] for w in report.wishes]
    return [
        _h2("Hand-overs it would have begun"),
        _table(titles, rows[:MOST_WISHES], numbers=(4,), times=(0, 1, 7)),
        _rest(len(rows) - MOST_WISHES),
    ]


def _bars(report: Report) -> Markup:
    """Wishes by the hour, or by as many hours as leave few enough bars."""
    span_s = max(_HOUR_S, report.to_s - report.from_s)
    step_s = _HOUR_S * max(1, -(-span_s // (_HOUR_S * _MOST_BARS)))
    bins = int(span_s // step_s) + 1
    counts = [0] * bins
    for wish in report.wishes:
        at_s = min(max(wish.begin_s - report.from_s, 0.0), span_s)
        counts[int(at_s // step_s)] += 1
    most = max(counts)
    width, height = 1100.0, 80.0
    each = width / bins
    bars = [
        f'<rect class="wish" x="{i * each + 1:.1f}" y="{height - height * n / most:.1f}" '
        f'width="{max(each - 2, 1.0):.1f}" height="{height * n / most:.1f}">'
        f"<title>{n} from {utc(report.from_s + i * step_s)}</title></rect>"
        for i, n in enumerate(counts)
        if n
    ]
    what = f"Hand-overs wished for in each {ago(step_s)}, {most} at most"
    svg = (
        f'<svg role="img" viewBox="0 0 {width} {height + 1}" width="100%" height="80" '
        'preserveAspectRatio="none" '
        f'aria-label="{what}"><line class="axis" x1="0" x2="{width}" y1="{height}" '
        f'y2="{height}"/>{"".join(bars)}</svg>'
    )
    ends = f"<span>{utc(report.from_s)}</span><span>{utc(report.to_s)}</span>"
    return Markup(f'<p class="soft">{what}</p>{svg}<p class="ends">{ends}</p>')


def _simulated(report: Report) -> list[Markup]:
    sim = report.simulated
    if sim is None:
        return []
    jobs = "A sample of the jobs" if sim.is_sample else "The same jobs"
    parts = [
        _h2(f"{jobs} in the simulator: plain Slurm, and the policy"),
        _p(
            f"{sim.preemptions:,} preemptions and {sim.lost_gpu_h:,.1f} GPU-hours lost by them. "
            "Times are means; JCT is from arrival to the end; worst is how much later the job that "
            "is hurt most would end."
        ),
        _p(model(sim)),
        *([_p(sample(sim))] if sim.is_sample else []),
        Markup(
            '<p class="key"><i class="good"></i>helped<i class="same"></i>the same'
            '<i class="bad"></i>hurt</p>'
        ),
        _balances("all jobs", [sim.total]),
    ]
    parts += [_balances(what, groups) for what, groups in sim.by.items()]
    return parts


def _balances(what: str, groups: Sequence[Balance]) -> Markup:
    titles = (
        *(what, "", "jobs", "helped", "hurt", "same"),
        *("wait, Slurm", "wait, policy", "JCT, Slurm", "JCT, policy", "worst"),
    )
    head = _tag("tr", [_th(t, number=i > 1) for i, t in enumerate(titles)])
    rows = []
    for balance in groups[:MOST_GROUPS]:
        name, *numbers = balance_cells(balance)
        cells = [_tag("td", [_text(name)]), _tag("td", [_share(balance)])]
        rows.append(_tag("tr", [*cells, *(_tag("td", [_text(n)], css="n") for n in numbers)]))
    table = _tag("table", [_tag("thead", [head]), _tag("tbody", rows)], css="even")
    return Markup(_tag("div", [table], css="wide") + _rest(len(groups) - MOST_GROUPS))


def _share(balance: Balance) -> Markup:
    """Helped, same and hurt as parts of a bar."""
    at, parts = 0.0, []
    for css, n in (("good", balance.helped), ("same", balance.same), ("bad", balance.hurt)):
        width = 100.0 * n / max(1, balance.jobs)
        parts.append(f'<rect class="{css}" x="{at:.2f}" y="0" width="{width:.2f}" height="10"/>')
        at += width
    return Markup(
        f'<svg role="img" aria-label="{balance.helped} helped, {balance.hurt} hurt" '
        f'viewBox="0 0 100 10" width="100" height="10">{"".join(parts)}</svg>'
    )


def _touched(report: Report) -> list[Markup]:
    if not report.wishes:
        return []
    parts = [
        _h2("Whom the hand-overs would have touched, as observed"),
        _p(
            "Sooner: the job went on waiting after the wish and the longest grace of its victims; "
            "stopped: runs, each once, with the GPU-hours that it costs at most if they save."
        ),
    ]
    for what, groups in report.touched.items():
        titles = (what, "sooner", "by at least", "stopped", "GPU-hours at most")
        rows = [touched_cells(t) for t in groups[:MOST_GROUPS]]
        parts += [
            _table(titles, rows, numbers=range(1, 5), css="few"),
            _rest(len(groups) - MOST_GROUPS),
        ]
    return parts


# Markup.


def _text(text: str) -> Markup:
    return Markup(html.escape(safe(text, _LONGEST), quote=True))


def _tag(name: str, inside: Iterable[Markup], *, css: str = "") -> Markup:
    opening = f'<{name} class="{css}">' if css else f"<{name}>"
    return Markup(f"{opening}{''.join(inside)}</{name}>")


def _p(text: str) -> Markup:
    return _tag("p", [_text(text)], css="soft")


def _h2(text: str) -> Markup:
    return _tag("h2", [_text(text)])


def _dd(text: str) -> Markup:
    return _tag("dd", [_text(text)])


def _th(text: str, *, number: bool) -> Markup:
    return _tag("th", [_text(text)], css="n" if number else "")


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    times: Sequence[int] = (),
    css: str = "",
) -> Markup:
    """A table; *numbers* and *times* are columns, *css* is the table's class."""
    cells = {**dict.fromkeys(times, "t"), **dict.fromkeys(numbers, "n")}
    head = _tag("tr", [_th(t, number=i in numbers) for i, t in enumerate(titles)])
    body = [
        _tag("tr", [_tag("td", [_text(cell)], css=cells.get(i, "")) for i, cell in enumerate(row)])
        for row in rows
    ]
    return _tag(
        "div", [_tag("table", [_tag("thead", [head]), _tag("tbody", body)], css=css)], css="wide"
    )


def _rest(more: int) -> Markup:
    return _p(f"and {more:,} more; --json has them") if more > 0 else Markup("")
