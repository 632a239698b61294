"""What commands are made of, and that somebody carries each of them out."""

from __future__ import annotations

import ast
import dataclasses
import inspect

import pytest

from prefetchd.daemon.engine import commands
from prefetchd.daemon.engine.commands import Command, Log, ReportStall
from prefetchd.daemon.shell import command_executor, publishing

COMMANDS = [each for each in vars(commands).values() if inspect.isclass(each) and issubclass(each, Command)][1:]


def cases(module) -> set[str]:
    """The commands that the module tells apart."""
    tree = ast.parse(inspect.getsource(module))
    return {ast.unparse(each.cls).removeprefix("c.") for each in ast.walk(tree) if isinstance(each, ast.MatchClass)}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_each_is_executed(command):
    by_all = {case for module in (command_executor, publishing) for case in cases(module)}
    assert command.__name__ in by_all


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_each_stays_as_it_was_decided(command):
    values = [0] * len(dataclasses.fields(command))
    made = command(*values)
    assert made == command(*values)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(command)[0].name, 1)


def test_a_line_has_its_fields_in_the_order_in_which_they_were_named():
    line = Log.line("warning", "worker died", stream="s", level=3, event="exit")
    assert (line.level, line.event) == ("warning", "worker died")
    assert line.fields == (("stream", "s"), ("level", 3), ("event", "exit"))


def test_no_process_is_suspected_unless_one_is_named():
    assert ReportStall(1, 1, 1, (0, 0), 60.0, "drained").suspect == commands.NOBODY != commands.ZYGOTE
