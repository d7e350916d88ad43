"""Draws the formulas of a page while the site is built, so that browsers need neither a script nor a font for them."""

import re
from html import escape, unescape
from typing import Any

from latex2mathml.converter import convert
from ziamath.zmath import Latex

# What pymdownx.arithmatex leaves: \(inline\) in a span and \[display\] in a div.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_SIZE = 17  # pixels of an em, a little more than the text has


def on_page_content(html: str, **_: Any) -> str:
    """Replace every formula; one that cannot be read stops the build."""
    return _FORMULA.sub(_drawn, html)


def _drawn(match: re.Match[str]) -> str:
    tag, latex = match[1], " ".join(unescape(match[2]).split())
    if "\\" in convert(latex):
        raise ValueError(f"a command of this formula is not known: {latex}")
    formula = Latex(latex, size=_SIZE, color="currentColor", inline=tag == "span")
    style = f' style="vertical-align: {formula.getyofst():.1f}px"' if tag == "span" else ""
    return f'<{tag} class="formula" role="img" aria-label="{escape(latex)}"{style}>{formula.svg()}</{tag}>'
