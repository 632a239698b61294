"""PrefetchLoader has DataLoader's interface and the daemon's batches."""

from __future__ import annotations

import dataclasses
import operator
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import GenericAlias
from typing import Any, ClassVar

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from prefetchd.wire.errors import CallerError, UnpicklableError
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd_client.caller_warnings import warn_caller
from prefetchd_client.changes.change_watch import ChangeWatch
from prefetchd_client.changes.held_files import HeldFiles
from prefetchd_client.loader.attaching import attached_client, dataset_of, is_elsewhere
from prefetchd_client.loader.beginnings import Beginning, beginning_of, note_iterator
from prefetchd_client.loader.device_selection import AnyPath, minimum_slots, new_iterator, select_path
from prefetchd_client.loader.facts import Summary, card_of, line_of, metrics_of, summary_of
from prefetchd_client.loader.forks import check_not_forked, guard_forks, is_forked
from prefetchd_client.loader.inline import InlineStream
from prefetchd_client.loader.iterator import PrefetchIterator
from prefetchd_client.loader.loader_state import steps_of
from prefetchd_client.loader.loop_watch import LoopWatch
from prefetchd_client.loader.moved_programs import (
    CUDA_WARNING,
    DEALT_WARNING,
    IN_INTERPRETER,
    IN_TRAINER,
    LOOP_WARNING,
    STUCK_WARNING,
    WROTE_WARNING,
    Where,
    known_place,
    remember,
)
from prefetchd_client.loader.positions import Positions
from prefetchd_client.loader.ranks import resolve_rank
from prefetchd_client.loader.rebuild_guard import RebuildGuard
from prefetchd_client.loader.sessions import Session, Sessions
from prefetchd_client.loader.single_thread_guard import SingleThreadGuard
from prefetchd_client.loader.stream_names import Ordinal, default_stream_name
from prefetchd_client.loader.stream_request import StreamRequest, resolve_order, stream_request
from prefetchd_client.loader.successors import await_successor, mark_used, predecessor_of
from prefetchd_client.loader.torch_samplers import draw_as, innermost, is_all_drawn
from prefetchd_client.loader.transformed import transformed
from prefetchd_client.loader.wrapping import arguments_of
from prefetchd_client.session.cursors import ClientCursor
from prefetchd_client.session.run_ahead import RunAhead, decide
from prefetchd_client.session.sampler_state import SamplerState
from prefetchd_client.session.state_numbers import EPOCH_LIMIT, whole
from prefetchd_client.session.stream_client import MustMove
from prefetchd_client.start_method import FORK, is_inline, start_method

ON_THE_WAY = ("device", "device_transform")
PIN_DEVICE_WARNING = (
    "pin_memory_device is deprecated, the current accelerator will be used as the device,ignore pin_memory_device='{}'."
)
FINGERPRINT_WITHIN_S = 600.0
LEFT_FOR_S = 10.0
"""How long an iterator waits for what was fetched ahead of a former one, where it counts."""
OF_WORKERS = ("collate_fn", "worker_init_fn")
WATCHED = ("dataset", "collate_fn", "worker_init_fn", "index_sampler")


class PrefetchLoader(RebuildGuard):
    """Load batches like DataLoader, made ahead of time by a daemon, in shared memory.

    It takes DataLoader's arguments, with DataLoader's checks and errors (docs/arguments.md), and the ones below.
    Filling starts at once. Batches are tensors in shared memory, which stay valid and unchanged as long as they are
    held. One thread at a time may use a loader.

    With num_workers=0, the default, the daemon finds the number of workers (docs/tuning.md). Another number is kept,
    unless `[daemon] workers` or `prefetchd run --workers` allows fewer; a warning says so. For an IterableDataset it is
    the number of shards, as get_worker_info() reports them, and decides which batches there are.

    Workers are forks of this process as it is now. With multiprocessing_context "spawn" or "forkserver" they are forks
    of an interpreter of their own, to which dataset and functions are pickled. prefetch_factor and in_order have no
    meaning: batches are prefetched up to `buffer`, and always come in order. With persistent_workers=True the dataset,
    collate_fn and worker_init_fn stay what they are when the first epoch begins, and the base seed is drawn from
    `generator` in epoch 0 only, as with DataLoader. Workers outlive the trainer in any case. pin_memory=True gives
    pinned tensors, which are the ring's own memory; pin_memory_device is ignored, as by DataLoader.

    `timeout` (seconds, default 0: none) limits next(), as with DataLoader. A worker that takes longer for a piece of a
    batch is killed, and that batch raises TaskTimeoutError, which names the sample. Without a timeout nothing is killed
    for being slow; a wait of 60 s, and every further 30 s, is explained on stderr.

    Args:
        stream (str): The stream's name in the daemon. Several processes may share a name that is given. Default: the
            script, the loader's ordinal in it, and the rank.
        seed (int): The root of all randomness. Default: torch.initial_seed() if torch.manual_seed() was called, else 0;
            where several processes share nothing, the rank, so that each has its own order as with DataLoader; where
            they share an epoch, 0. Without a seed, a loader that this process makes again continues with the next
            epoch, unless torch is seeded again.
        buffer (str or int): The ring's size, in bytes ("4GiB") or batches (32). Default: the least of 1 GiB (and five
            batches for each remote worker), a quarter of the free shared memory, a quarter of what the memory cgroup
            leaves, half of what `[daemon] memory` leaves, and two epochs. It grows for a batch that is much larger than
            the first, and where the loop waits in bursts, as far as memory is free.
        lookback (int): Batches, 0 by default and at most half of the buffer, that are kept behind the consumer for a
            trainer that resumes a little earlier. Batches that their holder wrote to are made again. Costs workers
            one more pass over each batch.
        rank (int or "auto"): This process's share of each epoch, from 0, as in torch.distributed. "auto" takes it from
            torch.distributed or torchrun. Default: the whole epoch. Ranks partition each epoch, padded with its first
            samples as DistributedSampler does. A sampler makes its own shares.
        world_size (int): The number of ranks.
        on_error (str): What happens to a sample that raises, or that ends its worker also when nothing else runs.
            "raise" (default) raises its error in the batch's place. "skip" leaves the sample out, so the batch is
            smaller. "substitute" puts another sample in its place, the same one in every run. A batch with no sample
            left raises. Each such sample is printed to stderr once, and listed in stats().
        deterministic (bool): True promises that samples and batches depend on nothing random. Then all epochs without
            shuffle are equal, and while an epoch fits the buffer its batches are kept for the next. Default: the
            dataset's attribute `deterministic`, where torch's default collation makes the batches.
        fingerprint_extra (object): Anything else that decides what the batches are, such as the version of data files.
        transform (callable): Applied to each sample, for example random transforms after a SampleCache.
        fresh (bool): True drops batches that an earlier run left. Default: False.
        run_ahead (bool): Default: batches of the next epoch are made before it begins, unless that could change them.
            They are not made ahead where dataset, sampler, collate_fn or worker_init_fn read state that processes share
            (a multiprocessing.Value, a shared tensor, a queue, a writable memmap), nor for an iterable dataset with
            persistent_workers=True. True always makes them ahead, and False never does.
        remote_workers (int): Workers on other machines, 0 by default, beside those here, where the daemon has a Ray
            cluster (docs/cluster.md). They make the same batches.
        remote_resources (dict): What each of them takes beside a CPU, and where they may be: {"memory": "2GB",
            "labels": {"zone": "a"}, "gpu_nodes": True}, and the cluster's own resources by name. Default: none.
        socket (str): The daemon's socket. Default: $PREFETCHD_SOCKET, else the user's own daemon.
        device (str or torch.device): A CUDA device, or "cpu": batches are handed out there, copied ahead of the trainer
            (docs/device.md).
        device_transform (callable): Takes a batch on `device` and returns what is handed out, under no_grad, seeded for
            each batch. A module is moved to the device.

    Raises:
        ValueError: DataLoader's own, for its arguments.
        CallerError: An argument of prefetchd is wrong, or the dataset cannot be handed to another process.
        DaemonUnavailableError: No daemon answers, and none could be started.
        DaemonRefusedError: The daemon refused, for example because the memory does not suffice.

    Example::

        loader = PrefetchLoader(dataset, batch_size=64, shuffle=True, buffer="2GiB")
        for epoch in range(90):
            for images, labels in loader:
                train(images, labels)
    """

    # As DataLoader is: annotations name what batches are.
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    # DataLoader's iterator would not draw a base seed any more.
    _is_seeded = False
    # Whatever becomes of the dataset, workers have it as it was.
    _workers_stay = False
    _fork_teller: _ForkTeller | None = None
    # By which it is named, unless somebody has named it.
    _ordinal: Ordinal | None = None
    _beginning = Beginning()
    # Of workers that stay over all epochs: the live state that they read, and the files that they have open.
    _live: tuple[str, ...] = ()
    _held_files = HeldFiles()
    run_ahead: bool | None = None
    _fingerprint_s = 0.0
    # Where batches are made, since a fork of this process cannot make them.
    _moved_to: Where | None = None
    # Session and cursor of an iterator that was left, whose batches ahead are still to be made (_end_left).
    _left: tuple[Session, ClientCursor] | None = None
    # An iterator has begun since the program was handed over.
    _has_begun = False
    # Looks within an epoch where DataLoader makes batches in this process.
    _loop_watch: LoopWatch | None = None
    _spec: StreamSpec
    # What a subclass has set before our constructor, and what was there after it, by name.
    _names_before: frozenset[str] = frozenset()
    _names_after: frozenset[str] | None = None
    _request_made: StreamRequest

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
        rank: int | str | None = None,
        world_size: int | None = None,
        on_error: str = "raise",
        deterministic: bool | None = None,
        fingerprint_extra: object = None,
        transform: Callable[[Any], Any] | None = None,
        fresh: bool = False,
        remote_workers: int = 0,
        remote_resources: Mapping[str, Any] | None = None,
        run_ahead: bool | None = None,
        socket: str | None = None,
    ) -> None:
        # Blocks until the daemon has answered, not until a batch is ready.
        self._names_before = frozenset(vars(self))
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
        self.remote_workers, self.remote_resources, self.run_ahead = remote_workers, remote_resources, run_ahead
        self.device, self.device_transform = device, device_transform
        self.fingerprint_extra, self.fresh, self.deterministic = fingerprint_extra, fresh, deterministic
        self._watch = ChangeWatch({})
        self._moved_to = known_place(self.dataset, self.collate_fn)
        self._path = select_path(device, device_transform, pin_memory=self.pin_memory)
        self._own_batch_sampler = batch_sampler
        self._made_batch_sampler = self.batch_sampler
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
            "remote_workers": remote_workers,
            "remote_resources": remote_resources,
            "run_ahead": run_ahead,
        }
        is_own_order = sampler is not None or batch_sampler is not None
        former = predecessor_of(self.dataset, self.collate_fn) if is_own_order else None
        if former is not None:
            name, self._ordinal = former.hand_over(self._options)
        elif stream is None:
            self._ordinal = Ordinal()
            name = default_stream_name(self._ordinal.number)
        else:
            name = stream
        request = self._watched(self._request(name))
        if former is not None:
            self._beginning = former.beginning
        elif seed is None and (request.sampler_state is None or is_all_drawn(self._index_sampler)):
            self._beginning = beginning_of(request.spec, generator, stream)
        sessions = Sessions.opened(socket, request, self._beginning.epoch, fresh=fresh)
        # Beside what the fork, and a daemon that has to be started, have to do.
        self._watch.begin()
        self._begin(sessions, request.sampler_state)
        self._positions.run_ahead(self._may_run_ahead())
        if not is_own_order:
            await_successor(self)
        self._names_after = frozenset(vars(self))

    def _begin(self, sessions: Sessions, sampler_state: SamplerState | None) -> None:
        if self._fork_teller is not None:
            self._fork_teller.ask(sessions)
        self._guard = SingleThreadGuard()
        self._iterators: weakref.WeakSet[PrefetchIterator] = weakref.WeakSet()
        self._sessions = sessions
        self._ask_fork()
        guard_forks(self)
        self._finalizer = weakref.finalize(self, _end, self._sessions, self._path)
        self._positions = Positions(sessions, sampler_state, *self._end_of_sampler(), epoch=self._beginning.epoch)

    @property
    def _fetched_ahead(self) -> int:
        """The batches that DataLoader's workers have made or are at, ahead of the loop."""
        return self.num_workers * (self.prefetch_factor or 2)

    def _end_of_sampler(self) -> tuple[int, Callable[[], object] | None]:
        """Returns after which step of an epoch a broken-off loop of DataLoader's leaves its sampler at its end, since
        workers fetch ahead, and what draws what the sampler draws there. Returns (0, None) where no such step is known:
        only a RandomSampler is known to draw there."""
        sampler: Any = innermost(self._index_sampler)
        steps = self.spec.epoch_steps
        drawn = type(sampler) is RandomSampler and sampler.generator is not None and not sampler.replacement
        if not (drawn and steps and self.num_workers):
            return 0, None
        drawing = partial(torch.randperm, len(sampler.data_source), generator=sampler.generator)
        return max(1, steps - self._fetched_ahead + 1), drawing

    @classmethod
    def wrap(cls, dataloader: DataLoader[Any], **extra: Any) -> PrefetchLoader:
        """Make a PrefetchLoader with everything that `dataloader` has.

        Args:
            dataloader: The loader to copy: its dataset, sampler, collate_fn and all other arguments.
            extra: Further arguments of PrefetchLoader, or others in the place of those that `dataloader` has.

        Example::

            loader = PrefetchLoader.wrap(dataloader, buffer="2GiB")
        """
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
        classes: Iterable[type] = (),
    ) -> PrefetchLoader:
        """Make a loader of a stream that the daemon's configuration declares. It needs no dataset.

        Its batches are private copies while others consume the stream too. Blocks until the daemon has looked at the
        stream's dataset.

        Args:
            stream: The stream's name in the configuration (docs/configuration.md).
            timeout: Seconds after which next() raises. Default: 0, never.
            pin_memory: As for PrefetchLoader; so are `device`, `device_transform` and `socket`.
            classes: Classes that batches in files may hold instances of, beside lists, tuples, dicts, tensors and plain
                values. Default: none.

        Raises:
            DaemonUnavailableError: No daemon runs.
            CallerError: The daemon has no such stream.
            DaemonRefusedError: The stream has failed.

        Example::

            loader = PrefetchLoader.attach("validation")
        """
        path = select_path(device, device_transform, pin_memory=pin_memory)
        session = attached_client(runtime_paths(socket), stream, classes)
        spec = session.spec
        # Past our own __init__, which opens a stream of the dataset that it is given.
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
        loader.socket = socket
        loader._spec = spec
        # The dataset is the daemon's: nothing that this process changes is in the stream.
        loader._watch = ChangeWatch({})
        loader._watch.begin()
        loader._functions = loader._current_functions()
        loader._begin(Sessions(session, socket), None)
        return loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Returns a new iterator. It takes its epoch at its first next(); until then it consumes nothing."""
        iterator: Iterator[Any] = self._get_iterator()
        return iterator

    def _get_iterator(self) -> Any:
        """Makes an iterator, as DataLoader's method of that name does: subclasses override it, or ask for an iterator
        that they keep."""
        if self.pin_memory and self.pin_memory_device:
            warn_caller(PIN_DEVICE_WARNING.format(self.pin_memory_device))
        self._draw_as_dataloader()
        iterator = new_iterator(self, self._positions, self._guard, self._path)
        self._iterators.add(iterator)
        return iterator

    def _draw_as_dataloader(self) -> None:
        """Draws from torch's global generator what a new iterator of DataLoader draws: its base seed, and what decides
        the order of torch's samplers. So what the script draws next, such as a dropout's mask, is the same."""
        if self.generator is None and not self._is_seeded:
            torch.empty((), dtype=torch.int64).random_()
            self._is_seeded = self.persistent_workers
        draw_as(self._index_sampler)
        note_iterator()

    def __prefetchd_fingerprint__(self) -> dict[str, Any]:
        """Returns what a subclass has set of its own: its methods may be the collate function, and then this is all of
        the loader that decides what they do. It is what a fingerprint takes of the loader, and what is pickled of
        it."""
        of_its_own = self._names_before if self._names_after is None else vars(self).keys() - self._names_after
        names = (self._names_before | of_its_own) - vars(PrefetchLoader).keys()
        return {name: vars(self)[name] for name in sorted(names)}

    def __len__(self) -> int:
        """Returns the number of batches in an epoch of this rank. Raises TypeError where only a sampler or an iterable
        dataset could tell, and has no length."""
        if not self.spec.is_arithmetic:
            return super().__len__()
        dataset: Any = self.dataset
        return steps_of(self.spec, len(dataset))

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator begin with an epoch.

        Batches that were prefetched for another epoch are dropped. A step that load_state_dict() has set within that
        epoch stays. A sampler's set_epoch() is called as well.

        Args:
            epoch: The epoch, from 0.

        Raises:
            CallerError: `epoch` is no whole number from 0 on.
        """
        check_not_forked(self)
        self._positions.set_epoch(whole(epoch, "epoch", EPOCH_LIMIT))

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position as plain values, for a checkpoint.

        After the n-th batch of epoch e it is (e, n), and after the epoch's StopIteration (e + 1, 0). It takes constant
        time (for an iterable dataset, a time proportional to the shards), and asks no other process.

        Example::

            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, path)
        """
        return self._positions.state(self.spec)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator continue where state_dict() was taken.

        No batch is skipped over: it takes constant time. A state from after an epoch's last batch continues with the
        next epoch. Iterators that have begun are not affected. With another world_size the ranks continue where those
        of the state were in the epoch that all share. A state of other batches than this loader's gives a warning, and
        its position is used.

        Args:
            state: What state_dict() returned.

        Raises:
            CallerError: `state` is no such state, or lies beyond the end of this loader's dataset.

        Example::

            loader.load_state_dict(torch.load(path)["loader"])
        """
        check_not_forked(self)
        self._positions.load(self.spec, state)

    @property
    def reported_length(self) -> int | None:
        """The number of samples of an iterable dataset, as its len() said when the loader's len() was called, or
        None."""
        told: int | None = self._IterableDataset_len_called
        return told

    @property
    def spec(self) -> StreamSpec:
        """The description of the stream that the daemon was asked for (docs/formats.md)."""
        return self._spec

    @property
    def fingerprint_s(self) -> float:
        """Seconds that this process spent on taking the fingerprint."""
        return self._fingerprint_s

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iterator."""
        return self._positions.next_epoch

    def stats(self) -> dict[str, Any]:
        """Return counts of this loader since it was made: batches, copies, waits and bad samples.

        `bad_samples` has each index once, with the place where it was bad first, batches ahead of the trainer included;
        `bad_sample_count` is their number. With pin_memory or device, the counts of copies are in it as well
        (docs/device.md). Keys that end in _s are in seconds.
        """
        session = self._sessions.ensure()
        found = {"stream": session.name, "fingerprint_s": self.fingerprint_s, **session.stats()}
        return found if self._path is None else found | self._path.stats()

    def summary(self) -> Summary:
        """Return how this loader's stream is doing, as the first screen of `prefetchd report` says it.

        It is read from memory that the daemon writes, so it asks the daemon nothing. The result is a dict; its str() is
        the text. Keys of what is not known are None. Shares are from 0 to 1, and of the last minute.

        Example::

            print(loader.summary())     # Is it the data? Yes: the trainer waited 38% of the last minute; ...
        """
        return summary_of(self)

    def metrics(self) -> dict[str, float]:
        """Return figures for a logger, as far as they are known.

        They are prefetchd/stalled_share (of the last minute, 0 to 1), prefetchd/ready_batches and
        prefetchd/batches_per_s.

        Example::

            wandb.log(loader.metrics(), step=step)
        """
        return metrics_of(self)

    def __repr__(self) -> str:
        return line_of(self)

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return card_of(self)

    def record_stream(self, batch: Any, stream: Any) -> None:
        """Keep a batch's memory until a CUDA stream is done with it, as torch.Tensor.record_stream() does.

        Needed where a batch is used on a stream that was not the current one at its next().

        Args:
            batch: A batch, or a tensor of one.
            stream: The torch.cuda.Stream that uses it.
        """
        if self._path is not None:
            self._path.record_stream(batch, stream)

    def refresh(self) -> None:
        """Look at dataset, sampler and collate_fn again, and make batches of what they are now.

        New iterators look by themselves, except for writes into large arrays where workers are no forks of this
        process: call this after such writes. Iterators that have begun are not affected. Does nothing to an attached
        loader, whose dataset is not in this process.

        Raises:
            UnpicklableError: They cannot be handed to another process.
            NoSpaceError: Shared memory does not suffice.
            PrefetchdError: What the constructor raises.
        """
        check_not_forked(self)
        if is_elsewhere(self.dataset):
            return
        request = self._request(self.spec.name)
        known = request.fingerprint()
        if known == self.fingerprint:
            return
        self._replace(request)

    def _replace(self, request: StreamRequest, epoch: int | None = None) -> None:
        request = self._watched(request)
        if self._fork_teller is not None:
            self._fork_teller.ask(self._sessions)
        self._positions.replace(request, self._sessions.prepare(request), epoch)
        self._watch.begin()
        self._ask_fork()

    def share(self, rank: int, world_size: int) -> None:
        """Take this share of each epoch from the next iterator on, as if made with rank= and world_size=.

        For callers that know the share only later, as trainers' integrations do. Does nothing where a sampler decides,
        or where that is the loader's share already.

        Args:
            rank: This process's number, from 0.
            world_size: The number of processes.

        Raises:
            CallerError: The numbers are no share; and what the constructor raises.
        """
        check_not_forked(self)
        share = resolve_rank(rank, world_size)
        self.rank, self.world_size = share
        if is_elsewhere(self.dataset) or share == (self.spec.rank, self.spec.world_size):
            return
        self._options["rank"], self._options["world_size"] = share
        if self.spec.order != "sampler":
            self._replace(self._request(self.spec.name))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all that decides the batches (docs/fingerprint.md). Blocks until a fork of this process
        has taken it."""
        if not self.spec.is_identified:
            fork = self._sessions.ensure().fork
            told = fork.identified(FINGERPRINT_WITHIN_S) if fork is not None else None
            known = told.fingerprint if told is not None else self._request_made.fingerprint()
            self._spec = dataclasses.replace(self._spec, fingerprint=known)
        return self.spec.fingerprint

    def close(self) -> None:
        """End the session with the daemon. Batches that are held stay valid. Further calls do nothing."""
        mark_used(self)
        for iterator in list(self._iterators):
            iterator.stop()
        # The cursors end with the session: until then they tell the daemon where the next run goes on.
        self._finalizer()
        if self._ordinal is not None:
            self._ordinal.give_back()

    def __reduce__(self) -> Any:
        """Pickles the loader as its arguments, and what a subclass or a script has set on it: unpickled or copied, it
        is a loader of its own, at its beginning."""
        if is_elsewhere(self.dataset):
            kept = {name: getattr(self, name) for name in ("timeout", "pin_memory", *ON_THE_WAY, "socket")}
            return partial(type(self).attach, self.spec.name, **kept), ()
        own = {name: getattr(self, name) for name in ("rank", "world_size", "socket", "fresh", *ON_THE_WAY)}
        arguments = {"dataset": self.dataset, **arguments_of(self), **self._options, **own}
        return _made_anew, (type(self), arguments, self.__prefetchd_fingerprint__())

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def beginning(self) -> Beginning:
        """Where the loader begins, for one that a framework makes of it."""
        return self._beginning

    def hand_over(self, options: dict[str, Any]) -> tuple[str, Ordinal | None]:
        """Gives the stream up for a loader that a framework makes of this one, with these `options`. Returns the
        stream's name, and the ordinal that it is called by. Whoever iterates over this loader after all gets another
        stream."""
        mark_used(self)
        self._positions.give_up(self._request_anew)
        options["stream"], self._options["stream"] = self._options["stream"], None
        ordinal, self._ordinal = self._ordinal, None
        return self.spec.name, ordinal

    # --- for iterators ---

    def begin_epoch(self) -> tuple[Session, ClientCursor]:
        """Returns session and cursor of an iterator that begins; the one after it is filled ahead from now on."""
        check_not_forked(self)
        mark_used(self)
        watched = slice(len(OF_WORKERS) if self._workers_stay else 0, None)
        is_another = any(map(operator.is_not, self._functions[watched], self._current_functions()[watched]))
        with self._guard:
            self._end_left()
            # The watch is asked in any case: what it finds now is what it compares with next time.
            # What samples write into a worker ends with its epoch, as DataLoader's workers do.
            ends = self._moved_to is Where.DEALT and not self.persistent_workers and self._has_begun
            self._has_begun = True
            if self._watch.has_changed() or is_another or self._has_another_order() or ends:
                self._refresh_if_possible()
            self._positions.run_ahead(self._may_run_ahead())
            begun = self._positions.begin_epoch(anew=self._held_files.have_changed())
            self._beginning.begun(begun[1].epoch)
            if not self.num_workers and not isinstance(begun[0], InlineStream) and not is_elsewhere(self.dataset):
                self._loop_watch = LoopWatch({"dataset": self.dataset, "collate_fn": self.collate_fn}, self)
            if self.persistent_workers and not self._workers_stay:
                self._watch_samplers_only()
        if self._positions.sampler_state is None and self.generator is not None and not self._is_seeded:
            # DataLoader draws its base seed: whoever goes on with the generator finds it as after DataLoader.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self._is_seeded = self.persistent_workers
        return begun

    def loop_change(self) -> MustMove | None:
        """Return what the loop has changed within the epoch, where DataLoader's next batch would show it."""
        if self._loop_watch is None:
            return None
        what = self._loop_watch.changed()
        return LoopChange(what) if what else None

    def take_over(
        self, session: Session, cursor: ClientCursor, why: MustMove | None
    ) -> tuple[Session, ClientCursor] | None:
        """Make batches elsewhere from now on: where `why` says so, or, if that is None, because samples use CUDA.
        Return session and cursor for the batch that `cursor` has not got, or None where nothing changes."""
        if is_elsewhere(self.dataset) or isinstance(session, InlineStream) or (self.num_workers and why is None):
            return None
        step = cursor.step if why is not None else cursor.step - 1
        with self._guard:
            self._sessions.close_cursor(session, cursor)
            # Another iterator of this loader may have come here first.
            if self._moved_to is None:
                self._positions.rewind(cursor)
                self._move(why, cursor.epoch)
            return self._positions.move(cursor, step)

    def _move(self, why: MustMove | None, epoch: int) -> None:
        name, what = self.spec.name, why.what if why is not None else ""
        self._loop_watch = None
        self._has_begun = True
        if why is None:
            self._move_to(Where.TRAINER, CUDA_WARNING.format(name=name), epoch)
        elif self.num_workers:
            self._move_to(Where.DEALT, DEALT_WARNING.format(name=name, what=what), epoch)
        elif why.is_stuck:
            try:
                text = STUCK_WARNING.format(name=name, what=what, where=IN_INTERPRETER)
                self._move_to(Where.INTERPRETER, text, epoch)
            except UnpicklableError:
                text = STUCK_WARNING.format(name=name, what=what, where=IN_TRAINER)
                self._move_to(Where.TRAINER, text, epoch)
        else:
            text = LOOP_WARNING if isinstance(why, LoopChange) else WROTE_WARNING
            self._move_to(Where.TRAINER, text.format(name=name, what=what), epoch)

    def _move_to(self, where: Where, text: str, epoch: int) -> None:
        self._moved_to = where
        self._replace(self._request(self.spec.name), epoch)
        if self.persistent_workers:
            # Its first epoch has begun.
            self._watch_samplers_only()
        remember(self.dataset, self.collate_fn, where)
        warn_caller(text)

    def end_cursor(self, session: Session, cursor: ClientCursor) -> None:
        """Ends the cursor of an iterator that is gone."""
        if is_forked(self):
            return
        if self._moved_to is Where.DEALT and self.persistent_workers and self._left is None:
            self._left = session, cursor
        else:
            self._sessions.close_cursor(session, cursor)

    def _end_left(self) -> None:
        """End the cursor that was left in a stream whose samples write into their workers, once the batches are made
        that DataLoader had fetched ahead: its persistent workers make them all, whoever takes them."""
        if self._left is None:
            return
        (session, cursor), self._left = self._left, None
        if not isinstance(session, InlineStream):
            session.wait_ahead(cursor, self._fetched_ahead, LEFT_FOR_S)
        self._sessions.close_cursor(session, cursor)

    def abandon(self) -> None:
        """Leaves the daemon to the parent, in a forked child: sends nothing, and keeps nothing of the parent's open."""
        self._sessions.abandon()

    def _current_batch_sampler(self) -> Any:
        """Returns the caller's own batch_sampler, or None."""
        # A subclass may have put another one in the place of ours, or of the one that it was given.
        is_replaced = self.batch_sampler is not self._made_batch_sampler
        return self.batch_sampler if is_replaced else self._own_batch_sampler

    def _current_order(self) -> str:
        return resolve_order(self.dataset, self.sampler, self._current_batch_sampler(), self.generator)

    def _has_another_order(self) -> bool:
        """Returns True when the sampler is no longer over as many indices as the dataset has samples, or is again."""
        return not is_elsewhere(self.dataset) and self._current_order() != self.spec.order

    def _request(self, name: str) -> StreamRequest:
        began_s = time.perf_counter()
        own = self._current_batch_sampler()
        request = stream_request(
            dataset=self.dataset,
            order=self._current_order(),
            batch_size=_rows_of(own) if own is not None else self.batch_size,
            drop_last=self.drop_last,
            collate_fn=self.collate_fn,
            # Without workers DataLoader calls none, and get_worker_info() returns None.
            worker_init_fn=self.worker_init_fn if self.num_workers else None,
            has_worker_info=self.num_workers > 0,
            num_workers=self.num_workers,
            timeout=self.timeout,
            index_sampler=self._index_sampler,
            generator=self.generator,
            persistent_workers=self.persistent_workers,
            name=name,
            minimum_slots=minimum_slots(self._path),
            takes_turns=self._moved_to is Where.DEALT,
            most_ahead=self._fetched_ahead if self.persistent_workers else 0,
            **self._options,
        )
        self._fingerprint_s = time.perf_counter() - began_s
        return request

    def _request_anew(self) -> StreamRequest:
        self._ordinal = Ordinal()
        return self._request(default_stream_name(self._ordinal.number))

    def _current_functions(self) -> tuple[Any, ...]:
        """Returns what may be set to others between two epochs, besides what the dataset holds."""
        # Bound methods are made anew each time that they are asked for.
        kept = vars(self)
        return tuple(kept.get(name) for name in (*OF_WORKERS, "sampler", "batch_sampler"))

    def _watch_samplers_only(self) -> None:
        """Watches nothing but the sampler from now on: DataLoader's persistent workers keep dataset and functions as
        they are in the first epoch, whatever the script does to its own afterwards; its samplers are in the trainer."""
        request = self._request_made
        masked: list[Any] = list(request.sampler_state.generators) if request.sampler_state is not None else []
        sampler = request.parts.get("index_sampler")
        parts = {"index_sampler": sampler} if sampler is not None else {}
        self._live, self._held_files = self._watch.live or (), HeldFiles(self._watch.stamps)
        masked.append(self.dataset)
        self._watch = ChangeWatch(parts, masked, request.sampler_state, with_surroundings=False)
        self._watch.begin()
        self._workers_stay = True

    def _may_run_ahead(self) -> RunAhead:
        """Return whether batches may be made before their epoch begins, by what is known of the program now."""
        reiterates = self.spec.order == "iterable" and self.persistent_workers
        # Whoever attaches holds nothing of what the samples are made of.
        live = () if is_elsewhere(self.dataset) else self._request_made.live
        found = live or [*self._live, *(self._watch.live or ())]
        return decide(self.run_ahead, found, reiterates=reiterates)

    def _watched(self, request: StreamRequest) -> StreamRequest:
        """Returns the request as a session is to have it, whose parts are watched from now on."""
        began_s = time.perf_counter()
        inline = (self._moved_to is Where.TRAINER and not self.num_workers) or is_inline()
        executed = self._moved_to is Where.INTERPRETER
        forks = not inline and not executed and start_method(self.multiprocessing_context) == FORK
        watched = {name: part for name, part in request.parts.items() if name in WATCHED and part is not None}
        masked: list[Any] = list(request.sampler_state.generators) if request.sampler_state is not None else []
        self._fork_teller = _ForkTeller() if forks else None
        former = self._watch if forks else None
        self._watch = ChangeWatch(watched, masked, request.sampler_state, self._fork_teller, former)
        self._workers_stay = False
        self._live, self._held_files = (), HeldFiles()
        # The attributes may be set to others; the watch looks at those that were handed over.
        self._functions = self._current_functions()
        if forks:
            watch = self._watch
            request = dataclasses.replace(
                request,
                forks=True,
                found=watch.found,
                forked=watch.forked,
                has_changed=watch.is_seen_to_have_changed,
                plain=watch.plain,
            )
        else:
            request = dataclasses.replace(request.identified(), inline=inline)
        self._spec = request.spec
        self._request_made = request
        self._fingerprint_s += time.perf_counter() - began_s
        return request

    def _ask_fork(self) -> None:
        fork = self._sessions.ensure().fork if self._watch.needs_telling else None
        if fork is not None:
            fork.ask()

    def _refresh_if_possible(self) -> None:
        try:
            if self._fork_teller is None:
                self.refresh()
            else:
                # Its fork takes the fingerprint.
                self._replace(self._request(self.spec.name))
        except (CallerError, UnpicklableError) as error:
            warn_caller(
                f"the dataset or sampler has changed since it was handed over, and what it is now cannot be ({error}): "
                "batches are of what it was before"
            )


class LoopChange(MustMove):
    """The loop has changed what `what` names within an epoch."""


class _ForkTeller:
    """Returns what the fork that makes a loader's batches has found its parts to be. It holds neither the loader nor
    its sessions, which hold it: they are to end when nobody else holds them."""

    _sessions: weakref.ReferenceType[Sessions] | None = None

    def ask(self, sessions: Sessions) -> None:
        """Asks the forks of these sessions from now on."""
        self._sessions = weakref.ref(sessions)

    def __call__(self, within_s: float) -> bytes | None:
        sessions = self._sessions() if self._sessions is not None else None
        fork = sessions.ensure().fork if sessions is not None else None
        told = fork.identified(within_s) if fork is not None else None
        return told.found if told is not None else None


def _end(sessions: Sessions, path: AnyPath | None) -> None:
    if path is not None:
        path.close()
    sessions.close()


def _rows_of(batch_sampler: Any) -> int:
    """Returns the number of samples of each batch but the last; -1 when only the sampler knows."""
    return int(batch_sampler.batch_size) if type(batch_sampler) is BatchSampler else -1


def _made_anew(kind: type[PrefetchLoader], arguments: dict[str, Any], own: dict[str, Any]) -> PrefetchLoader:
    """Makes a loader of these arguments, whatever those of its own class are, and sets what it had of its own."""
    found = kind.__new__(kind)
    # As it is in a constructor that sets them first.
    vars(found).update(own)
    PrefetchLoader.__init__(found, **arguments)
    return found
