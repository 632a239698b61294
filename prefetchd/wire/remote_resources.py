"""Says which nodes of a cluster a stream's remote workers may be on, and what each takes there beside a CPU. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from prefetchd.wire.byte_sizes import parse_bytes
from prefetchd.wire.errors import CallerError

MEMORY, LABELS, GPU_NODES = "memory", "labels", "gpu_nodes"
RESERVED = ("CPU", "GPU", "object_store_memory")
LIMIT_CHARACTERS = 2000


@dataclasses.dataclass(frozen=True)
class RemoteResources:
    """The demands of one remote worker: bytes of memory (0: none), amounts of the cluster's own resources, and labels
    of its node. It comes to a node with GPUs only where `gpu_nodes` says so."""

    memory_bytes: int = 0
    custom: Mapping[str, float] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpu_nodes: bool = False


NO_RESOURCES = RemoteResources()


def encode_resources(given: Mapping[str, Any] | None) -> str:
    """Return what a loader was given as a field of its spec; empty for nothing. Raises CallerError."""
    if not given:
        return ""
    if not isinstance(given, Mapping):
        raise CallerError(f"remote_resources is a {type(given).__name__}; allowed: a dict")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == MEMORY:
            found[name] = parse_bytes(value, "remote_resources['memory']") if isinstance(value, str) else value
        else:
            found[name] = value
    try:
        text = json.dumps(found, sort_keys=True)
    except (TypeError, ValueError):
        raise CallerError("remote_resources: allowed are names with numbers, and labels with texts") from None
    decode_resources(text)
    return text


def decode_resources(text: str) -> RemoteResources:
    """Decode what encode_resources() has made. Raises CallerError for anything else."""
    if not text:
        return NO_RESOURCES
    try:
        found = json.loads(text) if len(text) <= LIMIT_CHARACTERS else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CallerError(f"remote_resources of {len(text)} characters; allowed: a dict of at most {LIMIT_CHARACTERS}")
    memory, labels, gpu_nodes = found.pop(MEMORY, 0), found.pop(LABELS, {}), found.pop(GPU_NODES, False)
    if type(memory) is not int or memory < 0:
        raise CallerError(f"remote_resources['memory'] is {memory!r}; allowed: bytes, or a text such as '2GB'")
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise CallerError(f"remote_resources['labels'] is {labels!r}; allowed: a dict of texts")
    if type(gpu_nodes) is not bool:
        raise CallerError(f"remote_resources['gpu_nodes'] is {gpu_nodes!r}; allowed: True or False")
    for name, amount in found.items():
        if name in RESERVED:
            raise CallerError(f"remote_resources[{name!r}]; allowed: other names, as a worker has 1 CPU and no GPU")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < 1e9:
            raise CallerError(f"remote_resources[{name!r}] is {amount!r}; allowed: more than 0, for each worker")
    return RemoteResources(memory, found, labels, gpu_nodes)
