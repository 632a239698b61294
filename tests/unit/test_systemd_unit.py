"""The units: their commands exist, systemd understands them, and they hide nothing from workers."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from prefetchd.cli import systemd
from prefetchd.cli.main import cli
from prefetchd.daemon.main import KEEPING_SIGNAL
from prefetchd.wire.runtime_paths import runtime_paths

UNITS = {name: files("prefetchd.units").joinpath(name).read_text("utf-8") for name in systemd.USER_UNITS}
UNITS[systemd.SYSTEM_UNIT] = files("prefetchd.units").joinpath(systemd.SYSTEM_UNIT).read_text("utf-8")
README = (Path(__file__).resolve().parents[2] / "systemd" / "README.md").read_text("utf-8")

# What hides files from the user's code, changes the modes of files that it writes, or forbids generated code; and in a
# user unit what takes it into a user namespace, in which uids are others.
FORBIDDEN_TO_USERS = re.compile(
    r"Protect|Private|Bind|Root|ReadOnly|ReadWrite|Inaccessible|Temporary|MemoryDeny|UMask|RestrictSUIDSGID|DynamicUser"
    r"|RuntimeDirectory|SystemCall|RestrictNamespaces|RestrictAddressFamilies|IPAddress"
)
FORBIDDEN = re.compile(
    r"PrivateDevices|DevicePolicy|DeviceAllow|ProtectClock|MemoryDeny|PrivateTmp|ProtectHome|PrivateUsers|PrivateIPC"
    r"|PrivateNetwork|Inaccessible|ReadOnly|Temporary|SystemCallFilter|RestrictAddressFamilies|DynamicUser|UMask"
)


def section(name: str, title: str) -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(UNITS[name])
    assert parser.sections() == ["Unit", title, "Install"]
    return dict(parser[title])


def commands() -> list[str]:
    """Every command line of the units, and of the drop-ins in the README."""
    lines = re.findall(r"^ *Exec(?:Start|Reload)=(.+)$", "\n".join([*UNITS.values(), README]), re.M)
    assert len(lines) >= 3
    return lines


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one_of_prefetchd_s(line):
    program, verb, *arguments = shlex.split(line)
    assert Path(program).name == "prefetchd"
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    # Parses and does not run; an option that is not there is a UsageError.
    command.make_context(verb, list(arguments))


@pytest.mark.parametrize("name", ["prefetchd.service", "prefetchd@.service"])
def test_a_stop_in_order_is_no_failure_and_a_killed_worker_neither(name):
    found = section(name, "Service")
    assert found["Restart"] == "on-failure"
    assert found["OOMPolicy"] == "continue"
    assert found["KillMode"] == "mixed"
    # Slow enough that a daemon that finds another one does not use up the 5 starts in 10 s that systemd allows.
    assert int(found["RestartSec"]) > 10 / 5
    assert found["Type"] == "notify"
    assert found["RestartKillSignal"] == KEEPING_SIGNAL.name, "a stop that is part of a restart keeps the rings"
    assert int(found["WatchdogSec"]) >= 10


@pytest.mark.parametrize("name", ["prefetchd.service", "prefetchd@.service"])
def test_a_daemon_that_hangs_is_killed_and_training_goes_before_it(name):
    found = section(name, "Service")
    assert found["WatchdogSignal"] == "SIGKILL", (
        "a loop that hangs answers nothing else, and dumps no core of all rings"
    )
    assert found["Nice"] == "0"
    assert int(found["CPUWeight"]) < 100
    assert {"NoNewPrivileges": "yes", "LockPersonality": "yes", "RestrictRealtime": "yes"}.items() <= found.items()


def test_the_system_unit_has_a_directory_that_a_crash_leaves_and_no_privileges():
    found = section("prefetchd@.service", "Service")
    assert found["RuntimeDirectory"] == "prefetchd-%i"
    assert found["RuntimeDirectoryMode"] == "0700"
    assert found["RuntimeDirectoryPreserve"] == "restart"
    assert f"/run/{found['RuntimeDirectory']}/" in found["ExecStart"]
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == ""
    protected = ("KernelTunables", "KernelModules", "KernelLogs", "ControlGroups", "Hostname")
    assert [found[f"Protect{what}"] for what in protected] == ["yes"] * 5
    assert found["ProtectSystem"] == "full"


def quoted_systemd() -> bool:
    """Whether systemd is here in the version that README quotes: others weigh otherwise."""
    if shutil.which("systemd-analyze") is None:
        return False
    said = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=False).stdout
    return re.findall(r"With systemd (\d+),", README) == said.split()[1:2]


@pytest.mark.skipif(not quoted_systemd(), reason="systemd is not here, or in another version")
@pytest.mark.parametrize(
    ("name", "instance", "quoted"),
    [
        ("prefetchd.service", "prefetchd.service", r"`systemd-analyze --user security \S+ says ([\d.]+) of the user"),
        ("prefetchd@.service", "prefetchd@ada.service", r"says ([\d.]+) \(ok\) of the system unit"),
        ("prefetchd@.service", "prefetchd@root.service", r"([\d.]+) of that of root"),
    ],
)
def test_what_systemd_says_of_their_security_is_what_is_quoted(tmp_path, name, instance, quoted):
    (tmp_path / instance).write_text(UNITS[name])
    command = ["systemd-analyze", *([] if "@" in name else ["--user"]), "security", "--offline=true"]
    done = subprocess.run(
        [*command, str(tmp_path / instance)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (said,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert re.findall(quoted, " ".join(README.split())) == [said]


def test_nothing_stands_between_workers_and_the_user_s_files_or_the_gpu():
    assert [name for name in section("prefetchd.service", "Service") if FORBIDDEN_TO_USERS.match(name)] == []
    assert [name for name in section("prefetchd@.service", "Service") if FORBIDDEN.match(name)] == []


def test_systemd_listens_where_trainers_look(tmp_path):
    found = section("prefetchd.socket", "Socket")
    own = runtime_paths(env={"XDG_RUNTIME_DIR": str(tmp_path)}).socket
    assert found["ListenSequentialPacket"].replace("%t", str(tmp_path)) == str(own)
    assert (found["SocketMode"], found["DirectoryMode"]) == ("0600", "0700")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("names", [systemd.USER_UNITS, (systemd.SYSTEM_UNIT,)], ids=["user", "system"])
def test_systemd_understands_every_line(tmp_path, names):
    # A command that is there stands in for the one that is named; the one unit needs the other beside it.
    for name in names:
        instance = name.replace("@", "@root")
        (tmp_path / instance).write_text(systemd.unit_text(name, sys.executable))
        runtime = tmp_path / "run"
        runtime.mkdir(mode=0o700, exist_ok=True)
        done = subprocess.run(
            ["systemd-analyze", *(["--user"] if "@" not in name else []), "verify", str(tmp_path / instance)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # It only warns of names and values that it does not know.
        assert [line for line in done.stderr.splitlines() if "prefetchd" in line] == []
        assert done.returncode == 0, done.stderr


# --- prefetchd systemd install ---


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """A systemctl that writes down what it was asked, and what it exits with."""
    called = tmp_path / "called"
    script = tmp_path / "bin" / "systemctl"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {called}\n[ ! -e {tmp_path}/fails ] || {{ echo no >&2; exit 1; }}\n'
        f'case "$*" in list-units*) cat {tmp_path}/running 2> /dev/null || true;; esac\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return lambda: called.read_text().splitlines() if called.exists() else []


def install(*arguments):
    done = CliRunner().invoke(cli, ["systemd", "install", *arguments])
    return done.exit_code, done.output


def test_units_are_written_with_this_command_and_enabled(tmp_path, systemctl):
    code, said = install()
    assert (code, systemctl()) == (0, ["--user daemon-reload", "--user enable --now prefetchd.service"])
    written = (tmp_path / "config/systemd/user/prefetchd.service").read_text()
    assert f"\nExecStart={systemd.program()} run\n" in written
    assert f"\nExecReload={systemd.program()} reload\n" in written
    assert (tmp_path / "config/systemd/user/prefetchd.socket").is_file()
    assert "loginctl enable-linger" in said


def test_with_socket_activation_the_socket_is_enabled(systemctl):
    assert install("--socket-activation")[0] == 0
    assert systemctl()[-1] == "--user enable --now prefetchd.socket"


def test_nothing_is_enabled_and_nothing_written_when_that_is_asked_for(tmp_path, systemctl):
    code, said = install("--no-start")
    assert (code, systemctl()) == (0, [])
    assert "systemctl --user enable --now prefetchd.service" in said
    shutil.rmtree(tmp_path / "config")
    code, said = install("--print", "--system", "ada")
    assert (code, systemctl()) == (0, [])
    assert "User=%i" in said
    assert not (tmp_path / "config").exists()


def test_a_system_unit_is_for_one_user(tmp_path, systemctl, monkeypatch):
    monkeypatch.setattr(systemd, "SYSTEM_DIRECTORY", tmp_path / "system")
    code, said = install("--system", "ada")
    assert (code, systemctl()) == (0, ["daemon-reload", "enable --now prefetchd@ada.service"])
    written = (tmp_path / "system/prefetchd@.service").read_text()
    assert f"\nExecStart={systemd.program()} run --socket /run/prefetchd-%i/daemon.sock\n" in written
    assert f"\nExecReload={systemd.program()} reload --socket /run/prefetchd-%i/daemon.sock\n" in written
    assert "PREFETCHD_SOCKET=/run/prefetchd-ada/daemon.sock" in said
    assert install("--system", "ada", "--socket-activation")[0] == 2


def test_what_systemctl_says_is_told(tmp_path, systemctl):
    (tmp_path / "fails").touch()
    code, said = install()
    assert code == 1
    assert "`systemctl --user daemon-reload` fails: no" in said


# --- prefetchd systemd uninstall ---


def uninstall(*arguments):
    done = CliRunner().invoke(cli, ["systemd", "uninstall", *arguments])
    return done.exit_code, done.output


@pytest.fixture
def places(tmp_path, systemctl, monkeypatch):
    """Where units are written: (the user's, the system's)."""
    monkeypatch.setattr(systemd, "SYSTEM_DIRECTORY", tmp_path / "system")
    return tmp_path / "config/systemd/user", tmp_path / "system"


def test_what_was_installed_is_stopped_and_removed_and_a_second_time_nothing_is(places, systemctl):
    own, _ = places
    install()
    asked = len(systemctl())
    code, said = uninstall()
    assert (code, list(own.iterdir())) == (0, [])
    assert systemctl()[asked:] == [
        "--user disable --now prefetchd.socket prefetchd.service",
        "--user daemon-reload",
    ]
    assert f"removed {own / 'prefetchd.service'}" in said.splitlines()
    assert f"removed {own / 'prefetchd.socket'}" in said.splitlines()
    asked = len(systemctl())
    assert uninstall() == (0, f"no unit of prefetchd is installed in {own}\n")
    assert len(systemctl()) == asked, "systemctl is not asked about what is not there"


def test_a_unit_that_somebody_has_changed_is_left_and_the_other_goes(places, systemctl):
    own, _ = places
    install()
    unit = own / "prefetchd.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=30", "WatchdogSec=60"))
    code, said = uninstall()
    assert code == 1
    assert [path.name for path in own.iterdir()] == ["prefetchd.service"]
    assert "--user disable --now prefetchd.socket" in systemctl()
    assert f"left as they are: {unit}" in said
    assert f"systemctl --user disable --now prefetchd.service; rm {unit}" in said


def test_units_that_were_written_before_there_was_a_mark_are_known(places):
    own, _ = places
    own.mkdir(parents=True)
    for name in systemd.USER_UNITS:
        (own / name).write_text(systemd.unit_text(name, "/elsewhere/bin/python -m prefetchd"))
    assert uninstall()[0] == 0
    assert list(own.iterdir()) == []


def test_drop_ins_are_left_and_named(places):
    own, _ = places
    install()
    drop_in = own / "prefetchd.service.d" / "memory.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nMemoryMax=64G\n")
    for _ in range(2):
        code, said = uninstall()
        assert code == 0
        assert f"left {drop_in}: drop-ins are yours" in said
    assert drop_in.exists()


def test_a_system_unit_goes_with_its_last_user(tmp_path, places, systemctl):
    _, system = places
    install("--system", "ada")
    wants = system / "multi-user.target.wants"
    wants.mkdir()
    (wants / "prefetchd@bob.service").symlink_to(system / systemd.SYSTEM_UNIT)
    (wants / "prefetchd@ada.service").symlink_to(system / systemd.SYSTEM_UNIT)
    (tmp_path / "running").write_text("prefetchd@eve.service loaded active running prefetchd, a daemon\n")
    code, said = uninstall("--system", "ada")
    assert code == 0
    assert "disable --now prefetchd@ada.service" in systemctl()
    assert f"left {system / systemd.SYSTEM_UNIT}: it is also the unit of bob, eve" in said
    (wants / "prefetchd@bob.service").unlink()
    (tmp_path / "running").write_text("")
    assert uninstall("--system", "ada")[0] == 0
    assert not (system / systemd.SYSTEM_UNIT).exists()
    assert uninstall("--system", "ada") == (0, f"no unit of prefetchd is installed in {system}\n")


def test_where_systemctl_fails_nothing_is_removed(tmp_path, places):
    own, _ = places
    install()
    (tmp_path / "fails").touch()
    code, said = uninstall()
    assert code == 1
    assert "nothing is removed, but `systemctl --user disable --now prefetchd.socket prefetchd.service` fails" in said
    assert len(list(own.iterdir())) == 2


def test_where_there_is_no_systemctl_the_files_are_removed(places, monkeypatch):
    own, _ = places
    install("--no-start")
    monkeypatch.setattr(systemd.shutil, "which", lambda name: None)
    code, said = uninstall()
    assert (code, list(own.iterdir())) == (0, [])
    assert "nothing is disabled or stopped" in said
