"""The process that imports torch once, and becomes each interpreter that a test asks for.

    python tests/forking/server.py CONTROL_FD MODULE...

A request is JSON (see `forking.client`) with the descriptors of the standard streams and those that are passed on. The
answer is the pid of a process that is the *asking* process's child: it is forked twice, and whoever asks is a subreaper
meanwhile (prctl(2), PR_SET_CHILD_SUBREAPER). Interpreters that such a process starts in its turn, as a daemon starts
its zygotes, are forks of itself that forget what it was.
"""

from __future__ import annotations

import array
import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import importlib.machinery
import io
import json
import os
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LENGTH = struct.Struct("<I")
EXECUTABLE = sys.executable
MOST_FDS = 250
PAD = "FORKING_PAD"
"""A variable of the server's that makes room for others' in the memory where the kernel looks for them."""
ROOM_BYTES = 32 << 10

READ_AT_START = (
    *("LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "NPY_", "ATEN_", "DNNL_"),
    *("ONEDNN_", "TORCH", "PYTORCH_", "TZ", "LANG", "LC_", "PYTHON"),
)
"""Variables that have had their effect when torch is there."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
READ_LATER = ("PYTHONPATH", *THREADS)
HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Zygotes are started with it, and so is the server: who names none has it, too."""
Asked = tuple[dict[str, Any], list[int]]
"""A request with its descriptors."""
OURS = ("prefetchd", "prefetchd_client")
READ_BY_OURS = ("PREFETCHD_KILL_", "PREFETCHD_START")

# The function of CPython that forks and executes. Its first arguments are the same in all versions.
OWNER: Any = subprocess if hasattr(subprocess, "_fork_exec") else subprocess._posixsubprocess  # type: ignore[attr-defined]
NAME = "_fork_exec" if hasattr(subprocess, "_fork_exec") else "fork_exec"
execute = getattr(OWNER, NAME)
_execv = os.execv

_libc = ctypes.CDLL(None)
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_installed_path: list[str] = []
_begun_with: dict[str, str] = {}
_former: list[Any] = []
"""What a fork has forgotten, and must not be freed: its descriptors are others' by now."""


def request_of(arguments: tuple[Any, ...]) -> Asked | None:
    """What `execute` was asked for, with its descriptors; None where no fork can be that."""
    args, executables, close_fds, kept, cwd, env, reading, _, _, writing, _, erring, _, failure, _, new_session = (
        arguments[:16]
    )
    words = [os.fsdecode(each) for each in args]
    variables = _text(dict(each.split(b"=", 1) for each in env) if env is not None else os.environb)
    # No other group, user, umask or function of the caller's.
    is_plain = close_fds and all(each is None or isinstance(each, bool) or each == -1 for each in arguments[16:])
    is_interpreter = [os.fsdecode(each) for each in executables] == [EXECUTABLE]
    pass_fds = [fd for fd in kept if fd != failure]
    if not (is_interpreter and is_plain and len(pass_fds) < MOST_FDS - 3 and _can_be_forked(words, variables)):
        return None
    streams = [end if end >= 0 else place for place, end in enumerate((reading, writing, erring))]
    directory = os.path.abspath(os.fsdecode(cwd or os.getcwd()))
    return _request(words, variables, directory, pass_fds, bool(new_session)), [*streams, *pass_fds]


def _can_be_forked(words: list[str], variables: Mapping[str, str]) -> bool:
    room = sum(map(len, words)) + sum(len(name) + len(variables[name]) + 2 for name in variables)
    return len(words) > 1 and (words[1] in ("-c", "-m") or not words[1].startswith("-")) and room < ROOM_BYTES // 2


def _request(
    words: list[str], variables: Mapping[str, str], directory: str, pass_fds: list[int], new_session: bool
) -> dict[str, Any]:
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "arguments": words[1:],
        "variables": variables,
        "directory": directory,
        "pass_fds": pass_fds,
        "new_session": new_session,
        "umask": umask,
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that had their effect at the start."""
    return HASH_SEED | {
        name: value for name, value in variables.items() if name.startswith(READ_AT_START) and name not in READ_LATER
    }


def _text(variables: Mapping[bytes, bytes]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items() if name != PAD.encode()}


def _serve(control: socket.socket) -> Asked | None:
    """Answers requests until the other end is closed. In a child: what it is to become."""
    while True:
        request, fds = _receive(control)
        if request is None:
            return None
        is_adopted, adopted = os.pipe()
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(tell, str(child).encode())
                os._exit(0)
            # Not before it has the parent that it is meant to have.
            os.read(is_adopted, 1)
            _show(request)
            os.write(tell, b"shown")
            return request, fds
        os.waitpid(between, 0)
        pid = os.read(told, 20)
        os.write(adopted, b"x")
        os.read(told, 5)
        control.sendall(LENGTH.pack(len(pid)) + pid)
        for fd in (is_adopted, adopted, told, tell, *fds):
            os.close(fd)


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request and its descriptors; None when there will be no more."""
    fds = array.array("i")
    head, ancillary, _, _ = control.recvmsg(LENGTH.size, socket.CMSG_SPACE(MOST_FDS * fds.itemsize))
    if not head:
        return None, []
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    (length,) = LENGTH.unpack(head)
    body = b""
    while len(body) < length:
        body += control.recv(length - len(body))
    return json.loads(body), list(fds)


# --- a process becomes another one ---


def _fork_or_execute(*arguments: Any) -> int:
    """In the place of `execute`, in an interpreter that was forked itself."""
    asked = request_of(arguments)
    if asked is None or at_start(asked[0]["variables"]) != _begun_with:
        return int(execute(*arguments))
    pid = os.fork()
    if pid == 0:
        try:
            with _enough_descriptors():
                _forget()
                # Whoever starts it waits until its descriptors are closed.
                _show(asked[0])
                work = _become(*asked)
            _run(work)
        finally:
            os._exit(255)
    return pid


@contextlib.contextmanager
def _enough_descriptors() -> Iterator[None]:
    """An executed process begins without those of its parent, which may have no more of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _become_or_execute(path: Any, arguments: Any) -> None:
    """In the place of os.execv(), there too."""
    words = [os.fsdecode(each) for each in arguments]
    variables = _text(os.environb)
    if os.fsdecode(path) != EXECUTABLE or not _can_be_forked(words, variables):
        _execv(path, arguments)
    listing = os.listdir("/proc/self/fd")
    passed = [fd for fd in map(int, listing) if fd > 2 and _is_inheritable(fd)]
    try:
        _forget()
        request = _request(words, variables, os.getcwd(), passed, False)
        with _enough_descriptors():
            _show(request)
            work = _become(request, [0, 1, 2, *passed])
        _run(work)
    finally:
        os._exit(255)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _forget() -> None:
    """This process was another one until now: nothing of that is used, freed or ended."""
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS or name == "__main__"]:
        _former.append(sys.modules.pop(name))
    atexit._clear()
    _former.append(dict(weakref.finalize._registry))  # type: ignore[attr-defined]
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    gc.freeze()
    # It writes to a number: of a descriptor that is closed here, and may be that of a ring later.
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # A mapping keeps what its file's description has locked.
    with open("/proc/self/maps") as maps:
        shared = [line.split()[0] for line in maps if "/dev/shm/" in line or "/memfd:" in line]
    for span in shared:
        first, end = (int(each, 16) for each in span.split("-"))
        _libc.munmap(first, end - first)


def _become(request: dict[str, Any], fds: list[int]) -> Callable[[], None]:
    """Makes this process the one of the request. Returns what it is to run."""
    if request["new_session"]:
        os.setsid()
    _take_descriptors(fds, [0, 1, 2, *request["pass_fds"]])
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    os.umask(request["umask"])
    os.environ.update(request["variables"])
    os.sched_setaffinity(0, request["cpus"])
    _open_streams()
    tempfile.tempdir = None
    # Python's own generator is seeded anew in a fork; numpy's is not.
    sys.modules["numpy"].random.seed()
    if THREADS[0] in os.environ:
        sys.modules["torch"].set_num_threads(int(os.environ[THREADS[0]]))
    setattr(OWNER, NAME, _fork_or_execute)
    os.execv = _become_or_execute  # type: ignore[assignment]
    kind, *rest = request["arguments"]
    first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.realpath(kind)))
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [first, *path, *_installed_path]
    sys.orig_argv = [sys.executable, kind, *rest]
    _forget_what_would_be_another()
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    if kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        return lambda: runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        return lambda: exec(compile(rest[0], "<string>", "exec"), vars(main))
    sys.argv = [kind, *rest]
    main.__file__ = kind

    def script() -> None:
        with io.open_code(os.path.abspath(kind)) as file:
            code = compile(file.read(), kind, "exec")
        exec(code, vars(main))

    return script


def _take_descriptors(fds: list[int], places: list[int]) -> None:
    """Each of `fds` comes to its place; all others are closed."""
    above = max(places) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    for fd, place in zip(moved, places):
        os.dup2(fd, place)
    keep = sorted(places)
    for first, last in zip(keep, [*keep[1:], os.sysconf("SC_OPEN_MAX")]):
        os.closerange(first + 1, last)


def _show(request: Mapping[str, Any]) -> None:
    """Where the kernel looks for this process's command line and variables, there are those of the request."""
    # Their memory is C's environment as long as that has not been written anew.
    os.environ.clear()
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    # proc_pid_stat(5): fields 48 to 51, of which the first is the third here.
    spans = zip(fields[45:49:2], fields[46:49:2])
    texts = (
        [sys.executable, *request["arguments"]],
        [f"{name}={value}" for name, value in request["variables"].items()],
    )
    for (begin, end), text in zip(spans, texts):
        shown = b"".join(os.fsencode(each) + b"\0" for each in text)
        room = int(end) - int(begin)
        ctypes.memmove(int(begin), shown.ljust(room, b"\0")[:room], room)
    with open("/proc/self/comm", "w") as file:
        file.write(os.path.basename(sys.executable))


def _open_streams() -> None:
    _former.extend((sys.stdin, sys.stdout, sys.stderr))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    errors = io.FileIO(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(errors), errors="backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _forget_what_would_be_another() -> None:
    """Our own modules, where this interpreter finds others, or those begin in another way."""
    for name in OURS:
        module, spec = sys.modules.get(name), importlib.machinery.PathFinder.find_spec(name, sys.path)
        if module is not None and (spec is None or spec.origin != module.__file__):
            break
    else:
        if not any(name.startswith(READ_BY_OURS) for name in os.environ):
            return
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        _former.append(sys.modules.pop(name))


def _run(work: Callable[[], None]) -> None:
    """Runs it as an interpreter runs its program, and ends as one does, but without taking apart what was imported
    before: that would take longer than most programs."""
    code = 0
    is_interrupted = False
    try:
        work()
    except SystemExit as end:
        if isinstance(end.code, int) or end.code is None:
            code = end.code or 0
        else:
            print(end.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code = 1
        is_interrupted = isinstance(error, KeyboardInterrupt)
        shown = error.with_traceback(_without_our_frames(error.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _without_our_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """As an executed interpreter shows it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    _control = socket.socket(fileno=int(sys.argv[1]))
    os.environ.pop(PAD)
    # Without what this process itself was started with.
    _own = [os.path.dirname(os.path.abspath(__file__)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    _installed_path[:] = [each for each in sys.path if each not in _own]
    _begun_with.update(at_start(os.environ))
    for _module in sys.argv[2:]:
        if _module != PAD * (len(_module) // len(PAD)):
            importlib.import_module(_module)
    gc.collect()
    gc.freeze()
    # As one of the tests it would import their package.
    importlib.import_module("huge_pages").collapse_memory()
    _asked = _serve(_control)
    if _asked is not None:
        _run(_become(*_asked))
