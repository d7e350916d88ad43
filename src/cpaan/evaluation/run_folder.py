"""A run on disk, and its rows averaged over trials; at the end, the paper's table.

A run's folder has `config.json`, `results.jsonl` (a line per cell and setting, written as soon as the cell is done),
`results.csv` (the same, sorted), `models/`, `sample/` and, at the end, `DONE`. Tables and figures need nothing else.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from cpaan.data.folders import LOCK, csv_text, locked, make_folder, remove_leftovers, write_atomically
from cpaan.data.untrusted import MOST_JSON_BYTES, is_writable, read_bytes, read_json, require_shallow
from cpaan.errors import InputError

Row = dict[str, Any]
Entry = tuple[str, str]  # method and representation: a row of the table
Key = tuple[Entry, str, int]  # with the setting and the shots: a cell of the table

MODELS, SAMPLE = "models", "sample"
COLUMNS = ("method", "representation", "setting", "shots", "trial", "top1", "top5")
_NAMED = {"method": str, "setting": str, "shots": int, "trial": int}
_MEASURED = ("top1", "top5", "diversity", "real_diversity")


class RunFolder:
    """The folder of a run, created when the run begins.

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
        """Write the configuration, or require that an existing run has the same; returns whether the run is new.

        Results depend on `config` alone; `versions` and `origin` (the files of the data) are for the record.
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
            raise InputError(f"{self.path} was made with another configuration ({shown}); choose another folder")
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the run."""
        with locked(self.path):
            remove_leftovers(self.path)
            yield

    def discard(self) -> None:
        """Remove a run without results."""
        for name in (MODELS, SAMPLE):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / "config.json").unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def config(self) -> dict[str, Any] | None:
        """Read the configuration, None if there is no run."""
        found = self.record()
        return None if found is None else dict(found["config"])

    def record(self) -> dict[str, Any] | None:
        """Read the configuration with versions and origin, as far as known; None if there is no run."""
        if not (self.path / "config.json").exists():
            return None
        found = read_json(self.path / "config.json")
        if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
            raise InputError(f"{self.path} holds no benchmark run; choose another folder")
        return found

    def rows(self) -> list[Row]:
        """Read all finished rows, sorted; a line torn by a crash is ignored."""
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
            raise InputError(f"{self.results} is damaged: line {number} is not a result; remove the line")
        return dict(row)

    def append(self, rows: list[Row]) -> None:
        """Add the rows of a finished cell, and wait until they are on disk."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        # A crash may have torn the last line; starting a new one saves this cell from being lost with it.
        begin = "" if _ends_with_a_line(self.results) else "\n"
        try:
            with self.results.open("a", encoding="utf-8") as file:
                file.write(begin + lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self.results}: {error.strerror or error}") from error

    def write_csv(self) -> None:
        """Write all finished rows as `results.csv`."""
        rows = self.rows()
        header = [*dict.fromkeys([*COLUMNS, *(rows[0] if rows else ())])]
        lines = [[row.get(name) for name in header] for row in rows]
        write_atomically(self.path / "results.csv", csv_text(header, lines).encode())

    def finish(self) -> None:
        """Mark that every cell is done."""
        write_atomically(self.path / "DONE", b"")

    def _require_new(self) -> None:
        if self.path.exists() and (not self.path.is_dir() or any(file.name != LOCK for file in self.path.iterdir())):
            raise InputError(f"{self.path} is not empty and holds no benchmark run; choose another folder")


def _ends_with_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _is_row(row: Any) -> bool:
    """Check that this is a result: typed names, and a number or None for each measure."""
    if not isinstance(row, dict):
        return False
    known = all(type(row.get(name)) is kind for name, kind in _NAMED.items())
    numbers = all(row.get(name) is None or type(row[name]) in (int, float) for name in _MEASURED)
    flat = not any(isinstance(value, dict | list) for value in row.values())
    return known and numbers and flat and is_writable(row)


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its confidence interval, NaN for a single trial."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.half_width:.1f}" if np.isfinite(self.half_width) else f"{self.mean:.1f}"


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Average repeated trials, with Student's t interval.

    x̄ ± t s / √n, with t the quantile of n − 1 degrees of freedom

    >>> str(mean_interval([50.0, 52.0, 54.0]))
    '52.0 ± 5.0'
    """
    n = len(values)
    if not n:
        raise InputError("no trial to average; give at least one value")
    if n == 1:
        return Interval(float(values[0]), float("nan"))
    quantile = float(student.ppf((1 + confidence) / 2, n - 1))
    return Interval(float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / n**0.5)


def summarize_rows(rows: Iterable[Row], measure: str = "top5") -> dict[Key, Interval]:
    """Average a measure over trials, for every method, representation, setting and number of shots."""
    return {key: mean_interval(list(trials.values())) for key, trials in _by_trial(rows, measure).items()}


def paired_differences(rows: Sequence[Row], reference: str, measure: str = "top5") -> dict[Key, Interval]:
    """Average the difference to a reference method on the same representation, over the trials that both have.

    All methods see the same shots in a trial, so intervals of differences are narrower than those of accuracies.

    >>> same = {"method": "m", "representation": "r", "setting": "LSL", "shots": 1}
    >>> ours = [{**same, "trial": trial, "top5": 50.0 + trial} for trial in range(3)]
    >>> theirs = [{**row, "method": "other", "top5": row["top5"] - 2} for row in ours]
    >>> str(paired_differences(ours + theirs, "other")[("m", "r"), "LSL", 1])
    '2.0 ± 0.0'
    """
    found = _by_trial(rows, measure)
    methods = {method for (method, _), _, _ in found}
    if reference not in methods:
        known = ", ".join(sorted(methods))
        raise InputError(f"the reference method {reference!r} is not in the run, which has {known}")
    differences = {}
    for ((method, representation), setting, shots), trials in found.items():
        base = found.get(((reference, representation), setting, shots), {})
        pairs = [trials[trial] - base[trial] for trial in trials if trial in base]
        if method != reference and pairs:
            differences[(method, representation), setting, shots] = mean_interval(pairs)
    return differences


def _by_trial(rows: Iterable[Row], measure: str) -> dict[Key, dict[int, float]]:
    found: dict[Key, dict[int, float]] = {}
    for row in rows:
        if row[measure] is not None:
            entry = (row["method"], row["representation"])
            found.setdefault((entry, row["setting"], row["shots"]), {})[row["trial"]] = row[measure]
    return found


# Top-5 accuracy on ImageNet (Gao et al., NeurIPS 2018, Table 1), by method, representation and generation: LSL at these
# numbers of shots, then GLSL; None where the paper has no figure.
SHOTS = (1, 2, 5, 10, 20)
PUBLISHED: tuple[tuple[str, str, str, tuple[float | None, ...], tuple[float | None, ...]], ...] = (
    ("Baseline", "ResNet-10", "–", (38.5, 51.2, 64.7, 71.6, 76.3), (40.6, 49.8, 64.3, 72.1, 76.7)),
    ("", "SN", "–", (38.9, None, 64.6, None, 76.4), (48.7, None, 68.3, None, 73.8)),
    ("", "MAML", "–", (39.2, None, 64.2, None, 76.8), (49.5, None, 69.6, None, 74.2)),
    ("", "PN", "–", (39.4, 52.2, 66.6, 72.0, 76.5), (49.3, 61.0, 69.6, 72.8, 74.7)),
    ("", "MN", "–", (43.6, 54.0, 66.0, 72.5, 76.9), (54.4, 61.0, 69.0, 73.7, 76.5)),
    ("", "PMN", "–", (43.3, 55.7, 68.4, 74.0, 77.0), (55.8, 63.1, 71.1, 75.0, 77.1)),
    ("", "AWG", "–", (46.0, 57.5, 69.2, 74.8, 78.1), (58.2, 65.2, 72.7, 76.5, 78.7)),
    ("FH", "ResNet-10", "LR w/ A.", (40.7, 50.8, 62.0, 69.3, 76.4), (52.2, 59.7, 68.6, 73.3, 76.9)),
    ("P-FH", "PN", "LR w/ A.", (41.5, 52.2, 63.5, 71.8, 76.4), (53.6, 61.7, 69.0, 73.5, 75.9)),
    ("FI", "PN", "meta-learned LR", (45.0, 55.9, 67.3, 73.0, 76.5), (56.9, 63.2, 70.6, 74.5, 76.5)),
    ("", "PMN", "meta-learned LR", (45.8, 57.8, 69.0, 74.3, 77.4), (57.6, 64.7, 71.9, 75.2, 77.5)),
    ("CP-AAN", "ResNet-10", "cCov-GAN", (47.1, 57.9, 68.9, 76.0, 79.3), (52.1, 60.3, 69.2, 72.4, 76.8)),
    ("", "PN", "c-GAN", (38.6, 51.8, 64.9, 71.9, 76.2), (49.4, 61.5, 69.7, 73.0, 75.1)),
    ("", "PN", "cCyc-GAN", (42.5, 54.6, 66.7, 74.3, 76.8), (57.6, 65.1, 72.2, 73.9, 76.0)),
    ("", "PN", "cDeLi-GAN", (46.0, 58.1, 68.8, 74.6, 77.4), (58.0, 65.1, 72.4, 74.8, 76.9)),
    ("", "PN", "cCov-GAN", (48.4, 59.3, 70.2, 76.5, 79.3), (58.5, 65.8, 73.5, 76.0, 78.1)),
)
