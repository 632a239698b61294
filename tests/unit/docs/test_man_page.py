"""The man page is what the help says today, and a formatter reads it."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from prefetchd.cli.main import VERBS, cli
from tests.unit.docs import man_page


def test_it_is_what_the_help_says():
    assert man_page.PAGE.read_text("utf-8") == man_page.page(), "run `python -m tests.unit.docs.man_page`"


def test_it_has_every_verb_and_every_option():
    text = man_page.PAGE.read_text("utf-8").replace("\\-", "-")
    assert {name.split()[1] for name in re.findall(r'^\.SS "(.*)"$', text, re.M)} == set(VERBS)
    for name, command, context in man_page.commands(cli, click.Context(cli, info_name="prefetchd")):
        part = text.split(f'.SS "{name}"\n')[1].split("\n.SS ")[0]
        for parameter in command.get_params(context):
            if isinstance(parameter, click.Option) and not parameter.hidden and "--help" not in parameter.opts:
                assert all(option in part for option in parameter.opts), (name, parameter.opts)


def test_what_roff_would_take_for_its_own_is_text():
    assert man_page.escaped(".SH is no \\fBheading") == "\\&.SH is no \\efBheading"
    assert list(man_page.paragraphs("One\ntwo.\n\n\b\nkept\n  as it is")) == [
        *(".PP", "One two."),
        *(".PP", ".nf", "kept", "  as it is", ".fi"),
    ]


def test_a_formatter_reads_it_without_a_warning():
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", str(man_page.PAGE)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "prefetchd status" in re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout)
