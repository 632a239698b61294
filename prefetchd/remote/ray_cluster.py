"""Reaches a Ray cluster for the bridge: beside what an actor asks for its node's name, nothing else imports Ray."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prefetchd.wire.cluster_address import is_loopback
from prefetchd.wire.os_errors import why

if TYPE_CHECKING:
    import mmap

ANSWERS_WITHIN_S = 5.0
LOOK_EVERY_S = 5.0
MOST_TOLD = 300
TRACEBACK = "Traceback (most recent call last):"

# What Ray reads as it is imported. By default it tries for 14 minutes to reach a head that is not there.
PATIENCE = {
    "RAY_gcs_server_request_timeout_seconds": "10",
    "RAY_py_gcs_connect_timeout_s": "5",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
}

OTHER_VERSION = "Version mismatch:"
"""What Ray's error begins with where the cluster has another Ray, or another Python. Which ones is in its lines."""

UNREACHED = "Failed to connect to GCS"
TOKEN_OR_TLS = (
    "; do RAY_AUTH_MODE, RAY_USE_TLS and what belongs to them agree with the cluster's where the daemon starts?"
)
"""Where somebody answers, and not as Ray: a token that is another one, TLS on one side alone, or no Ray."""


class ClusterError(Exception):
    """There is no cluster at the address; `is_final` when trying again would not help."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class RayCluster:
    """A connection to the cluster at `address`, HOST:PORT. One in a process. Results arrive by callbacks, in threads of
    Ray's; `lost` is called, in a thread of its own, when this machine is no node of it any more."""

    def __init__(self, address: str, lost: Callable[[str], None]) -> None:
        """Connects. Blocks, for half a minute at most. Raises ClusterError."""
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        try:
            # Here: it takes a second, and may be missing.
            import ray

            from prefetchd.remote.actor import FillActor
        except ImportError as error:
            raise ClusterError(
                f"Ray cannot be imported in the trainer's interpreter ({error}): pip install ray",
                is_final=True,
            ) from None
        self._ray: Any = ray
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="prefetchd")
            self._own_node = ray.get_runtime_context().get_node_id()
            self._nodes = self._ray.nodes()
        except Exception as error:
            reason = _reason(error)
            # ask() has found somebody there.
            hint = TOKEN_OR_TLS if UNREACHED in reason else ""
            raise ClusterError(
                f"the Ray cluster at {address} does not take this machine: {reason}{hint}",
                is_final=reason.startswith(OTHER_VERSION),
            ) from None
        self._actor_class = ray.remote(FillActor)
        self._lost = lost
        threading.Thread(target=self._look, name="prefetchd-nodes", daemon=True).start()

    @property
    def is_local(self) -> bool:
        """True when all nodes are this machine, at an address that no other one can reach."""
        return all(is_loopback(f"{each['NodeManagerAddress']}:0") for each in self._nodes)

    @property
    def largest_node_cpus(self) -> int:
        """The CPUs of the node that has most of them; 0 when none has any yet."""
        alive = (each for each in self._nodes if each["Alive"])
        return int(max((each["Resources"].get("CPU", 0) for each in alive), default=0))

    def share(self, data: mmap.mmap) -> Any:
        """Puts memory where all nodes can read it, as an array of bytes; each node fetches it once. Returns what stands
        for it in a call."""
        import numpy as np

        return self._ray.put(np.frombuffer(data, np.uint8))

    def start(self, cpus: int, calls_at_once: int) -> Any:
        """Asks for an actor with so many CPUs of one node. Returns its handle at once: it may come much later, when
        Ray's autoscaler has brought a node, or never."""
        return self._actor_class.options(
            num_cpus=cpus,
            # What Ray would restart has lost its program.
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=calls_at_once,
            scheduling_strategy="SPREAD",
        ).remote()

    def call(self, actor: Any, method: str, arguments: tuple[Any, ...], then: Callable[[Any, str], None]) -> None:
        """Calls the actor's method; `then` gets (result, ""), or (None, why there is none), in a thread of Ray's."""
        future = getattr(actor, method).remote(*arguments).future()

        def done(future: Any) -> None:
            error = future.exception()
            if error is None:
                then(future.result(), "")
            else:
                then(None, _reason(error))

        future.add_done_callback(done)

    def end(self, actor: Any) -> None:
        """Ends the actor at once; its processes end with it."""
        self._ray.kill(actor)

    def close(self) -> None:
        """Leaves the cluster: its actors end."""
        self._ray.shutdown()

    def _look(self) -> None:
        """Looks at the nodes now and then: Ray's answer may take a minute, when its head is gone."""
        while True:
            time.sleep(LOOK_EVERY_S)
            try:
                self._nodes = self._ray.nodes()
            except Exception as error:
                self._lost(_reason(error))
                return
            if not any(each["NodeID"] == self._own_node and each["Alive"] for each in self._nodes):
                self._lost("this machine is no node of the Ray cluster any more")
                return


def ask(address: str) -> None:
    """Looks whether anybody answers at `address`. Raises ClusterError."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN_S).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster answers at {address}: {why(error)}") from None


def _reason(error: BaseException) -> str:
    """Returns the first line of what is behind the error: Ray's own says little. Of other versions all lines, and of a
    traceback its last one."""
    text = str(error.__cause__ or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if text.startswith(OTHER_VERSION):
        return " ".join(lines)[:MOST_TOLD]
    if lines and lines[0].endswith(TRACEBACK):
        lines[0] = lines[0].removesuffix(TRACEBACK) + lines[-1]
    return lines[0][:MOST_TOLD] if lines else type(error).__name__
