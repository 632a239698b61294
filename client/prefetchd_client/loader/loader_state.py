"""What state_dict() says, and what load_state_dict() makes of it. Plain values; no loader is needed to read one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from prefetchd.wire.errors import CallerError
from prefetchd.wire.shard_states import ShardState
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd_client.caller_warnings import warn_caller
from prefetchd_client.session.sampler_state import as_text, from_text

STATE_VERSION = 1

Standing = tuple[tuple[int, int], "tuple[int, tuple[bytes, ...]] | None", tuple[int, Mapping[int, ShardState]]]
"""What a loader keeps of where its trainer stands, to be told by state_dict()."""


@dataclasses.dataclass(frozen=True)
class LoadedState:
    """Where to go on; `generators` are their states before the epoch, or None; `shards` those of an iterable dataset,
    by shard."""

    epoch: int
    step: int
    generators: tuple[bytes, ...] | None = None
    shards: Mapping[int, ShardState] = dataclasses.field(default_factory=dict)


def to_state(
    spec: StreamSpec,
    epoch: int,
    step: int,
    generators: Sequence[bytes] | None,
    shards: Mapping[int, ShardState] | None = None,
) -> dict[str, Any]:
    """The state at (epoch, step), JSON-able."""
    state = {"version": STATE_VERSION, "epoch": epoch, "step": step, **_identity(spec)}
    if generators is not None:
        state["generators"] = as_text(generators)
    if shards:
        texts = as_text([state for _, state in shards.values()])
        state["shards"] = [[shard, number, text] for (shard, (number, _)), text in zip(shards.items(), texts)]
    return state


def from_state(spec: StreamSpec, state: Mapping[str, Any]) -> LoadedState:
    """Where a loader of `spec` goes on. Another world_size goes on at the same place of the epoch that all ranks share.
    Raises CallerError when `state` is none of ours. Warns when it is of other batches: the position is taken all the
    same."""
    try:
        version, epoch, step = (int(state[key]) for key in ("version", "epoch", "step"))
    except (KeyError, TypeError, ValueError):
        raise CallerError(f"a PrefetchLoader's state has version, epoch and step; got {state!r}") from None
    if version != STATE_VERSION or epoch < 0 or step < 0:
        raise CallerError(f"version {version}, epoch {epoch}, step {step}; allowed: {STATE_VERSION}, 0.., 0..")
    step, differing = _differing(spec, state, step)
    if differing:
        text = f"the state is of other batches ({', '.join(differing)}): what follows is no continuation"
        warn_caller(text)
    texts = state.get("generators")
    # Another rank's dataset may stand elsewhere: then this one's is gone through.
    shards = _shards(state) if all(state.get(key, mine) == mine for key, mine in _identity(spec).items()) else {}
    return LoadedState(epoch, step, from_text(texts, "generators") if texts else None, shards)


def _shards(state: Mapping[str, Any]) -> dict[int, ShardState]:
    """Raises CallerError when they are none of ours."""
    try:
        rows = [(int(shard), int(number), str(text)) for shard, number, text in state.get("shards", ())]
    except (TypeError, ValueError):
        raise CallerError("the shards of a PrefetchLoader's state are [shard, number, text] each") from None
    states = from_text([text for _, _, text in rows], "shards")
    return {shard: (number, found) for (shard, number, _), found in zip(rows, states)}


def _differing(spec: StreamSpec, state: Mapping[str, Any], step: int) -> tuple[int, list[str]]:
    """The step of this loader's ranks, and in words what keeps it from being a continuation."""
    mine = _identity(spec)
    differing = [key for key in mine if key in state and state[key] != mine[key]]
    # Each rank's state is as good as any other's, but for its generators. A sampler makes its own shares.
    shares = {"rank", "world_size"} if spec.is_arithmetic else set() if state.get("generators") else {"rank"}
    told = [f"{key} was {state[key]}, is {mine[key]}" for key in differing if key not in shares]
    former = state.get("world_size", spec.world_size)
    if told or not spec.is_arithmetic or former == spec.world_size or type(former) is not int or former < 1:
        return step, told
    batches, rest = divmod(step * former, spec.world_size)
    if rest:
        told = [f"world_size was {former}, is {spec.world_size}: {rest} of {step * former} batches come again"]
    return batches, told


def _identity(spec: StreamSpec) -> dict[str, Any]:
    return {
        "seed": spec.seed,
        "order": spec.order,
        "samples": spec.length,
        "batch_size": spec.batch_size,
        "rank": spec.rank,
        "world_size": spec.world_size,
    }
