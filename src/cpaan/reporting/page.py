"""The report: one page that holds everything and fetches nothing."""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from cpaan.data.folders import write_atomically
from cpaan.reporting.page_data import page_data
from cpaan.reporting.results import Results
from cpaan.reporting.tables import benchmark_table, readable

SCRIPTS = ("elements.js", "tooltip.js", "axes.js", "table.js", "lines.js", "diversity.js", "map.js", "heatmap.js")
MAIN = "main.js"


def write_page(
    results: Results,
    path: Path,
    *,
    measure: str = "top5",
    images: Path | None = None,
    pixels: tuple[int, int] | None = None,
) -> int:
    """Write the report of one or more runs, and give its size in bytes."""
    content = page_html(results, page_data(results, measure, images, pixels), measure).encode()
    write_atomically(path, content)
    return len(content)


def page_html(results: Results, data: dict[str, Any], measure: str) -> str:
    """Put the page together: markup, style, scripts and data."""
    style, script = _asset("report.css"), "\n".join(map(_asset, (*SCRIPTS, MAIN)))
    title = "cpaan report: " + ", ".join(run.label for run in results.runs)
    rows = [row for run in results.runs for row in run.rows]
    parts = {
        "title": escape(readable(title)),
        "policy": content_policy(script, style),
        "style": style,
        "script": script,
        "data": embedded_json(readable(data)),
        "summary": "\n".join(f"<p>{escape(readable(sentence))}</p>" for sentence in data["summary"]),
        "plain_table": escape(readable(benchmark_table(rows, measure))),
    }
    page = _asset("report.html")
    # In one pass over the template: what is put in is never searched for further marks.
    pieces = page.split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def embedded_json(data: Any) -> str:
    r"""Write data so that nothing in it can end the script that holds it.

    >>> embedded_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def content_policy(script: str, style: str) -> str:
    """Forbid the page to fetch anything and to run or apply anything but its own script and style."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return (files("cpaan.reporting") / "page_assets" / name).read_text(encoding="utf-8")


def asset_names() -> Sequence[str]:
    """List the files that a page is made of."""
    return (*SCRIPTS, MAIN, "report.css", "report.html")
