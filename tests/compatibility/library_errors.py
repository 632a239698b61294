"""Exceptions of libraries: many have constructors, attributes or texts of their own."""

from __future__ import annotations

import argparse
import ast
import asyncio
import base64
import codecs
import concurrent.futures
import configparser
import csv
import dataclasses
import decimal
import email.errors
import errno
import getopt
import graphlib
import gzip
import http.client
import importlib.metadata
import io
import ipaddress
import json
import lzma
import os
import pickle
import queue
import re
import shutil
import socket
import sqlite3
import ssl
import struct
import subprocess
import tarfile
import threading
import urllib.error
import warnings
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tests.compatibility import material as m
from tests.compatibility.case import Loading, Maker, case
from tests.compatibility.errors import at_four


def _raising(kind: Callable[..., BaseException], *arguments: Any, **named: Any) -> Callable[[], None]:
    def raise_it() -> None:
        raise kind(*arguments, **named)

    return raise_it


@dataclasses.dataclass(frozen=True)
class _Frozen:
    size: int


def _stopping() -> Iterator[int]:
    if torch.is_grad_enabled():
        raise StopIteration
    yield 1


def _invalid() -> None:
    with decimal.localcontext(decimal.Context(traps=[decimal.InvalidOperation])):
        decimal.Decimal("seven")


def _warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("an odd picture", RuntimeWarning, stacklevel=2)


def _divided() -> None:
    with np.errstate(divide="raise"):
        np.ones(2) / np.zeros(2)


RAISED: dict[str, Callable[[], Any]] = {
    "a command that failed": lambda: subprocess.run(["false"], check=True),
    "a command that took too long": _raising(subprocess.TimeoutExpired, ["ffmpeg"], 3.0, output=b"half"),
    "a page that was not found": _raising(urllib.error.HTTPError, "http://a/b", 404, "Not Found", {}, None),  # type: ignore[arg-type]
    "an address that does not answer": _raising(urllib.error.URLError, "no route"),
    "a broken archive": lambda: zipfile.ZipFile(io.BytesIO(b"no archive")),
    "a broken tar file": lambda: tarfile.open(fileobj=io.BytesIO(b"no archive")),  # noqa: SIM115
    "broken compressed data": lambda: zlib.decompress(b"no data"),
    "broken bytes of a struct": lambda: struct.unpack("<4i", b"short"),
    "a broken pickle": lambda: pickle.loads(b"no pickle"),
    "a broken csv file": lambda: list(csv.reader(["a\0b"], strict=True)) or _raising(csv.Error, "line contains NUL")(),
    "broken json in a line": lambda: json.loads('{"a": 1,\n "b": }'),
    "broken xml": lambda: ET.fromstring("<a><b></a>"),
    "a broken configuration": lambda: configparser.ConfigParser().read_string("no section"),
    "an option that is missing": lambda: configparser.ConfigParser().get("train", "rate"),
    "an argument that is wrong": _raising(argparse.ArgumentTypeError, "not a path"),
    "a broken message": _raising(email.errors.MessageParseError, "no header"),
    "a table that is missing": lambda: sqlite3.connect(":memory:").execute("select * from pictures"),
    "a decimal that is none": _invalid,
    "a codec that is missing": lambda: codecs.lookup("no codec"),
    "text that cannot be encoded": lambda: "Жук".encode("ascii"),
    "a number that is too large": lambda: (1 << 20_000) * 1.0,
    "a number that is too large for numpy": lambda: np.array([1 << 70], dtype=np.int64),
    "a deadline that passed": _raising(concurrent.futures.TimeoutError, "no answer in 3 s"),
    "a read that is incomplete": _raising(asyncio.IncompleteReadError, b"half", 9),
    "files that are the same": _raising(shutil.SameFileError, "a", "b"),
    "a permission that is missing": _raising(PermissionError, 13, "Permission denied", "/data/a.jpg"),
    "a connection that was reset": _raising(ConnectionResetError, 104, "Connection reset by peer"),
    "a warning that is an error": _warned,
    "a pattern that is wrong": lambda: re.compile("(a"),
    "broken base64": lambda: base64.b64decode("abc"),
    "a broken gzip file": lambda: gzip.decompress(b"no archive"),
    "a broken lzma file": lambda: lzma.decompress(b"no archive"),
    "an empty pickle": lambda: pickle.loads(b""),
    "a directory in a file s place": lambda: open("/", "rb").close(),
    "a file in a directory s place": lambda: os.listdir("/dev/null"),
    "a disk that is full": _raising(OSError, errno.ENOSPC, "No space left on device", "/data/cache"),
    "a write that would block": _raising(BlockingIOError, errno.EAGAIN, "would block", 7),
    "a name that cannot be resolved": _raising(socket.gaierror, -2, "Name or service not known"),
    "a certificate that is wrong": _raising(ssl.SSLCertVerificationError, 1, "self-signed certificate"),
    "a download that is too short": _raising(urllib.error.ContentTooShortError, "3 of 9 bytes", b"abc"),
    "a status line that is wrong": _raising(http.client.BadStatusLine, "HTTP/9"),
    "an answer that is incomplete": _raising(http.client.IncompleteRead, b"half", 9),
    "a queue that is empty": lambda: queue.Queue().get_nowait(),
    "a barrier that is broken": _raising(threading.BrokenBarrierError),
    "a literal that is none": lambda: ast.literal_eval("1 +"),
    "an option that is unknown": lambda: getopt.getopt(["--colour"], "", ["size"]),
    "a package that is not installed": lambda: importlib.metadata.version("no-such-package"),
    "a frozen instance that is set": lambda: setattr(_Frozen(1), "size", 2),
    "an order that has a cycle": lambda: graphlib.TopologicalSorter({1: [2], 2: [1]}).prepare(),
    "an address that is wrong": lambda: ipaddress.ip_address("1.2.3"),
    "an enum that has no such member": lambda: m.Colour(7),
    "a generator that has ended badly": lambda: next(_stopping()),
    "an array that is too large for memory": lambda: np.empty((1 << 40, 1 << 10)),
    "types that numpy cannot add": lambda: np.array(["a"]) + np.array([1]),
    "a cast that numpy refuses": lambda: np.ones(2, np.int8).__iadd__(0.5),
    "a file that torch cannot load": lambda: torch.load(io.BytesIO(b"no tensors")),
    "a state dict that does not fit": lambda: torch.nn.Linear(2, 2).load_state_dict({"weight": torch.ones(3, 3)}),
    "a tensor of too many elements": lambda: torch.ones(3).item(),
    "a view that torch refuses": lambda: torch.ones(2, 3).t().view(6),
    "an assertion of numpy": lambda: np.testing.assert_array_equal([1], [2]),
    "shapes that numpy cannot broadcast": lambda: np.ones((2, 3)) + np.ones((4, 5)),
    "a division that numpy refuses": _divided,
    "a matrix that numpy cannot invert": lambda: np.linalg.inv(np.zeros((2, 2))),
    "a matrix that torch cannot invert": lambda: torch.linalg.inv(torch.zeros(2, 2)),
    "an index that a tensor does not have": lambda: torch.ones(3)[7],
    "dtypes that torch cannot multiply": lambda: torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.int32),
    "a module that refuses a shape": lambda: torch.nn.Linear(3, 2)(torch.ones(5)),
    "what torch does not implement": _raising(NotImplementedError, "no kernel for this device"),
}


def _named(name: str, raise_it: Callable[[], Any]) -> Maker:
    def make() -> Loading:
        return at_four(raise_it)

    make.__name__ = name.replace(" ", "_")
    return make


for _name, _raised in RAISED.items():
    case("errors", workers=0)(_named(_name, _raised))


@case("errors", workers=0, needs="PIL")
def a_picture_that_is_none() -> Loading:
    from PIL import Image

    return at_four(lambda: Image.open("/dev/null"))


@case("errors", workers=0, needs="PIL")
def a_picture_that_is_cut_off() -> Loading:
    from PIL import Image

    whole = io.BytesIO()
    Image.fromarray(np.arange(30_000, dtype=np.uint8).reshape(100, 100, 3)).save(whole, "png")
    return at_four(lambda: Image.open(io.BytesIO(whole.getvalue()[:500])).load())


@case("errors", workers=0, needs="torchvision")
def a_transform_that_refuses_its_input() -> Loading:
    from torchvision.transforms import v2

    return at_four(lambda: v2.Normalize([0.5], [0.5])(torch.ones(3, 4, dtype=torch.uint8)))
