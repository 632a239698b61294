"""Where a daemon is found: the same place for both sides, one for each socket, and nobody else's."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from prefetchd.wire.errors import CallerError
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, SOCKET_PATH_LIMIT, make_private, runtime_paths


@pytest.fixture
def short():
    """A short directory of our own: pytest's are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as directory:
        yield Path(directory)


# --- which socket ---


def test_the_socket_lives_in_the_user_s_runtime_directory(short):
    paths = runtime_paths(env={"XDG_RUNTIME_DIR": str(short)})
    assert paths.socket == short / "prefetchd" / "v1" / "daemon.sock"


@pytest.mark.parametrize("env", [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "/nowhere/at/all"}], ids=repr)
def test_without_a_runtime_directory_it_lives_in_a_directory_of_this_user_below_the_temporary_one(env):
    paths = runtime_paths(env=env)
    assert paths.socket == Path(tempfile.gettempdir(), f"prefetchd-{os.geteuid()}", "v1", "daemon.sock")


def test_a_temporary_directory_that_is_too_long_for_a_socket_is_not_taken(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "t" * SOCKET_PATH_LIMIT)
    assert runtime_paths(env={}).socket == Path(f"/tmp/prefetchd-{os.geteuid()}/v1/daemon.sock")


def test_users_without_a_runtime_directory_have_places_of_their_own(monkeypatch):
    here = runtime_paths(env={}).socket
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    assert runtime_paths(env={}).socket != here


def test_the_variable_overrides_the_runtime_directory(short):
    env = {"XDG_RUNTIME_DIR": str(short), "PREFETCHD_SOCKET": "/run/other.sock"}
    assert runtime_paths(env=env).socket == Path("/run/other.sock")


def test_an_empty_variable_is_none(short):
    env = {"XDG_RUNTIME_DIR": str(short), "PREFETCHD_SOCKET": ""}
    assert runtime_paths(env=env) == runtime_paths(env={"XDG_RUNTIME_DIR": str(short)})


def test_the_argument_overrides_everything(short):
    env = {"XDG_RUNTIME_DIR": str(short), "PREFETCHD_SOCKET": "/run/other.sock"}
    assert runtime_paths("/run/mine.sock", env).socket == Path("/run/mine.sock")
    assert runtime_paths(Path("/run/mine.sock"), env).socket == Path("/run/mine.sock")


def test_a_relative_socket_is_the_same_daemon_from_everywhere(short, monkeypatch):
    monkeypatch.chdir(short)
    relative = runtime_paths("sub/../d.sock", {})
    monkeypatch.chdir("/")
    assert relative.socket == short / "d.sock"
    assert relative == runtime_paths(short / "d.sock", {})


def test_the_process_s_own_environment_is_the_default(short, monkeypatch):
    monkeypatch.setenv("PREFETCHD_SOCKET", str(short / "d.sock"))
    assert runtime_paths().socket == short / "d.sock"


def test_nothing_is_created(short):
    runtime_paths(env={"XDG_RUNTIME_DIR": str(short), "XDG_STATE_HOME": str(short / "state")})
    runtime_paths(short / "sub" / "d.sock", {})
    assert list(short.iterdir()) == []


# --- too long ---


def test_a_path_may_be_as_long_as_the_limit_and_not_a_byte_longer():
    longest = "/" + "x" * (SOCKET_PATH_LIMIT - 1)
    assert runtime_paths(longest, {}).socket == Path(longest)
    with pytest.raises(CallerError, match=f"{SOCKET_PATH_LIMIT + 1} bytes.*allowed: {SOCKET_PATH_LIMIT}") as raised:
        runtime_paths(longest + "x", {})
    assert "--socket" in str(raised.value)
    assert "PREFETCHD_SOCKET" in str(raised.value)


def test_the_limit_counts_bytes_not_characters():
    with pytest.raises(CallerError, match="bytes"):
        runtime_paths("/" + "é" * (SOCKET_PATH_LIMIT // 2), {})


def test_a_runtime_directory_that_is_too_long_is_the_caller_s_error(tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(CallerError, match="allowed"):
        runtime_paths(env={"XDG_RUNTIME_DIR": str(deep)})


def test_a_socket_can_be_bound_at_the_longest_path(short):
    path = short / ("x" * (SOCKET_PATH_LIMIT - len(str(short)) - 1))
    assert len(str(runtime_paths(path, {}).socket)) == SOCKET_PATH_LIMIT
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))


# --- names that follow from the socket ---


def test_daemons_on_different_sockets_share_no_name():
    a, b = runtime_paths("/run/a.sock", {"HOME": "/home/u"}), runtime_paths("/run/b.sock", {"HOME": "/home/u"})
    for name in ("socket", "lock", "start_lock", "log", "instance", "status_segment"):
        assert getattr(a, name) != getattr(b, name), name
    assert a.segment_name("ring", "1") != b.segment_name("ring", "1")


def test_the_names_of_one_daemon_are_apart_and_the_same_in_every_process():
    paths = runtime_paths("/run/a.sock", {})
    assert paths.instance == "c8448faf", "blake2s of the path, 4 bytes: another value orphans every living segment"
    assert len({paths.socket, paths.lock, paths.start_lock}) == 3
    assert {paths.lock.parent, paths.start_lock.parent} == {paths.socket.parent}
    names = [paths.status_segment, *(paths.segment_name(kind, "1") for kind in ("ring", "program"))]
    names.append(paths.segment_name("ring", "2"))
    assert len(set(names)) == 4
    for name in names:
        assert name.startswith(f"/{SEGMENT_PREFIX}{paths.instance}-")
        assert name.count("/") == 1


@pytest.mark.parametrize(
    ("env", "directory"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/u"}, "/state/prefetchd"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/u"}, "/home/u/.local/state/prefetchd"),
        ({"HOME": "/home/u"}, "/home/u/.local/state/prefetchd"),
    ],
    ids=repr,
)
def test_the_log_lives_in_the_state_directory(env, directory):
    assert runtime_paths(env=env).log == Path(directory, "daemon.log")
    chosen = runtime_paths("/run/a.sock", env)
    assert chosen.log.parent == Path(directory)
    assert chosen.instance in chosen.log.name


def test_one_daemon_has_one_log_however_its_socket_was_named(short):
    """`instance` is a daemon's identity; a client that names the default socket outright looks for the same log."""
    env = {"XDG_RUNTIME_DIR": str(short), "HOME": "/home/u"}
    default = runtime_paths(env=env)
    named = runtime_paths(default.socket, env)
    assert named.instance == default.instance
    assert named.log == default.log


# --- make_private ---


def mode_of(directory: Path) -> int:
    return stat.S_IMODE(directory.stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_new_directories_are_entered_by_nobody_else(tmp_path, umask):
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    before = os.umask(umask)
    try:
        make_private(tmp_path / "there" / "a" / "b" / "c")
    finally:
        os.umask(before)
    made = [tmp_path / "there" / path for path in ("a", "a/b", "a/b/c")]
    assert [mode_of(each) for each in made] == [0o700] * 3
    assert mode_of(tmp_path / "there") == 0o755, "it was there before"


def test_a_private_directory_is_taken_as_it_is(tmp_path):
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d" / "daemon.sock").touch()
    make_private(tmp_path / "d")
    make_private(tmp_path / "d")
    assert [each.name for each in (tmp_path / "d").iterdir()] == ["daemon.sock"]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o770, 0o777])
def test_a_directory_that_others_may_write_to_is_refused_with_its_mode(tmp_path, mode):
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(mode)
    with pytest.raises(CallerError, match=f"mode {mode:o}; allowed: .*PREFETCHD_SOCKET"):
        make_private(tmp_path / "d")
    assert mode_of(tmp_path / "d") == mode, "it was changed"


def test_a_directory_of_another_user_is_refused_with_its_owner(tmp_path, monkeypatch):
    (tmp_path / "d").mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(CallerError, match=f"belongs to uid {owner} .*of uid {owner + 1} "):
        make_private(tmp_path / "d")


def owned_by(monkeypatch, directory: Path, uid: int, mode: int) -> None:
    """Makes `directory` look as if it were a directory of `uid` with `mode`."""
    lstat = Path.lstat

    def pretended(path: Path) -> os.stat_result:
        found = list(lstat(path))
        if path == directory:
            found[stat.ST_MODE] = stat.S_IFDIR | mode
            found[stat.ST_UID] = uid
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", pretended)


def test_a_sticky_directory_of_root_is_allowed(tmp_path, monkeypatch):
    """/tmp is one: nobody but root can replace in it what is ours."""
    (tmp_path / "d").mkdir()
    owned_by(monkeypatch, tmp_path / "d", 0, 0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    make_private(tmp_path / "d")


def test_a_sticky_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    """Its owner may remove and replace whatever lies in it: unlink(2), EPERM."""
    (tmp_path / "d").mkdir()
    owned_by(monkeypatch, tmp_path / "d", 1001, 0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CallerError, match="belongs to uid 1001"):
        make_private(tmp_path / "d")


def test_a_link_to_a_directory_is_refused(tmp_path):
    """Whoever made the link may lead it elsewhere later."""
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "d")
    with pytest.raises(CallerError, match="allowed"):
        make_private(tmp_path / "link")


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_no_directory_is_the_caller_s_error(tmp_path, kind):
    """Another user may have put it there, below a temporary directory that all share."""
    if kind == "file":
        (tmp_path / "d").touch()
    else:
        (tmp_path / "d").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CallerError, match="--socket"):
        make_private(tmp_path / "d")
