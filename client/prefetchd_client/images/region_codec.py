"""This module decodes regions of JPEGs by nvImageCodec, on the CPU, in the calling thread.

Its decoder reads a file as far as the region's last row, and makes pixels of the region alone: the same ones as
Pillow's, for both are libjpeg-turbo. It takes no GPU, starts no threads, and survives a fork.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import threading
from typing import Any

import numpy as np
import torch

from prefetchd_client.images.encoded import Encoded

END_OF_IMAGE = b"\xff\xd9"
"""The last marker of a JPEG. Within compressed pixels it cannot stand."""

TAIL_BYTES = 64
"""Some programs leave a few bytes behind the marker."""

VERBOSITY = "PYNVIMGCODEC_VERBOSITY"


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
        codec = _codec()
        end = (region.top + region.height, region.left + region.width)
        view = self._stream.get_sub_code_stream(0, codec.library.Region((region.top, region.left), end))
        image = codec.decoder.decode(view, params=codec.parameters)
        return None if image is None else torch.from_numpy(np.asarray(image))


def open_jpeg(encoded: Encoded, most_pixels: float) -> Jpeg | None:
    """Returns the JPEG, or None for what is better left to Pillow: other formats, CMYK, other than 8 bits, files that
    were cut short, and more than `most_pixels`."""
    codec = _codec()
    if END_OF_IMAGE not in bytes(encoded[-TAIL_BYTES:]):
        return None
    try:
        stream = codec.library.CodeStream(encoded)
        fits = stream.codec_name == "jpeg" and stream.num_channels in (1, 3) and stream.precision == 8
    except RuntimeError:
        return None
    return Jpeg(stream) if fits and stream.height * stream.width <= most_pixels else None


@dataclasses.dataclass(frozen=True)
class _Codec:
    library: Any
    decoder: Any
    parameters: Any


_of_thread = threading.local()
"""A decoder is for one thread at a time."""


def _codec() -> _Codec:
    """Returns this thread's decoder. Raises ImportError when the library is not installed."""
    codec: _Codec | None = getattr(_of_thread, "codec", None)
    if codec is None:
        codec = _of_thread.codec = _make_codec()
    return codec


def _make_codec() -> _Codec:
    library = import_library()
    decoder = library.Decoder(
        device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[library.Backend(library.BackendKind.CPU_ONLY)],
    )
    # As torchvision's loaders: a rotation in EXIF is not applied.
    return _Codec(library, decoder, library.DecodeParams(apply_exif_orientation=False))


def import_library() -> Any:
    """Imports nvImageCodec. Raises ImportError, which names the extra, when it is not installed.

    Without a CUDA toolkit it says on stderr, past Python, which decoders of the GPU it lacks. Nothing here asks for
    these: the lines are kept back, and so is what it logs of files that it cannot decode, of which Pillow's error
    tells.
    """
    verbosity = os.environ.get(VERBOSITY)
    os.environ.setdefault(VERBOSITY, "0")
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as aside:
            os.dup2(aside.fileno(), 2)
            try:
                from nvidia import nvimgcodec
            finally:
                os.dup2(kept, 2)
    except ImportError as error:
        raise ImportError(
            f"prefetchd_client.images decodes JPEGs with nvImageCodec, and {error}. Install it with: "
            "pip install 'prefetchd[images]'; Decode(..., exact=True) does without"
        ) from error
    finally:
        os.close(kept)
        if verbosity is None:
            del os.environ[VERBOSITY]
    return nvimgcodec
