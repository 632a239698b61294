"""Makes the trainer's environment that of workers: what an interpreter must be started with, and what it can be given
after it has imported torch. Values are never logged."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import MutableMapping

from prefetchd.wire.program_layout import (
    HEAD,
    HEAD_BYTES,
    Environment,
    decode_environment,
    encode_environment,
    environment_bytes,
)

# Never handed to the user's code.
DENIED = (b"NOTIFY_SOCKET", b"LISTEN_FDS", b"LISTEN_PID", b"LISTEN_FDNAMES", b"WATCHDOG_USEC", b"WATCHDOG_PID")

# What the dynamic loader, the interpreter or a library reads when it starts. Everything else can be set later.
READ_AT_START = (
    b"LD_",
    b"PYTHON",
    b"MALLOC_",
    b"GLIBC_",
    b"OMP_",
    b"GOMP_",
    b"KMP_",
    b"MKL_",
    b"OPENBLAS_",
    b"NUMEXPR_",
    b"NPY_",
    b"ATEN_",
    b"DNNL_",
    b"ONEDNN_",
    b"TORCH",
    b"PYTORCH_",
    b"CUDA_",
    b"NVIDIA_",
    b"VIRTUAL_ENV",
    b"HOME",
    b"PATH",
    b"TZ",
    b"LANG",
    b"LC_",
    b"PREFETCHD_KILL_",
)
# Of those the ones that are read later: torchrun gives each rank and each try values of its own.
READ_LATER = (b"TORCHELASTIC_",)
THREADS = (b"OMP_NUM_THREADS", b"MKL_NUM_THREADS", b"OPENBLAS_NUM_THREADS", b"NUMEXPR_NUM_THREADS")


def read_environment(fd: int) -> Environment:
    """Reads the environment in the program segment behind `fd`. Reads nothing else of that, however long it is, and
    maps nothing: it may be made shorter meanwhile. Raises ProtocolError and OSError."""
    length = environment_bytes(os.pread(fd, HEAD.size, 0), os.fstat(fd).st_size)
    return decode_environment(os.pread(fd, length, HEAD_BYTES))


def restrict(variables: MutableMapping[bytes, bytes]) -> None:
    """Makes the trainer's variables those that the user's code sees in a worker: no GPU, one thread a library, and the
    same string hashes in every run of an interpreter that is started with them."""
    for name in DENIED:
        variables.pop(name, None)
    variables[b"CUDA_VISIBLE_DEVICES"] = b""
    variables.update(dict.fromkeys(THREADS, b"1"))
    if variables.get(b"PYTHONHASHSEED", b"random") in (b"", b"random"):
        variables[b"PYTHONHASHSEED"] = b"0"


def variables_for_workers(environment: Environment) -> dict[bytes, bytes]:
    """Returns all variables that the user's code sees in a worker."""
    kept = dict(environment.variables)
    restrict(kept)
    return kept


def variables_at_start(environment: Environment) -> dict[bytes, bytes]:
    """Returns the variables that an interpreter must be started with."""
    return {
        name: value
        for name, value in variables_for_workers(environment).items()
        if name.startswith(READ_AT_START) and not name.startswith(READ_LATER)
    }


def digest_at_start(environment: Environment) -> bytes:
    """Computes a digest that is equal for trainers that one environment zygote can serve; what they have imported it
    can import as well."""
    shared = dataclasses.replace(
        environment, directory=b"", variables=variables_at_start(environment), preload=(), authkey=b""
    )
    return hashlib.blake2b(encode_environment(shared), digest_size=16).digest()


def enter(environment: Environment) -> None:
    """Makes this process the place that the trainer's code expects: module path, directory, variables, and, to
    multiprocessing's managers, a process of the trainer's."""
    sys.path[:] = list(environment.sys_path)
    os.environb.clear()
    os.environb.update(variables_for_workers(environment))
    os.chdir(environment.directory)
    if environment.authkey:
        # Here: the daemon imports this module.
        import multiprocessing

        multiprocessing.current_process().authkey = environment.authkey
