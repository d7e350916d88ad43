"""Blocks of rows that keep a table of pairs within bounded memory."""

from collections.abc import Iterator

# 32 MiB in double precision: large enough for fast products, small beside any feature bank.
MOST_ENTRIES = 2**22


def row_blocks(n_rows: int, entries_per_row: int, most_entries: int | None = None) -> Iterator[slice]:
    """Cut rows into consecutive blocks of at most `most_entries` entries, of one row at least.

    Examples
    --------
    >>> list(row_blocks(5, 10, most_entries=25))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    limit = MOST_ENTRIES if most_entries is None else most_entries
    size = max(1, limit // max(1, entries_per_row))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))
