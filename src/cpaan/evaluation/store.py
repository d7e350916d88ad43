"""A run on disk: its configuration, every finished cell, and a mark when all are done.

`config.json`, `results.jsonl` (a line for each cell and setting, written as soon as the cell is done), `results.csv`
(the same, sorted), `models/`, `sample/` and, at the end, `DONE`. Tables and figures are made from these alone.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cpaan.data.atomic import make_folder, remove_leftovers, write_atomically
from cpaan.data.csv_text import csv_text
from cpaan.data.json_file import MOST_JSON_BYTES, is_writable, read_json, require_shallow
from cpaan.data.limits import read_bytes
from cpaan.data.lock import LOCK, locked
from cpaan.errors import InputError
from cpaan.evaluation.sample import SAMPLE

Row = dict[str, Any]
MODELS = "models"
_MEASURED = ("top1", "top5", "diversity", "real_diversity")
COLUMNS = ("method", "representation", "setting", "shots", "trial", "top1", "top5")


class RunFolder:
    """Where a run keeps its configuration and its results.

    Parameters
    ----------
    path : made if it is missing

    Examples
    --------
    >>> import tempfile
    >>> run = RunFolder(Path(tempfile.mkdtemp()) / "run")
    >>> run.begin({"bank": "birds"}, {})
    True
    >>> run.append([{"method": "linear", "setting": "LSL", "shots": 1, "trial": 0, "top1": 50.0, "top5": 80.0}])
    >>> [row["top1"] for row in run.rows()]
    [50.0]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results.jsonl"

    def begin(self, config: dict[str, Any], versions: dict[str, str], origin: Mapping[str, Any] | None = None) -> bool:
        """Write the configuration, or check that the run that is there has the same; tells whether the run is new.

        Parameters
        ----------
        config : what results depend on
        versions : of the libraries
        origin : the files that the data came from, for the record only: the same data may lie elsewhere tomorrow
        """
        existing = self.config()
        if existing is None:
            self._require_new()
            make_folder(self.path)
            content = json.dumps({"config": config, "versions": versions, "origin": dict(origin or {})}, indent=1)
            write_atomically(self.path / "config.json", content.encode())
            return True
        config = json.loads(json.dumps(config))  # as it reads back: tuples are lists
        differing = sorted(k for k in config | existing if config.get(k) != existing.get(k))
        if differing:
            shown = "; ".join(f"{k}: {existing.get(k)!r} there, {config.get(k)!r} now" for k in differing)
            raise InputError(f"{self.path} was made with another configuration ({shown}); give another folder")
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the run as long as this one does."""
        with locked(self.path):
            remove_leftovers(self.path)
            yield

    def discard(self) -> None:
        """Remove a run in which nothing was evaluated yet."""
        for name in (MODELS, SAMPLE):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / "config.json").unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def config(self) -> dict[str, Any] | None:
        """Give the configuration of the run that is there, if any."""
        found = self.record()
        return None if found is None else dict(found["config"])

    def record(self) -> dict[str, Any] | None:
        """Give the configuration together with the versions and the origin of the data, where they are known."""
        if not (self.path / "config.json").exists():
            return None
        found = read_json(self.path / "config.json")
        if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
            raise InputError(f"{self.path} holds something else than a benchmark run; give another folder")
        return found

    def rows(self) -> list[Row]:
        """Read all finished rows; a line torn by a crash is as if never written."""
        if not self.results.exists():
            return []
        lines = read_bytes(self.results, MOST_JSON_BYTES).splitlines()
        rows = [row for number, line in enumerate(lines, 1) if (row := self._parsed(line, number)) is not None]
        return sorted(rows, key=lambda row: (row["method"], row["setting"], row["shots"], row["trial"]))

    def _parsed(self, line: bytes, number: int) -> Row | None:
        try:
            text = line.decode()
            require_shallow(text, f"{self.results}")
            row = json.loads(text)
        except ValueError:
            return None
        if not _is_row(row):
            raise InputError(f"{self.results} is damaged: line {number} is no result; remove the line")
        return dict(row)

    def append(self, rows: list[Row]) -> None:
        """Add the rows of a finished cell, so that they survive whatever comes."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        # A crash may have torn the last line: begin a new one, or this cell would be lost with it.
        begin = "" if _ends_with_a_line(self.results) else "\n"
        try:
            with self.results.open("a", encoding="utf-8") as file:
                file.write(begin + lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.results}: {error.strerror or error}") from error

    def write_csv(self) -> Path:
        """Write all finished rows as `results.csv`."""
        rows = self.rows()
        path = self.path / "results.csv"
        further = [name for name in (rows[0] if rows else {}) if name not in COLUMNS]
        header = [*COLUMNS, *further]
        lines = [[row.get(name) for name in header] for row in rows]
        write_atomically(path, csv_text(header, lines).encode())
        return path

    def finish(self) -> None:
        """Mark that every cell is done."""
        write_atomically(self.path / "DONE", b"")

    def _require_new(self) -> None:
        if self.path.exists() and (not self.path.is_dir() or any(file.name != LOCK for file in self.path.iterdir())):
            raise InputError(f"{self.path} is not empty and holds no benchmark run; give another folder")


def _ends_with_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _is_row(row: Any) -> bool:
    """Tell whether this is a result: names, whole numbers, and numbers or none for all that was measured."""
    if not isinstance(row, dict):
        return False
    kinds: dict[str, tuple[type, ...]] = {"method": (str,), "setting": (str,), "shots": (int,), "trial": (int,)}
    known = all(type(row.get(name)) in kind for name, kind in kinds.items())
    numbers = all(row.get(name) is None or type(row[name]) in (int, float) for name in _MEASURED)
    flat = not any(isinstance(value, dict | list) for value in row.values())
    return known and numbers and flat and is_writable(row)
