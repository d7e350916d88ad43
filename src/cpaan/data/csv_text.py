"""Tables as comma-separated values."""

import csv
import io
from collections.abc import Sequence
from typing import Any


def csv_text(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    r"""Lay out a table as comma-separated values; None is an empty cell.

    >>> csv_text(["a", "b"], [[1, "x, y"], [2, None]])
    'a,b\n1,"x, y"\n2,\n'
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()
