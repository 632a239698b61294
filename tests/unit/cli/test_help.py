"""Every verb explains itself, and shells can complete it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from prefetchd.cli import completion
from prefetchd.cli.main import VERBS, cli
from prefetchd.cli.patience import Patience
from prefetchd.status.snapshot import Report
from tests.unit.docs.draw import ROOT


def commands(command: click.Command, *names: str):
    """Every command that can be run, with its words."""
    if not isinstance(command, click.Group):
        yield names, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, *names, name)


ALL = [pytest.param(names, command, id=" ".join(names)) for names, command in commands(cli)]


@pytest.mark.parametrize(("names", "command"), ALL)
def test_a_verb_says_what_it_does_what_each_option_does_and_its_exit_codes(names, command):
    done = CliRunner().invoke(cli, [*names, "--help"], terminal_width=100)
    assert done.exit_code == 0
    assert "Exit code: 0 " in done.output
    first, *rest = (command.help or "").strip().split("\n\n")
    assert first
    assert rest, "no more than one sentence"
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden and not param.is_eager:
            assert param.help or param.show_default, f"{names} {param.name}"
    assert max(map(len, done.output.splitlines())) <= 100


def test_each_file_with_a_command_is_a_verb():
    files = (ROOT / "prefetchd" / "cli").glob("*.py")
    found = {path.stem for path in files if re.search(r"^def command\(", path.read_text("utf-8"), re.M)}
    assert found == {verb.replace("-", "_") for verb in VERBS}


def test_the_list_of_verbs_says_what_each_is_for():
    done = CliRunner().invoke(cli, ["--help"])
    for name, what in VERBS.items():
        assert name in done.output
        assert what.endswith(".")
    assert "NO_COLOR" in done.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell):
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_PREFETCHD_COMPLETE" in done.output


@pytest.mark.parametrize(("shell", "word_or_place"), [("bash", "1"), ("zsh", "1"), ("fish", "")])
def test_every_shell_is_told_every_verb(shell, word_or_place):
    asked = {"_PREFETCHD_COMPLETE": f"{shell}_complete", "COMP_WORDS": "prefetchd ", "COMP_CWORD": word_or_place}
    done = subprocess.run(
        [sys.executable, "-m", "prefetchd"], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    lines = [re.split(r"[,\t]", line) for line in done.stdout.splitlines()]
    # bash: "plain,VERB"; zsh: VERB on a line of its own; fish: "plain,VERB<tab>what it is".
    assert set(VERBS) <= {part for line in lines for part in line[:2]}


def completed(*words: str) -> list[str]:
    environment = {
        **os.environ,
        "_PREFETCHD_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["prefetchd", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "prefetchd"], env=environment, capture_output=True, text=True, check=False
    )
    return [line.split(",")[-1] for line in done.stdout.splitlines()]


def test_verbs_and_options_are_completed():
    assert "status" in completed("st")
    assert "stop" in completed("st")
    assert "--watch" in completed("status", "--w")
    assert "debug" in completed("log-level", "d")


def test_streams_are_completed(monkeypatch):
    streams = [{"name": "train.py:0"}, {"name": "train.py:1"}, {"name": "eval"}]
    monkeypatch.setattr(completion, "read_report", lambda _: Report("running", 0.0, {"streams": streams}))
    context = SimpleNamespace(params={"socket": None})
    assert [each.value for each in completion.stream_names(context, None, "train")] == ["train.py:0", "train.py:1"]
    monkeypatch.setattr(completion, "read_report", lambda _: Report("absent"))
    assert completion.stream_names(context, None, "") == []


@pytest.mark.parametrize(("terminal", "seconds", "shown"), [(True, 3, True), (True, 0.5, False), (False, 3, False)])
def test_what_takes_long_is_shown_on_a_terminal_alone(monkeypatch, capsys, terminal, seconds, shown):
    now = [100.0]
    monkeypatch.setattr("prefetchd.cli.patience.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with Patience("waiting") as patience:
        now[0] += seconds
        patience.go_on()
    said = capsys.readouterr().err
    assert ("waiting (3 s)" in said) is shown
    assert said.endswith("\r\x1b[K") is shown
