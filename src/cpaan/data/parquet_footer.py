"""How many values the columns of a parquet file claim to hold, read from its footer alone.

Arrow's own view of a column's metadata ends the process where that is damaged (pyarrow 26), so it is not asked. A
footer is a struct of Thrift's compact protocol; of the format (apache/parquet-format, `parquet.thrift`) these fields
are used: FileMetaData 3 num_rows, 4 row_groups; RowGroup 1 columns; ColumnChunk 3 meta_data; ColumnMetaData 3
path_in_schema, 5 num_values.
"""

from pathlib import Path
from typing import Any

from cpaan.errors import InputError

_MAGIC = b"PAR1"
_END_BYTES = 8
_LONGEST_FOOTER = 2**26
_DEEPEST = 24
_TRUE, _FALSE, _BYTE, _INT16, _INT32, _INT64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_LONG_LIST = 15
_DOUBLE_BYTES = 8


def claimed_values(path: Path, columns: list[str]) -> int:
    """Give the number of rows, and of values in some columns, that a file claims to have, all together.

    Parameters
    ----------
    path : path
        The file.
    columns : list of str
        Names of columns.

    Returns
    -------
    int
        Rows and values.
    """
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - _END_BYTES))
        end = file.read(_END_BYTES)
        size = int.from_bytes(end[:4], "little")
        if end[4:] != _MAGIC or size + _END_BYTES > length or size > _LONGEST_FOOTER:
            raise InputError(f"{path} is no parquet file, or it is damaged: it has no footer")
        file.seek(length - _END_BYTES - size)
        footer = _Reader(file.read(size)).struct()
    chunks = [chunk[3] for group in footer[4] for chunk in group[1] if 3 in chunk]  # noqa: PLR2004  # its meta_data
    counts = [chunk[5] for chunk in chunks if chunk[3][0].decode() in columns]
    if footer[3] < 0 or any(count < 0 for count in counts):
        raise InputError(f"{path} is damaged: a number of rows or values is negative")
    return int(footer[3] + sum(counts))


class _Reader:
    """Reads Thrift's compact protocol: structs are dictionaries by the number of a field."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise ValueError("structs in structs without end")
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            found[field] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            size = self._unsigned() if head >> 4 == _LONG_LIST else head >> 4
            return self._values(size, head & 15, depth)
        if kind == _MAP:
            size = self._unsigned()
            kinds = self._byte() if size else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(size)]
        if kind in (_BINARY, _DOUBLE):
            return self._bytes(self._unsigned() if kind == _BINARY else _DOUBLE_BYTES)
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        return {_INT16: self._signed, _INT32: self._signed, _INT64: self._signed}[kind]()

    def _values(self, size: int, kind: int, depth: int) -> list[Any]:
        if depth > _DEEPEST or size > len(self.content) - self.place:  # each takes a byte at least
            raise ValueError("a list of more values than there are bytes")
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004  # the highest bit says that more follow
                return value
        raise ValueError("a number without end")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, size: int) -> bytes:
        part = self.content[self.place : self.place + size]
        if len(part) < size:
            raise ValueError("it ends too early")
        self.place += size
        return part
