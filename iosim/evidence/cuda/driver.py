"""Launches kernels of a cubin through the CUDA driver's C interface (ctypes; no package needed)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from iosim.base.errors import InputError

_MAX_DYNAMIC_SHARED, _NUM_REGS = 8, 4
_ATTRIBUTES = {
    "sms": 16,
    "cc_major": 75,
    "cc_minor": 76,
    "l2_bytes": 38,
    "clock_khz": 13,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
}
"""Attributes of a device, by cuda.h's CUdevice_attribute."""

T = TypeVar("T")


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


def _given(kind: type[T], name: str, *arguments: object) -> T:
    """What a function of the driver writes to where its first argument points."""
    value = kind()
    call(name, ctypes.byref(value), *arguments)  # type: ignore[arg-type]
    return value


@functools.cache
def _device() -> int:
    if _given(ctypes.c_int, "cuDeviceGetCount").value == 0:
        raise InputError("no GPU: the NVIDIA driver sees no device")
    return _given(ctypes.c_int, "cuDeviceGet", 0).value


@functools.cache
def use_device() -> None:
    """Makes the first GPU's primary context (the one that PyTorch uses) current. Raises InputError where there is no
    driver or no GPU."""
    call("cuCtxSetCurrent", _given(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", _device()))


def _attribute(name: str) -> int:
    return _given(ctypes.c_int, "cuDeviceGetAttribute", _ATTRIBUTES[name], _device()).value


def compute_capability() -> str:
    return f"{_attribute('cc_major')}.{_attribute('cc_minor')}"


def multiprocessors() -> int:
    return _attribute("sms")


def properties() -> dict[str, Any]:
    """What the driver says of the first GPU: its name and compute capability, the newest CUDA version that the driver
    knows, sizes in bytes (of device memory as much as it gives out), and the highest clocks in hertz."""
    name, version = (
        ctypes.create_string_buffer(256),
        _given(ctypes.c_int, "cuDriverGetVersion").value,
    )
    call("cuDeviceGetName", name, len(name), _device())
    return {
        "gpu": name.value.decode(),
        "compute_capability": compute_capability(),
        "driver_cuda": f"{version // 1000}.{version % 1000 // 10}",
        "sms": multiprocessors(),
        "l2_bytes": _attribute("l2_bytes"),
        "memory_bytes": _given(ctypes.c_size_t, "cuDeviceTotalMem_v2", _device()).value,
        "clock_hz": _attribute("clock_khz") * 1e3,
        "memory_clock_hz": _attribute("memory_clock_khz") * 1e3,
        "memory_bus_bits": _attribute("memory_bus_bits"),
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
    start, end = (_given(ctypes.c_void_p, "cuEventCreate", 0) for _ in range(2))
    if before is not None:
        before()
    call("cuEventRecord", start, None)
    work()
    call("cuEventRecord", end, None)
    call("cuEventSynchronize", end)
    ms = _given(ctypes.c_float, "cuEventElapsedTime", start, end)
    for event in (start, end):
        call("cuEventDestroy_v2", event)
    return ms.value * 1e-3


class Function:
    def __init__(self, cubin: Path, name: str, shared_bytes: int = 0) -> None:
        use_device()
        self.name, self.shared_bytes = name, shared_bytes
        module = _given(ctypes.c_void_p, "cuModuleLoadData", cubin.read_bytes())
        self._handle = _given(ctypes.c_void_p, "cuModuleGetFunction", module, name.encode())
        if shared_bytes:
            call("cuFuncSetAttribute", self._handle, _MAX_DYNAMIC_SHARED, shared_bytes)

    @property
    def registers(self) -> int:
        return _given(ctypes.c_int, "cuFuncGetAttribute", _NUM_REGS, self._handle).value

    def ctas_per_sm(self, threads: int) -> int:
        name, shared = (
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.c_size_t(self.shared_bytes),
        )
        return _given(ctypes.c_int, name, self._handle, threads, shared).value

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        parameters: ctypes.Structure,
        stream: int,
        shared_bytes: int,
    ) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(parameters), ctypes.c_void_p))
        x, y, z = grid
        handle = ctypes.c_void_p(stream)
        call(
            "cuLaunchKernel",
            self._handle,
            x,
            y,
            z,
            threads,
            1,
            1,
            shared_bytes,
            handle,
            arguments,
            None,
        )
