"""When the work tiles of a kernel end, seen from outside.

    python experiments/ends.py --out h200_cta_ends.npz        # long launches, every tile
    python experiments/ends.py --shares --out h200_cta_shares.csv   # how the CTAs of an SM share it
    python experiments/ends.py --steps --out h100_cta_steps.csv     # steps of lone CTAs and of those that share an SM
    python experiments/ends.py --first h200_cta_ends_wide.npz --out h200_cta_shares.csv   # of recorded ones

A watcher (ends.cu) looks at one element of every work tile's output while the kernel runs, so that the kernel itself is
the very binary that others run: this project's, PyTorch's, cuDNN's. From the ends of the first CTAs of a launch, which
all begin together, follows how the CTAs of an SM share it; from all of them, how CTAs drift. Nothing is profiled. The
watcher takes the place of one CTA on one SM.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import compiled, run_script, write_provenance

from iosim import InputError
from iosim.base.data import data_dir
from iosim.base.files import write_whole
from iosim.evidence.cuda import driver
from iosim.evidence.cuda.compiler import build
from iosim.evidence.cuda.launch import Forward, Order, Shape
from iosim.evidence.cuda.spec import FwdSpec

HERE = Path(__file__).resolve().parent
MARK = 0x7FC1
"""A NaN of bf16 and of fp16 that no kernel writes."""
PATIENCE_NS = 2_000_000_000
PAUSE_CYCLES = 2_000_000
ATTEMPTS = 3
UNIT_OF_ENDS = (
    "tenths of a microsecond from the launch, by head and block of query rows; -1: not seen"
)
LIBRARY = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}


class Elsewhere(InputError):
    """A library's call wrote its output elsewhere than the call before it."""


@dataclass(frozen=True)
class Case:
    """One launch. `kernel` is a name of LIBRARY, or `own` with `spec` and `order`; `rows` of a work tile."""

    kernel: str
    heads: int
    tokens: int
    head_dim: int
    causal: bool
    rows: int = 128
    spec: dict[str, Any] = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        rows = [
            self.kernel,
            f"{self.heads}x{self.tokens}x{self.head_dim}",
            "causal" if self.causal else "none",
        ]
        if self.spec:
            s = self.spec
            rows.append(
                f"{s['block_q']}x{s['block_k']} w{s['warps']} s{s['stages']} m{s['min_ctas']}"
            )
        rows += ["persistent"] * bool(self.spec.get("persistent"))
        return " ".join(rows + [f"{key}={value}" for key, value in self.order.items()])


def own(
    heads: int,
    tokens: int,
    d: int,
    causal: bool,
    tile: tuple[int, int, int, int, int],
    *,
    persistent: bool = False,
    **order: Any,
) -> Case:
    q, k, warps, stages, ctas = tile
    spec = {"block_q": q, "block_k": k, "warps": warps, "stages": stages, "min_ctas": ctas} | (
        {"persistent": True} if persistent else {}
    )
    return Case("own", heads, tokens, d, causal, q, spec, order)


WIDE = (128, 64, 4, 2, 2)
NARROW = (128, 128, 4, 2, 2)
HEAVY = {"order": "head", "heavy_first": True}
CASES = (
    own(4, 65536, 128, False, WIDE, order="head"),
    own(1, 131072, 128, False, WIDE),
    own(8, 65536, 128, False, WIDE),
    own(4, 65536, 128, False, WIDE, order="head", direction="alternating"),
    own(8, 65536, 128, True, WIDE, **HEAVY),
    own(8, 65536, 128, True, WIDE, direction="descending"),
    own(8, 32768, 128, True, WIDE, direction="descending"),
    own(16, 16384, 128, True, WIDE, **HEAVY),
    own(8, 65536, 128, False, WIDE, persistent=True, order="head"),
    own(4, 65536, 128, False, WIDE, persistent=True),
    own(8, 65536, 128, True, WIDE, persistent=True, **HEAVY),
    own(8, 65536, 128, True, WIDE, persistent=True, heavy_first=True),
    own(16, 32768, 64, False, NARROW, order="head"),
    own(16, 32768, 64, True, NARROW, **HEAVY),
    own(8, 65536, 64, False, NARROW),
    own(1, 131072, 64, True, NARROW, direction="descending"),
    own(8, 16384, 64, True, (64, 16, 4, 2, 7), **HEAVY),
    own(8, 16384, 64, True, (64, 96, 4, 2, 3), **HEAVY),
    own(8, 16384, 64, True, (64, 128, 4, 2, 3), **HEAVY),
    own(8, 16384, 128, False, (64, 32, 4, 2, 4)),
    own(8, 16384, 128, False, (128, 32, 8, 2, 2)),
    own(8, 16384, 128, False, (128, 48, 4, 1, 2)),
    own(8, 16384, 64, True, (128, 192, 8, 2, 1), **HEAVY),
    Case("flash", 4, 65536, 128, False),
    Case("flash", 8, 65536, 128, True),
    Case("flash", 4, 49152, 128, True),
    Case("flash", 32, 16384, 128, True),
    Case("flash", 8, 65536, 64, False),
    Case("flash", 8, 65536, 128, False),
    Case("efficient", 8, 65536, 128, True, 64),
    Case("efficient", 4, 131072, 64, False, 64),
    Case("efficient", 32, 32768, 64, True, 64),
    Case("efficient", 8, 65536, 128, False, 64),
    Case("cudnn", 8, 65536, 128, True),
    Case("cudnn", 8, 65536, 128, False),
    Case("cudnn", 8, 65536, 64, True),
    Case("efficient", 16, 8192, 256, False, 32),
    Case("efficient", 16, 8192, 256, True, 32),
)


class EndsParams(ctypes.Structure):
    """`EndsParams` of ends.cu."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("seen", ctypes.c_void_p),
        ("n", ctypes.c_int32),
        ("mark", ctypes.c_int32),
        ("patience", ctypes.c_int64),
    )


def launcher(case: Case) -> tuple[Any, Callable[[], Any]]:
    """(the output [1, heads, tokens, head_dim] that the call will write, the call)."""
    import torch

    shape = (1, case.heads, case.tokens, case.head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    if case.kernel == "own":
        spec = FwdSpec(
            head_dim=case.head_dim,
            mask="causal" if case.causal else "none",
            dtype="bf16",
            **case.spec,
        )
        forward = Forward(spec, build(spec, driver.compute_capability()))
        o = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
        lse = torch.empty(shape[:3], device="cuda")
        addresses = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        sizes = Shape(1, case.heads, case.heads, case.tokens, case.tokens, case.head_dim)
        launch = forward.launches(
            sizes, {n: t.data_ptr() for n, t in addresses.items()}, Order(**case.order)
        )[0]
        launch.run()
        torch.cuda.synchronize()
        return o, lambda _kept=(addresses,): launch.run()  # type: ignore[misc]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, LIBRARY[case.kernel])

    def call() -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal)

    call()
    torch.cuda.synchronize()
    return call(), call


def watched(case: Case, watcher: driver.Function) -> tuple[Any, float]:
    """(nanoseconds from the launch to each tile's end [heads, blocks], milliseconds of the launch unwatched)."""
    import torch

    o, call = launcher(case)
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")  # type: ignore[no-untyped-call]
    begin.record()  # type: ignore[no-untyped-call]
    tensors = call()
    end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    alone = float(begin.elapsed_time(end))  # type: ignore[no-untyped-call]
    del tensors
    torch.cuda.empty_cache()
    blocks = case.tokens // case.rows
    stride = o.stride()
    head, block = torch.meshgrid(torch.arange(case.heads), torch.arange(blocks), indexing="ij")
    address = o.data_ptr() + 2 * (head * stride[1] + block * case.rows * stride[2])
    where, size = o.data_ptr(), o.numel()
    torch.as_strided(o, (size,), (1,)).view(torch.int16).fill_(MARK)
    if case.kernel != "own":
        del o
    times, out = watch(address.flatten(), call, watcher)
    if out is not None and out.data_ptr() != where:
        raise Elsewhere("the output went elsewhere")
    if late := int((times < 0).sum()):
        print(f"{case.name}: {late} tiles were not seen", file=sys.stderr)
    return times.reshape(case.heads, blocks), alone


def watch(address: Any, call: Callable[[], Any], watcher: driver.Function) -> tuple[Any, Any]:
    """(nanoseconds from the launch until each address lost the mark, -1 where it never did; what `call` gave).

    A pause stands before the launch in its stream, so that the host has queued it before it starts.
    """
    import torch

    flag = torch.full((16,), MARK, device="cuda", dtype=torch.int16)
    flush = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    address = torch.cat([torch.tensor([flag.data_ptr()]), address]).cuda()
    seen = torch.zeros(address.numel(), device="cuda", dtype=torch.int64)
    flush.zero_()
    torch.cuda.synchronize()
    p = EndsParams(address.data_ptr(), seen.data_ptr(), address.numel(), MARK, PATIENCE_NS)
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    watcher.launch((1, 1, 1), 256, p, side.cuda_stream, 0)
    time.sleep(0.002)
    torch.cuda._sleep(PAUSE_CYCLES)
    flag.zero_()
    out = call()
    torch.cuda.synchronize()
    times = seen.cpu().numpy()
    return np.where(times[1:] > 0, times[1:] - times[0], -1), out


@dataclass(frozen=True)
class Shared:
    """A kernel whose sharing of an SM is measured: `own` with `spec`, or a name of LIBRARY, of which `head_dim` is the
    compiled one and `build` says for what: whole tiles, `ragged` lengths, or `narrow` heads."""

    kernel: str
    head_dim: int
    causal: bool
    rows: int
    ctas: int
    spec: dict[str, Any] = field(default_factory=dict)
    build: str = ""


def recorded() -> list[Shared]:
    """Every instantiation of flash_fwd in the recorded table of which an SM holds several CTAs."""
    import pandas as pd

    table = pd.read_csv(data_dir("kernels") / "measurements" / "h200_iosim_kernels.csv")
    table = table[
        (table.implementation == "flash_fwd")
        & (table.kernel == "flash_fwd")
        & (table.min_ctas >= 2)
    ]
    table = table[table.splits.fillna(1) == 1]
    shared_by_case = {}
    for row in table.itertuples():
        mask = "window" if row.window > 0 else ("causal" if row.causal else "none")
        spec = {
            "block_q": int(row.block_q),
            "block_k": int(row.block_k),
            "warps": int(row.warps),
            "mask": mask,
            "stages": int(row.stages),
            "dtype": {"bfloat16": "bf16", "float16": "fp16"}[row.dtype],
            "min_ctas": int(row.min_ctas),
        } | ({"persistent": True} if row.persistent else {})
        if mask != "window":
            shared_by_case[json.dumps([row.head_dim, spec])] = Shared(
                "own",
                int(row.head_dim),
                mask == "causal",
                int(row.block_q),
                int(row.min_ctas),
                spec,
            )
    return list(shared_by_case.values())


SHARED_LIBRARY = (
    *(
        Shared("flash", d, causal, 64 if d == 256 else 128, 2, build=build)
        for d in (32, 64, 96, 128, 256)
        for causal in (False, True)
        for build in ("", "ragged", "narrow")
        if (d, build) != (256, "ragged")  # the same as that of whole lengths
    ),
    *(
        Shared("efficient", d, False, 32 if d == 256 else 64, {64: 4, 128: 2, 256: 4}[d])
        for d in (64, 128, 256)
    ),
)
NARROWER, FEWER = 24, 8
"""By so many columns heads are narrower than their build, and by so many keys lengths shorter than whole tiles."""
KEYS = 32768
"""Keys that every CTA of this project's kernel walks over, the same for all: they come from the L2."""
LIBRARY_KEYS = 4 * KEYS
STEP_KEYS = 16384
STEPPED = (
    *(library for library in SHARED_LIBRARY if not library.causal),
    *(Shared("flash", 192, False, 128, 1, build=build) for build in ("", "narrow")),
    *(Shared("efficient", d, False, 64, n, {"dtype": "fp32"}) for d, n in ((64, 3), (128, 1))),
)
SMS = 132
"""Of the GPUs that were measured."""


def library_call(case: Shared, tiles: int, keys: int) -> tuple[Callable[[], Any], int]:
    """(a call of a library's kernel of one head with so many tiles of queries, its columns)."""
    import torch

    d = case.head_dim - NARROWER * (case.build == "narrow")
    rows = tiles * case.rows
    keys -= FEWER * (case.build == "ragged")
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[case.spec.get("dtype", "bf16")]
    q = torch.randn((1, rows, 1, d), device="cuda", dtype=dtype)
    k, v = (torch.randn((1, keys, 1, d), device="cuda", dtype=dtype) for _ in "kv")

    def call() -> Any:
        if case.kernel == "flash":
            return torch.ops.aten._flash_attention_forward(
                q, k, v, None, None, rows, keys, 0.0, case.causal, False
            )[0]
        return torch.ops.aten._efficient_attention_forward(
            q, k, v, None, None, None, None, None, 0.0, 0, False
        )[0]

    return call, d


def steps(case: Shared, held: int, watcher: driver.Function) -> dict[str, Any]:
    """Ends of the CTAs of a launch of `held` tiles an SM, in microseconds: all begin together, and end together but
    for what the older get more."""
    import torch

    tiles = held * driver.multiprocessors()
    call, d = library_call(case, tiles, STEP_KEYS)
    o = call()
    where, size = o.data_ptr(), o.element_size()
    torch.as_strided(o, (o.numel(),), (1,)).view(torch.int16).fill_(MARK)
    torch.cuda.synchronize()
    del o
    times, out = watch(where + size * torch.arange(tiles) * case.rows * d, call, watcher)
    if out.data_ptr() != where:
        raise Elsewhere("the output went elsewhere")
    medians = dict(
        zip(
            ("first_us", "median_us", "last_us"),
            np.percentile(times / 1e3, (10, 50, 90)),
            strict=True,
        )
    )
    return {
        "kernel": case.kernel,
        "head_dim": d,
        "build": case.build,
        "dtype": case.spec.get("dtype", "bf16"),
        "ctas": held,
        "keys": STEP_KEYS,
    } | {name: f"{value:.1f}" for name, value in medians.items()}


def shares(case: Shared, watcher: driver.Function) -> dict[str, Any]:
    """Ends of the first CTAs, by the order in which an SM got them, in microseconds: the median over the SMs."""
    import torch

    sms = driver.multiprocessors()
    first = sms * case.ctas
    if case.kernel == "own":
        spec = FwdSpec(head_dim=case.head_dim, **case.spec)
        forward = Forward(spec, build(spec, driver.compute_capability()))
        held = forward.main.ctas_per_sm(spec.threads)
        first = sms * held
        shape = (1, first, 3 * case.rows, case.head_dim)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[spec.dtype]
        q, o = (
            torch.randn(shape, device="cuda", dtype=dtype),
            torch.empty(shape, device="cuda", dtype=dtype),
        )
        k, v = (torch.randn((1, 1, KEYS, case.head_dim), device="cuda", dtype=dtype) for _ in "kv")
        lse = torch.empty(shape[:3], device="cuda")
        addresses = {
            n: t.data_ptr()
            for n, t in zip(("q", "k", "v", "o", "lse"), (q, k, v, o, lse), strict=True)
        }
        sizes = Shape(1, first, 1, shape[2], KEYS, case.head_dim)
        launch = forward.launches(sizes, addresses, Order("head"))[0]

        def call() -> Any:
            launch.run()

        address = o.data_ptr() + 2 * torch.arange(first) * shape[2] * case.head_dim
        extra: dict[str, Any] = case.spec | {"registers": forward.main.registers}
    else:
        held = case.ctas
        call, d = library_call(case, 2 * first, LIBRARY_KEYS)
        o, extra = call(), {"build": case.build}
        address = o.data_ptr() + 2 * torch.arange(first) * case.rows * d
        where = o.data_ptr()
    torch.as_strided(o, (o.numel(),), (1,)).view(torch.int16).fill_(MARK)
    torch.cuda.synchronize()
    if case.kernel != "own":
        del o
    times, out = watch(address, call, watcher)
    if out is not None and out.data_ptr() != where:
        raise Elsewhere("the output went elsewhere")
    groups = times.reshape(-1, sms)
    return {
        "kernel": case.kernel,
        "head_dim": case.head_dim,
        "causal": int(case.causal),
        **extra,
        "ctas": held,
        "ends_us": " ".join(f"{np.median(g) / 1e3:.1f}" for g in groups),
        "spread_us": " ".join(
            f"{(np.percentile(g, 90) - np.percentile(g, 10)) / 1e3:.1f}" for g in groups
        ),
        "keys": " ".join(map(str, keys_of_groups(case, held, sms))),
    }


def keys_of_groups(case: Shared, held: int, sms: int) -> list[int]:
    """Keys that a CTA walks over, the median of each group of `sms` CTAs.

    Of a library's causal kernel, CTA i has the i-th `case.rows` rows of twice as many as the first CTAs have, and the
    diagonal ends at the last row and key: its last row has all keys but those of the rows below.
    """
    if case.kernel == "own":
        return [KEYS] * held
    keys, cta = LIBRARY_KEYS, np.arange(held * sms)
    keys_of_cta = np.full(cta.size, keys)
    if case.causal:
        keys_of_cta = keys - 2 * case.rows * held * sms + case.rows * (cta + 1)
    return [int(np.median(group)) for group in keys_of_cta.reshape(held, sms)]


def with_first(table: str, ends: Path) -> str:
    """The table of shares, with rows for the recorded launches that no mask shortens and whose first CTAs fill an SM as
    a kernel of SHARED_LIBRARY does, in place of those of these kernels."""
    import pandas as pd

    rows = pd.read_csv(io.StringIO(table), dtype=str)
    held = {(library.kernel, library.head_dim): library.ctas for library in SHARED_LIBRARY}
    with np.load(ends) as recorded_ends:
        for case in (
            c for c in CASES if c.name in recorded_ends and not c.causal and c.kernel in LIBRARY
        ):
            ctas = held[case.kernel, case.head_dim]
            times = recorded_ends[case.name].reshape(-1)[: ctas * SMS].reshape(ctas, SMS) / 10
            values = {
                "kernel": case.kernel,
                "head_dim": str(case.head_dim),
                "causal": "0",
                "ctas": str(ctas),
                "ends_us": " ".join(f"{np.median(g):.1f}" for g in times),
                "spread_us": " ".join(
                    f"{np.percentile(g, 90) - np.percentile(g, 10):.1f}" for g in times
                ),
                "keys": " ".join([str(case.tokens)] * ctas),
                "run": "1",
            }
            same = (
                (rows.kernel == values["kernel"])
                & (rows.head_dim == values["head_dim"])
                & (rows.causal == "0")
            )
            rows = pd.concat([rows[~same], pd.DataFrame([values])])
    return rows.to_csv(index=False)


def attempted(measure: Callable[[], Any]) -> Any:
    """What `measure` gives; again where the output went elsewhere, from an empty pool of memory each time.

    Raises:
        Elsewhere: the last of ATTEMPTS went elsewhere too.
    """
    import torch

    for _ in range(ATTEMPTS - 1):
        torch.cuda.empty_cache()
        with suppress(Elsewhere):
            return measure()
    torch.cuda.empty_cache()
    return measure()


def warm_up(watcher: driver.Function) -> None:
    """Launches the watcher with nothing to watch, then watches an empty call: all that `watch` launches gets loaded
    here, since loading a kernel waits for those that run."""
    import torch

    watcher.launch((1, 1, 1), 256, EndsParams(n=0, mark=MARK, patience=PATIENCE_NS), 0, 0)
    torch.cuda.synchronize()
    watch(torch.empty(0, dtype=torch.int64), lambda: None, watcher)


def record_ends(out: Path, watcher: driver.Function, only: str) -> None:
    """Ends of all tiles of those of CASES whose names match."""
    import torch

    ends_by_name: dict[str, Any] = {}
    for case in (c for c in CASES if re.search(only, c.name)):
        try:
            ends, alone = attempted(lambda case=case: watched(case, watcher))  # type: ignore[misc]
        except (InputError, RuntimeError) as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        ends_by_name[case.name] = np.clip(ends // 100, -1, 2**31 - 1).astype(
            np.int32
        )  # tenths of a microsecond
        print(f"{case.name}: {ends.max() / 1e6:.3f} ms, unwatched {alone:.3f} ms", flush=True)
        torch.cuda.empty_cache()
    np.savez_compressed(out, **ends_by_name)


def measured_steps(watcher: driver.Function, only: str) -> str:
    """CSV of `steps`, a row a kernel of a library and number of CTAs an SM."""
    import pandas as pd

    rows = []
    chosen = [
        (case, n + 1) for case in STEPPED if re.search(only, case.kernel) for n in range(case.ctas)
    ]
    for case, held in chosen:
        try:
            rows.append(attempted(lambda case=case, held=held: steps(case, held, watcher)))  # type: ignore[misc]
        except (InputError, RuntimeError) as error:
            print(f"{case}, {held}: {error}", file=sys.stderr)
    return pd.DataFrame(rows).to_csv(index=False)


def measured_shares(watcher: driver.Function, only: str) -> str:
    """CSV of `shares`, a row a kernel, those of two runs each, of the kernels whose names match."""
    import pandas as pd
    import torch

    cases = [case for case in recorded() if re.search(only, case.kernel)]
    cc = driver.compute_capability()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda c: build(FwdSpec(head_dim=c.head_dim, **c.spec), cc), cases))
    rows = []
    for case in [*cases, *(case for case in SHARED_LIBRARY if re.search(only, case.kernel))]:
        for run in (1, 2):
            try:
                rows.append(attempted(lambda case=case: shares(case, watcher)) | {"run": run})  # type: ignore[misc]
            except (InputError, RuntimeError) as error:
                print(f"{case}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
    return pd.DataFrame(rows).to_csv(index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="NPZ to write; its provenance goes beside it"
    )
    parser.add_argument(
        "--shares", action="store_true", help="how the CTAs of an SM share it, as CSV"
    )
    parser.add_argument(
        "--steps", action="store_true", help="when tiles end where an SM has one, two, ..., as CSV"
    )
    parser.add_argument(
        "--first", type=Path, metavar="NPZ", help="add shares of recorded launches to --out; no GPU"
    )
    parser.add_argument(
        "--only", metavar="REGEX", default="", help="of the launches, or kernels, whose names match"
    )
    arguments = parser.parse_args()
    out: Path = arguments.out
    if arguments.first:
        write_whole(out, with_first(out.read_text(encoding="utf-8"), arguments.first))
        return
    import torch

    driver.use_device()
    with tempfile.TemporaryDirectory() as name:
        watcher = driver.Function(compiled(HERE / "ends.cu", Path(name) / "ends.cubin"), "watch")
        warm_up(watcher)
        if arguments.shares or arguments.steps:
            write_whole(
                out,
                (measured_shares if arguments.shares else measured_steps)(watcher, arguments.only),
            )
        else:
            record_ends(out, watcher, arguments.only)
    write_provenance(
        out,
        " ".join(["python experiments/ends.py", *sys.argv[1:-1], out.name]),
        pytorch=torch.__version__,
        l2_start="256 MB written before every case",
        unit=UNIT_OF_ENDS if out.suffix == ".npz" else "microseconds from the launch",
    )


if __name__ == "__main__":
    run_script(main)
