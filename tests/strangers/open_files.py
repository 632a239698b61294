"""Datasets that open their file in __init__, each with another library. Item i is an array that only i has."""

from __future__ import annotations

import gzip
import io
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, get_worker_info

ROWS = 96
ROW_BYTES = 16_384


def row(index: int) -> bytes:
    return np.random.default_rng(index).bytes(ROW_BYTES)


def number_of(data: bytes) -> int:
    """Return the number of the row of these bytes, -1 where they are no row's."""
    return _NUMBERS.get(bytes(data), -1)


_NUMBERS = {row(index): index for index in range(ROWS)}


class OpenFile(Dataset[int]):
    """Item i is i, if what was read at row i is that row. `length` is that of the dataset."""

    length = ROWS
    file: Any = None

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / type(self).__name__)
        self.write()
        self.open()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return number_of(self.read(index))

    def write(self) -> None:
        Path(self.path).write_bytes(b"".join(map(row, range(ROWS))))

    def open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.file.close()

    def read(self, index: int) -> bytes:
        raise NotImplementedError


class Buffered(OpenFile):
    def open(self) -> None:
        self.file = open(self.path, "rb")  # noqa: SIM115

    def read(self, index: int) -> bytes:
        self.file.seek(index * ROW_BYTES)
        return self.file.read(ROW_BYTES)


class Unbuffered(Buffered):
    def open(self) -> None:
        self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115


class Gzip(Buffered):
    def write(self) -> None:
        with gzip.open(self.path, "wb", compresslevel=1) as file:
            file.write(b"".join(map(row, range(ROWS))))

    def open(self) -> None:
        self.file = gzip.open(self.path)  # noqa: SIM115


class Tar(OpenFile):
    def write(self) -> None:
        with tarfile.open(self.path, "w") as file:
            for index in range(ROWS):
                member = tarfile.TarInfo(str(index))
                member.size = ROW_BYTES
                file.addfile(member, io.BytesIO(row(index)))

    def open(self) -> None:
        self.file = tarfile.open(self.path)  # noqa: SIM115

    def read(self, index: int) -> bytes:
        member = self.file.extractfile(str(index))
        assert member is not None
        return member.read()


class Zip(OpenFile):
    def write(self) -> None:
        with zipfile.ZipFile(self.path, "w") as file:
            for index in range(ROWS):
                file.writestr(str(index), row(index))

    def open(self) -> None:
        self.file = zipfile.ZipFile(self.path)

    def read(self, index: int) -> bytes:
        return self.file.read(str(index))


class Sqlite(OpenFile):
    def write(self) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, content BLOB)")
            connection.executemany("INSERT INTO rows VALUES (?, ?)", [(index, row(index)) for index in range(ROWS)])
        connection.close()

    def open(self) -> None:
        # PrefetchLoader's workers have another main thread than the script where it makes loaders in a thread.
        self.file = sqlite3.connect(self.path, check_same_thread=False)

    def read(self, index: int) -> bytes:
        found: bytes = self.file.execute("SELECT content FROM rows WHERE number = ?", (index,)).fetchone()[0]
        return found


class Memmap(OpenFile):
    def open(self) -> None:
        self.rows = np.memmap(self.path, np.uint8, "r", shape=(ROWS, ROW_BYTES))

    def close(self) -> None:
        del self.rows

    def read(self, index: int) -> bytes:
        return self.rows[index].tobytes()


class Lmdb(OpenFile):
    def write(self) -> None:
        import lmdb

        with lmdb.open(self.path, subdir=False, map_size=1 << 24) as opened, opened.begin(write=True) as begun:
            for index in range(ROWS):
                begun.put(str(index).encode(), row(index))

    def open(self) -> None:
        import lmdb

        self.file = lmdb.open(self.path, subdir=False, readonly=True, lock=False)

    def read(self, index: int) -> bytes:
        with self.file.begin() as begun:
            found: bytes = begun.get(str(index).encode())
            return found


class Hdf5(OpenFile):
    def write(self) -> None:
        import h5py

        with h5py.File(self.path, "w") as file:
            rows = np.stack([np.frombuffer(row(index), np.uint8) for index in range(ROWS)])
            file.create_dataset("rows", data=rows, chunks=(1, ROW_BYTES))

    def open(self) -> None:
        import h5py

        self.file = h5py.File(self.path)

    def read(self, index: int) -> bytes:
        return self.file["rows"][index].tobytes()


class Zarr(OpenFile):
    """In a zip file, which stays open."""

    def write(self) -> None:
        import zarr

        with zarr.storage.ZipStore(f"{self.path}.zip", mode="w") as store:
            rows = np.stack([np.frombuffer(row(index), np.uint8) for index in range(ROWS)])
            zarr.create_array(store, data=rows, chunks=(1, ROW_BYTES))

    def open(self) -> None:
        import zarr

        self.file = zarr.storage.ZipStore(f"{self.path}.zip", mode="r")
        self.array = zarr.open_array(self.file, mode="r")

    def read(self, index: int) -> bytes:
        return np.asarray(self.array[index]).tobytes()


class Raster(OpenFile):
    """A band of a GeoTIFF, by windows of a row."""

    def write(self) -> None:
        import rasterio

        size = {"height": ROWS, "width": ROW_BYTES, "count": 1, "dtype": "uint8"}
        with rasterio.open(self.path, "w", driver="GTiff", **size) as file:
            file.write(np.stack([np.frombuffer(row(index), np.uint8) for index in range(ROWS)]), 1)

    def open(self) -> None:
        import rasterio

        self.file = rasterio.open(self.path)

    def read(self, index: int) -> bytes:
        from rasterio.windows import Window

        return self.file.read(1, window=Window(0, index, ROW_BYTES, 1)).tobytes()


class Video(OpenFile):
    """A clip whose frame i is as bright as i says. Each picture stands by itself, so that any can be sought."""

    length = 24

    def write(self) -> None:
        import av

        with av.open(self.path, "w", format="matroska") as file:
            stream = file.add_stream("mjpeg", rate=24)
            stream.width, stream.height, stream.pix_fmt = 320, 240, "yuvj420p"
            for index in range(self.length):
                picture = np.full((240, 320, 3), 8 * index + 4, np.uint8)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            file.mux(stream.encode())

    def open(self) -> None:
        import av

        self.file = av.open(self.path)
        self.stream = self.file.streams.video[0]

    def __getitem__(self, index: int) -> int:
        self.file.seek(round(index / 24 / self.stream.time_base), stream=self.stream)
        for frame in self.file.decode(self.stream):
            if round(frame.time * 24) >= index:
                return int(frame.to_ndarray(format="gray").mean()) // 8
        return -1


class DecodedVideo(Video):
    """The clip of Video, read by torchcodec."""

    def open(self) -> None:
        from torchcodec.decoders import VideoDecoder

        self.decoder = VideoDecoder(self.path)

    def close(self) -> None:
        del self.decoder

    def __getitem__(self, index: int) -> int:
        return int(self.decoder[index].float().mean()) // 8


class InOrder(IterableDataset[int]):
    """Each worker gives its share of a dataset's items."""

    def __init__(self, dataset: OpenFile) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self.dataset), step):
            yield self.dataset[index]


NEEDS = {Lmdb: "lmdb", Hdf5: "h5py", Zarr: "zarr", Raster: "rasterio", Video: "av", DecodedVideo: "torchcodec.decoders"}
ALL = [Buffered, Unbuffered, Gzip, Tar, Zip, Sqlite, Memmap, *NEEDS]
