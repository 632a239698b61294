"""This module decodes regions of JPEGs by nvImageCodec, on the CPU, in the calling thread, or on a CUDA device.

The decoder for CPUs reads a file as far as the region's last row, and makes pixels of the region alone: the same ones
as Pillow's, for both are libjpeg-turbo. It takes no GPU, starts no threads, and survives a fork. Decision 0112 compares
it with others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from prefetchd_client.images.encoded import Encoded
from prefetchd_client.images.jpeg_markers import is_whole

END_OF_IMAGE = b"\xff\xd9"
"""The last marker of a JPEG. Within compressed pixels it cannot stand."""

TAIL_BYTES = 64
"""Some programs leave a few bytes behind the marker."""

VERBOSITY = "PYNVIMGCODEC_VERBOSITY"

DISTRIBUTIONS = ("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12")
"""The same module in each: the decoders for CPUs do not depend on CUDA."""


@dataclasses.dataclass(frozen=True)
class Region:
    """Holds a rectangle of a picture, in its pixels."""

    top: int
    left: int
    height: int
    width: int


class Jpeg:
    """A JPEG whose regions can be decoded."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.height: int = stream.height
        self.width: int = stream.width

    def pixels(self, region: Region) -> torch.Tensor | None:
        """Decodes a region to height x width x 3 bytes, in RGB. Returns None when it cannot be."""
        codec = _codec(CPU)
        image = codec.decoder.decode(self.view(region, codec.library), params=codec.parameters)
        return None if image is None else torch.from_numpy(np.asarray(image))

    def view(self, region: Region, library: Any) -> Any:
        """Returns the library's word for a region of this file."""
        end = (region.top + region.height, region.left + region.width)
        return self._stream.get_sub_code_stream(0, library.Region((region.top, region.left), end))


def decode_regions(asked: Sequence[tuple[Jpeg, Region]], device: torch.device) -> list[torch.Tensor | None]:
    """Decodes regions as Jpeg.pixels() does, on a CUDA device: on its current stream, by nvJPEG if that is installed.
    A device of another kind is the CPU."""
    if device.type != "cuda":
        return [jpeg.pixels(region) for jpeg, region in asked]
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    codec = _codec(device)
    views = [jpeg.view(region, codec.library) for jpeg, region in asked]
    stream = torch.cuda.current_stream(device).cuda_stream
    images = codec.decoder.decode(views, params=codec.parameters, cuda_stream=stream)
    return [None if image is None else _tensor_over(image) for image in images]


def _tensor_over(image: Any) -> torch.Tensor:
    """Returns pixels where they lie on the device, ready for the current stream. (Those on the CPU the library does not
    export so.)"""
    found: torch.Tensor = from_dlpack(image)
    return found


def open_jpeg(encoded: Encoded, most_pixels: float) -> Jpeg | None:
    """Returns the JPEG, or None for what is better left to Pillow: other formats, CMYK, other than 8 bits, no pixels,
    files that were cut short or are damaged where their markers stand, and more than `most_pixels`."""
    codec = _codec(CPU)
    if END_OF_IMAGE not in bytes(encoded[-TAIL_BYTES:]) or not is_whole(
        memoryview(encoded) if isinstance(encoded, bytes) else encoded.data
    ):
        return None
    try:
        stream = codec.library.CodeStream(encoded)
        fits = stream.codec_name == "jpeg" and stream.num_channels in (1, 3) and stream.precision == 8
    except RuntimeError:
        return None
    return Jpeg(stream) if fits and 0 < stream.height * stream.width <= most_pixels else None


@dataclasses.dataclass(frozen=True)
class _Codec:
    library: Any
    decoder: Any
    parameters: Any


CPU = torch.device("cpu")

_of_thread = threading.local()
"""A decoder is for one thread at a time."""


def _codec(device: torch.device) -> _Codec:
    """Returns this thread's decoder for a device, made when it is first asked for."""
    codecs: dict[torch.device, _Codec] | None = getattr(_of_thread, "codecs", None)
    if codecs is None:
        codecs = _of_thread.codecs = {}
    found = codecs.get(device)
    if found is None:
        found = codecs[device] = _make_codec(device)
    return found


def _make_codec(device: torch.device) -> _Codec:
    library = import_library()
    if device.type == "cuda":
        decoder = library.Decoder(device_id=device.index)
    else:
        decoder = library.Decoder(
            device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=1,
            backends=[library.Backend(library.BackendKind.CPU_ONLY)],
        )
    # As torchvision's loaders: a rotation in EXIF is not applied.
    return _Codec(library, decoder, library.DecodeParams(apply_exif_orientation=False))


def codec_version() -> str:
    """Returns the library's version, and does not import it: with it come libraries of the GPU, which only the process
    that decodes is to load. Raises ImportError, which names the extra, when it is not installed."""
    try:
        found = importlib.util.find_spec("nvidia.nvimgcodec")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ImportError(
            "prefetchd_client.images decodes JPEGs with nvImageCodec, which is not installed. prefetchd's extra "
            '"images" has it: pip install nvidia-nvimgcodec-cu13. Decode(..., exact=True) does without'
        )
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "unknown"


def import_library() -> Any:
    """Imports nvImageCodec, in 8 ms.

    Without a CUDA toolkit it says on stderr, past Python, which decoders of the GPU it lacks. On the CPU nothing here
    asks for these: the lines are kept back, and so is what it logs of files that it cannot decode, of which Pillow's
    error tells.
    """
    verbosity = os.environ.get(VERBOSITY)
    os.environ.setdefault(VERBOSITY, "0")
    try:
        with _without_stderr():
            from nvidia import nvimgcodec
    finally:
        if verbosity is None:
            del os.environ[VERBOSITY]
    return nvimgcodec


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Sends what is written to descriptor 2 nowhere, also what is not Python's."""
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:
        # There is none.
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
