"""Defines StreamSpec: everything that decides which batches a stream has and how the daemon keeps them ready.

The first part is identity: with the program (dataset, collate_fn, ...) it decides every byte of every batch, and the
client's fingerprint covers it. The second part is service: it may change between runs of a trainer without changing a
byte.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import msgpack

from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.remote_resources import decode_resources

ORDERS = ("sequential", "shuffle", "sampler", "iterable")
ORDER_VERSION = 1
SEED_SOURCES = ("argument", "torch", "default")
ON_ERROR = ("raise", "skip", "substitute")
STORES = ("shm", "ram_disk", "files")

Position: TypeAlias = tuple[int, int]
"""(epoch, step): a batch's identity within its stream."""

POSITION_LIMIT = 1 << 60
"""The limit of an epoch's number, and of a step's."""

SEED_LIMIT = 1 << 63
LENGTH_LIMIT = 1 << 62
UNIDENTIFIED = "f" * 32
"""Stands in the place of a fingerprint that is not known yet. No two streams are the same because of it."""

MINIMUM_SLOTS = 4
MINIMUM_SLOTS_DEVICE = 6


@dataclasses.dataclass(frozen=True)
class StreamSpec:
    """A stream's specification, as the client sends it and as the segment keeps it.

    Identity
      fingerprint     hex digest of program and identity fields; equal means equal batches
      seed            root of every seed in the stream, 0 <= seed < 2**63
      order           "sequential" | "shuffle" (keyed bijection) | "sampler" (planner process) | "iterable"
      order_version   version of the bijection and of the seed formulas (prefetchd.plan)
      length          samples in an epoch; -1 when unknown (iterable, a sampler without a length)
      batch_size      samples a batch; 0 means that samples come as they are, one a step; -1 that a batch_sampler
                      decides batch by batch
      drop_last       a last, smaller batch is dropped
      rank, world_size    this stream's share of each epoch, as in torch.distributed
      drop_uneven     ranks are evened by dropping (True) or by padding with the epoch's first samples
      logical_shards  iterable datasets: the number of shards, 1 or more; without meaning for others
      on_error        what becomes of a sample that raises
      equal_epochs    every epoch has the batches of epoch 0, and is asked for as epoch 0

    Service
      name            the name in the daemon
      seed_source     where the seed came from, for status
      buffer_bytes    bound of the ring's segment; 0 means that buffer_batches decides
      buffer_batches  slots of the ring; 0 means that buffer_bytes decides
      epoch_steps     batches that an epoch is thought to have, where the order is not arithmetic; 0: nobody can tell
      minimum_slots   fewer is an error that names `buffer`
      low_watermark, high_watermark   ready batches at which filling resumes and stops; 0 means the ring's size
      lookback        batches kept behind the consumer
      workers         most workers at once on this stream; 0 means that the daemon decides
      dealt           whole batches go to the workers in turn, as DataLoader deals them: what a worker is may matter
      timeout_s       a fill task that runs longer is killed; 0 means never
      store           where batches live: "shm"; "ram_disk", the ring as a file in `directory`; "files", a file for each
                      batch there
      directory       absolute; empty for "shm"
      epochs          so many are made, and none after; 0 means no end
      remote_workers  workers on other machines, beside those here, at most
      remote_resources  what each of these takes on its node, and which nodes they may be on; empty: the default
      private         samples change what the program holds, as is known: no other trainer may have its batches
    """

    fingerprint: str
    seed: int
    order: str
    length: int
    batch_size: int
    order_version: int = ORDER_VERSION
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    drop_uneven: bool = False
    logical_shards: int = 0
    on_error: str = "raise"
    equal_epochs: bool = False
    name: str = ""
    seed_source: str = "default"
    buffer_bytes: int = 0
    buffer_batches: int = 0
    epoch_steps: int = 0
    minimum_slots: int = MINIMUM_SLOTS
    low_watermark: int = 0
    high_watermark: int = 0
    lookback: int = 0
    workers: int = 0
    timeout_s: float = 0.0
    store: str = "shm"
    directory: str = ""
    epochs: int = 0
    dealt: bool = False
    remote_workers: int = 0
    private: bool = False
    remote_resources: str = ""

    @property
    def is_identified(self) -> bool:
        """False as long as the fingerprint of what makes the stream's batches is not known."""
        return self.fingerprint != UNIDENTIFIED

    @property
    def is_arithmetic(self) -> bool:
        """True when the order, and with it the length of an epoch, follows from these fields alone."""
        return self.order in ("sequential", "shuffle")

    def __post_init__(self) -> None:
        """Checks all fields. Raises CallerError, naming the field, when a value is outside its range."""
        _one_of("order", self.order, ORDERS)
        _one_of("seed_source", self.seed_source, SEED_SOURCES)
        _one_of("on_error", self.on_error, ON_ERROR)
        _one_of("store", self.store, STORES)
        _within("seed", self.seed, 0, SEED_LIMIT - 1)
        _within("length", self.length, -1, LENGTH_LIMIT)
        _within("batch_size", self.batch_size, -1 if self.order == "sampler" else 0, LENGTH_LIMIT)
        _within("world_size", self.world_size, 1, 1 << 31)
        _within("rank", self.rank, 0, self.world_size - 1)
        watermarks = ("low_watermark", "high_watermark")
        for field in ("logical_shards", *watermarks, "lookback", "workers", "epochs", "remote_workers"):
            _within(field, getattr(self, field), 0, 1 << 31)
        for field in ("buffer_bytes", "buffer_batches", "epoch_steps"):
            _within(field, getattr(self, field), 0, 1 << 62)
        _within("minimum_slots", self.minimum_slots, 1, 1 << 16)
        if not 0 <= self.timeout_s < float("inf"):
            raise CallerError(f"timeout_s is {self.timeout_s}; allowed: 0 (never) or more")
        # What two fields forbid each other is checked here, and nowhere else: whoever has a StreamSpec may trust it.
        if self.order == "iterable" and not self.logical_shards:
            raise CallerError("logical_shards is 0; allowed for order 'iterable': 1 or more")
        if self.length < 0 and self.is_arithmetic:
            raise CallerError(f"length is {self.length}; allowed for order {self.order!r}: 0 or more")
        if self.equal_epochs and (self.order != "sequential" or self.on_error == "substitute"):
            raise CallerError(
                f"equal_epochs with order {self.order!r} and on_error {self.on_error!r}; allowed: order 'sequential', "
                "and not on_error 'substitute', which takes others in each epoch"
            )
        if self.order_version != ORDER_VERSION:
            raise CallerError(f"order_version is {self.order_version}; this prefetchd knows {ORDER_VERSION}")
        if self.high_watermark and self.low_watermark > self.high_watermark:
            raise CallerError(
                f"low_watermark is {self.low_watermark}; allowed: up to high_watermark, {self.high_watermark}"
            )
        if (self.store == "shm") != (not self.directory) or len(self.directory) > 600:
            raise CallerError(
                f"store {self.store!r} in directory {self.directory[:30]!r}; allowed: 1 to 600 letters; none for shm"
            )
        decode_resources(self.remote_resources)
        if len(self.name) > 200 or not self.name.isprintable():
            raise CallerError(f"stream name {self.name[:40]!r}...: allowed: up to 200 printable characters")
        if len(self.fingerprint) != 32 or set(self.fingerprint) - set("0123456789abcdef"):
            raise CallerError(f"fingerprint {self.fingerprint[:40]!r}: allowed: 32 hexadecimal digits")


def encode_spec(spec: StreamSpec) -> bytes:
    """Encodes the spec as a msgpack map: field name to value."""
    return bytes(msgpack.packb(dataclasses.asdict(spec)))


def decode_spec(data: bytes) -> StreamSpec:
    """Decodes the spec in `data`; fields of a newer writer are ignored. Raises ProtocolError."""
    try:
        raw = msgpack.unpackb(data)
    except Exception as error:
        raise ProtocolError(f"a stream spec of {len(data)} bytes is not msgpack: {error}") from None
    if not isinstance(raw, dict):
        raise ProtocolError(f"a stream spec is a {type(raw).__name__}; allowed: a map")
    known: dict[str, Any] = {}
    for field in dataclasses.fields(StreamSpec):
        # A field that an older writer did not have keeps its default.
        if field.name in raw:
            value = raw[field.name]
            wanted = _FIELD_TYPES[field.name]
            if wanted is float and type(value) is int:
                value = float(value)
            if type(value) is not wanted:
                raise ProtocolError(f"stream spec: {field.name} is a {type(value).__name__}, not a {wanted.__name__}")
            known[field.name] = value
    try:
        return StreamSpec(**known)
    except (TypeError, CallerError) as error:
        raise ProtocolError(f"stream spec: {error}") from None


_FIELD_TYPES: dict[str, type] = {
    field.name: {"int": int, "str": str, "bool": bool, "float": float}[str(field.type)]
    for field in dataclasses.fields(StreamSpec)
}


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise CallerError(f"{field} is {value[:40]!r}; allowed: {', '.join(map(repr, allowed))}")


def _within(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise CallerError(f"{field} is {value}; allowed: {low} to {high}")
