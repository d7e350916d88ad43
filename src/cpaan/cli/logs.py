"""The option --log."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpaan.errors import InputError

if TYPE_CHECKING:
    from cpaan.cli.progress import TrainingBars

KINDS = ("tensorboard",)


def check_log(kind: str | None) -> None:
    """Refuse a kind of log that there is not, or that needs what is not installed, before anything long is begun."""
    if kind is None:
        return
    if kind not in KINDS:
        raise InputError(f"--log must be {' or '.join(KINDS)}, not {kind!r}")
    from cpaan.gan.callbacks import find_writer

    find_writer()


@contextmanager
def logged(bars: "TrainingBars", kind: str | None, folder: Path) -> Iterator[Any]:
    """Give bars that log as well where a log is asked for, or else the same bars."""
    if kind is None:
        yield bars
        return
    from cpaan.reporting.tensorboard import tensorboard_bars

    with tensorboard_bars(bars, folder) as both:
        yield both
