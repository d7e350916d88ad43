"""Tables as Markdown."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Lay out a table with its columns aligned: the first, or the first few, to the left, all others to the right.

    >>> print(markdown_table(["method", "top-1"], [["none", "50.0"], ["cCov-GAN", "61.5"]]))
    | method   | top-1 |
    | :------- | ----: |
    | none     |  50.0 |
    | cCov-GAN |  61.5 |
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i < names else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    dashes = ["-" * (width - 1) for width in widths]
    rule = [f":{dash}" if i < names else f"{dash}:" for i, dash in enumerate(dashes)]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])
