"""The line that says what a command is doing: on a terminal alone, and never in what it prints."""

import os
import pty
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cpaan import EmpiricalBayes, FeatureSet
from cpaan.cli import output as progress
from cpaan.cli import status
from cpaan.cli.status import ERASE, IMPORTING, StatusLine, doing, paused_status, status_line
from cpaan.data.files import write_features
from cpaan.training.progress import Progress

COMMAND = [sys.executable, "-m", "cpaan"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make the standard error a terminal; not in a fixture, since pytest has another one for every phase of a test."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(status, "DELAY", 0.0)
    monkeypatch.setattr(status, "EVERY", 0.001)
    return found


def wait_for(terminal: Terminal, text: str) -> None:
    end = time.monotonic() + 60
    while text not in terminal.getvalue():
        assert time.monotonic() < end, f"{text!r} is not in {terminal.getvalue()[-200:]!r}"
        time.sleep(0.001)


def on_a_terminal(arguments: list[str], **options: Any) -> tuple[list[tuple[float, str]], subprocess.Popen[bytes]]:
    """Run a command whose standard error is a terminal; gives what appears there with the seconds it took."""
    ours, theirs = pty.openpty()
    start = time.monotonic()
    process = subprocess.Popen([*COMMAND, *arguments], stdin=theirs, stderr=theirs, **options)
    os.close(theirs)
    seen = []
    try:
        while text := os.read(ours, 2**16):
            seen.append((time.monotonic() - start, text.decode()))
    except OSError:  # the way in which Linux says that the other end is closed
        pass
    os.close(ours)
    process.wait(timeout=60)
    return seen, process


def seconds_to_import(code: str) -> float:
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.monotonic() - start


def test_a_terminal_shows_something_before_torch_is_imported(tmp_path: Path) -> None:
    light = seconds_to_import("import cpaan.cli.app, rich.console")
    rng = np.random.default_rng(0)
    EmpiricalBayes(random_state=0).fit(rng.normal(size=(40, 3)), np.repeat(np.arange(4), 10)).save(tmp_path / "model")
    write_features(tmp_path / "shots.npz", FeatureSet(rng.normal(size=(2, 3)), ["new", "new"]))
    command = ["augment", tmp_path / "model", tmp_path / "shots.npz", "-o", tmp_path / "made.npz"]
    with (tmp_path / "stdout").open("wb") as printed:
        seen, process = on_a_terminal([str(part) for part in command], stdout=printed)
    assert process.returncode == 0
    assert "loading" in seen[0][1]  # the libraries, or what is asked for
    # Long before the command is done, most of which is the import of torch.
    assert seen[0][0] < max(3 * light + 1, 0.6 * seen[-1][0])
    assert "".join(text for _, text in seen).endswith(ERASE)
    assert "\x1b" not in (tmp_path / "stdout").read_text()
    assert "synthetic examples" in (tmp_path / "stdout").read_text()


def test_nothing_is_shown_with_json() -> None:
    seen, process = on_a_terminal(["methods", "--json"], stdout=subprocess.DEVNULL)
    assert (process.returncode, seen) == (0, [])


def test_nothing_is_shown_where_the_standard_error_is_no_terminal() -> None:
    found = subprocess.run([*COMMAND, "methods"], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    assert "\x1b" not in found.stdout


def test_the_line_says_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with status_line():
        wait_for(terminal, f"{IMPORTING}, 0 s")
        doing("reading bank.npz")
        wait_for(terminal, "reading bank.npz, 0 s")
    assert terminal.getvalue().endswith(ERASE)
    assert sys.stderr is terminal


def test_what_is_printed_stands_on_lines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with status_line():
        wait_for(terminal, IMPORTING)
        sys.stderr.write("note: ")
        time.sleep(0.05)  # in which the line would come back many times
        sys.stderr.write("odd\n")
        doing("going on")
        wait_for(terminal, "going on")
    assert f"{ERASE}note: odd\n{ERASE}" in terminal.getvalue()


def test_the_line_leaves_the_terminal_to_others_while_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with status_line():
        wait_for(terminal, IMPORTING)
        with paused_status():
            before = terminal.getvalue()
            assert before.endswith(ERASE)
            time.sleep(0.05)
            assert terminal.getvalue() == before
        doing("again")
        wait_for(terminal, "again")


def test_the_line_goes_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)

    def fail() -> None:
        with status_line():
            wait_for(terminal, IMPORTING)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert terminal.getvalue().endswith(ERASE)
    assert status.being_done() == ""


def test_no_line_is_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    shown = Terminal()
    StatusLine(shown, "reading " + 100 * "x")._draw("|")
    assert len(shown.getvalue().removeprefix(ERASE)) == 29


def test_bars_say_what_is_being_done_while_none_of_them_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    make_terminal(monkeypatch)
    console = Console(file=StringIO())

    def shown(bars: Any) -> str:
        with console.capture() as captured:
            console.print(*bars.get_renderables())
        return captured.get()

    with status_line():
        doing("fitting")
        with progress.training_bars() as bars:
            assert "fitting, 0 s" in shown(bars.bars)  # before the first bar
            tell = bars("training")
            tell(Progress(1, 2, {}))
            assert "fitting" not in shown(bars.bars)
            tell(Progress(2, 2, {}))
            assert "fitting, 0 s" in shown(bars.bars)  # after the last one
        assert "fitting" not in shown(bars.bars)
