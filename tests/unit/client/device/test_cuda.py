"""CUDA as a backend: here what can be told without a GPU, with torch.cuda played by a double."""

from __future__ import annotations

import contextlib

import pytest
import torch
from prefetchd_client.device import cuda

from tests.unit.client.device.fake_cudart import CudaError, FakeCudart

MIB = 1 << 20


class FakeCuda:
    """torch.cuda with two devices, of which only the second is in use. Who names none gets the `current` one."""

    def __init__(self) -> None:
        self.runtime = FakeCudart()
        self.initialised = False
        self.current = 1
        self.entered: list[torch.device] = []
        self.waited_for: list[int] = []
        self.default_generators = [torch.Generator(), torch.Generator()]

    def cudart(self) -> FakeCudart:
        self.initialised = True
        return self.runtime

    def is_initialized(self) -> bool:
        return self.initialised

    def current_device(self) -> int:
        self.initialised = True
        return self.current

    def device_count(self) -> int:
        return 2

    def current_stream(self, device: object = None) -> str:
        return f"stream of {self.current if device is None else device}"

    def Stream(self, device: object = None) -> str:  # noqa: N802
        return f"new stream of {self.current if device is None else device}"

    def is_pinned(self, address: int) -> bool:
        """Tensor.is_pinned(): False until CUDA is initialised, whatever is registered."""
        return self.initialised and self.runtime.is_pinned(address)

    def is_current_stream_capturing(self) -> bool:
        self.runtime.launch()
        return True

    def synchronize(self, device: int) -> None:
        self.waited_for.append(device)

    @contextlib.contextmanager
    def device(self, device: torch.device):
        self.entered.append(device)
        yield


@pytest.fixture
def fake(monkeypatch):
    found = FakeCuda()
    monkeypatch.setattr(cuda, "cuda", found)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index == 1, raising=False)
    monkeypatch.setattr(cuda, "last_error_clearer", lambda: found.runtime.take_last_error)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: None, raising=False)
    return found


def test_making_one_initialises_nothing(fake):
    backend = cuda.CudaBackend(None)
    assert not backend.is_capturing()
    assert backend.current_streams() == []
    assert not fake.initialised


def test_a_device_that_has_failed_captures_nothing(fake):
    fake.initialised = True
    assert cuda.CudaBackend(0).is_capturing()
    fake.runtime.last_error = CudaError.cudaErrorIllegalAddress
    assert not cuda.CudaBackend(0).is_capturing()


def test_without_a_number_it_is_the_current_device_of_the_first_call(fake):
    backend = cuda.CudaBackend(None)
    assert backend.device == torch.device("cuda:1")
    fake.current = 0
    assert backend.device == torch.device("cuda:1")


def test_memory_is_registered_on_the_device_s_own_context(fake):
    backend = cuda.CudaBackend(0)
    assert backend.register(4096, MIB) == ""
    assert backend.unregister(4096) == ""
    assert fake.entered == [torch.device("cuda:0")] * 2
    assert (fake.runtime.calls, fake.runtime.registered) == (["register", "unregister"], {})


def test_registering_initialises_cuda_so_that_memory_is_known_to_be_pinned(fake):
    fake.runtime.cudaHostRegister(1 << 40, MIB, 1)
    assert not fake.is_pinned(1 << 40), "by whoever else, and before CUDA is initialised"
    backend = cuda.CudaBackend(0)
    assert backend.register(4096, MIB) == ""
    assert fake.is_pinned(4096)
    assert backend.unregister(4096) == ""
    assert not fake.is_pinned(4096)


def test_only_devices_in_use_are_asked_for_their_streams_and_waited_for(fake):
    fake.initialised = True
    backend = cuda.CudaBackend(1)
    assert backend.current_streams() == ["stream of 1"]
    backend.synchronize()
    assert fake.waited_for == [1]


def test_all_devices_in_use_are(fake, monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: True, raising=False)
    fake.initialised = True
    backend = cuda.CudaBackend(1)
    assert backend.current_streams() == ["stream of 0", "stream of 1"]
    backend.synchronize()
    assert fake.waited_for == [0, 1]


def test_all_is_of_its_own_device_while_another_is_current(fake, monkeypatch):
    made: list[torch.device] = []
    monkeypatch.setattr(torch, "empty_like", lambda tensor, *, device: made.append(device))
    fake.current = 0
    backend = cuda.CudaBackend(1)
    assert backend.device == torch.device("cuda:1")
    assert backend.current_stream() == "stream of 1"
    assert backend.new_stream() == "new stream of cuda:1"
    assert backend.generator() is fake.default_generators[1]
    backend.empty_like(torch.ones(2))
    assert made == [torch.device("cuda:1")]
    assert backend.register(4096, MIB) == ""
    assert fake.entered == [torch.device("cuda:1")]


def test_where_the_runtime_cannot_be_asked_a_kernel_takes_the_error(fake, monkeypatch):
    monkeypatch.setattr(cuda, "last_error_clearer", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: None, raising=False)

    def zeros(size, *, device):
        fake.runtime.launch()

    monkeypatch.setattr(torch, "zeros", zeros)
    fake.runtime = FakeCudart(next_codes=(CudaError.cudaErrorNotSupported,))
    assert "cudaErrorNotSupported" in cuda.CudaBackend(0).register(4096, MIB)
    fake.runtime.launch()


def test_a_stream_is_made_anew_when_another_is_current(fake, monkeypatch):
    raw = [0]
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: raw[0], raising=False)
    made = []
    monkeypatch.setattr(fake, "current_stream", lambda index: made.append(index) or len(made))
    backend = cuda.CudaBackend(1)
    assert [backend.current_stream() for _ in range(3)] == [1, 1, 1]
    raw[0] = 1 << 40
    assert [backend.current_stream() for _ in range(2)] == [2, 2]
    raw[0] = 0
    assert backend.current_stream() == 3
    assert made == [1, 1, 1]
