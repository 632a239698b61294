"""PrefetchLoader: DataLoader's interface, the daemon's batches."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import GenericAlias
from typing import Any, ClassVar

import torch
from torch.utils.data import BatchSampler, DataLoader

from prefetchd.wire.errors import CallerError, ForkedError, UnpicklableError
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd_client.assumptions import Assumptions
from prefetchd_client.attaching import attached_client, dataset_of, is_elsewhere
from prefetchd_client.changes import ChangeWatch
from prefetchd_client.cursors import ClientCursor
from prefetchd_client.device.selection import AnyPath, minimum_slots, new_iterator, select_path
from prefetchd_client.forks import guard_forks, is_forked
from prefetchd_client.iterator import PrefetchIterator
from prefetchd_client.loader_state import Standing
from prefetchd_client.positions import Positions
from prefetchd_client.ranks import resolve_rank
from prefetchd_client.rebuild_guard import RebuildGuard
from prefetchd_client.sample_cache.transformed import transformed
from prefetchd_client.sessions import Session, Sessions
from prefetchd_client.stream_client import WaitTimedOut
from prefetchd_client.stream_request import StreamRequest, resolve_order, stream_request
from prefetchd_client.successors import await_successor, mark_used, predecessor_of
from prefetchd_client.turns import Turns
from prefetchd_client.wrapping import arguments_of

ON_THE_WAY = ("device", "device_transform")
PIN_DEVICE_WARNING = (
    "pin_memory_device is deprecated, the current accelerator will be used as the device,ignore pin_memory_device='{}'."
)
WATCHED = ("dataset", "collate_fn", "worker_init_fn", "index_sampler")


class PrefetchLoader(RebuildGuard):
    """A DataLoader whose batches a daemon makes ready ahead of time, in shared memory.

    Takes DataLoader's arguments, with its checks and its errors, and these:

      stream    the stream's name in the daemon; a given name may be shared by several processes. Default: the script,
                the loader's ordinal in it, the rank
      seed      root of all randomness; None: torch.initial_seed() if torch.manual_seed was called, else 0
      buffer    bound of the ring, as bytes ("4GiB") or a number of batches; None: the least of 1 GiB, a quarter of the
                free shared memory, a quarter of what the memory cgroup leaves, and two epochs
      lookback  batches of the buffer that are kept behind the consumer, for a trainer that resumes a little earlier; at
                most half of it. What its holder has written to is made again. Costs workers one more pass over each
                batch
      rank, world_size    this process's share of each epoch, as in torch.distributed. Default: what that or torchrun
                says of this process. Ranks partition each epoch, evened out with its first samples as
                DistributedSampler does; a sampler makes its own shares, such as DistributedSampler(drop_last=True)
      on_error  what becomes of a sample that raises, or that ends its workers even when nothing else runs: "raise"
                raises its error in the batch's place; "skip" leaves it out, the batch is smaller then; "substitute"
                has another one take its place, the same in every run. A batch of which nothing is left raises. Each
                such sample is told on stderr once, and stands in stats(); `prefetchd status` counts each time
      deterministic   True says that samples and batches depend on nothing random: without shuffle all epochs are equal
                then, and while one fits the buffer its batches are kept for the next instead of being made again. None:
                what the dataset's attribute `deterministic` says, where torch's default collation makes the batches
      fingerprint_extra   anything else that decides what the batches are, such as the version of the data files
      transform   what becomes of each sample, such as random transforms after a SampleCache; `dataset` is then the
                dataset of these
      fresh     True drops batches that an earlier run left
      socket    the daemon's socket; None: $PREFETCHD_SOCKET, else the user's own daemon

      device    a CUDA device, or "cpu": batches are handed out there, copied ahead of the trainer (docs/device.md)
      device_transform    a callable or nn.Module that takes a batch on `device` and returns what is handed out, under
                no_grad; seeded for each batch. A module is moved to the device

    pin_memory=True: tensors that are pinned, and are the ring's own memory.

    num_workers 0 lets the daemon decide; another number bounds this stream's workers. Of an IterableDataset it is the
    number of shards, as get_worker_info() tells them, and decides which batches there are. prefetch_factor,
    persistent_workers, multiprocessing_context and in_order are accepted and have no meaning: batches are prefetched up
    to `buffer`, workers outlive the trainer, and the order is always kept; with persistent_workers, as DataLoader does,
    the base seed is drawn from `generator` in epoch 0 alone; pin_memory_device is ignored, as DataLoader
    ignores it (docs/arguments.md).

    timeout makes next() raise after so many seconds, as DataLoader's does. A piece of a batch that takes a worker
    longer is given up with its worker: that batch's place has a TaskTimeoutError that names the sample. Without a
    timeout nothing is given up for being slow; a wait of 60 s, and every 30 s more of it, is explained on stderr.

    Filling starts now. Batches are tensors in shared memory that stay valid, and the holder's own, as long as they are
    held. Not for use by several threads at once.
    """

    # As DataLoader is: annotations name what batches are.
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    # Of an iterable dataset, once somebody has asked.
    _told_length: int | None = None
    # DataLoader's iterator would not draw a base seed any more.
    _is_seeded = False

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        stream: str | None = None,
        seed: int | None = None,
        buffer: str | int | None = None,
        lookback: int = 0,
        device: Any = None,
        device_transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: str = "raise",
        deterministic: bool | None = None,
        fingerprint_extra: object = None,
        transform: Callable[[Any], Any] | None = None,
        fresh: bool = False,
        socket: str | None = None,
    ) -> None:
        """Raises DataLoader's ValueErrors, CallerError, DaemonUnavailableError, DaemonRefusedError. Blocks until the
        daemon has answered, not until a batch is ready."""
        # Within `dataset` from here on: who makes a loader anew from this one's attributes is not to apply it twice.
        dataset, self.transform = transformed(dataset, transform), None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        # Under their names, as DataLoader's: who makes a loader anew from another's attributes finds them. Not
        # `stream`: that name is taken as long as this loader lives.
        self.seed, self.buffer, self.lookback, self.on_error = seed, buffer, lookback, on_error
        self.rank, self.world_size, self.socket = rank, world_size, socket
        self.device, self.device_transform = device, device_transform
        self.fingerprint_extra, self.fresh, self.deterministic = fingerprint_extra, fresh, deterministic
        self._path = select_path(device, device_transform, pin_memory=self.pin_memory)
        self._own_batch_sampler = batch_sampler
        share = resolve_rank(rank, world_size)
        self._options: dict[str, Any] = {
            "stream": stream,
            "seed": seed,
            "buffer": buffer,
            "lookback": lookback,
            "rank": share[0],
            "world_size": share[1],
            "on_error": on_error,
            "fingerprint_extra": fingerprint_extra,
            "deterministic": deterministic,
        }
        is_own_order = sampler is not None or batch_sampler is not None
        former = predecessor_of(self.dataset, self.collate_fn) if is_own_order else None
        request = self._request(former.hand_over(self._options) if former is not None else None)
        self._took_over(request)
        self._begin(Sessions.opened(socket, request, fresh=fresh), request.assumptions)
        if not is_own_order:
            await_successor(self)

    def _begin(self, sessions: Sessions, assumptions: Assumptions | None) -> None:
        self._turns = Turns()
        self._iterators: weakref.WeakSet[PrefetchIterator] = weakref.WeakSet()
        self._sessions = sessions
        guard_forks(self)
        self._finalizer = weakref.finalize(self, _end, self._sessions, self._path)
        self._positions = Positions(sessions, assumptions)

    @classmethod
    def wrap(cls, dataloader: DataLoader[Any], **extra: Any) -> PrefetchLoader:
        """A PrefetchLoader that takes everything over from `dataloader`; `extra` are further arguments."""
        return cls(dataloader.dataset, **(arguments_of(dataloader) | extra))

    @classmethod
    def attach(
        cls,
        stream: str,
        *,
        timeout: float = 0,
        pin_memory: bool = False,
        device: Any = None,
        device_transform: Callable[[Any], Any] | None = None,
        socket: str | None = None,
    ) -> PrefetchLoader:
        """A loader of a stream that the daemon's configuration declares: no dataset is needed here. Its batches are
        private copies while others consume the stream too.

        Raises DaemonUnavailableError when no daemon runs, CallerError when it has no such stream, DaemonRefusedError
        when that has failed. Blocks until the daemon has looked at the stream's dataset.
        """
        path = select_path(device, device_transform, pin_memory=pin_memory)
        session = attached_client(runtime_paths(socket), stream)
        spec = session.spec
        loader = cls.__new__(cls)
        DataLoader.__init__(
            loader,
            dataset_of(spec),
            batch_size=spec.batch_size or None,
            drop_last=spec.drop_last,
            pin_memory=pin_memory,
            timeout=timeout,
        )
        loader.device, loader.device_transform, loader._path = device, device_transform, path
        loader.fingerprint_s = 0.0
        loader.socket = socket
        loader.spec = spec
        loader._watch = ChangeWatch({})
        loader._functions = (loader.collate_fn, loader.worker_init_fn)
        loader._begin(Sessions(session, socket), None)
        return loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """A new iterator. It takes its epoch at its first next(); until then it consumes nothing."""
        if self.pin_memory and self.pin_memory_device:
            warnings.warn(PIN_DEVICE_WARNING.format(self.pin_memory_device), stacklevel=2)
        iterator = PrefetchIterator(self) if self._path is None else new_iterator(self, self._path)
        self._iterators.add(iterator)
        return iterator

    def __len__(self) -> int:
        """Batches in an epoch of this rank. Raises TypeError where only a sampler or an iterable dataset could tell,
        and has no length."""
        if not self.spec.is_arithmetic:
            length = super().__len__()
            if self.spec.order == "iterable":
                self._told_length = length
            return length
        dataset: Any = self.dataset
        samples = -(-len(dataset) // self.spec.world_size)
        rows = self.batch_size or 1
        return samples // rows if self.drop_last else -(-samples // rows)

    def check_worker_number_rationality(self) -> None:
        """Nothing: the daemon bounds its workers, whatever number is asked for here."""

    def set_epoch(self, epoch: int) -> None:
        """The next iterator to begin takes `epoch`; what was prefetched for another one is given up. The step that
        load_state_dict() has set within that epoch stays. A sampler that has a set_epoch() is told as well."""
        self._check_fork()
        if epoch < 0:
            raise CallerError(f"epoch {epoch}; allowed: 0 or more")
        self._positions.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where whoever called next() last stands, as plain values: after the n-th batch of epoch e it is (e, n), after
        the epoch's StopIteration (e + 1, 0). O(1), of an iterable dataset O(shards); asks nobody."""
        return self._positions.state(self.spec)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator to begin goes on where state_dict() was taken, and those after it with the epochs that
        follow. With a state from after an epoch's last batch, the next iterator ends at once. Living iterators go on
        as they are. O(1): no batch is skipped over.

        With another world_size the ranks go on where those of the state were in the epoch that all share. Raises
        CallerError when `state` is none of ours. Warns when it is of other batches than this loader's: the position is
        taken all the same.
        """
        self._check_fork()
        self._positions.load(self.spec, state)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iterator to begin takes."""
        return self._positions.next_epoch

    def stats(self) -> dict[str, Any]:
        """Counts of this loader since it was made: batches, copies, waits; and which samples were bad (`on_error`),
        those of batches ahead of the trainer included: `bad_samples` has each index once, with where it was bad first,
        and `bad_sample_count` is their number. How often samples were bad, over all epochs, `prefetchd status` counts.
        With pin_memory or device also what they are copied from (docs/device.md)."""
        session = self._sessions.current
        found = {"stream": session.name, "fingerprint_s": self.fingerprint_s, **session.stats()}
        return found if self._path is None else found | self._path.stats()

    def record_stream(self, batch: Any, stream: Any) -> None:
        """`batch`, or a tensor of one, is used on `stream` too, which was not the current one at its next(): its memory
        is used again only when that has done what is in line there when the batch is dropped."""
        if self._path is not None:
            self._path.record_stream(batch, stream)

    def refresh(self) -> None:
        """Looks at dataset, sampler and collate_fn again, writes into arrays included, which are not noticed otherwise:
        if they are not what they were, iterators that begin from now on get batches of what they are now. Those that
        have begun go on. Does nothing to an attached loader, whose dataset is not here. Raises UnpicklableError,
        NoSpaceError and what the constructor raises."""
        self._check_fork()
        if is_elsewhere(self.dataset):
            return
        request = self._request(self.spec.name)
        if request.spec.fingerprint == self.spec.fingerprint:
            return
        prepared = self._sessions.prepare(request)
        self._took_over(request)
        self._positions.replace(request, prepared)

    def close(self) -> None:
        """Ends the session with the daemon. Batches that are held stay valid. Idempotent."""
        mark_used(self)
        for iterator in list(self._iterators):
            iterator.stop()
        # The cursors end with the session: until then they tell the daemon where the next run goes on.
        self._finalizer()

    def __reduce__(self) -> Any:
        """As its arguments: unpickled, it is a loader of its own, at its beginning."""
        if is_elsewhere(self.dataset):
            kept = {name: getattr(self, name) for name in ("timeout", "pin_memory", *ON_THE_WAY, "socket")}
            return partial(type(self).attach, self.spec.name, **kept), ()
        own = {name: getattr(self, name) for name in ("rank", "world_size", "socket", "fresh", *ON_THE_WAY)}
        return partial(type(self), self.dataset, **(arguments_of(self) | self._options | own)), ()

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hand_over(self, options: dict[str, Any]) -> str:
        """For a loader that a framework makes of this one, with these `options`: gives up the stream, and says what it
        is called. Whoever iterates over this loader after all gets another one."""
        mark_used(self)
        self._positions.give_up(self._request)
        options["stream"], self._options["stream"] = self._options["stream"], None
        return self.spec.name

    # --- for iterators ---

    def standing(self) -> Standing:
        """Where state_dict() says that the trainer stands."""
        return self._positions.standing()

    def stand_at(self, standing: Standing) -> None:
        """For an iterator that fetches ahead of what it yields."""
        self._positions.stand_at(standing)

    def begin_epoch(self) -> tuple[Session, ClientCursor]:
        """Session and cursor of an iterator that begins; the one after it is filled ahead from now on."""
        self._check_fork()
        mark_used(self)
        collate_fn, worker_init_fn = self._functions
        is_another = collate_fn is not self.collate_fn or worker_init_fn is not self.worker_init_fn
        with self._turns:
            if self._watch.has_changed() or is_another:
                self._refresh_if_possible()
            begun = self._positions.begin_epoch()
        if self._positions.assumptions is None and self.generator is not None and not self._is_seeded:
            # DataLoader draws its base seed: whoever goes on with the generator finds it as after DataLoader.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self._is_seeded = self.persistent_workers
        return begun

    def next_batch(self, session: Session, cursor: ClientCursor) -> Any:
        """Raises what StreamClient.next_batch raises; a timeout as DataLoader words it."""
        self._check_fork()
        try:
            with self._turns:
                batch = self._positions.next_batch(session, cursor, float(self.timeout))
        except WaitTimedOut:
            raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds") from None
        if self._told_length is not None and cursor.yielded == self._told_length + 1:
            warnings.warn(
                f"len() of this loader was {self._told_length} batches, as {type(self.dataset).__name__} told its "
                "length, and there are more: does it give each worker a share of its own, by get_worker_info()?",
                stacklevel=3,
            )
        return batch

    def end_cursor(self, session: Session, cursor: ClientCursor) -> None:
        if not is_forked(self):
            self._sessions.close_cursor(session, cursor)

    def abandon(self) -> None:
        """In a forked child: nothing is sent, and nothing of the parent's is kept open."""
        self._sessions.abandon()

    def _request(self, name: str | None = None) -> StreamRequest:
        began_s = time.perf_counter()
        own = self._own_batch_sampler
        request = stream_request(
            dataset=self.dataset,
            order=resolve_order(self.dataset, self.sampler, own, self.generator),
            batch_size=_rows_of(own) if own is not None else self.batch_size,
            drop_last=self.drop_last,
            collate_fn=self.collate_fn,
            worker_init_fn=self.worker_init_fn,
            num_workers=self.num_workers,
            timeout=self.timeout,
            index_sampler=self._index_sampler,
            generator=self.generator,
            seeds_once=self.persistent_workers,
            name=name,
            minimum_slots=minimum_slots(self._path),
            **self._options,
        )
        self.fingerprint_s = time.perf_counter() - began_s
        return request

    def _took_over(self, request: StreamRequest) -> None:
        began_s = time.perf_counter()
        self.spec = request.spec
        watched = {name: part for name, part in request.parts.items() if name in WATCHED and part is not None}
        masked: list[Any] = list(request.assumptions.generators) if request.assumptions is not None else []
        self._watch = ChangeWatch(watched, masked, request.assumptions)
        # The attributes may be set to others; the watch looks at those that were handed over.
        self._functions = (self.collate_fn, self.worker_init_fn)
        self.fingerprint_s += time.perf_counter() - began_s

    def _refresh_if_possible(self) -> None:
        try:
            self.refresh()
        except (CallerError, UnpicklableError) as error:
            warnings.warn(
                f"the dataset or sampler has changed since it was handed over, and what it is now cannot be ({error}): "
                "batches are of what it was before",
                stacklevel=4,
            )

    def _check_fork(self) -> None:
        if is_forked(self):
            raise ForkedError("this loader belongs to the parent process; make one of its own in the forked child")


def _end(sessions: Sessions, path: AnyPath | None) -> None:
    if path is not None:
        path.close()
    sessions.close()


def _rows_of(batch_sampler: Any) -> int:
    """The samples of each batch but the last; -1 when only the sampler knows."""
    return int(batch_sampler.batch_size) if type(batch_sampler) is BatchSampler else -1
