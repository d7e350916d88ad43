"""Stops the build where a page would load something from a network."""

import re
from typing import Any

# What a browser fetches by itself; links that a reader may follow are another matter.
_FETCHED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"')


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Look through a page as it is written."""
    found = _FETCHED.findall(output)
    if found:
        raise ValueError(f"{page.file.src_path} would load {', '.join(found)}")
    return output
