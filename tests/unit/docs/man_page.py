"""The man page, made from the help of the command and its verbs.

`python -m tests.unit.docs.man_page` writes docs/prefetchd.1.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from prefetchd import __version__
from prefetchd.cli.main import cli
from tests.unit.docs.draw import DOCS

PAGE = DOCS / "prefetchd.1"
ENVIRONMENT = DOCS / "environment.md"


def page() -> str:
    """The whole of it, in roff."""
    context = click.Context(cli, info_name="prefetchd")
    lines = [
        '.\\" Made by python -m tests.unit.docs.man_page from what --help says.',
        f'.TH PREFETCHD 1 "" "prefetchd {__version__}" "User Commands"',
        ".SH NAME",
        f"prefetchd \\- {escaped(short_help(cli))}",
        ".SH SYNOPSIS",
        ".B prefetchd",
        "[\\-\\-version] [\\-\\-help] VERB [OPTIONS]",
        ".SH DESCRIPTION",
        *paragraphs(cli.help or ""),
        ".SH VERBS",
    ]
    for name, command, inner in commands(cli, context):
        lines += [
            f'.SS "{escaped(name)}"',
            f"Usage: {escaped(usage(command, inner))}",
            *paragraphs(help_of(command)),
        ]
        for parameter in command.get_params(inner):
            record = parameter.get_help_record(inner)
            if record is not None and "--help" not in parameter.opts:
                lines += [".TP", f".B {escaped(record[0])}", escaped(" ".join(record[1].split()))]
    lines.append(".SH ENVIRONMENT")
    for name, meaning in variables():
        lines += [".TP", f".B {escaped(name)}", escaped(meaning)]
    lines += [".PP", "All of them are in docs/environment.md."]
    return "\n".join(lines) + "\n"


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Each verb with its name from `prefetchd` on, those within verbs included."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield inner.command_path, command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def usage(command: click.Command, context: click.Context) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def help_of(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def short_help(command: click.Command) -> str:
    return " ".join(help_of(command).split("\n\n")[0].split()).rstrip(".")


def paragraphs(text: str) -> Iterator[str]:
    """A help text in roff. What begins with \\b keeps its lines, as in click."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        yield ".PP"
        kept = paragraph.startswith("\b\n")
        if kept:
            yield from (".nf", *map(escaped, paragraph.split("\n")[1:]), ".fi")
        else:
            yield escaped(" ".join(paragraph.split()))


def escaped(text: str) -> str:
    """What roff would take for its own stays text."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def variables() -> list[tuple[str, str]]:
    """Those of the first table of docs/environment.md, with their meanings."""
    table = ENVIRONMENT.read_text("utf-8").split("\n## For your program and the command\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", table, re.M)
    return [(name, re.sub(r"\[`?(.*?)`?\]\(.*?\)|`", lambda found: found[1] or "", meaning)) for name, meaning in rows]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
