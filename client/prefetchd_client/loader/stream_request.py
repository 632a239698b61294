"""stream_request turns a loader's arguments into a StreamSpec: seeds, sizes, names, order, fingerprint. No daemon is
asked here."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import operator
import os
from collections.abc import Callable, Mapping, Sized
from typing import Any

import torch
import torch.utils.data._utils.collate as torch_collate
from torch.utils.data import IterableDataset, default_collate, default_convert

from prefetchd.wire.byte_sizes import parse_bytes
from prefetchd.wire.errors import BufferTooSmallError, CallerError
from prefetchd.wire.remote_resources import encode_resources
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.sample_methods import goes_with_samples
from prefetchd.wire.stream_spec import MINIMUM_SLOTS, SEED_LIMIT, UNIDENTIFIED, StreamSpec
from prefetchd_client.fingerprint.code_parts import is_installed
from prefetchd_client.fingerprint.live_state import LiveSearch
from prefetchd_client.fingerprint.object_paths import near_live_state
from prefetchd_client.fingerprint.quick_walk import QuickWalks, TooLong
from prefetchd_client.fingerprint.relative_paths import directory_that_counts
from prefetchd_client.fingerprint.walk import Plain, fingerprint
from prefetchd_client.forking.trainer_fork import ForkRequest
from prefetchd_client.loader.ranks import process_rank
from prefetchd_client.loader.torch_samplers import is_any_order, is_in_order
from prefetchd_client.program.program_pickle import find_generators
from prefetchd_client.session.run_ahead import RunAhead, decide
from prefetchd_client.session.sampler_state import SamplerState

WRITTEN = "samples change what the program holds"

_SEED_OF_NOBODY = torch.initial_seed()
"""What torch's generator was seeded with when this was imported: by torch itself, if it is no small number."""


def _nothing() -> None:
    """Does nothing, where nobody wants to know of a fork."""


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    """Describes what the loader wants: the spec, the program's parts, and whether others may share the stream.
    `sampler_state` is there where a sampler decides the order. One that `forks` is served by a fork of this process,
    and its spec has no fingerprint yet; `found` is what that fork tells of the parts, and `has_changed` tells whether
    somebody is seen to have changed them since. `plain` is what is known of them by now. `inline`: batches are made in
    this process, without a daemon.

    `run_ahead` is the loader's argument. Unless it is True, the fingerprint of a program that reads live state has the
    `salt` in it: no other loader and no other run may have its batches. So it is where samples write into the program,
    and workers take turns for that (`takes_turns`). `live` is the live state that is known at once."""

    spec: StreamSpec
    parts: dict[str, Any]
    shared: bool
    identity: dict[str, Any]
    sampler_state: SamplerState | None = None
    forks: bool = False
    inline: bool = False
    found: Callable[[], bytes] = bytes
    forked: Callable[[], None] = _nothing
    has_changed: Callable[[], bool] = bool
    plain: Plain = dataclasses.field(default_factory=dict)
    persistent_workers: bool = False
    run_ahead: bool | None = None
    takes_turns: bool = False
    live: tuple[str, ...] = ()
    salt: bytes = dataclasses.field(default_factory=lambda: os.urandom(16))

    def fingerprint(self) -> str:
        """Returns the fingerprint of all that decides the stream's batches. Blocks while it reads all that the parts
        hold."""
        return self._fingerprint(None)

    def quick_fingerprint(self) -> str:
        """Returns the fingerprint, or an empty string where that takes longer than a fork does."""
        try:
            return self._fingerprint(QuickWalks())
        except TooLong:
            return ""

    def _fingerprint(self, walks: QuickWalks | None) -> str:
        masked = self.sampler_state.generators if self.sampler_state is not None else ()
        live = LiveSearch() if self.run_ahead is not True else None
        with self.sampler_state.at_epoch_zero() if self.sampler_state is not None else contextlib.nullcontext():
            found = fingerprint(self.identity, masked, self.plain, walks, live)
        if not self.takes_turns and (live is None or not live.found):
            return found
        return hashlib.blake2b(found.encode() + self.salt, digest_size=16).hexdigest()

    @property
    def ahead(self) -> RunAhead:
        """Whether batches may be made before their epoch begins, as long as no live state is found."""
        reiterates = self.spec.order == "iterable" and self.persistent_workers
        return decide(self.run_ahead, self.live, reiterates=reiterates)

    def identified(self) -> StreamRequest:
        """Returns the request with the fingerprint in its spec. Blocks as fingerprint() does."""
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, fingerprint=self.fingerprint()))

    def fork_request(self, paths: RuntimePaths) -> ForkRequest:
        """Returns what this process is to be forked for."""
        return ForkRequest(
            paths,
            self.spec,
            self.parts,
            self.fingerprint,
            self.found,
            self.forked,
            self.quick_fingerprint,
            self.has_changed,
        )


def whole_number(argument: str, value: Any) -> int:
    """Returns `value` as an int; numpy's integers will do. Raises CallerError, naming the argument."""
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    raise CallerError(f"{argument}={value!r}; allowed: a whole number")


def resolve_seed(seed: int | None, world_size: int = 1) -> tuple[int, str]:
    """Returns the seed and where it came from: the argument, torch.manual_seed, or 0. In place of 0, one of several
    processes that do not share an epoch has its rank: each has an order of its own, as with DataLoader when nobody
    seeds. Processes that share an epoch take 0, as DistributedSampler does: scripts seed torch by the rank, and shares
    of different orders would overlap.

    A process that never seeded torch has a random initial seed of 53 bits and more, that of when this was imported; one
    below 2**32 was chosen by a person before.
    """
    if seed is not None:
        seed = whole_number("seed", seed)
        if not 0 <= seed < 1 << 63:
            raise CallerError(f"seed={seed}; allowed: 0 to 2**63 - 1")
        return seed, "argument"
    if world_size > 1:
        return 0, "default"
    chosen = torch.initial_seed()
    if chosen != _SEED_OF_NOBODY or chosen < 1 << 32:
        return chosen % SEED_LIMIT, "torch"
    return process_rank()[0], "default"


def resolve_buffer(buffer: str | int | None, minimum: int = MINIMUM_SLOTS) -> tuple[int, int]:
    """Returns (bytes, batches): one of them is 0, both when the daemon shall decide. Raises BufferTooSmallError and
    CallerError."""
    if buffer is None:
        return 0, 0
    if isinstance(buffer, str):
        return parse_bytes(buffer, "buffer"), 0
    batches = whole_number("buffer", buffer)
    if batches < minimum:
        raise BufferTooSmallError(
            f"buffer={batches} batches; allowed: {minimum} batches or more, or bytes as in '4GiB'"
        )
    return 0, batches


def check_stream_name(stream: str | None) -> None:
    """Raises CallerError when `stream` cannot be a stream's name; None stands for the default."""
    if stream is not None and (not isinstance(stream, str) or not stream):
        raise CallerError(f"stream={stream!r}; allowed: a name of 1 to 200 printable characters")


def resolve_order(dataset: Any, sampler: Any, batch_sampler: Any, generator: Any) -> str:
    """Returns the order's name: arithmetic where the sampler is as DataLoader would make it itself, over this dataset
    or as many indices, and nobody has a say in its seed. `batch_sampler` is the caller's own, or None."""
    if isinstance(dataset, IterableDataset):
        return "iterable"
    if batch_sampler is not None:
        return "sampler"
    if is_in_order(sampler, dataset):
        return "sequential"
    if generator is None and is_any_order(sampler, dataset):
        return "shuffle"
    return "sampler"


def has_equal_epochs(dataset: Any, order: str, collate_fn: Any, on_error: str, deterministic: bool | None) -> bool:
    """Returns True when each epoch has the same batches: the order never changes, and nothing of it is random, as the
    argument says or, where torch collates, the dataset's own attribute `deterministic`."""
    if order != "sequential" or on_error == "substitute":
        return False
    if deterministic is None:
        says = "deterministic" in getattr(dataset, "__dict__", ()) or goes_with_samples(type(dataset), "deterministic")
        return collate_fn is None and says and getattr(dataset, "deterministic", False) is True
    return bool(deterministic)


def sampler_parts(dataset: Any, index_sampler: Any, generator: Any) -> dict[str, Any]:
    """Returns the parts of a program whose order only `index_sampler` knows."""
    generators = find_generators((generator, index_sampler), dataset)
    return {"index_sampler": index_sampler, "generator": generator, "generators": generators}


def _length_of(value: Any) -> int:
    """Returns len(value), or -1 where there is none."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return -1


def _epoch_steps(dataset: Any, index_sampler: Any, batch_size: int | None, *, planned: bool, iterable: bool) -> int:
    """Returns StreamSpec.epoch_steps, as far as it is known."""
    if iterable:
        return -(-max(0, _length_of(dataset)) // (batch_size or 1))
    if not planned:
        return 0
    try:
        return len(index_sampler)
    except Exception:
        # It may only tell once it was iterated over, or never.
        return 0


def collate_additions() -> dict[Any, Any]:
    """Returns what the program has added to torch's default_collate, as its documentation shows, or changed of it.

    Not what an installed package adds for its own types: whoever makes samples of them imports the package, which adds
    the same there; and that this process has imported it as well says nothing about the batches.
    """
    return {
        kind: collate
        for kind, collate in torch_collate.default_collate_fn_map.items()
        if _package(collate) not in ("torch", "prefetchd") and not _is_of_one_installed_package(kind, collate)
    }


def _is_of_one_installed_package(kind: Any, collate: Any) -> bool:
    return isinstance(kind, type) and is_installed(kind) and _package(kind) == _package(collate)


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _known_live_state(parts: dict[str, Any], run_ahead: bool | None, takes_turns: bool) -> tuple[str, ...]:
    if run_ahead is not None:
        return ()
    if takes_turns:
        return (WRITTEN,)
    read = ("dataset", "index_sampler", "collate_fn", "worker_init_fn")
    near = near_live_state({name: parts[name] for name in read if parts.get(name) is not None})
    return (near,) if near else ()


def stream_request(
    *,
    dataset: Any,
    order: str,
    batch_size: int | None,
    drop_last: bool,
    collate_fn: Callable[[Any], Any] | None,
    worker_init_fn: Callable[[int], None] | None,
    num_workers: int,
    timeout: float,
    stream: str | None,
    seed: int | None,
    buffer: str | int | None,
    lookback: int,
    rank: int,
    world_size: int,
    on_error: str,
    fingerprint_extra: object,
    minimum_slots: int = MINIMUM_SLOTS,
    deterministic: bool | None = None,
    index_sampler: Any = None,
    generator: Any = None,
    persistent_workers: bool = False,
    name: str = "",
    remote_workers: int = 0,
    remote_resources: Mapping[str, Any] | None = None,
    run_ahead: bool | None = None,
    takes_turns: bool = False,
    most_ahead: int = 0,
    has_worker_info: bool = True,
) -> StreamRequest:
    """Resolves everything but the fingerprint; `index_sampler` and `generator` decide where the order is a sampler's,
    and `batch_size` is -1 there when a batch_sampler decides it. `name` is for a stream that nobody has named. Raises
    CallerError, naming the argument."""
    planned, iterable = order == "sampler", order == "iterable"
    if iterable and on_error != "raise":
        raise CallerError(
            f"on_error={on_error!r}; allowed for an IterableDataset: 'raise' (what its iterator does after an error is "
            "its own affair)"
        )
    if not planned and not iterable and not isinstance(dataset, Sized):
        raise CallerError(f"dataset {type(dataset).__name__} has no len()")
    check_stream_name(stream)
    number, source = resolve_seed(seed, whole_number("world_size", world_size))
    buffer_bytes, buffer_batches = resolve_buffer(buffer, minimum_slots)
    if collate_fn is (default_convert if batch_size is None else default_collate):
        collate_fn = None
    parts: dict[str, Any] = {"dataset": dataset, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
    if additions := collate_additions():
        parts["collate_additions"] = additions
    counted = dict(parts)
    sampler_state: SamplerState | None = None
    if planned:
        added = sampler_parts(dataset, index_sampler, generator)
        parts |= added
        counted |= {"index_sampler": index_sampler, "generator": generator}
        if persistent_workers and generator is not None:
            parts["seeds_once"] = counted["seeds_once"] = True
        sampler_state = SamplerState(index_sampler, added["generators"])
    if iterable and (persistent_workers or not num_workers):
        parts["reuses_dataset"] = True
    if not has_worker_info:
        parts["has_worker_info"] = False
    # It may have seeded what nobody can find: a generator in a library. Then batches are what their worker is.
    dealt = (worker_init_fn is not None or takes_turns) and num_workers > 0 and not iterable
    if dealt:
        counted["dealt_to"] = whole_number("num_workers", num_workers)
    samples = getattr(index_sampler, "sampler", index_sampler) if planned else dataset
    identity: dict[str, Any] = {
        "seed": number,
        "order": order,
        "length": _length_of(samples) if batch_size != -1 and not iterable else -1,
        "batch_size": batch_size or 0,
        "drop_last": drop_last,
        "rank": whole_number("rank", rank),
        "world_size": whole_number("world_size", world_size),
        "logical_shards": max(1, whole_number("num_workers", num_workers)) if iterable else 0,
        "on_error": on_error,
        "equal_epochs": has_equal_epochs(dataset, order, collate_fn, on_error, deterministic),
    }
    spec = StreamSpec(
        **identity,
        fingerprint=UNIDENTIFIED,
        epoch_steps=_epoch_steps(dataset, index_sampler, batch_size, planned=planned, iterable=iterable),
        name=stream or name,
        seed_source=source,
        buffer_bytes=buffer_bytes,
        buffer_batches=buffer_batches,
        minimum_slots=minimum_slots,
        lookback=whole_number("lookback", lookback),
        workers=whole_number("num_workers", num_workers),
        dealt=dealt,
        private=takes_turns,
        high_watermark=most_ahead if takes_turns else 0,
        timeout_s=float(timeout),
        remote_workers=whole_number("remote_workers", remote_workers),
        remote_resources=encode_resources(remote_resources),
    )
    content = {**counted, **identity, "extra": fingerprint_extra}
    if directory := directory_that_counts(parts):
        content["directory"] = directory
    return StreamRequest(
        spec,
        parts,
        stream is not None,
        content,
        sampler_state,
        persistent_workers=persistent_workers,
        run_ahead=run_ahead,
        takes_turns=takes_turns,
        live=_known_live_state(parts, run_ahead, takes_turns),
    )
