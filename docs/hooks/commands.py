"""Writes the reference of the command line from the commands themselves while the site is built."""

from collections.abc import Iterator
from typing import Any

import typer

from cpaan.cli.app import app

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where the page has a mark for them."""
    return markdown.replace(MARK, "\n".join(_described("cpaan", typer.main.get_command(app))))


def _described(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from _described(f"{name} {part}", inner)
        return
    text, _, example = (command.help or "").partition("Example:")
    yield f"## {name}\n\n{text.strip()}\n"
    if example:
        yield f"```text\n{example.strip()}\n```\n"
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    if shown:
        yield "| argument or option | default | |\n| :--- | :--- | :--- |"
        yield from (_row(parameter) for parameter in shown)
        yield ""


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
    default = "required" if parameter.required else _default(parameter.default)
    text = (parameter.help or "").replace("|", "\\|")
    return f"| {names} | {default} | {text} |"


def _default(value: Any) -> str:
    return "" if value is None or value is False or callable(value) else f"`{value}`"
