"""What a text tells a reader to type: the commands of ours in it, and whether they are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
from markdown_it import MarkdownIt

from prefetchd.cli.main import cli
from tests.documents.pages import ROOT, blocks_of

SEPARATORS = re.compile(r"&&|\|\||[;|&]")
PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.|\[.*")


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of each command in `text`: without variables that are set for it, redirections and `$`."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in SEPARATORS.split(re.sub(r"(^|\s)#.*|[<>].*", "", line.strip().removeprefix("$ "))):
            try:
                words = shlex.split(part)
            except ValueError:
                continue
            while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("sudo", "export", "ExecStart=")):
                words = words[1:]
            if words:
                yield words


def inline_code(text: str) -> list[str]:
    """What stands between single backticks in the prose of a page, tables included."""
    inline = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "inline"]
    return [child.content for token in inline for child in token.children or () if child.type == "code_inline"]


def commands_of_ours(text: str) -> list[list[str]]:
    """The words behind `prefetchd` in each command of a page: in its blocks of shell and console, and in its prose."""
    shells = [block.text for block in blocks_of(text) if block.language in ("sh", "ini")]
    consoles = [block.text for block in blocks_of(text) if block.language == "console"]
    shells += re.findall(r"^\$ (.*)$", "\n".join(consoles), re.M)
    found = []
    for part in [*shells, *inline_code(text)]:
        for words in shell_commands(re.sub(r"^ExecStart=", "", part, flags=re.M)):
            if words[0].rpartition("/")[2] == "prefetchd" and len(words) > 1:
                found.append(words[1:])
    return found


def what_is_wrong(words: list[str]) -> str | None:
    """Why `prefetchd WORDS` is not a command of ours: no such verb, or no such option. None where it is one."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if PLACEHOLDER.fullmatch(rest[0]):
            return None
        found = command.get_command(context, rest[0])
        if found is None:
            return f"no verb {rest[0]!r}"
        command, rest = found, rest[1:]
    # The options of a script that it runs are behind this.
    rest = rest[: rest.index("--")] if "--" in rest else rest
    parameters = command.get_params(context)
    known = {option for each in parameters for option in [*each.opts, *each.secondary_opts]} | {"--help", "-h"}
    unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
    return f"no option {' '.join(unknown)}" if unknown else None


def units_of(text: str) -> list[str]:
    """The units that systemctl and journalctl are asked for."""
    found = []
    for words in shell_commands(text):
        if words[0] in ("systemctl", "journalctl"):
            found += [word for word in words[1:] if word.startswith("prefetchd")]
    return found


def unit_exists(name: str) -> bool:
    """A unit's name may leave out `.service`, and has who it is for behind the @."""
    full = re.sub(r"@[^.]+", "@", name if "." in name else f"{name}.service")
    return (ROOT / "prefetchd" / "units" / full).exists()
