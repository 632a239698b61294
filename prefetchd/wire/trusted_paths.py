"""Opens and makes directories and files that no other user of the machine can have made, replaced or changed.

A path is as trustworthy as the weakest directory on it: whoever may write to one of them can put another tree in its
place. So each component is opened from the one before, never through a link that somebody else could have made, and its
owner and mode are looked at. Root is trusted: it can do anything anyway.

1. A directory on the way belongs to us or to root, and nobody else may write to it; in a sticky one, such as /tmp,
   others may make names but not replace ours.
2. The last directory belongs to us or to root, and neither group nor others may write to it.
3. A file is a regular one of ours or of root's, and neither group nor others may write to it. It is judged by its
   descriptor: a name may be another file by the time that it is opened.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

from prefetchd.wire.errors import UntrustedPathError

LINKS_LIMIT = 40
OTHERS_WRITE = 0o022
_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_directory(path: str | os.PathLike[str], knob: str, *, sticky: bool = False, own_group: bool = False) -> int:
    """Opens (O_PATH) the directory at `path`, for which rules 1 and 2 hold. With `sticky` the last one may be a sticky
    directory; with `own_group` the user's own group may write to it. `knob` says what to do otherwise. Raises
    UntrustedPathError, and OSError when there is none."""
    names = os.path.abspath(path).split("/")[::-1]
    way = [os.open("/", _PATH_FLAGS | os.O_DIRECTORY)]
    told = ["/"]
    links = 0
    try:
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if len(way) > 1:
                    os.close(way.pop())
                    told.pop()
                continue
            # Each directory is judged by its descriptor before anything in it is opened: what is checked is what is
            # used.
            _check_on_the_way(os.fstat(way[-1]), told[-1], knob)
            fd = os.open(name, _PATH_FLAGS, dir_fd=way[-1])
            found = os.fstat(fd)
            if stat.S_ISLNK(found.st_mode):
                target = _target(fd, found, os.path.join(told[-1], name), knob)
                links += 1
                if links > LINKS_LIMIT:
                    raise UntrustedPathError(f"{path} leads through more than {LINKS_LIMIT} symbolic links. {knob}")
                names += target.split("/")[::-1]
                if target.startswith("/"):
                    while len(way) > 1:
                        os.close(way.pop())
                        told.pop()
                continue
            if not stat.S_ISDIR(found.st_mode):
                os.close(fd)
                raise NotADirectoryError(20, os.strerror(20), os.path.join(told[-1], name))
            way.append(fd)
            told.append(os.path.join(told[-1], name))
        found = os.fstat(way[-1])
        if not (sticky and found.st_mode & stat.S_ISVTX and is_trusted_owner(found.st_uid)):
            _check_last(found, told[-1], knob, own_group=own_group)
        return way.pop()
    finally:
        for fd in way:
            os.close(fd)


def check_directory(path: str | os.PathLike[str], knob: str) -> None:
    """Raises, as open_directory() does, unless rules 1 and 2 hold for the directory at `path`."""
    os.close(open_directory(path, knob))


def make_directory(path: str | os.PathLike[str], knob: str) -> None:
    """Creates the directory and what is missing above it, all with mode 0700; nothing is made where rule 1 does not
    hold. Raises UntrustedPathError, also when it is there and neither rule 1 nor 2 holds for it, and OSError."""
    path = os.path.abspath(path)
    try:
        os.close(open_directory(path, knob, sticky=True))
        return
    except FileNotFoundError:
        make_directory(os.path.dirname(path), knob)
    parent = open_directory(os.path.dirname(path), knob, sticky=True)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.basename(path), 0o700, dir_fd=parent)
    finally:
        os.close(parent)
    os.close(open_directory(path, knob, sticky=True))


def open_file(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> int:
    """Opens the file at `path`, for which rule 3 holds, for reading. Never blocks: a FIFO is no such file. Raises
    UntrustedPathError and OSError."""
    fd = os.open(path, _READ_FLAGS, dir_fd=dir_fd)
    try:
        check_file(fd, os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_below(directory: int, path: str, flags: int) -> int:
    """Opens the regular file at `path` below the directory behind the descriptor `directory`: through no link and out
    of it by no `..`. Raises UntrustedPathError and OSError."""
    *above, name = path.split("/")
    if not all(part and part not in (".", "..") for part in (*above, name)):
        raise UntrustedPathError(f"{path!r} leads out of its directory, or nowhere")
    way = [os.dup(directory)]
    try:
        for part in above:
            way.append(os.open(part, _PATH_FLAGS | os.O_DIRECTORY, dir_fd=way[-1]))
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=way[-1])
    finally:
        for each in way:
            os.close(each)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise UntrustedPathError(f"{path} is {_described(found)}; allowed: a regular file")
    return fd


def is_ours_alone(found: os.stat_result) -> bool:
    """Returns True for what belongs to us or to root, and nobody else may write to; the user's own group may."""
    writable = found.st_mode & OTHERS_WRITE
    if writable == 0o020 and is_private_group(found.st_gid):
        writable = 0
    return found.st_uid in (0, os.geteuid()) and not writable


def check_file(fd: int, path: str) -> os.stat_result:
    """Returns what fstat(2) says of the file behind `fd`. Raises UntrustedPathError unless rule 3 holds for it."""
    found = os.fstat(fd)
    if not is_trusted_file(found):
        raise UntrustedPathError(
            f"{path} is {_described(found)}; allowed: a regular file of uid {os.geteuid()} that nobody else may write "
            "to. Remove it, if you do not know whose it is"
        )
    return found


def read_file(path: str | os.PathLike[str], limit_bytes: int, *, dir_fd: int | None = None) -> bytes:
    """Reads the file at `path`, for which rule 3 holds. Raises UntrustedPathError, also when it is longer than
    `limit_bytes`, and OSError."""
    with open(open_file(path, dir_fd=dir_fd), "rb") as file:
        found = file.read(limit_bytes + 1)
    if len(found) > limit_bytes:
        raise UntrustedPathError(f"{os.fspath(path)} is longer than {limit_bytes} bytes, which is all that is read")
    return found


def is_trusted_file(found: os.stat_result) -> bool:
    """Returns True when rule 3 holds for the file."""
    ours = found.st_uid in (0, os.geteuid())
    return ours and stat.S_ISREG(found.st_mode) and not found.st_mode & OTHERS_WRITE


def is_trusted_owner(uid: int) -> bool:
    """Returns True for us and for root. In a user namespace that does not have root, its directories are the overflow
    uid's."""
    return uid in (0, os.geteuid()) or uid == _stands_for_root()


def replace_file(
    path: str | os.PathLike[str],
    content: bytes,
    mode: int = 0o600,
    written: Callable[[], None] = lambda: None,
) -> None:
    """Puts a file with `content` at `path`, whole or not at all. It is written under a name that nobody can guess or
    have made: a link there is never followed. Then `written` is called, then it gets its name. Raises OSError; then
    nothing is left of it."""
    path = os.fspath(path)
    while True:
        temporary = f"{path}.{os.urandom(8).hex()}.tmp"
        # 0600 from the beginning, and exclusive: the name cannot have been there.
        try:
            fd = os.open(temporary, _CREATE_FLAGS, mode)
            break
        except FileExistsError:
            continue
    try:
        with open(fd, "wb") as file:
            file.write(content)
        written()
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def own_home() -> Path | None:
    """Returns the user's home as the user database has it, if it exists and is the user's own. None else."""
    with contextlib.suppress(KeyError, OSError):
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
        if home.stat().st_uid == os.geteuid() and os.access(home, os.W_OK):
            return home
    return None


def _check_on_the_way(found: os.stat_result, path: str, knob: str) -> None:
    writable = found.st_mode & OTHERS_WRITE
    if writable == 0o020 and is_private_group(found.st_gid):
        writable = 0
    if is_trusted_owner(found.st_uid) and (not writable or found.st_mode & stat.S_ISVTX):
        return
    raise UntrustedPathError(
        f"{path} is {_described(found)}: others could put another directory in the place of what lies in it; allowed: "
        f"directories of uid {os.geteuid()} or root that nobody else may write to, or sticky ones. {knob}"
    )


def _check_last(found: os.stat_result, path: str, knob: str, *, own_group: bool) -> None:
    if own_group and is_ours_alone(found):
        return
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & OTHERS_WRITE:
        return
    raise UntrustedPathError(
        f"{path} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; allowed: a directory of uid "
        f"{os.geteuid()} that nobody else may write to. {knob}"
    )


def _target(fd: int, found: os.stat_result, path: str, knob: str) -> str:
    """Reads where the link behind `fd` leads, and closes `fd`. Raises UntrustedPathError when the link is another
    user's."""
    try:
        if not is_trusted_owner(found.st_uid):
            raise UntrustedPathError(
                f"{path} is a symbolic link of uid {found.st_uid}; allowed: one of uid {os.geteuid()} or root. {knob}"
            )
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def _described(found: os.stat_result) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFREG: "a file", stat.S_IFLNK: "a symbolic link"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "no regular file")
    return f"{kind} of uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}"


def is_private_group(gid: int) -> bool:
    """Returns True for root's group and for the user's own, where each user has one: with umask 002 all that the user
    makes may be written to by a group that has nobody else in it."""
    import grp  # here: few need it, and it reads the group database

    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


@functools.cache
def _stands_for_root() -> int:
    """Returns the uid under which root's files are seen where root has none in this user namespace; -1 where it has."""
    try:
        spans = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text("ascii").splitlines()]
        if any(outside == 0 for _, outside, _ in spans):
            return -1
        return int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))
    except (OSError, ValueError):
        return -1
