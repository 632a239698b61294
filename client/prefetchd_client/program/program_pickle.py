"""pickle_program and write_program take the trainer's program to the daemon: pickled by value where workers could not
import it, large arrays and tensors beside the pickle, everything in one shared segment that all workers map."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import pickle
import random
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

import cloudpickle
import numpy as np

# Asked for as the library for shared memory: shm_open(3), shm_unlink(3). os.open() would do: see status_segment.py.
import posix_ipc
import torch
from torch.utils.data import BatchSampler, DataLoader

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.errors import NoSpaceError, UnpicklableError
from prefetchd.wire.file_locks import try_lock
from prefetchd.wire.own_segments import open_unnamed, random_token
from prefetchd.wire.program_layout import Environment, ProgramLayout, encode_environment, encode_head, encode_table
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET
from prefetchd_client.program.process_sharing import as_if_spawning, shared_reduction

SMALLEST_BUFFER_BYTES = 64 * 1024
_DEEPEST_SEARCH = 4
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""The errors of open(2) for O_TMPFILE where there are no files without a name."""
_MADE_LATER = {"dataset": "at the first __getitem__", "sampler": "in __iter__", "batch_sampler": "in __iter__"}


class PickleTooLargeError(Exception):
    """The pickle would have more bytes than it may; it has `pickled_bytes` by now."""

    def __init__(self, pickled_bytes: int) -> None:
        super().__init__(pickled_bytes)
        self.pickled_bytes = pickled_bytes


def pickle_program(
    parts: dict[str, Any], batch_size: int = 0, most_bytes: int = 0, *, shares: bool = False
) -> tuple[bytes, list[memoryview]]:
    """Returns the pickle of `parts` and its out-of-band buffers. Raises UnpicklableError, naming the attribute;
    `batch_size` is the StreamSpec's, which tells what the user knows the index sampler as. With `most_bytes` it stops
    as soon as the pickle, its buffers left aside, is longer: raises PickleTooLargeError. With `shares`, what
    multiprocessing shares with other processes is handed on too, to whoever unpickles it while this process lives."""
    with as_if_spawning() if shares else contextlib.nullcontext():
        return _pickled(parts, batch_size, most_bytes)


def _pickled(parts: dict[str, Any], batch_size: int, most_bytes: int) -> tuple[bytes, list[memoryview]]:
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALLEST_BUFFER_BYTES:
            return True
        buffers.append(raw)
        return False

    target = _Pickled(most_bytes)
    try:
        _ProgramPickler(target, keep).dump(parts)
    except PickleTooLargeError:
        raise
    except Exception as error:
        # The pickler's error does not say where it was: the parts are pickled once more, one by one.
        argument, where = _culprit(_as_arguments(parts, batch_size))
        why = f"{type(error).__name__}: {error}"
        raise UnpicklableError(
            f"{where} cannot be handed to the workers: {why}. "
            f"Create it lazily ({_MADE_LATER.get(argument, 'at the first call')}), or leave it out in __getstate__",
            f"{where}: {why}",
        ) from error
    return target.getvalue(), buffers


def write_program(
    paths: RuntimePaths, environment: Environment, pickled: bytes, buffers: list[memoryview]
) -> tuple[str, int, int]:
    """Writes a program segment. Returns the name that it shall have, a descriptor that keeps it locked, and its bytes.
    It has the name by now only where there are no files without one. Raises NoSpaceError."""
    encoded = encode_environment(environment)
    layout = ProgramLayout(len(encoded), len(pickled), tuple(buffer.nbytes for buffer in buffers))
    name = paths.segment_name("program", random_token())
    fd, is_named = _new_segment(name)
    try:
        # Unlocked, it would be taken for a dead process's leftover.
        try_lock(fd, DAEMON_LOCK_OFFSET, shared=True)
        os.ftruncate(fd, layout.program_bytes)
        try:
            os.posix_fallocate(fd, 0, layout.program_bytes)
        except OSError as error:
            raise NoSpaceError(
                f"the dataset takes {layout.program_bytes >> 20} MiB of shared memory, which cannot be had "
                f"({error.strerror}): enlarge /dev/shm, or let the dataset open its files in the workers"
            ) from None
        parts: list[tuple[int, bytes | memoryview]] = [
            (0, encode_head(layout)),
            (layout.environment_offset, encoded),
            (layout.pickle_offset, pickled),
            (layout.table_offset, encode_table(layout)),
            *zip(layout.buffer_offsets, buffers),
        ]
        for offset, part in parts:
            kill_point("client.program.partial")
            _write_at(fd, offset, part)
    except BaseException:
        os.close(fd)
        if is_named:
            posix_ipc.unlink_shared_memory(name)
        raise
    return name, fd, layout.program_bytes


def _write_at(fd: int, offset: int, part: bytes | memoryview) -> None:
    """Writes all of `part`. Mapped, the segment would count as memory of this process, which has its data once more."""
    left = memoryview(part)
    while left:
        # The kernel takes no more than 2 GiB at once.
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def _new_segment(name: str) -> tuple[int, bool]:
    """Returns a descriptor of an empty segment, and whether it is named by now."""
    try:
        # The daemon gives it its name when it takes it over (decision 0103).
        return open_unnamed(), False
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
    # What dies before the daemon has it leaves this one behind: the daemon looks for it (segments.recovery).
    return posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0).fd, True


def find_generators(parts: Any, dataset: Any) -> list[torch.Generator]:
    """Returns the generators that `parts` hold, the process's own apart, in the order in which pickle meets them; what
    `dataset` holds is its own. Returns none when `parts` cannot be pickled: handing them over will say so."""
    finder = _GeneratorFinder(dataset)
    with contextlib.suppress(Exception):
        finder.dump(parts)
    return finder.found


class _Pickled(io.BytesIO):
    """Takes no more than `most_bytes`, if that is not 0."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        """Raises PickleTooLargeError, before it takes what is too much."""
        pickled_bytes = self.tell() + memoryview(data).nbytes
        if 0 < self._most_bytes < pickled_bytes:
            raise PickleTooLargeError(pickled_bytes)
        return super().write(data)


class _ProgramPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles as cloudpickle does, but does not copy tensors and memory-mapped arrays into the pickle."""

    def __init__(self, target: io.IOBase, keep: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(target, protocol=5, buffer_callback=keep)
        # By address and length: tensors over parts of one array have storages of different lengths.
        self._storages: dict[tuple[int, int], _Storage] = {}
        self._ambient = {id(find()): name for name, find in _AMBIENT.items()}

    def reducer_override(self, obj: Any) -> Any:
        ambient = self._ambient.get(id(obj))
        if ambient is not None:
            return _ambient_object, (ambient,)
        if type(obj) is torch.Tensor and _is_plain(obj):
            storage = obj.untyped_storage()
            kept = self._storages.setdefault((storage.data_ptr(), storage.nbytes()), _Storage(storage))
            dtype = str(obj.dtype).removeprefix("torch.")
            return _rebuild_tensor, (
                kept,
                dtype,
                obj.storage_offset(),
                tuple(obj.shape),
                obj.stride(),
                obj.requires_grad,
            )
        if type(obj) in (np.memmap, np.ndarray):
            mapped = _mapped_file(obj)
            if mapped is obj:
                order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
                return _rebuild_memmap, (obj.filename, obj.dtype, obj.offset, obj.shape, order, obj.mode)
            if mapped is not None:
                offset = _address_of(obj) - _address_of(mapped)
                return _rebuild_view, (mapped, type(obj), offset, obj.dtype, obj.shape, obj.strides)
        if isinstance(obj, DataLoader) and (held := getattr(obj, "__prefetchd_fingerprint__", None)) is not None:
            # It is here for a method of its, and is no loader where it comes to.
            return _bare_object, (type(obj), held())
        if get_spawning_popen() is not None and (shared := shared_reduction(obj)) is not None:
            return shared
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and "." in obj.__qualname__ and type(reduced) is tuple and len(reduced) > 2:
            # cloudpickle forgets it, and a batch's objects find their class in the trainer by it.
            attributes = reduced[2][0]
            attributes["__qualname__"] = obj.__qualname__
        return reduced


class _GeneratorFinder(_ProgramPickler):
    def __init__(self, dataset: Any) -> None:
        super().__init__(_Nowhere(), lambda _: False)
        self._dataset = dataset
        self.found: list[torch.Generator] = []

    def persistent_id(self, obj: Any) -> Any:
        return "dataset" if obj is self._dataset else None

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Generator and obj is not torch.default_generator:
            self.found.append(obj)
        return super().reducer_override(obj)


class _Storage:
    """Stands for a tensor's storage as one buffer; tensors that share it share this object in the pickle."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __reduce_ex__(self, protocol: Any) -> Any:
        content: Any = torch.empty(0, dtype=torch.uint8).set_(self._storage).numpy()
        return _rebuild_storage, (pickle.PickleBuffer(memoryview(content)),)


def _rebuild_storage(content: Any) -> torch.UntypedStorage:
    view = memoryview(content)
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8).untyped_storage()


def _rebuild_tensor(
    storage: torch.UntypedStorage,
    dtype: str,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=getattr(torch, dtype)).set_(storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad)


def _mapped_file(array: Any) -> Any:
    """Returns the memmap of a whole file whose memory `array` looks at, or None when its content must be copied.

    A copy-on-write map may have been written to, which its file does not show.
    """
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    if type(base) is not np.memmap or type(base.base) is not mmap.mmap or base.mode == "c":
        return None
    return base if base.filename is not None and os.path.exists(base.filename) else None


def _address_of(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _bare_object(kind: Any, attributes: dict[str, Any]) -> Any:
    found = object.__new__(kind)
    found.__dict__.update(attributes)
    return found


def _rebuild_memmap(path: str, dtype: Any, offset: int, shape: tuple[int, ...], order: Any, mode: str) -> Any:
    # A writable map would let workers change the user's file behind the trainer's back: they get private pages.
    return np.memmap(path, dtype, "r" if mode == "r" else "c", offset, shape, order)


def _rebuild_view(
    mapped: Any, kind: Any, offset: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    return np.ndarray.__new__(kind, shape, dtype, mapped.ravel(order="K"), offset, strides)


def _ambient_object(name: str) -> Any:
    return _AMBIENT[name]()


# What belongs to the process and not to the program: each has its own. A copy of the generator that `randint` is
# bound to would be one that nobody seeds.
_AMBIENT: dict[str, Callable[[], Any]] = {
    "random": lambda: random._inst,
    "numpy.random": lambda: np.random.mtrand._rand,
    "torch": lambda: torch.default_generator,
    "environ": lambda: os.environ,
    "environb": lambda: os.environb,
}


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns True for a tensor that _rebuild_tensor() makes again from its numbers. workers.plain_tensors asks another
    question, of what is in batches: a leaf of a program may require a gradient, which is carried."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_leaf
        and not tensor.__dict__
    )


def _as_arguments(parts: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """Returns `parts` under the names of the loader's arguments. DataLoader itself puts a sampler into a
    BatchSampler."""
    if "index_sampler" not in parts:
        return parts
    others = {name: part for name, part in parts.items() if name != "index_sampler"}
    given = parts["index_sampler"]
    if batch_size < 0:
        return others | {"batch_sampler": given}
    return others | {"sampler": given.sampler if type(given) is BatchSampler else given}


def _culprit(arguments: dict[str, Any]) -> tuple[str, str]:
    """Returns which of the arguments does not pickle, and the deepest attribute in it that does not, as an
    expression."""
    for name, given in arguments.items():
        found = _search(name, given, _DEEPEST_SEARCH)
        if found is not None:
            return name, found
    return "", ", ".join(arguments)


def _search(name: str, obj: Any, depth: int) -> str | None:
    try:
        # Nothing is kept: what cannot be pickled may be larger than memory.
        _ProgramPickler(_Nowhere(), lambda _: False).dump(obj)
        return None
    except Exception:
        pass
    if depth:
        for inner, value in _members(obj):
            found = _search(f"{name}{inner}", value, depth - 1)
            if found is not None:
                return found
    return name


class _Nowhere(io.RawIOBase):
    """Forgets what is written to it."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _members(obj: Any) -> list[tuple[str, Any]]:
    if isinstance(obj, dict):
        return [(f"[{key!r}]", value) for key, value in obj.items()]
    if isinstance(obj, (list, tuple)):
        return [(f"[{place}]", value) for place, value in enumerate(obj[:100])]
    attributes = getattr(obj, "__dict__", None)
    return [(f".{key}", value) for key, value in attributes.items()] if isinstance(attributes, dict) else []
