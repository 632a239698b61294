"""to_state makes what state_dict() returns, and from_state reads it. Plain values; no loader is needed to read one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.messages import Assume
from prefetchd.wire.plain_state import decode_node
from prefetchd.wire.sampler_epochs import NO_EPOCH, unpack_attributes
from prefetchd.wire.shard_states import ShardState
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd_client.caller_warnings import warn_caller
from prefetchd_client.session.sampler_state import as_text, from_text
from prefetchd_client.session.state_numbers import STEP_LIMIT, position_in, shown, whole

STATE_VERSION = 2
"""The version that is written. Version 1 had the states of an iterable dataset's shards as pickles: these are never
loaded."""
READ_VERSIONS = (1, STATE_VERSION)
MOST_SHARDS = 1 << 16

ResumePoint = tuple[tuple[int, int], Assume | None, tuple[int, Mapping[int, ShardState]]]
"""What a loader keeps of where its trainer stands, to be told by state_dict()."""


@dataclasses.dataclass(frozen=True)
class LoadedState:
    """Says where to go on; `generators` are their states before the epoch, or None, `sampler_epoch` what the sampler's
    set_epoch() was called with before it, or -1, and `attributes` its plain attributes then; `shards` are those of an
    iterable dataset, by shard."""

    epoch: int
    step: int
    generators: tuple[bytes, ...] | None = None
    shards: Mapping[int, ShardState] = dataclasses.field(default_factory=dict)
    sampler_epoch: int = NO_EPOCH
    attributes: bytes = b""


def to_state(
    spec: StreamSpec,
    epoch: int,
    step: int,
    sampler: Assume | None,
    shards: Mapping[int, ShardState] | None = None,
) -> dict[str, Any]:
    """Returns the state at (epoch, step), JSON-able. `sampler`: how the epoch begins where one decides the order."""
    state = {"version": STATE_VERSION, "epoch": epoch, "step": step, **_identity(spec)}
    if sampler is not None and sampler.states:
        state["generators"] = as_text(sampler.states)
    if sampler is not None and sampler.sampler_epoch >= 0:
        state["sampler_epoch"] = sampler.sampler_epoch
    if sampler is not None and sampler.attributes:
        state["sampler_attributes"] = as_text([sampler.attributes])
    if shards:
        texts = as_text([state for _, state in shards.values()])
        state["shards"] = [[shard, number, text] for (shard, (number, _)), text in zip(shards.items(), texts)]
    return state


def from_state(spec: StreamSpec, state: Mapping[str, Any]) -> LoadedState:
    """Returns where a loader of `spec` goes on. Another world_size goes on at the same place of the epoch that all
    ranks share. Raises CallerError when `state` is none of ours, or is beyond the end of a dataset that is shorter.
    Warns when it is of other batches: the position is taken all the same."""
    if not isinstance(state, Mapping) or not {"version", "epoch", "step"} <= state.keys():
        raise CallerError(f"a PrefetchLoader's state has version, epoch and step; got {shown(state)}")
    version = state["version"]
    if type(version) is not int or version not in READ_VERSIONS:
        raise CallerError(f"a state of version {shown(version)}; this prefetchd reads 1 and {STATE_VERSION}")
    epoch, step = position_in(state)
    step, differing = _differing(spec, state, step)
    whole(step, "the state's step, with this world_size", STEP_LIMIT)
    _check_length(spec, state, step)
    if differing:
        text = f"the state is of other batches ({', '.join(differing)}): what follows is no continuation"
        warn_caller(text)
    texts = state.get("generators")
    # Another rank's dataset may stand elsewhere: then this one's is gone through.
    is_same = all(_is_same(state.get(key, mine), mine) for key, mine in _identity(spec).items())
    shards = _shards(state) if is_same else {}
    if shards and version == 1:
        warn_caller("the state is of version 1, with pickles of the dataset's: its shards are gone through instead")
        shards = {}
    generators = from_text(texts, "generators") if texts is not None else None
    sampler_epoch = state.get("sampler_epoch", NO_EPOCH)
    if sampler_epoch != NO_EPOCH:
        whole(sampler_epoch, "the sampler's epoch", STEP_LIMIT)
    attributes = from_text(state.get("sampler_attributes", ()), "sampler_attributes")
    try:
        unpack_attributes(b"".join(attributes))
    except ProtocolError as error:
        raise CallerError(f"the state's 'sampler_attributes' are damaged: {error}") from None
    return LoadedState(epoch, step, generators, shards, sampler_epoch, b"".join(attributes))


def _check_length(spec: StreamSpec, state: Mapping[str, Any], step: int) -> None:
    """Raise CallerError when the state is of a longer dataset, at a place that this one does not have."""
    former = state.get("samples", spec.length)
    steps = steps_of(spec, spec.length) if spec.is_arithmetic else spec.epoch_steps
    if type(former) is int and former > spec.length >= 0 and steps and step > steps:
        raise CallerError(
            f"the state is at batch {step} of an epoch of {former} samples; this loader has {spec.length} samples, "
            f"which are {steps} batches. Load the state with the dataset that it was taken with, or begin an epoch "
            "with set_epoch()"
        )


def steps_of(spec: StreamSpec, samples: int) -> int:
    """Return the batches of an epoch of so many samples, for this rank, where the order is arithmetic."""
    share, rows = -(-samples // spec.world_size), max(1, spec.batch_size)
    return share // rows if spec.drop_last else -(-share // rows)


def _shards(state: Mapping[str, Any]) -> dict[int, ShardState]:
    """Returns the state's shards. Raises CallerError when they are none of ours."""
    try:
        rows = [(shard, number, text) for shard, number, text in state.get("shards", ())]
    except (TypeError, ValueError):
        raise CallerError("the shards of a PrefetchLoader's state are [shard, number, text] each") from None
    if len(rows) > MOST_SHARDS:
        raise CallerError(f"the state has {len(rows)} shards; allowed: {MOST_SHARDS}")
    places = [
        (whole(shard, "a shard's number", MOST_SHARDS), whole(number, "a shard's batch", STEP_LIMIT))
        for shard, number, _ in rows
    ]
    states = from_text([text for _, _, text in rows], "shards")
    if state["version"] != 1:
        for found in states:
            decode_node(found)
    return {shard: (number, found) for (shard, number), found in zip(places, states)}


def _differing(spec: StreamSpec, state: Mapping[str, Any], step: int) -> tuple[int, list[str]]:
    """Returns the step of this loader's ranks and, in words, what keeps it from being a continuation."""
    mine = _identity(spec)
    differing = [key for key in mine if key in state and not _is_same(state[key], mine[key])]
    # Each rank's state is as good as any other's, but for its generators. A sampler makes its own shares.
    shares = (
        {"rank", "world_size"}
        if spec.is_arithmetic
        else set()
        if isinstance(state.get("generators"), list)
        else {"rank"}
    )
    told = [f"{key} was {shown(state[key])}, is {shown(mine[key])}" for key in differing if key not in shares]
    former = state.get("world_size", spec.world_size)
    if told or not spec.is_arithmetic or type(former) is not int or former == spec.world_size or former < 1:
        return step, told
    batches, rest = divmod(step * former, spec.world_size)
    if rest:
        told = [f"world_size was {former}, is {spec.world_size}: {rest} of {step * former} batches come again"]
    return batches, told


def _is_same(theirs: Any, mine: Any) -> bool:
    """Compares values of one type only: what is compared with a tensor, say, is no bool."""
    return type(theirs) is type(mine) and bool(theirs == mine)


def _identity(spec: StreamSpec) -> dict[str, Any]:
    return {
        "seed": spec.seed,
        "order": spec.order,
        "samples": spec.length,
        "batch_size": spec.batch_size,
        "rank": spec.rank,
        "world_size": spec.world_size,
    }
