"""Pieces of a self-contained HTML page: tables, inline pictures, and the frame around them. No script, no links."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from experiments.plots import svg_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Html(NamedTuple):
    """Text that is HTML already, so that it isn't escaped again."""

    text: str


_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#5c6670;--line:#d7dce1;--box:#f5f7f9;
--good:#0a6b3d;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--text:#e7eaed;--soft:#a0a9b2;--line:#343b42;--box:#1d2227;
--good:#5fd39a;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--back);color:var(--text);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.25rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1.05rem;margin:1.2rem 0 .4rem}p{margin:.4rem 0}.note{color:var(--soft)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}.yes{color:var(--good)}.no{color:var(--bad);font-weight:bold}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:0;min-width:0}figcaption{color:var(--soft);font-size:.85rem}
svg{display:block;width:100%;height:auto}svg text{fill:currentColor}
details{margin:.5rem 0;padding:.3rem .6rem;background:var(--box);border-radius:.3rem}summary{cursor:pointer}
pre{overflow-x:auto;background:var(--box);padding:.6rem;border-radius:.3rem}code{font-size:.9rem}
@media print{details{break-inside:avoid}}
""".strip()


def page(title: str, sections: Iterable[str]) -> str:
    """Return a whole document.

    Parameters
    ----------
    title
        Plain text.
    sections
        HTML.
    """
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def heading(level: int, text: str) -> str:
    """Return a heading of plain text."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, *, is_note: bool = False) -> str:
    """Return a paragraph of plain text, in a softer colour if it's a note."""
    return f"<p{' class=' + chr(34) + 'note' + chr(34) if is_note else ''}>{escape(text)}</p>"


def code(text: str) -> str:
    """Return a block of plain text as it is typed."""
    return f"<pre><code>{escape(text)}</code></pre>"


def details(summary: str, content: str, *, is_open: bool = False) -> str:
    """Return content that can be folded, below a line of plain text."""
    return f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>\n{content}\n</details>"


def cell_text(value: object) -> str:
    """Return a value as a table shows it: five digits, a dash for nothing, JSON for lists."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}" if math.isfinite(value) else "–"
    if isinstance(value, int | str):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table that scrolls sideways where it's too wide; numbers stand to the right."""
    body = list(rows)
    numeric = [
        all(_is_number(row[index]) or row[index] is None for row in body)
        and any(_is_number(row[index]) for row in body)
        for index in range(len(columns))
    ]
    marks = [' class="n"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for name, mark in zip(columns, marks, strict=True))
    lines = [
        "<tr>" + "".join(f"<td{mark}>{_cell(value)}</td>" for value, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in body
    ]
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + ("\n</tbody></table></div>")
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    return value.text if isinstance(value, Html) else escape(cell_text(value))


def verdict(holds: bool | None) -> Html:
    """Return whether a claim holds, as a cell."""
    if holds is None:
        return Html("not measured")
    return Html('<span class="yes">yes</span>' if holds else '<span class="no">NO</span>')


def pictures(figures: Sequence[str]) -> str:
    """Return pictures side by side as far as there is room."""
    return '<div class="pictures">\n' + "\n".join(figures) + "\n</div>"


def picture(figure: Figure, name: str, caption: str) -> str:
    """Return a figure as inline SVG with a caption.

    Parameters
    ----------
    figure
        Of matplotlib.
    name
        Letters, digits and hyphens, other than those of all other pictures of the page: begins the ids in it.
    caption
        Plain text, read out by screen readers too.
    """
    return f"<figure>\n{inline_svg(figure, name, caption)}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return the SVG element of a figure without prolog, links, metadata and fixed black, so that it fits any page."""
    text = svg_text(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None, "matplotlib writes a viewBox"
    text = re.sub(
        r"<svg[^>]*>", f'<svg viewBox="{box.group(1)}" role="img" aria-label="{escape(label)}">', text, count=1
    )
    text = text.replace("xlink:href", "href").replace("#000000", "currentColor")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    return text.strip()
