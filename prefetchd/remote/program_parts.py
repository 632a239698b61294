"""Finds out what a program is on this machine: a digest of each of its parts, as the fingerprint takes them.

The same is done beside the daemon and on each node, of the same pickle. What differs is code, an installed package, or
a mapped file: the program would not make the same batches there.
"""

from __future__ import annotations

import json
import os
import subprocess

from prefetchd.processes.environment import variables_at_start
from prefetchd.wire.program_layout import Environment

# In a process of its own, as a zygote is: the user's modules are imported there. Its last line is the answer.
BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from prefetchd.remote.program_parts import main; main(int(sys.argv[2]))"
)
DEADLINE_S = 300.0
MARK = "prefetchd-parts:"


class NoPartsError(Exception):
    """The program cannot be loaded on this machine; the message says why."""


def describe_program(program_fd: int, environment: Environment) -> dict[str, str]:
    """Returns the digest of each part of the program behind `program_fd`, whose environment is given. Blocks, for as
    long as importing the user's modules and reading what the program holds takes. Raises NoPartsError and OSError."""
    command = [environment.executable, b"-c", BOOTSTRAP.encode(), json.dumps(list(environment.sys_path)).encode()]
    command.append(str(program_fd).encode())
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[program_fd],
        cwd="/",
        env=variables_at_start(environment),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    lines = output.decode("utf-8", "replace").splitlines()
    answers = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if process.returncode or not answers:
        raise NoPartsError(lines[-1][:500] if lines else f"its process ended with {process.returncode}")
    return dict(json.loads(answers[-1]))


def main(program_fd: int) -> None:
    """Writes the digests of the program behind `program_fd` to stdout."""
    # Here: the bridge and actors import this module, and no torch.
    from prefetchd_client.fingerprint.walk import describe

    from prefetchd.processes.environment import enter, read_environment
    from prefetchd.workers.program import load_program

    os.set_inheritable(program_fd, False)
    enter(read_environment(program_fd))
    program = load_program(program_fd)
    parts = {
        "dataset": program.dataset,
        "collate_fn": program.collate_fn,
        "worker_init_fn": program.worker_init_fn,
        "types of its own that default_collate knows": program.collate_additions,
    }
    print(MARK + json.dumps(describe(parts)), flush=True)
