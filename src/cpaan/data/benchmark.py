"""The low-shot benchmark's data: base classes to learn from, novel ones in K shots for each trial, and test examples.

It is read from feature files of any format, or from the HDF5 ones of the ImageNet low-shot benchmark, whose trials are
given by split files: a table in JSON with one line for each class index, of row numbers in the file of training
features. The K shots of a class are the first K of its line, so that shots are nested.

Reference: B. Hariharan and R. Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features",
ICCV 2017, arXiv:1606.02819.
"""

import os
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cpaan.data.class_split import Setup, read_setup
from cpaan.data.feature_set import FeatureSet, IndexArray, raise_unknown, sha256_of, show_names
from cpaan.data.files import read_bank, read_table
from cpaan.data.hdf5 import Hdf5Features, is_hdf5
from cpaan.data.low_shot import ShotSource
from cpaan.data.untrusted import read_json
from cpaan.errors import InputError

_PathLike: TypeAlias = str | os.PathLike[str]
# Both have `classes`, `labels`, `dimension` and `select`; a set is in memory, a file is not.
_Examples: TypeAlias = FeatureSet | Hdf5Features

_MOST_ROWS = 2**62
_HASHED_PER_CLASS = 20
_FINGERPRINT_DIGITS = 16


@dataclass(frozen=True, eq=False)
class BenchmarkData:
    """A low-shot problem with trials.

    Parameters
    ----------
    base_train, base_test : FeatureSet
        Training and test examples of the base classes.
    novel_test : FeatureSet
        Test examples of the novel classes.
    shot_source : ShotSource
        Where shots of the novel classes come from; where that is an HDF5 file, they are read from it when asked for.

    Raises
    ------
    InputError
        Where the parts differ in dimension or in classes.

    Examples
    --------
    >>> novel = FeatureSet([[4.0], [5.0]], ["yew", "yew"])
    >>> source = ShotSource(("yew",), (np.arange(2),), novel.take)
    >>> oaks = FeatureSet([[0.0], [1.0]], ["oak", "oak"])
    >>> data = BenchmarkData(oaks, oaks, novel, source)
    >>> data.novel_classes, len(data.shots(trial=0, k=1))
    (('yew',), 1)
    """

    base_train: FeatureSet
    base_test: FeatureSet
    novel_test: FeatureSet
    shot_source: ShotSource

    def __post_init__(self) -> None:
        dimensions = [part.dimension for part in (self.base_train, self.base_test, self.novel_test)]
        if len(set(dimensions)) > 1:
            numbers = ", ".join(map(str, dimensions))
            raise InputError(
                f"base_train, base_test and novel_test have {numbers} features; they must agree: take training and "
                "test features from the same network"
            )
        for first, second, noun in (
            (self.base_train.classes, self.base_test.classes, "base"),
            (self.shot_source.classes, self.novel_test.classes, "novel"),
        ):
            if first != second:
                raise InputError(f"{noun} classes for training and for testing must be the same in the same order")

    @property
    def base_classes(self) -> tuple[Hashable, ...]:
        """Names of the base classes."""
        return self.base_train.classes

    @property
    def novel_classes(self) -> tuple[Hashable, ...]:
        """Names of the novel classes."""
        return self.novel_test.classes

    @property
    def n_trials(self) -> int | None:
        """Number of trials that there are split files for; None where trials are drawn, and so without end."""
        return len(self.shot_source.split_rows) or None

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of what was read, which is other where the data are other.

        Base and test examples count whole; of the training examples of each novel class up to 20, and how many
        there are and which ones the split files choose.
        """
        source = self.shot_source
        spread = [rows[_spread(len(rows))] for rows in source.members]
        digest = sha256_of(self.base_train, self.base_test, self.novel_test, source.take(np.concatenate(spread)))
        for rows in source.members + source.split_rows:
            digest.update(f"{rows.shape}".encode())
            digest.update(np.ascontiguousarray(rows).data)
        return digest.hexdigest()[:_FINGERPRINT_DIGITS]

    def shots(self, trial: int, k: int) -> FeatureSet:
        """Give the shots of a trial.

        Parameters
        ----------
        trial : int
            Number of the trial, from 0. With split files, trial t has the file at place t; otherwise t is the seed.
        k : int
            Number of shots of each novel class. Shots are nested: one shot is the first of five.

        Returns
        -------
        FeatureSet
            K training examples of each novel class, class by class in the order of the draw.

        Raises
        ------
        InputError
            Where a class has fewer examples, or there are no such trial or not so many shots in the split files.
        """
        return self.shot_source.draw(trial, k)


def load_benchmark(
    bank: _PathLike,
    setup: Setup | _PathLike,
    *,
    test: _PathLike | None = None,
    splits: Iterable[_PathLike] = (),
    part: int | None = None,
) -> BenchmarkData:
    """Read a low-shot benchmark from feature files.

    Parameters
    ----------
    bank : str or path
        Training features, in any format that `cpaan.data.read_bank` reads; which one, its content tells. Of an HDF5
        file of the benchmark, only the rows that are needed are read.
    setup : Setup, str or path
        The base and novel classes, or a file that `read_setup` reads. Names are those in the bank; in an HDF5 file,
        class indices.
    test : str or path, optional
        Test features: the rows that its `is_test` marks, or all where it marks none; of an HDF5 file all. By default
        the rows of `bank` that its `is_test` marks; these are never trained with.
    splits : iterable of str or path
        Split files, one for each trial, where the bank is an HDF5 file with its rows in the order of the benchmark.
        By default trial t draws with the seed t.
    part : {1, 2}, optional
        Which part of the official `label_idx.json`, see `read_setup`.

    Returns
    -------
    BenchmarkData
        Classes have the order of the setup.

    Raises
    ------
    InputError
        Where a file is missing or unfit, the setup names a class without training or test examples, or a split file
        has a row that is not of its class.

    Examples
    --------
    >>> import tempfile
    >>> from cpaan.data import write_features
    >>> trees = FeatureSet(np.arange(8).reshape(-1, 1), ["oak"] * 4 + ["yew"] * 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_features(f"{folder}/trees.npz", trees, is_test=[False, False, False, True] * 2)
    ...     data = load_benchmark(f"{folder}/trees.npz", Setup(base=("oak",), novel=("yew",)))
    >>> len(data.base_train), len(data.novel_test), data.shots(trial=0, k=2).counts.tolist()
    (3, 1, [2])
    """
    chosen = _as_setup(setup, part)
    paths = (splits,) if isinstance(splits, str | os.PathLike) else tuple(splits)
    train, held_out = _open(Path(bank), None if test is None else Path(test))
    _require_classes(chosen, train, held_out)
    # Before the features, so that a wrong split file is found at once.
    shot_source = _shot_source(train, chosen.novel, paths)
    return BenchmarkData(
        base_train=train.select(chosen.base),
        base_test=held_out.select(chosen.base),
        novel_test=held_out.select(chosen.novel),
        shot_source=shot_source,
    )


def _as_setup(setup: Setup | _PathLike, part: int | None) -> Setup:
    if not isinstance(setup, Setup):
        return read_setup(setup, part)
    if part is not None:
        raise InputError(f"part is {part}, but setup is no label_idx.json; leave part out")
    return setup


def _open(bank: Path, test: Path | None) -> tuple[_Examples, _Examples]:
    # The same file twice would be tested with what it was trained with.
    if test is not None and os.path.exists(bank) and os.path.exists(test) and os.path.samefile(bank, test):
        test = None
    if is_hdf5(bank):
        if test is None:
            raise InputError(f"{bank} has no test examples: an HDF5 file is one part; give a second file as test")
        return Hdf5Features(bank), _open_test(test)
    parts = read_bank(bank)
    if test is not None:
        return parts.train, _open_test(test)
    if parts.test is None:
        raise InputError(f"{bank} has no test examples; add an array is_test to it, or give a second file as test")
    return parts.train, parts.test


def _open_test(path: Path) -> _Examples:
    if is_hdf5(path):
        return Hdf5Features(path)
    rows, is_test = read_table(path)
    return rows if is_test is None or not is_test.any() else rows.take(is_test)


def _require_classes(setup: Setup, train: _Examples, test: _Examples) -> None:
    known = tuple(dict.fromkeys(train.classes + test.classes))
    wanted = setup.base + setup.novel
    for where, noun in ((set(known), ""), (set(train.classes), "training"), (set(test.classes), "test")):
        missing = [name for name in wanted if name not in where]
        if missing and not noun:
            raise_unknown(missing, known)
        if missing:
            raise InputError(f"no {noun} examples of {show_names(missing)}; add some or leave them out of the setup")


def _shot_source(train: _Examples, novel: tuple[Hashable, ...], splits: tuple[_PathLike, ...]) -> ShotSource:
    if isinstance(train, Hdf5Features):
        split_rows = tuple(_split_rows(path, novel, train) for path in splits)
        return ShotSource(novel, _members(train.labels, novel), partial(train.take, classes=novel), split_rows)
    if splits:
        raise InputError("split files number the rows of an HDF5 file, but the bank is none; leave splits out")
    examples = train.select(novel)
    return ShotSource(novel, _members(examples.labels, range(len(novel))), examples.take)


def _members(labels: IndexArray, classes: Iterable[Any]) -> tuple[IndexArray, ...]:
    order = np.argsort(labels, kind="stable")
    ascending = labels[order]
    edges = ((np.searchsorted(ascending, name), np.searchsorted(ascending, name, side="right")) for name in classes)
    return tuple(order[start:stop] for start, stop in edges)


def _split_rows(path: _PathLike, novel: tuple[Any, ...], train: Hdf5Features) -> IndexArray:
    table = _read_table(path)
    cure = "take the features and the split file of the same benchmark, and leave the order of rows as it is"
    beyond = [name for name in novel if type(name) is not int or name >= len(table)]
    if beyond:
        raise InputError(f"{path} has {len(table)} lines, and so none for class {show_names(beyond)}; {cure}")
    rows = table[list(novel)]
    for name, line in zip(novel, rows, strict=True):
        outside = line[(line < 0) | (line >= train.n)]
        if len(outside):
            raise InputError(
                f"{path} has row {outside[0]} for class {name}, but {train.path} has {train.n} rows; {cure}"
            )
        strange = line[train.labels[line] != name]
        if len(strange):
            other = train.labels[strange[0]]
            raise InputError(
                f"{path} has row {strange[0]} for class {name}, but in {train.path} it is of class {other}; {cure}"
            )
    return rows


def _read_table(path: _PathLike) -> IndexArray:
    lines = read_json(path)
    # Before there is an array, in which one long text would make all entries as long.
    tables = isinstance(lines, list) and all(isinstance(line, list) for line in lines)
    if not tables or not any(lines) or not all(type(row) is int and abs(row) < _MOST_ROWS for row in chain(*lines)):
        raise InputError(f"{path} is no split file; give a list with one list of row numbers for each class")
    if len(set(map(len, lines))) > 1:
        raise InputError(f"{path} has lines of different lengths; give the same number of rows for each")
    return np.array(lines, dtype=np.int64)


def _spread(n: int) -> IndexArray:
    """Give some indices below n, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, _HASHED_PER_CLASS).astype(np.int64))
