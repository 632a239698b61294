"""The user unit in systemd/: its commands exist, systemd understands it, and it hides nothing from workers."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from prefetchd.cli.main import cli

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
UNIT = (SYSTEMD / "prefetchd.service").read_text("utf-8")
README = (SYSTEMD / "README.md").read_text("utf-8")

# What hides files from the user's code, changes the modes of files that it writes, forbids generated code, or takes a
# user unit into a user namespace, in which uids are others.
FORBIDDEN = re.compile(
    r"Protect|Private|Bind|Root|ReadOnly|ReadWrite|Inaccessible|Temporary|MemoryDeny|UMask|RestrictSUIDSGID|DynamicUser"
    r"|RuntimeDirectory|SystemCall|RestrictNamespaces|RestrictAddressFamilies|IPAddress"
)


def service() -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(UNIT)
    assert parser.sections() == ["Unit", "Service", "Install"]
    return dict(parser["Service"])


def commands() -> list[str]:
    """Every ExecStart line of the unit, and of the drop-ins in the README."""
    lines = re.findall(r"^ *ExecStart=(.+)$", UNIT + "\n" + README, re.M)
    assert len(lines) >= 2
    return lines


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one_of_prefetchd_s(line):
    program, verb, *arguments = shlex.split(line)
    assert Path(program).name == "prefetchd"
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    # Parses and does not run; an option that is not there is a UsageError.
    command.make_context(verb, list(arguments))


def test_a_stop_in_order_is_no_failure_and_a_killed_worker_neither():
    found = service()
    assert found["Restart"] == "on-failure"
    assert found["OOMPolicy"] == "continue"
    assert found["KillMode"] == "mixed"
    # Slow enough that a daemon that finds another one does not use up the 5 starts in 10 s that systemd allows.
    assert int(found["RestartSec"]) > 10 / 5
    # The daemon cannot say when it is ready.
    assert found["Type"] in ("exec", "simple")


def test_nothing_stands_between_workers_and_the_user_s_files():
    assert [name for name in service() if FORBIDDEN.match(name)] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_every_line(tmp_path):
    # The installed command stands in for the one in the user's home, which need not be there.
    installed = Path(sys.executable).with_name("prefetchd")
    program = installed if os.access(installed, os.X_OK) else Path(sys.executable)
    unit = tmp_path / "prefetchd.service"
    unit.write_text(UNIT.replace("%h/.local/bin/prefetchd", str(program)))
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # It only warns of names and values that it does not know.
    assert done.stderr == ""
    assert done.returncode == 0
