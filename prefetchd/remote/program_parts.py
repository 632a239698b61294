"""Finds out what a program is on this machine: a digest of each of its parts, as the fingerprint takes them.

The same is done beside the daemon and on each node, of the same pickle. What differs is code, an installed package, or
a mapped file: the program would not make the same batches there.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import BinaryIO

from prefetchd.processes.environment import variables_at_start
from prefetchd.wire.program_layout import Environment

# In a process of its own, as a zygote is: the user's modules are imported there.
BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from prefetchd.remote.program_parts import main; main(*map(int, sys.argv[2:]))"
)
DEADLINE_S = 300.0
MOST_TOLD = 500


class NoPartsError(Exception):
    """The program cannot be loaded on this machine; the message says why."""


def describe_program(program_fd: int, environment: Environment) -> dict[str, str]:
    """Returns the digest of each part of the program behind `program_fd`, whose environment is given. Blocks, for as
    long as importing the user's modules and reading what the program holds takes, DEADLINE_S at most. Raises
    NoPartsError and OSError."""
    # Files, not pipes: what the user's code leaves running has them too, and is not waited for.
    with _memory_file("prefetchd-parts") as answer, _memory_file("prefetchd-parts-output") as output:
        command = [environment.executable, b"-c", BOOTSTRAP.encode(), json.dumps(list(environment.sys_path)).encode()]
        process = subprocess.Popen(
            [*command, str(program_fd).encode(), str(answer.fileno()).encode()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[program_fd, answer.fileno()],
            cwd="/",
            env=variables_at_start(environment),
            start_new_session=True,
        )
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise NoPartsError(f"to load it takes longer than {DEADLINE_S:.0f} s") from None
        finally:
            process.kill()
            process.wait()
        answer.seek(0)
        described = answer.read()
        if code or not described:
            output.seek(0)
            lines = output.read().decode("utf-8", "replace").split("\n")
            said = next((line for line in reversed(lines) if line.strip()), "")
            raise NoPartsError(said[:MOST_TOLD] or f"its process ended with {code}")
        return dict(json.loads(described))


def _memory_file(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "w+b")


def main(program_fd: int, answer_fd: int) -> None:
    """Writes the digests of the program behind `program_fd` to `answer_fd`, as JSON."""
    # Here: the bridge and actors import this module, and no torch.
    from prefetchd_client.fingerprint.walk import describe

    from prefetchd.processes.environment import enter, read_environment
    from prefetchd.workers.program import load_program

    for fd in (program_fd, answer_fd):
        os.set_inheritable(fd, False)
    enter(read_environment(program_fd))
    program = load_program(program_fd)
    parts = {
        "dataset": program.dataset,
        "collate_fn": program.collate_fn,
        "worker_init_fn": program.worker_init_fn,
        "types of its own that default_collate knows": program.collate_additions,
    }
    os.write(answer_fd, json.dumps(describe(parts)).encode())
