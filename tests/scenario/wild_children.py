"""User code that gets hold of its process's socket to the daemon and says there what no worker, planner or zygote
would: in the place of whichever of these runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket

import msgpack
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import PrefetchdError
from torch.utils.data import Dataset

from prefetchd.wire.framing import encode
from prefetchd.wire.messages import MESSAGE_TYPES, Message
from tests.scenario.datasets import Numbers

LARGE = (1 << 31, (1 << 48) + 1, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63))
CONTROL = socket.SOCK_SEQPACKET
FROM_CHILDREN = [kind for number, kind in MESSAGE_TYPES.items() if number >= 40]


class WildVoice:
    """Says something wild once in `one_in` times that it is asked to, chosen by `seed` and the process."""

    def __init__(self, seed: int, one_in: int = 4) -> None:
        self.seed = seed
        self.one_in = one_in
        self.pid = 0

    def speak(self) -> None:
        if self.pid != os.getpid():
            self.pid = os.getpid()
            self.dice = random.Random(self.seed * 1_000_003 + self.pid)
        if self.dice.randrange(self.one_in):
            return
        for fd in control_sockets():
            with socket.socket(fileno=os.dup(fd)) as sock, contextlib.suppress(OSError):
                for _ in range(self.dice.randint(1, 3)):
                    self.say(sock)

    def say(self, sock: socket.socket) -> None:
        packet, fds = self.packet(), self.descriptors()
        flags = socket.MSG_DONTWAIT
        try:
            if fds:
                socket.send_fds(sock, [packet], fds, flags)
            else:
                sock.send(packet, flags)
        finally:
            for fd in fds:
                os.close(fd)

    def packet(self) -> bytes:
        kind = self.dice.randrange(8)
        if kind == 0:
            return self.dice.randbytes(self.dice.randrange(1, 300))
        packet = encode(self.message())
        if kind == 1:
            return packet[: self.dice.randrange(1, len(packet) + 1)]
        if kind == 2:
            values = msgpack.unpackb(packet)
            values[self.dice.randrange(len(values))] = self.dice.choice([None, [], "x", b"", -1, 1 << 63, True])
            return msgpack.packb(values)
        return packet

    def message(self) -> Message:
        kind = self.dice.choice(FROM_CHILDREN)
        return kind(*[self.value(str(field.type)) for field in dataclasses.fields(kind)])

    def value(self, kind: str) -> object:
        dice = self.dice
        match kind:
            case "int":
                return dice.choice(LARGE) if dice.random() < 0.2 else dice.randrange(-2, 60)
            case "bool":
                return dice.random() < 0.5
            case "str":
                return "".join(dice.choices("ab/\n\0\x1bé", k=dice.randrange(9)))
            case "bytes":
                return dice.randbytes(dice.randrange(60))
            case "Ints":
                return tuple(self.value("int") for _ in range(dice.randrange(6)))
            case "Rows":
                width = dice.choice([3, 4, 4, dice.randrange(6)])
                return tuple(tuple(self.value("int") for _ in range(width)) for _ in range(dice.randrange(3)))
            case "Blobs":
                return tuple(self.value("bytes") for _ in range(dice.randrange(3)))
        raise AssertionError(f"a field of type {kind}")

    def descriptors(self) -> list[int]:
        """Of what may come with a message, and of what may not."""
        if self.dice.random() < 0.6:
            return []
        makes = (
            lambda: os.open(os.devnull, os.O_RDWR),
            lambda: os.memfd_create("wild"),
            lambda: os.pidfd_open(os.getpid()),
            lambda: os.dup(1),
            lambda: socket.socket(socket.AF_UNIX, CONTROL).detach(),
        )
        return [self.dice.choice(makes)() for _ in range(self.dice.randint(1, 5))]


def control_sockets() -> list[int]:
    """This process's sockets to the daemon."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            fd = int(name)
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                with socket.socket(fileno=os.dup(fd)) as sock:
                    if (sock.family, sock.type) == (socket.AF_UNIX, CONTROL):
                        found.append(fd)
    return found


class WildWorkers(Dataset):
    """Its samples are what they should be; its workers are not."""

    def __init__(self, voice: WildVoice, length: int = 40) -> None:
        self.voice = voice
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.voice.speak()
        return index


class WildSampler:
    """Runs in the planner."""

    def __init__(self, voice: WildVoice, length: int = 40) -> None:
        self.voice = voice
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self):
        for index in range(self.length):
            self.voice.speak()
            yield index


class WildZygote(Dataset):
    """Speaks where it is unpickled: in the stream's zygote, which loads its program."""

    def __init__(self, voice: WildVoice, length: int = 40) -> None:
        self.voice = voice
        self.length = length

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.voice.speak()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def wild_workers(seed: int) -> dict[str, object]:
    """What a loader is made with."""
    return {"dataset": WildWorkers(WildVoice(seed, 8)), "num_workers": 2}


def wild_planners(seed: int) -> dict[str, object]:
    return {"dataset": Numbers(40), "sampler": WildSampler(WildVoice(seed, 8)), "num_workers": 1}


def take_what_comes(**options: object) -> int:
    """Two epochs, errors or not; how many batches there were."""
    batches = 0
    try:
        with PrefetchLoader(batch_size=4, buffer=6, **options) as loader:
            for _ in range(2):
                iterator = iter(loader)
                for _ in range(20):
                    try:
                        next(iterator)
                        batches += 1
                    except StopIteration:
                        break
                    except PrefetchdError as error:
                        if type(error).__name__ == "StreamFailedError":
                            return batches
    except PrefetchdError:
        pass
    return batches
