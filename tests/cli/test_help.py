"""What the command line says of itself: examples, exit codes, completion, and `python -m cpaan`."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cpaan.cli.app import app


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from commands(f"{name} {part}", inner)
    else:
        yield name, command


COMMANDS = dict(commands("cpaan", typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_loses_no_word_in_brackets(name: str) -> None:
    """Typer takes [word] for markup and leaves it out."""
    texts = [COMMANDS[name].help, *(getattr(parameter, "help", None) or "" for parameter in COMMANDS[name].params)]
    assert not [text for text in texts if re.search(r"\[\w+\]", text)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_of_itself(name: str) -> None:
    assert f"Example: {name} " in COMMANDS[name].help
    assert CliRunner().invoke(app, [*name.split()[1:], "-h"]).exit_code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_answer_for_programs(name: str) -> None:
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts]
    assert "--json" in options


def test_help_names_exit_codes_and_completion() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    for part in ("Exit codes", "130", "add-classes", "predict", "--install-completion"):
        assert part in shown


def test_completion_knows_the_commands() -> None:
    words = {"COMP_WORDS": "cpaan add", "COMP_CWORD": "1", "_CPAAN_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, prog_name="cpaan", env=words)
    assert result.output.split() == ["add-classes"]


def test_it_runs_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "cpaan", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("cpaan ")
    wrong = subprocess.run(
        [sys.executable, "-m", "cpaan", "info", "nowhere"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert wrong.stderr == "error: nowhere does not exist\n"


def test_an_interrupt_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cpaan.cli.files.described", interrupted)
    result = CliRunner().invoke(app, ["info", "anything"])
    assert result.exit_code == 130
    assert result.stderr == "stopped\n"


def test_help_says_what_runs_code() -> None:
    result = CliRunner().invoke(app, ["features", "extract", "--help"], env={"COLUMNS": "200"})
    text = " ".join(result.output.replace("│", " ").split())
    assert "package.module:function, which RUNS THAT CODE" in text
    assert "name only what you trust" in text
