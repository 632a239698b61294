"""Paths in directories that everybody may write to: what somebody else has made there is never entered, and a link is
never written through."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from prefetchd_client import BatchDirectory
from prefetchd_demo import pictures

from prefetchd.cli.main import cli
from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import ConfigError
from prefetchd.daemon.telemetry.logs import log_to
from prefetchd.ring.batch_files import BatchFiles
from prefetchd.wire import trusted_paths
from prefetchd.wire.batch_file import STREAM_FILE
from prefetchd.wire.errors import CallerError, UntrustedPathError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import make_private, runtime_paths
from prefetchd.wire.trusted_paths import check_directory, replace_file
from tests.attacks.another_user import NOBODY, as_nobody, as_root


@pytest.fixture
def victim(tmp_path):
    """A file of ours that an attack is to change."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious" * 8)
    path.chmod(0o600)
    yield path
    assert path.read_bytes() == b"precious" * 8, "it was written to"


@pytest.fixture
def untouched_log():
    logger = logging.getLogger("prefetchd")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:], logger.level, logger.propagate = before


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- the runtime directory ---


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_runtime_directory_that_another_user_has_made_is_not_entered(shared_directory, monkeypatch, mode):
    """It is refused although `v1` in it is ours: its owner may put another one in its place."""
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(shared_directory))
    paths = runtime_paths(env={})
    theirs = paths.socket.parent.parent
    assert theirs.parent == shared_directory

    def make():
        theirs.mkdir()
        theirs.chmod(mode)

    as_nobody(make)
    with pytest.raises(UntrustedPathError, match=f"{theirs} is a directory of uid {NOBODY} with mode {mode:o}"):
        make_private(paths.socket.parent)
    paths.socket.parent.mkdir(mode=0o700)
    with pytest.raises(UntrustedPathError, match=r"--socket or \$PREFETCHD_SOCKET"):
        make_private(paths.socket.parent)


@as_root
def test_a_daemon_says_so_and_does_not_start_there(shared_directory, daemon):
    theirs = shared_directory / f"prefetchd-{os.geteuid()}"
    as_nobody(theirs.mkdir)
    environment = {"TMPDIR": str(shared_directory), "XDG_RUNTIME_DIR": "", "PREFETCHD_SOCKET": ""}
    daemon.environment |= environment
    done = daemon.command("run", "--detach", check=False)
    assert done.returncode != 0
    assert f"of uid {NOBODY}" in done.stderr
    assert list(theirs.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o722])
def test_a_tree_that_others_could_replace_is_not_entered(tmp_path, mode):
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    (tmp_path / "a").chmod(mode)
    if mode == 0o722:
        # Root's own group is no danger; of others' write permission 0o002 is left.
        assert mode & 0o002
    with pytest.raises(UntrustedPathError, match=f"{tmp_path}/a is a directory of uid .* with mode {mode:o}"):
        make_private(tmp_path / "a" / "b")
    assert not (tmp_path / "a" / "b" / "d.sock").exists()
    with pytest.raises(UntrustedPathError):
        make_private(tmp_path / "a" / "c" / "d")
    assert not (tmp_path / "a" / "c").exists(), "something was made there"


@as_root
def test_a_link_of_another_user_on_the_way_is_not_followed(shared_directory, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (shared_directory / "ours").symlink_to(tmp_path / "real")
    check_directory(shared_directory / "ours", "")
    as_nobody(lambda: (shared_directory / "theirs").symlink_to("/etc"))
    with pytest.raises(UntrustedPathError, match=f"a symbolic link of uid {NOBODY}"):
        check_directory(shared_directory / "theirs", "")


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UntrustedPathError, match="symbolic links"):
        check_directory(tmp_path / "a" / "c", "")


def test_a_group_that_is_the_user_s_own_may_write_on_the_way(tmp_path, monkeypatch):
    """With umask 002 all directories are so; the last one is ours alone nevertheless."""
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    (tmp_path / "a").chmod(0o770)
    monkeypatch.setattr(trusted_paths, "is_private_group", lambda gid: True)
    check_directory(tmp_path / "a" / "b", "")
    monkeypatch.setattr(trusted_paths, "is_private_group", lambda gid: False)
    with pytest.raises(UntrustedPathError):
        check_directory(tmp_path / "a" / "b", "")


# --- locks ---


@as_root
def test_a_lock_that_is_another_user_s_link_is_not_written_through(shared_directory, victim, daemon):
    """Beside a socket in the temporary directory."""
    socket = shared_directory / "d.sock"
    as_nobody(lambda: socket.with_name("d.sock.lock").symlink_to(victim))
    done = daemon.command("run", "--detach", "--socket", str(socket), check=False)
    assert done.returncode != 0
    assert f"of uid {NOBODY}" in done.stderr
    assert not socket.exists()


@as_root
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_lock_that_another_user_has_made_is_an_error_with_its_owner(shared_directory, mode):
    path = shared_directory / "d.sock.lock"

    def make():
        path.touch()
        path.chmod(mode)

    as_nobody(make)
    with pytest.raises(UntrustedPathError, match=f"of uid {NOBODY}.*PREFETCHD_SOCKET"):
        LockFile(path).acquire()


def test_a_lock_is_a_file_of_one_name(tmp_path, victim):
    for make in (os.link, os.symlink):
        path = tmp_path / make.__name__
        make(victim, path)
        with pytest.raises(UntrustedPathError, match="links"):
            LockFile(path).acquire()


def test_a_lock_that_is_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "d.lock", 0o600)
    with pytest.raises(UntrustedPathError):
        LockFile(tmp_path / "d.lock").acquire()


# --- files that are replaced ---


def test_a_progress_file_in_a_shared_directory_leads_nowhere(shared_directory, victim):
    progress = shared_directory / "progress.txt"
    for name in (f"progress.txt.{os.getpid()}.tmp", "progress.txt.tmp", "progress.txt"):
        (shared_directory / name).symlink_to(victim)
    BatchDirectory(shared_directory, progress, epoch=1, step=2)
    assert progress.read_bytes() == b"1\n2\n"
    assert not progress.is_symlink()


def test_a_description_leads_nowhere(tmp_path, victim):
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    for name in (f"{STREAM_FILE}.tmp", STREAM_FILE):
        (disk / name).symlink_to(victim)
    files = BatchFiles(str(disk))
    files.open()
    try:
        files.describe(b"{}")
        files.tell_errors({(0, 0): "why"})
    finally:
        files.close()
    assert (disk / STREAM_FILE).read_bytes() == b"{}"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a"
    replace_file(path, b"first")

    def fail():
        raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        replace_file(path, b"second", written=fail)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]
    assert mode_of(path) == 0o600


# --- the log ---


def test_without_a_home_the_log_is_not_in_a_directory_of_everybody_s(monkeypatch):
    for home in (trusted_paths.own_home(), None):
        monkeypatch.setattr("prefetchd.wire.runtime_paths.own_home", lambda home=home: home)
        monkeypatch.setattr(pictures, "own_home", lambda home=home: home)
        own = home or Path(tempfile.gettempdir(), f"prefetchd-{os.geteuid()}")
        assert own in runtime_paths("/run/x.sock", {}).log.parents
        assert own in pictures.cache_directory({}).parents


@pytest.mark.usefixtures("untouched_log")
def test_the_log_is_the_user_s_alone(tmp_path):
    path = tmp_path / "state" / "daemon.log"
    path.parent.mkdir(mode=0o700)
    path.touch(mode=0o644)
    log_to(path, "info")
    logging.getLogger("prefetchd").info("event")
    assert mode_of(path) == 0o600
    assert "event" in path.read_text()


@pytest.mark.usefixtures("untouched_log")
def test_a_log_that_is_a_link_is_not_written_through(tmp_path, victim):
    (tmp_path / "daemon.log").symlink_to(victim)
    with pytest.raises(CallerError, match="XDG_STATE_HOME"):
        log_to(tmp_path / "daemon.log", "info")


@as_root
@pytest.mark.usefixtures("untouched_log")
def test_a_log_directory_of_another_user_is_not_entered(shared_directory):
    as_nobody((shared_directory / ".local").mkdir)
    with pytest.raises(CallerError, match=rf"of uid {NOBODY}.*\$XDG_STATE_HOME"):
        log_to(shared_directory / ".local" / "state" / "prefetchd" / "daemon.log", "info")
    assert list((shared_directory / ".local").iterdir()) == []


# --- the configuration ---


@pytest.fixture
def configuration(open_directory):
    path = open_directory / "prefetchd.toml"
    path.write_text("[daemon]\nworkers = 1\n")
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("mode", [0o666, 0o662, 0o646])
def test_a_configuration_that_others_may_write_to_is_refused(configuration, mode):
    """It names the code that the daemon runs."""
    assert read_config(configuration).daemon.workers == 1
    configuration.chmod(mode)
    told = rf"prefetchd\.toml belongs to uid {os.geteuid()} with mode {mode:o}; allowed.*chmod go-w"
    with pytest.raises(ConfigError, match=told):
        read_config(configuration)
    for arguments in (["config", "check", str(configuration)], ["run", "--config", str(configuration)]):
        done = CliRunner().invoke(cli, arguments)
        assert f"with mode {mode:o}" in str(done.exception)


@as_root
def test_another_user_s_configuration_is_refused(configuration, tmp_path):
    os.chown(configuration, NOBODY, NOBODY)
    link = tmp_path / "ours.toml"
    link.symlink_to(configuration)
    for path in (configuration, link):
        with pytest.raises(ConfigError, match=f"belongs to uid {NOBODY} with mode 644"):
            read_config(path)


@as_root
def test_root_s_configuration_is_read_by_other_users(configuration):
    assert as_nobody(lambda: read_config(configuration).daemon.workers) == "1"
