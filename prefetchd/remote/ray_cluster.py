"""Reaches a Ray cluster for the bridge: beside what an actor asks for its node's name, nothing else imports Ray."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prefetchd.processes.raylets import raylets
from prefetchd.remote.ray_errors import OTHER_VERSION, reason_of
from prefetchd.wire.cluster_address import is_loopback
from prefetchd.wire.os_errors import why
from prefetchd.wire.remote_resources import NO_RESOURCES, RemoteResources

if TYPE_CHECKING:
    import mmap

ANSWERS_WITHIN_S = 5.0
GPU_LABEL = "ray.io/accelerator-type"
"""The label that Ray gives a node with GPUs."""
LOOK_EVERY_S = 5.0

# What Ray reads as it is imported. By default it tries for 14 minutes to reach a head that is not there.
PATIENCE = {
    "RAY_gcs_server_request_timeout_seconds": "10",
    "RAY_py_gcs_connect_timeout_s": "5",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
}

NO_NODE_ANY_MORE = "this machine is no node of the Ray cluster any more: its raylet is gone"
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

    def __init__(
        self,
        address: str,
        lost: Callable[[str], None],
        troubled: Callable[[str], None],
        resources: RemoteResources = NO_RESOURCES,
    ) -> None:
        """Connects. Blocks, for half a minute at most. Raises ClusterError. `troubled` is called in a thread with what
        would end this process soon, and with nothing once that is over."""
        if not any(True for _ in raylets()):
            raise ClusterError(
                f"this machine is no node of the Ray cluster at {address}: run `ray start --address={address} "
                "--num-cpus=0` here first"
            )
        self._resources = resources
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
            self._free = self._look_for_room()
        except Exception as error:
            reason = reason_of(error)
            # ask() has found somebody there.
            hint = TOKEN_OR_TLS if UNREACHED in reason else ""
            raise ClusterError(
                f"the Ray cluster at {address} does not take this machine: {reason}{hint}",
                is_final=reason.startswith(OTHER_VERSION),
            ) from None
        self._actor_class = ray.remote(FillActor)
        self._address = address
        self._lost = lost
        self._troubled = troubled
        own = [pid for pid, options in raylets() if options.get("node_id") == self._own_node]
        self.raylet_pid = own[0] if own else 0
        """The process of this machine's node; 0 where it cannot be seen from here."""
        threading.Thread(target=self._look, name="prefetchd-nodes", daemon=True).start()

    @property
    def is_local(self) -> bool:
        """True when all nodes are this machine, at an address that no other one can reach."""
        return all(is_loopback(f"{each['NodeManagerAddress']}:0") for each in self._nodes)

    @property
    def largest_node_cpus(self) -> int:
        """The CPUs of the node that has most of them; 0 when none that may be used has any yet."""
        return int(max((each["Resources"].get("CPU", 0) for each in self._usable_nodes()), default=0))

    def _usable_nodes(self) -> Iterator[dict[str, Any]]:
        for each in self._nodes:
            if each["Alive"] and (self._resources.gpu_nodes or not each["Resources"].get("GPU", 0)):
                yield each

    def why_unusable(self, node: str) -> str:
        """Returns why no worker of this stream may be on the node of that id; empty when it may. Asks Ray about a node
        that has come since it was asked last."""
        if all(each["NodeID"] != node for each in self._nodes):
            self._nodes = self._ray.nodes()
        found = next((each for each in self._nodes if each["NodeID"] == node), None)
        if found is None or self._resources.gpu_nodes or not found["Resources"].get("GPU", 0):
            return ""
        return (
            f"node {found['NodeManagerHostname']} has GPUs, whose trainers need its CPUs: "
            "remote_resources={'gpu_nodes': True} allows it"
        )

    @property
    def free_cpus(self) -> list[int]:
        """The CPUs of each node that nothing has taken, as they were a few seconds ago."""
        return list(self._free.values())

    def _look_for_room(self) -> dict[str, int]:
        """Returns the free CPUs of each node that has any. Blocks."""
        alive = {each["NodeID"]: each["Resources"].get("CPU", 0) for each in self._usable_nodes()}
        try:
            free = self._ray._private.state.available_resources_per_node()
        except Exception:
            # It is Ray's own, and another version may lack it: nodes are as free as they are large then.
            return {node: int(cpus) for node, cpus in alive.items() if cpus}
        return {node: int(free.get(node, {}).get("CPU", 0)) for node, cpus in alive.items() if cpus}

    def share(self, data: mmap.mmap) -> Any:
        """Puts memory where all nodes can read it, as an array of bytes; each node fetches it once. Returns what stands
        for it in a call."""
        import numpy as np

        return self._ray.put(np.frombuffer(data, np.uint8))

    def start(self, cpus: int, calls_at_once: int) -> Any:
        """Asks for an actor with so many CPUs of one node. Returns its handle at once: it may come much later, when
        Ray's autoscaler has brought a node, or never."""
        options: dict[str, Any] = {
            "resources": {name: amount * cpus for name, amount in self._resources.custom.items()},
            "memory": self._resources.memory_bytes * cpus or None,
            "label_selector": dict(self._resources.labels) | self._away_from_gpus() or None,
        }
        return self._actor_class.options(
            **{name: value for name, value in options.items() if value},
            num_cpus=cpus,
            # What Ray would restart has lost its program.
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=calls_at_once,
            scheduling_strategy="SPREAD",
        ).remote()

    def _away_from_gpus(self) -> dict[str, str]:
        """Returns the selector of nodes without the kinds of GPUs that are in the cluster, by Ray's own label."""
        if self._resources.gpu_nodes:
            return {}
        with_gpus = (each for each in self._nodes if each["Alive"] and each["Resources"].get("GPU", 0))
        kinds = sorted({each.get("Labels", {}).get(GPU_LABEL, "") for each in with_gpus} - {""})
        return {GPU_LABEL: f"!in({','.join(kinds)})"} if kinds else {}

    def call(self, actor: Any, method: str, arguments: tuple[Any, ...], then: Callable[[Any, str], None]) -> None:
        """Calls the actor's method; `then` gets (result, ""), or (None, why there is none), in a thread of Ray's."""
        future = getattr(actor, method).remote(*arguments).future()

        def done(future: Any) -> None:
            error = future.exception()
            if error is None:
                then(future.result(), "")
            else:
                then(None, reason_of(error))

        future.add_done_callback(done)

    def end(self, actor: Any) -> None:
        """Ends the actor at once; its processes end with it."""
        self._ray.kill(actor)

    def close(self) -> None:
        """Leaves the cluster: its actors end."""
        self._ray.shutdown()

    def _look(self) -> None:
        """Looks at the nodes now and then: Ray's answer may take a minute, when its head is gone."""
        is_silent = False
        while True:
            time.sleep(LOOK_EVERY_S)
            # Ray itself ends this process when its head is gone for a minute, and says nothing here.
            was_silent, is_silent = is_silent, not _answers(self._address)
            if is_silent and not was_silent:
                self._troubled(f"the cluster's head at {self._address} is gone")
            elif was_silent and not is_silent:
                self._troubled("")
            try:
                self._nodes = self._ray.nodes()
                self._free = self._look_for_room()
            except Exception as error:
                self._lost(reason_of(error))
                return
            if not any(each["NodeID"] == self._own_node and each["Alive"] for each in self._nodes):
                self._lost(NO_NODE_ANY_MORE)
                return


def _answers(address: str) -> bool:
    try:
        ask(address)
    except ClusterError:
        return False
    return True


def ask(address: str) -> None:
    """Looks whether anybody answers at `address`. Raises ClusterError."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN_S).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster answers at {address}: {why(error)}") from None
