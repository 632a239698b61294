"""Registering memory through functions that return codes: no failure passes unseen, and none is left to others."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client.device.cudart import LARGEST_BYTES, CheckedCudart, last_error_clearer

from tests.unit.client.device.fake_cudart import READ_ONLY, WSL_LIMIT_BYTES, CudaError, FakeCudart

MIB = 1 << 20


def checked(fake: FakeCudart) -> CheckedCudart:
    return CheckedCudart(fake, fake.take_last_error)


def test_what_works_leaves_nothing_to_say():
    fake = FakeCudart()
    assert checked(fake).register(4096, MIB) == ""
    assert fake.registered == {4096: MIB}
    assert checked(fake).unregister(4096) == ""
    assert fake.registered == {}


@pytest.mark.parametrize(
    "code", [each for each in CudaError if each and each != CudaError.cudaErrorHostMemoryNotRegistered]
)
def test_a_failure_is_told_and_no_later_kernel_is_blamed(code):
    fake = FakeCudart(next_codes=(code,))
    assert checked(fake).register(4096, MIB) == f"cudaHostRegister: {code.name} (error {code.value})"
    fake.launch()
    assert fake.registered == {}


def test_the_fake_blames_a_later_kernel_when_nobody_takes_the_error():
    fake = FakeCudart(next_codes=(CudaError.cudaErrorMemoryAllocation,))
    CheckedCudart(fake, lambda: None).register(4096, MIB)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        fake.launch()


def test_memory_that_is_registered_already():
    fake = FakeCudart()
    ours = checked(fake)
    ours.register(4096, MIB)
    assert "AlreadyRegistered (error 712)" in ours.register(4096, MIB)
    fake.launch()


def test_memory_that_is_not_registered():
    fake = FakeCudart()
    assert "NotRegistered (error 713)" in checked(fake).unregister(4096)
    fake.launch()


def test_memory_that_is_mapped_read_only():
    """A ring is mapped to be written to; what is not so is told, and left as it is."""
    fake = FakeCudart()
    fake.read_only.add(4096)
    assert checked(fake).register(4096, MIB) == "cudaHostRegister: cudaErrorInvalidValue (error 1)"
    fake.launch()
    assert fake.registered == {}
    assert fake.cudaHostRegister(4096, MIB, 1 | READ_ONLY) == CudaError.success


def test_more_than_wsl_allows():
    fake = FakeCudart(WSL_LIMIT_BYTES)
    ours = checked(fake)
    told = [ours.register(begin, 400 * MIB) for begin in (1 << 40, 2 << 40, 3 << 40)]
    assert told[:2] == ["", ""]
    assert "MemoryAllocation (error 2)" in told[2]
    fake.launch()


@pytest.mark.parametrize("size", [0, -1, LARGEST_BYTES + 1])
def test_sizes_that_are_not_even_tried(size):
    fake = FakeCudart()
    assert f"{size} bytes cannot be registered at once" in checked(fake).register(4096, size)
    assert fake.calls == []


@pytest.mark.parametrize("error", [RuntimeError("no driver"), AttributeError("no cudaHostRegister")])
def test_a_module_that_raises(error):
    class Broken:
        def cudaHostRegister(self, address, size, flags):  # noqa: N802
            raise error

    assert CheckedCudart(Broken(), lambda: None).register(4096, MIB) == f"cudaHostRegister: {error}"


def test_a_code_without_a_text():
    class Mute:
        def cudaHostRegister(self, address, size, flags):  # noqa: N802
            return 999

    assert CheckedCudart(Mute(), lambda: None).register(4096, MIB) == "cudaHostRegister: failed (error 999)"


@pytest.mark.skipif(torch.version.cuda is None, reason="torch without CUDA")
def test_the_real_runtime_is_asked_through_the_library_that_torch_has_loaded():
    clear = last_error_clearer()
    assert clear is not None
    real = torch._C._cudart
    told = CheckedCudart(real, clear).register(4096 * 7 + 1, 1)
    assert told.startswith("cudaHostRegister: "), "memory that is nobody's cannot be registered"
    assert "(error " in told
