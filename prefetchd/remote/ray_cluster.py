"""Reaches a Ray cluster for the bridge: beside what an actor asks for its node's name, nothing else imports Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from prefetchd.remote.actor import FillActor

CONNECT_WITHIN_S = 30


class ClusterError(Exception):
    """There is no cluster at the address; `is_final` when trying again would not help."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class RayCluster:
    """A connection to the cluster at `address`: "auto" for the one that Ray knows of here, or HOST:PORT. One in a
    process. Results arrive by callbacks, in threads of Ray's."""

    def __init__(self, address: str) -> None:
        """Connects. Blocks, for CONNECT_WITHIN_S at most. Raises ClusterError."""
        try:
            # Here: it takes a second, and may be missing.
            import ray
        except ImportError as error:
            raise ClusterError(
                f"Ray cannot be imported in the trainer's interpreter ({error}): pip install 'prefetchd[ray]'",
                is_final=True,
            ) from None
        self._ray: Any = ray
        os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", str(CONNECT_WITHIN_S))
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="prefetchd")
        except Exception as error:
            raise ClusterError(f"no Ray cluster answers at {address}: {_first_line(error)}") from None
        self._actor_class = ray.remote(FillActor)

    def share(self, data: Any) -> Any:
        """Puts an array where all nodes can read it; each node fetches it once. Returns what stands for it in a
        call."""
        return self._ray.put(data)

    def largest_node_cpus(self) -> int:
        """Returns the CPUs of the node that has most of them; 0 when none has any yet."""
        nodes = (each for each in self._ray.nodes() if each["Alive"])
        return int(max((each["Resources"].get("CPU", 0) for each in nodes), default=0))

    def start(self, cpus: int, calls_at_once: int) -> Any:
        """Asks for an actor with so many CPUs of one node. Returns its handle at once: it may come much later, when
        Ray's autoscaler has brought a node, or never."""
        return self._actor_class.options(
            num_cpus=cpus,
            # What comes back to the same node is the same actor; what Ray would restart has lost its program.
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
                then(None, _first_line(error) or type(error).__name__)

        future.add_done_callback(done)

    def end(self, actor: Any) -> None:
        """Ends the actor at once; its processes end with it."""
        self._ray.kill(actor)

    def close(self) -> None:
        """Leaves the cluster: its actors end."""
        self._ray.shutdown()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
