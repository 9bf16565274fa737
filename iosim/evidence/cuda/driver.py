"""Launches kernels of a cubin through the CUDA driver's C interface (ctypes; no package needed)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError

_MAX_DYNAMIC_SHARED = 8
_NUM_REGS = 4
_MULTIPROCESSORS, _CC_MAJOR, _CC_MINOR, _L2_BYTES = 16, 75, 76, 38
_CLOCK_KHZ, _MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS = 13, 36, 37


@functools.cache
def _library() -> ctypes.CDLL:
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        code = library.cuInit(0)
        if code != 0:
            raise InputError(f"no GPU: the NVIDIA driver is there but cuInit gives error {code}")
        return library
    raise InputError("no NVIDIA driver: libcuda.so.1 is not found, so nothing can be launched here")


def call(name: str, *arguments: object) -> None:
    code = getattr(_library(), name)(*arguments)
    if code != 0:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


@functools.cache
def _device() -> int:
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    if count.value == 0:
        raise InputError("no GPU: the NVIDIA driver sees no device")
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), 0)
    return device.value


@functools.cache
def use_device() -> None:
    """Makes the first GPU's primary context (the one that PyTorch uses) current. Raises InputError where there is no
    driver or no GPU."""
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), _device())
    call("cuCtxSetCurrent", context)


def _attribute(which: int) -> int:
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), which, _device())
    return value.value


def compute_capability() -> str:
    return f"{_attribute(_CC_MAJOR)}.{_attribute(_CC_MINOR)}"


def multiprocessors() -> int:
    return _attribute(_MULTIPROCESSORS)


def properties() -> dict[str, Any]:
    """What the driver says of the first GPU: its name and compute capability, the newest CUDA version that the driver
    knows, sizes in bytes (of device memory as much as it gives out), and the highest clocks in hertz."""
    name, size, version = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
    call("cuDeviceGetName", name, len(name), _device())
    call("cuDeviceTotalMem_v2", ctypes.byref(size), _device())
    call("cuDriverGetVersion", ctypes.byref(version))
    return {
        "gpu": name.value.decode(),
        "compute_capability": compute_capability(),
        "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "sms": multiprocessors(),
        "l2_bytes": _attribute(_L2_BYTES),
        "memory_bytes": size.value,
        "clock_hz": _attribute(_CLOCK_KHZ) * 1e3,
        "memory_clock_hz": _attribute(_MEMORY_CLOCK_KHZ) * 1e3,
        "memory_bus_bits": _attribute(_MEMORY_BUS_BITS),
    }


class Buffer:
    """Zeroed device memory, freed with the object."""

    def __init__(self, size_bytes: int) -> None:
        use_device()
        self._handle = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self._handle), ctypes.c_size_t(size_bytes))
        call("cuMemsetD8_v2", self._handle, ctypes.c_ubyte(0), ctypes.c_size_t(size_bytes))

    @property
    def address(self) -> int:
        return self._handle.value

    def read(self, size_bytes: int) -> bytes:
        host = ctypes.create_string_buffer(size_bytes)
        call("cuMemcpyDtoH_v2", host, self._handle, ctypes.c_size_t(size_bytes))
        return host.raw

    def __del__(self) -> None:
        if self._handle.value:
            _library().cuMemFree_v2(self._handle)


def elapsed_s(work: Callable[[], None], before: Callable[[], None] | None = None) -> float:
    """Device time from start to end of what `work` launches on the default stream. `before` launches something long
    that is not timed, behind which short work can queue."""
    start, end, ms = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
    for event in (start, end):
        call("cuEventCreate", ctypes.byref(event), 0)
    if before is not None:
        before()
    call("cuEventRecord", start, None)
    work()
    call("cuEventRecord", end, None)
    call("cuEventSynchronize", end)
    call("cuEventElapsedTime", ctypes.byref(ms), start, end)
    for event in (start, end):
        call("cuEventDestroy_v2", event)
    return ms.value * 1e-3


class Function:
    def __init__(self, cubin: Path, name: str, shared_bytes: int = 0) -> None:
        use_device()
        self.name = name
        self.shared_bytes = shared_bytes
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), cubin.read_bytes())
        self._handle = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(self._handle), self._module, name.encode())
        if shared_bytes:
            call("cuFuncSetAttribute", self._handle, _MAX_DYNAMIC_SHARED, shared_bytes)

    @property
    def registers(self) -> int:
        value = ctypes.c_int()
        call("cuFuncGetAttribute", ctypes.byref(value), _NUM_REGS, self._handle)
        return value.value

    def ctas_per_sm(self, threads: int) -> int:
        count = ctypes.c_int()
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        call(name, ctypes.byref(count), self._handle, threads, ctypes.c_size_t(self.shared_bytes))
        return count.value

    def launch(
        self, grid: tuple[int, int, int], threads: int, parameters: ctypes.Structure, stream: int, shared_bytes: int
    ) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(parameters), ctypes.c_void_p))
        x, y, z = grid
        handle = ctypes.c_void_p(stream)
        call("cuLaunchKernel", self._handle, x, y, z, threads, 1, 1, shared_bytes, handle, arguments, None)
