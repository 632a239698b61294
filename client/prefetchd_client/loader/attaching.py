"""attached_client serves PrefetchLoader.attach: a stream that the daemon's configuration declares, by its name, without
its dataset."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from prefetchd.wire.errors import CallerError, DaemonUnavailableError
from prefetchd.wire.messages import Hello
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd_client.batches.attachment import Attachment
from prefetchd_client.connection.autostart import connect
from prefetchd_client.loader.stream_request import check_stream_name
from prefetchd_client.session.cursors import Cursors
from prefetchd_client.session.handshake import Handshake
from prefetchd_client.session.stream_client import StreamClient

_UNKNOWN = StreamSpec("0" * 32, 0, "sequential", 0, 1)
"""The spec until the daemon has said what the stream is."""


class DeclaredDataset:
    """Stands in the place of a dataset that only the workers have, and is as long."""

    def __init__(self, spec: StreamSpec) -> None:
        self._name = spec.name
        self._length = spec.length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Raises CallerError."""
        raise CallerError(f"the dataset of the declared stream {self._name!r} is in its workers, not here")


class DeclaredIterable(IterableDataset[Any]):
    """Stands in the place of an iterable dataset that only the workers have."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec

    def __len__(self) -> int:
        """Returns the number of samples that make as many batches as the stream has. Raises TypeError where nobody
        knows."""
        spec = self._spec
        if not spec.epoch_steps or spec.drop_last:
            raise TypeError(f"nobody here knows how many samples the declared stream {spec.name!r} has")
        return spec.epoch_steps * max(1, spec.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Raises CallerError."""
        raise CallerError(f"the dataset of the declared stream {self._spec.name!r} is in its workers, not here")


def dataset_of(spec: StreamSpec) -> Any:
    """Returns what stands in the trainer for the dataset of a declared stream."""
    return DeclaredIterable(spec) if spec.order == "iterable" else DeclaredDataset(spec)


def is_elsewhere(dataset: Any) -> bool:
    """Returns True for what dataset_of() makes."""
    return isinstance(dataset, DeclaredDataset | DeclaredIterable)


def attached_client(paths: RuntimePaths, name: str, classes: Iterable[type] = ()) -> StreamClient:
    """Opens a session on the declared stream `name`; its `spec` tells what that is. Its batch files may hold instances
    of `classes`. Blocks until the daemon has looked at the stream's dataset. Raises CallerError,
    DaemonUnavailableError, DaemonRefusedError."""
    check_stream_name(name)
    spec = dataclasses.replace(_UNKNOWN, name=name)
    return StreamClient(paths, spec, {}, shared=True, fresh=False, handshake=_ByName(paths, spec), classes=classes)


class _ByName(Handshake):
    """Introduces the loader by the stream's name alone. It starts no daemon, which would not know the stream."""

    def __init__(self, paths: RuntimePaths, spec: StreamSpec) -> None:
        super().__init__(paths, spec, {}, shared=True)

    def reach(self) -> tuple[socket.socket, bool]:
        sock = connect(self._paths)
        if sock is None:
            raise DaemonUnavailableError(
                f"no daemon serves {self._paths.socket}: start one with `prefetchd run --config FILE`"
            )
        return sock, True

    def hello(self, stream: str, cursors: Cursors, attachment: Attachment | None, *, fresh: bool = False) -> Hello:
        whole = super().hello(stream, cursors, attachment)
        return dataclasses.replace(whole, fingerprint="", spec=b"")
