"""Tables as Markdown."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table with its columns aligned; all but the first are aligned to the right.

    >>> print(markdown_table(["method", "top-1"], [["none", "50.0"], ["cCov-GAN", "61.5"]]))
    | method   | top-1 |
    | :------- | ----: |
    | none     |  50.0 |
    | cCov-GAN |  61.5 |
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = ["-" * width for width in widths]
    rule = [":" + rule[0][1:], *(r[:-1] + ":" for r in rule[1:])]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])
