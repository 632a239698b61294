"""The process of this module loads a declared stream's dataset, where its workers will run, and describes it to the
daemon.

The daemon starts it with the interpreter, directory and variables that its configuration declares, and gives it what
else it declares as JSON on stdin. It tells the daemon what a trainer would tell: the spec with length and fingerprint,
and a program. In that the dataset is no pickle but the call that makes it, for the stream's zygote to do once more.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

from torch.utils.data import IterableDataset

from prefetchd.wire.errors import CallerError
from prefetchd.wire.framing import send
from prefetchd.wire.messages import Declared, LoadFailed
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.remote_exception import RemoteException, encode_exception
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.stream_spec import encode_spec
from prefetchd_client.loader.stream_request import StreamRequest, stream_request
from prefetchd_client.program.program_pickle import pickle_program, write_program

# workers.process_setup has it, too. The client imports nothing of the workers for a declared stream, and how a process
# dies is nothing that both sides agree on: it does not belong to the wire.
_PR_SET_PDEATHSIG = 1
MESSAGE_LIMIT_CHARACTERS = 2000


class Made:
    """Stands for a dataset in the program: unpickled, it is what the factory returns."""

    def __init__(self, entry_point: str, arguments: dict[str, Any]) -> None:
        self._call = (entry_point, json.dumps(arguments))

    def __reduce__(self) -> Any:
        return make, self._call


def make(entry_point: str, arguments: str) -> Any:
    """Returns what "module:name" returns for these keyword arguments, which are JSON."""
    return named(entry_point)(**json.loads(arguments))


def named(entry_point: str) -> Any:
    """Returns the object that "module:name" names. Raises what importing the module raises, and AttributeError."""
    module, _, name = entry_point.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def request_for(declared: dict[str, Any]) -> tuple[StreamRequest, Any]:
    """Returns the request, with the spec and the program's parts, for a declared stream; and its dataset, which the
    program makes anew. Raises CallerError and whatever the user's code raises."""
    dataset = make(declared["dataset"], json.dumps(declared["dataset_args"]))
    order = _order_of(dataset, declared)
    # Who counts epochs is to find each of them.
    are_counted = bool(declared["epochs"] or declared["progress_file"] or declared["store"] == "files")
    made = {key: named(declared[key]) if declared[key] else None for key in ("collate_fn", "worker_init_fn")}
    request = stream_request(
        dataset=dataset,
        order=order,
        batch_size=declared["batch_size"] or None,
        drop_last=declared["drop_last"],
        collate_fn=made["collate_fn"],
        worker_init_fn=made["worker_init_fn"],
        num_workers=declared["workers"],
        timeout=declared["timeout_s"],
        stream=declared["name"],
        seed=declared["seed"],
        buffer=None,
        lookback=declared["lookback"],
        rank=declared["rank"],
        world_size=declared["world_size"],
        on_error=declared["on_error"],
        deterministic=False if are_counted else None,
        fingerprint_extra=declared["fingerprint_extra"] or None,
        remote_workers=declared["remote_workers"],
    ).identified()
    request.parts["dataset"] = Made(declared["dataset"], declared["dataset_args"])
    return request, dataset


def _order_of(dataset: Any, declared: dict[str, Any]) -> str:
    """Returns the stream's order. Raises CallerError when the dataset is none, or what is declared cannot be for its
    kind."""
    if isinstance(dataset, IterableDataset):
        if declared["shuffle"]:
            raise CallerError("shuffle = true; allowed for an IterableDataset: false (it shuffles for itself)")
        if declared["store"] == "files":
            raise CallerError('store = {files = ...}; allowed for an IterableDataset: "shm", {ram_disk = ...}')
        if declared["progress_file"] and declared["workers"] > 1:
            raise CallerError(
                "progress = {file = ...} and workers = "
                f"{declared['workers']}; allowed for an IterableDataset: workers = 1 (where shards end, batches and "
                "steps are not the same)"
            )
        return "iterable"
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        kind = type(dataset).__name__
        raise CallerError(
            f"{declared['dataset']} made a {kind}; allowed: a dataset with __len__ and __getitem__, or an "
            "IterableDataset"
        )
    return "shuffle" if declared["shuffle"] else "sequential"


def main(parent: str, socket_fd: str, daemon_socket: str) -> None:
    """Sends the daemon the description, or the error, through the inherited socket."""
    if not die_with(int(parent)):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(socket_fd))
    sock.set_inheritable(False)
    try:
        request, _ = request_for(json.load(sys.stdin))
        pickled, buffers = pickle_program(request.parts, request.spec.batch_size)
        name, fd, program_bytes = write_program(runtime_paths(daemon_socket), current_environment(), pickled, buffers)
        send(sock, Declared(encode_spec(request.spec), name, program_bytes), [fd])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing the user's modules may even exit
        send(sock, _failed(error))


def die_with(parent: int) -> bool:
    """Has the kernel end this process with its parent. Returns False when that is dead already."""
    # It may have died before this call: then the signal never comes, and the parent's pid tells.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _failed(error: BaseException) -> LoadFailed:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    remote = RemoteException(type(error).__qualname__, str(error), text, "making the declared dataset")
    message = f"{remote.location}: {remote.type_name}: {remote.message}"
    return LoadFailed(message[:MESSAGE_LIMIT_CHARACTERS], encode_exception(remote))
