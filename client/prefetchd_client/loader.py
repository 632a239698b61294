"""PrefetchLoader: DataLoader's interface, the daemon's batches."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from prefetchd.wire.errors import CallerError, ForkedError, UnpicklableError
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.shard_states import ShardState
from prefetchd_client.attaching import attached_client, dataset_of, is_elsewhere
from prefetchd_client.changes import ChangeWatch
from prefetchd_client.cursors import ClientCursor, EndOfEpoch
from prefetchd_client.forks import guard_forks, is_forked
from prefetchd_client.iterator import PrefetchIterator
from prefetchd_client.loader_state import from_state, to_state
from prefetchd_client.ranks import resolve_rank
from prefetchd_client.sessions import Session, Sessions
from prefetchd_client.stream_client import WaitTimedOut
from prefetchd_client.stream_request import StreamRequest, resolve_order, stream_request
from prefetchd_client.successors import await_successor, is_used, predecessor_of
from prefetchd_client.wrapping import arguments_of

WATCHED = ("dataset", "collate_fn", "worker_init_fn", "index_sampler")


class PrefetchLoader(DataLoader[Any]):
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
                DistributedSampler does; a sampler makes its own shares
      on_error  what becomes of a sample that raises, or that ends its workers even when nothing else runs: "raise"
                raises its error in the batch's place; "skip" leaves it out, the batch is smaller then; "substitute"
                has another one take its place, the same in every run. A batch of which nothing is left raises. Each
                such sample is told on stderr once, and counted in `prefetchd status`
      fingerprint_extra   anything else that decides what the batches are, such as the version of the data files
      fresh     True drops batches that an earlier run left
      socket    the daemon's socket; None: $PREFETCHD_SOCKET, else the user's own daemon

    pin_memory is accepted and has no effect so far: batches are in ordinary memory.

    num_workers 0 lets the daemon decide; another number bounds this stream's workers. Of an IterableDataset it is the
    number of shards, as get_worker_info() tells them, and decides which batches there are. prefetch_factor,
    persistent_workers, multiprocessing_context and in_order are accepted and have no meaning: batches are prefetched up
    to `buffer`, workers outlive the trainer, and the order is always kept.

    timeout makes next() raise after so many seconds, as DataLoader's does. A piece of a batch that takes a worker
    longer is given up with its worker: that batch's place has a TaskTimeoutError that names the sample. Without a
    timeout nothing is given up for being slow; a wait of 60 s, and every 30 s more of it, is explained on stderr.

    Filling starts now. Batches are tensors in shared memory that stay valid, and the holder's own, as long as they are
    held. Not for use by several threads at once.
    """

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
        rank: int | None = None,
        world_size: int | None = None,
        on_error: str = "raise",
        fingerprint_extra: object = None,
        fresh: bool = False,
        socket: str | None = None,
    ) -> None:
        """Raises DataLoader's ValueErrors, CallerError, DaemonUnavailableError, DaemonRefusedError. Blocks until the
        daemon has answered, not until a batch is ready."""
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
        self.fingerprint_extra, self.fresh = fingerprint_extra, fresh
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
        }
        is_own_order = sampler is not None or batch_sampler is not None
        former = predecessor_of(self.dataset, self.collate_fn) if is_own_order else None
        request = self._request(former.hand_over(self._options) if former is not None else None)
        self._took_over(request)
        self._begin(Sessions.opened(socket, request, fresh=fresh))
        if not is_own_order:
            await_successor(self)

    def _begin(self, sessions: Sessions) -> None:
        self._epoch = 0
        self._step = 0
        self._position = (0, 0)
        # (epoch, states of the generators before it) of the iterator that whoever called next() last has.
        self._began_with: tuple[int, tuple[bytes, ...]] | None = None
        # (epoch, by shard) where an iterable dataset's iterators stand after the batch that was yielded last.
        self._shard_states: tuple[int, Mapping[int, ShardState]] = (0, {})
        self._waiting: ClientCursor | None = None
        self._iterators: weakref.WeakSet[PrefetchIterator] = weakref.WeakSet()
        self._sessions = sessions
        guard_forks(self)
        self._finalizer = weakref.finalize(self, self._sessions.close)
        # A stream that was there already is filled where its last trainer stopped: this one may want to go on there,
        # and says where with its set_epoch() or its first next().
        if self._sessions.current.is_new:
            self._place_waiting()

    @classmethod
    def wrap(cls, dataloader: DataLoader[Any], **extra: Any) -> PrefetchLoader:
        """A PrefetchLoader that takes everything over from `dataloader`; `extra` are further arguments."""
        return cls(dataloader.dataset, **(arguments_of(dataloader) | extra))

    @classmethod
    def attach(cls, stream: str, *, timeout: float = 0, socket: str | None = None) -> PrefetchLoader:
        """A loader of a stream that the daemon's configuration declares: no dataset is needed here. Its batches are
        private copies while others consume the stream too.

        Raises DaemonUnavailableError when no daemon runs, CallerError when it has no such stream, DaemonRefusedError
        when that has failed. Blocks until the daemon has looked at the stream's dataset.
        """
        session = attached_client(runtime_paths(socket), stream)
        spec = session.spec
        loader = cls.__new__(cls)
        DataLoader.__init__(
            loader,
            dataset_of(spec),
            batch_size=spec.batch_size or None,
            drop_last=spec.drop_last,
            timeout=timeout,
        )
        loader.fingerprint_s = 0.0
        loader.socket = socket
        loader.spec = spec
        loader._assumptions = None
        loader._watch = ChangeWatch({})
        loader._begin(Sessions(session, socket))
        return loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """A new iterator. It takes its epoch at its first next(); until then it consumes nothing."""
        iterator = PrefetchIterator(self)
        self._iterators.add(iterator)
        return iterator

    def __len__(self) -> int:
        """Batches in an epoch of this rank. Raises TypeError where only a sampler or an iterable dataset could tell,
        and has no length."""
        if not self.spec.is_arithmetic:
            return super().__len__()
        dataset: Any = self.dataset
        samples = -(-len(dataset) // self.spec.world_size)
        rows = self.batch_size or 1
        return samples // rows if self.drop_last else -(-samples // rows)

    def check_worker_number_rationality(self) -> None:
        """Nothing: the daemon bounds its workers, whatever number is asked for here."""

    def set_epoch(self, epoch: int) -> None:
        """The next iterator to begin takes `epoch`; what was prefetched for another one is given up. The step that
        load_state_dict() has set within that epoch stays. A sampler that has a set_epoch() is told as well."""
        if epoch < 0:
            raise CallerError(f"epoch {epoch}; allowed: 0 or more")
        if self._assumptions is not None:
            self._assumptions.set_epoch(epoch)
        if epoch != self._epoch:
            self._go_to(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where whoever called next() last stands, as plain values: after the n-th batch of epoch e it is (e, n), after
        the epoch's StopIteration (e + 1, 0). O(1); asks nobody."""
        epoch, step = self._position
        generators = None
        if self._assumptions is not None and self._assumptions.generators:
            begun = self._began_with
            generators = begun[1] if begun is not None and begun[0] == epoch else self._assumptions.states
        shards = self._shard_states[1] if step and self._shard_states[0] == epoch else {}
        return to_state(self.spec, epoch, step, generators, shards)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator to begin goes on where state_dict() was taken, and those after it with the epochs that
        follow. With a state from after an epoch's last batch, the next iterator ends at once. Living iterators go on
        as they are. O(1): no batch is skipped over.

        With another world_size the ranks go on where those of the state were in the epoch that all share. Raises
        CallerError when `state` is none of ours. Warns when it is of other batches than this loader's: the position is
        taken all the same.
        """
        place = from_state(self.spec, state)
        self._shard_states = (place.epoch, place.shards)
        # Before the cursor is placed: whoever begins there is to know.
        self._sessions.current.begin_shards(*self._shard_states)
        self._go_to(place.epoch, place.step)
        if self._assumptions is not None and place.generators is not None:
            self._assumptions.set(place.generators)
            self._sessions.current.assume(place.epoch)

    def _go_to(self, epoch: int, step: int) -> None:
        if (epoch, step) != (self._epoch, self._step):
            self._epoch, self._step = epoch, step
            self._place_waiting()
        self._position = (epoch, step)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iterator to begin takes."""
        return self._epoch

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Asked by accelerate before it makes a plain DataLoader of this one, which nobody would notice."""
        raise CallerError(
            "accelerator.prepare() would make a plain DataLoader of this loader; allowed: "
            "prefetchd_client.integrations.accelerate.prepare(accelerator, loader)"
        )

    def stats(self) -> dict[str, Any]:
        """Counts of this loader since it was made: batches, copies, waits; and which samples were bad (`on_error`),
        each index once, those of batches ahead of the trainer included."""
        session = self._sessions.current
        return {"stream": session.name, "fingerprint_s": self.fingerprint_s, **session.stats()}

    def refresh(self) -> None:
        """Looks at dataset, sampler and collate_fn again, writes into arrays included, which are not noticed otherwise:
        if they are not what they were, iterators that begin from now on get batches of what they are now. Those that
        have begun go on. Does nothing to an attached loader, whose dataset is not here. Raises UnpicklableError,
        NoSpaceError and what the constructor raises."""
        if is_elsewhere(self.dataset):
            return
        request = self._request(self.spec.name)
        if request.spec.fingerprint == self.spec.fingerprint:
            return
        self._sessions.replace(request, self._waiting)
        self._waiting = None
        self._took_over(request)
        self._sessions.current.assume(self._epoch)

    def close(self) -> None:
        """Ends the session with the daemon. Batches that are held stay valid. Idempotent."""
        is_used(self)
        for iterator in list(self._iterators):
            iterator.stop()
        # The cursors end with the session: until then they tell the daemon where the next run goes on.
        self._finalizer()

    def __reduce__(self) -> Any:
        """As its arguments: unpickled, it is a loader of its own, at its beginning."""
        if is_elsewhere(self.dataset):
            return partial(type(self).attach, self.spec.name, timeout=self.timeout, socket=self.socket), ()
        own = {name: getattr(self, name) for name in ("rank", "world_size", "socket", "fresh")}
        return partial(type(self), self.dataset, **(arguments_of(self) | self._options | own)), ()

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hand_over(self, options: dict[str, Any]) -> str:
        """For a loader that a framework makes of this one, with these `options`: gives up the stream, and says what it
        is called. Whoever iterates over this loader after all gets another one."""
        is_used(self)
        self._waiting = None
        self._sessions.give_up(self._request)
        options["stream"], self._options["stream"] = self._options["stream"], None
        return self.spec.name

    # --- for PrefetchIterator ---

    def begin_epoch(self) -> tuple[Session, ClientCursor]:
        """Session and cursor of an iterator that begins; the one after it is filled ahead from now on."""
        self._check_fork()
        is_used(self)
        if self._watch.has_changed():
            self._refresh_if_possible()
        if self._waiting is None:
            self._place_waiting()
        cursor = self._waiting
        assert cursor is not None
        session = self._sessions.current
        session.activate(cursor)
        if self._assumptions is None and self.generator is not None:
            # DataLoader draws its base seed: whoever goes on with the generator finds it as after DataLoader.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        self._epoch, self._step = cursor.epoch + 1, 0
        self._waiting = None
        self._place_waiting()
        return session, cursor

    def next_batch(self, session: Session, cursor: ClientCursor) -> Any:
        """Raises what StreamClient.next_batch raises; a timeout as DataLoader words it."""
        self._check_fork()
        try:
            batch = session.next_batch(cursor, float(self.timeout))
        except WaitTimedOut:
            raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds") from None
        except EndOfEpoch:
            session.ended(cursor)
            self._position = (cursor.epoch + 1, 0)
            raise
        finally:
            if cursor.began_with is not None:
                self._began_with = (cursor.epoch, cursor.began_with.states)
        self._position = (cursor.epoch, cursor.step)
        if cursor.shard_states:
            self._shard_states = (cursor.epoch, cursor.shard_states)
        return batch

    def end_cursor(self, session: Session, cursor: ClientCursor) -> None:
        if not is_forked(self):
            self._sessions.close_cursor(session, cursor)

    def abandon(self) -> None:
        """In a forked child: nothing is sent, and nothing of the parent's is kept open."""
        self._sessions.abandon()

    def _place_waiting(self) -> None:
        if self._waiting is not None:
            self._sessions.current.close_cursor(self._waiting)
        self._waiting = self._sessions.current.place_cursor(self._epoch, self._step)

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
            name=name,
            **self._options,
        )
        self.fingerprint_s = time.perf_counter() - began_s
        return request

    def _took_over(self, request: StreamRequest) -> None:
        began_s = time.perf_counter()
        self.spec = request.spec
        self._assumptions = request.assumptions
        watched = {name: part for name, part in request.parts.items() if name in WATCHED and part is not None}
        masked: list[Any] = list(request.assumptions.generators) if request.assumptions is not None else []
        self._watch = ChangeWatch(watched, masked, self._assumptions)
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


def _rows_of(batch_sampler: Any) -> int:
    """The samples of each batch but the last; -1 when only the sampler knows."""
    return int(batch_sampler.batch_size) if type(batch_sampler) is BatchSampler else -1
