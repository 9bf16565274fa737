"""Kernels that others published, predicted from their code alone, beside what an H100 and an H200 counted.

    python benchmarks/strangers.py --sources FOLDER             a row a launch and GPU
    python benchmarks/strangers.py --sources FOLDER --gpu h200 --case minimal

FOLDER holds checkouts, each under its owner's and its own name (git clone https://github.com/OWNER/NAME FOLDER/OWNER/NAME):
alexdremov/kernels @c2eef0d5, ModelTC/lightllm @fc72ffab, tspeterkim/flash-attention-minimal @00f8f467 and
gau-nernst/learn-cuda @1454f8b7. FlexAttention's kernels are what the installed PyTorch's template and Triton compile.
Without a checkout its rows are named and left out. nvcc and Triton 3.6 compile for cc 9.0; no GPU is needed. Counted are
the launches of h100_user_kernels.csv and h200_user_kernels.csv; nothing of theirs stands in the project.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from recorders import ROOT, load, measurements, recorder

from iosim import InputError, predict_code
from iosim.integrations.triton.compiled import compile_for
from iosim.prediction.code import CodePrediction
from iosim.show.tables import Column, Table

GPUS = ("h100", "h200")
QUANTITIES = (
    "l2_read",
    "l2_write",
    "hbm_read",
    "hbm_write",
    "instructions",
    "shared_load_wavefronts",
    "shared_store_wavefronts",
    "global_load_sectors",
    "local_load_sectors",
    "seconds",
)
COUNTERS = QUANTITIES[4:-1]
LEAST = {"seconds": 0.0, "hbm_read": 2e6, "hbm_write": 2e6, "l2_read": 2e6, "l2_write": 2e6}
"""Counted bytes below which an error in per cent says little; of all else 1,000."""
ARCHITECTURE, MASK_BLOCK = "sm_90", 128
POINTERS = {"fp32": "*fp32", "fp16": "*fp16", "bf16": "*bf16", "int32": "*i32"}


@dataclass(frozen=True)
class Launch:
    """How a published kernel is launched: its code, its grid and its arguments, as the command line has them."""

    code: Any
    grid: Sequence[int]
    arguments: Sequence[str]
    block: Sequence[int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def predicted(self, gpu: str) -> CodePrediction:
        block = ",".join(map(str, self.block)) if self.block else None
        grid = ",".join(map(str, self.grid))
        return predict_code(self.code, grid, list(self.arguments), gpu, block=block, **self.options)


class Case:
    """A case's name in the tables, "alex|b2|h16|n4096|d64|fp16", by its parts."""

    def __init__(self, name: str) -> None:
        self.family, *self.parts = name.split("|")

    def number(self, letter: str, otherwise: int | None = None) -> int:
        """The number behind a letter."""
        for part in self.parts:
            if part.startswith(letter) and part[len(letter) :].isdecimal():
                return int(part[len(letter) :])
        if otherwise is None:
            raise InputError(f"{'|'.join((self.family, *self.parts))} names no {letter}")
        return otherwise

    @property
    def dtype(self) -> str:
        return next((part for part in self.parts if part in ("fp16", "bf16")), "fp16")


def tensor(name: str, *shape: int, dtype: str) -> str:
    return f"{name}=TENSOR({'x'.join(map(str, shape))},{dtype})"


def values(name: str, numbers: Sequence[int]) -> str:
    return f"{name}=VALUES(int32,{','.join(map(str, numbers))})"


def of_triton(
    function: Any,
    grid: Sequence[int],
    tensors: Mapping[str, str],
    numbers: Mapping[str, float | None],
    constants: Mapping[str, Any],
    warps: int,
    stages: int,
) -> Launch:
    """A launch of a Triton kernel. A number that is 1 or missing becomes part of the code, as its launcher has it."""
    while not hasattr(function, "params"):  # heuristics and autotuning are wrapped around it
        function = function.fn
    types_of = {name: pointer_of(text) for name, text in tensors.items()}
    compiled = compile_for(function, {**types_of, **numbers, **constants}, "h100", warps, stages)
    given = dict(tensors) | {name: f"{name}={number}" for name, number in numbers.items()}
    kept = [name for name, kind in compiled.src.signature.items() if kind != "constexpr"]
    return Launch(compiled, grid, [given[name] for name in kept])


def pointer_of(text: str) -> str:
    """The type of an argument's pointer."""
    inside = text[text.index("(") + 1 : -1].split(",")
    return POINTERS[inside[0] if "=VALUES(" in text else inside[-1]]


def strides(name: str, letters: str, shape: Sequence[int]) -> dict[str, int]:
    """Strides of a contiguous tensor, as the kernels call them."""
    return {
        f"stride_{name}{letter}": math.prod(shape[axis + 1 :])
        for axis, letter in enumerate(letters)
    }


def self_attention(case: Case, sources: Path, _: Path) -> Launch:
    """alexdremov/kernels, src/self_attention: called without lengths, untuned."""
    kernel = load(checkout(sources, "alexdremov/kernels", "src/self_attention/kernel.py"))
    batch, heads, tokens, width = (case.number(letter) for letter in "bhnd")
    shape = (batch, heads, tokens, width)
    steps = strides_of_alex(shape)
    return of_triton(
        kernel._self_attn_fwd,
        (batch, heads, -(-tokens // 64)),
        {name: tensor(name, *shape, dtype=case.dtype) for name in ("Q", "Kt", "V", "O")},
        {"L": None, **steps, "lens_stride": 0, "T": tokens, "TIME_BUCKET": bucket(tokens)},
        {"PRESCALE": False, "LEN_PRESENT": False, **tile_of_alex(width, case.dtype), "V_PRELOAD": True},
        4,
        3,
    )  # fmt: skip


def streaming_attention(case: Case, sources: Path, _: Path) -> Launch:
    """The same author's src/streaming_attention: contexts of c tokens that see k before them, untuned."""
    kernel = load(checkout(sources, "alexdremov/kernels", "src/streaming_attention/kernel.py"))
    batch, heads, tokens, width = (case.number(letter) for letter in "bhnd")
    context = case.number("c")
    shape = (batch, heads, tokens, width)
    steps = strides_of_alex(shape)
    steps |= dict.fromkeys(("stride_mb", "stride_mh", "stride_mt"), 0)
    return of_triton(
        kernel._streaming_attn_fwd,
        (batch, heads, tokens // 64),
        {
            **{name: tensor(name, *shape, dtype=case.dtype) for name in ("Q", "Kt", "V", "O")},
            "L": values("L", [tokens] * batch),
        },
        {"LSE": None, **steps, "lens_stride": 1, "T": tokens, "TIME_BUCKET": bucket(tokens)},
        {
            **tile_of_alex(width, case.dtype),
            "CONTEXT_SIZE": context,
            "CONTEXTS_BACK": case.number("k"),
            "PRESCALE_QK": False,
            "OUTPUT_LOGSUMEXP": False,
            "Q_BLOCK_DIVISIBLE": True,
            "K_BLOCK_DIVISIBLE": True,
            "PERFECT_MATCHING": context == 64,
        },
        4,
        3,
    )


def strides_of_alex(shape: Sequence[int]) -> dict[str, int]:
    """Strides of Q, K, V and O in the order in which that author's kernels take them; K's are named as transposed."""
    _, heads, tokens, width = shape
    steps = strides("q", "bhtk", shape) | strides("v", "bhtk", shape) | strides("o", "bhtk", shape)
    return steps | {
        "stride_kb": heads * tokens * width,
        "stride_kh": tokens * width,
        "stride_kk": 1,
        "stride_kt": width,
    }


def tile_of_alex(width: int, dtype: str) -> dict[str, Any]:
    """Constants that both kernels get where they are not tuned."""
    return {
        "HEAD_DIM": width,
        "INPUT_PRECISION": "ieee",
        "SM_SCALE": width**-0.5,
        "DTYPE": dtype,
        "TILE_Q_SIZE": 64,
        "TILE_K_SIZE": 64,
        "PIPELINING": 1,
        "RCP_LN2": math.log2(math.e),
    }


def bucket(tokens: int) -> int:
    """The next power of two."""
    return 1 << (tokens - 1).bit_length()


def prefill(case: Case, sources: Path, _: Path) -> Launch:
    """ModelTC/lightllm, context_attention_fwd_no_prompt_cache of the Llama model."""
    path = checkout(
        sources,
        "ModelTC/lightllm",
        "lightllm/models/llama/triton_kernel/context_flashattention_nopad.py",
    )
    # Its helper asks a GPU for its name; of the helper one answer is needed, which is that it is no T4.
    for name in ("lightllm", "lightllm.utils", "lightllm.utils.device_utils"):
        sys.modules.setdefault(name, types.ModuleType(name))
    vars(sys.modules["lightllm.utils.device_utils"])["is_tesla"] = lambda: False
    batch, heads, tokens, width = (case.number(letter) for letter in "bhnd")
    kv_heads = case.number("k")
    sides = {"q": heads, "k": kv_heads, "v": kv_heads, "o": heads}
    shapes = {name: (batch * tokens, count, width) for name, count in sides.items()}
    steps = {
        f"stride_{name}{axis}": step
        for name, count in sides.items()
        for axis, step in (("bs", count * width), ("h", width), ("d", 1))
    }
    names = {"Q": "q", "K": "k", "V": "v", "Out": "o"}
    return of_triton(
        load(path)._fwd_kernel_no_prompt_cache,
        (-(-tokens // 128), batch * heads, 1),
        {
            **{name: tensor(name, *shapes[of], dtype="bf16") for name, of in names.items()},
            "B_Start_Loc": values("B_Start_Loc", range(0, batch * tokens, tokens)),
            "B_Seqlen": values("B_Seqlen", [tokens] * batch),
        },
        {
            "sm_scale": width**-0.5 * math.log2(math.e),
            **steps,
            "kv_group_num": heads // kv_heads,
            "H": heads,
        },
        {"BLOCK_DMODEL": width, "BLOCK_M": 128, "BLOCK_N": 128},
        4 if width <= 64 else 8,
        1,
    )


def minimal(case: Case, sources: Path, folder: Path) -> Launch:
    """tspeterkim/flash-attention-minimal, flash.cu without its host's part."""
    source = checkout(sources, "tspeterkim/flash-attention-minimal", "flash.cu")
    text = source.read_text(encoding="utf-8").split("torch::Tensor forward(")[0]
    (folder / "flash.cu").write_text(text.replace("#include <torch/types.h>", ""), encoding="utf-8")
    batch, heads, tokens, width = (case.number(letter) for letter in "bhnd")
    shape, rows, blocks = (batch, heads, tokens, width), (batch, heads, tokens), -(-tokens // 32)
    arguments = [tensor(name, *shape, dtype="fp32") for name in "QKV"]
    arguments += [f"N={tokens}", f"d={width}", f"Tc={blocks}", f"Tr={blocks}", "Bc=32", "Br=32"]
    arguments += [f"softmax_scale={width**-0.5}"]
    arguments += [tensor(name, *rows, dtype="fp32") for name in ("l", "m")]
    arguments += [tensor("O", *shape, dtype="fp32")]
    options = {"entry": "forward_kernel", "shared_bytes": (3 * 32 * width + 32 * 32) * 4}
    code = by_nvcc(folder / "flash.cu", folder)
    return Launch(code, (batch, heads), arguments, (32,), options)


def tutorial(case: Case, sources: Path, folder: Path) -> Launch:
    """gau-nernst/learn-cuda, 07_attention: the versions as its host's part launches them."""
    version = case.family.removeprefix("learncuda-")
    source = checkout(sources, "gau-nernst/learn-cuda", f"07_attention/attention_{version}.cu")
    queries, keys, stages = {"v1": (128, 64, 1), "v2": (64, 64, 1), "v4": (64, 32, 2)}[version]
    heads = case.number("b") * case.number("h")
    tokens, others, width = (case.number(letter) for letter in "nmd")
    arguments = [
        tensor(name, heads, length, width, dtype="bf16")
        for name, length in (("Q", tokens), ("K", others), ("V", others), ("O", tokens))
    ]
    arguments += [f"bs={heads}", f"len_q={tokens}", f"len_kv={others}"]
    shared = max(queries, 2 * keys * stages) * width * 2
    options = {"entry": f"attention_{version}_kernel", "shared_bytes": shared}
    code = by_nvcc(source, folder)
    return Launch(code, (heads * -(-tokens // queries),), arguments, (128,), options)


def by_nvcc(source: Path, folder: Path) -> Path:
    """A source's machine code, with its PTX beside it."""
    cubin = folder / f"{source.stem}.cubin"
    for flag, out in (("-cubin", cubin), ("-ptx", cubin.with_suffix(".ptx"))):
        options = ["-O3", "-std=c++17", f"-arch={ARCHITECTURE}", "-lineinfo"]
        subprocess.run(["nvcc", *options, flag, source, "-o", out], check=True)
    return cubin


COLUMN = "tl.where((m < 0) != (64 < 0), tl.where(m % 64 != 0, m // 64 - 1, m // 64), m // 64)"
FLEX: dict[str, tuple[str, str, Callable[[Any, Any], Any]]] = {
    "flex-softcap": ("libdevice.tanh(qk * 0.05) * 20.0", "m >= n", lambda m, n: m >= n),
    "flex-prefix": (
        "qk",
        "(n < tl.full([1], 1024, tl.int32)) | (m >= n)",
        lambda m, n: (n < 1024) | (m >= n),
    ),
    "flex-natten": (
        "qk",
        f"(tl.abs({COLUMN} - {COLUMN.replace('m', 'n')}) <= 6) & "
        "(tl.abs(remainder_integer(m, 64) - remainder_integer(n, 64)) <= 6)",
        lambda m, n: (abs(m // 64 - n // 64) <= 6) & (abs(m % 64 - n % 64) <= 6),
    ),
}
"""Of a case: what Inductor writes for its score function and its mask, and the mask itself."""


def flex(case: Case, _: Path, folder: Path) -> Launch:
    """FlexAttention as torch.compile has it, with its lists of blocks."""
    sys.path.insert(0, str(ROOT / "experiments"))  # what the recorder imports lies beside it
    builds = recorder("flex_builds")
    score, condition, sees = FLEX[case.family]
    batch, heads, tokens, width = (case.number(letter) for letter in "bhnd")
    sizes = (width, case.family, batch, heads, tokens)
    modified = {"score": score, "condition": condition}
    one = builds.Build(*sizes, kv_heads=case.number("k", heads), **modified)
    kind = "bf16"
    query, key = (batch, heads, tokens, width), (batch, case.number("k", heads), tokens, width)
    arguments = [tensor("Q", *query, dtype=kind)]
    arguments += [tensor(name, *key, dtype=kind) for name in "KV"]
    arguments += [tensor(name, batch, heads, tokens, dtype="fp32") for name in ("LSE", "MAX")]
    arguments += block_lists(tokens, sees)
    arguments += [tensor("out", *query, dtype=kind)]
    grid = (-(-tokens // one.tile[0]), batch, heads)
    return Launch(builds.built(one, folder), grid, arguments)


def block_lists(tokens: int, sees: Callable[[Any, Any], Any]) -> list[str]:
    """Blocks of keys in part and in whole of every block of queries: how many, and which come first."""
    positions = np.arange(tokens)
    seen = sees(positions[:, None], positions[None, :])
    blocks = tokens // MASK_BLOCK
    counts = seen.reshape(blocks, MASK_BLOCK, blocks, MASK_BLOCK).sum(axis=(1, 3))
    lists = []
    for name, has in (("", (counts > 0) & (counts < MASK_BLOCK**2)), ("FULL_", counts == MASK_BLOCK**2)):  # fmt: skip
        order = np.argsort(~has, axis=1, kind="stable")
        lists += [
            values(f"{name}KV_NUM_BLKS", has.sum(axis=1).tolist()),
            values(f"{name}KV_IDX", order.ravel().tolist()),
        ]
    return lists


FAMILIES: Mapping[str, Callable[[Case, Path, Path], Launch]] = {
    "alex": self_attention,
    "alexstream": streaming_attention,
    "lightllm": prefill,
    "minimal": minimal,
    "learncuda-v1": tutorial,
    "learncuda-v2": tutorial,
    "learncuda-v4": tutorial,
    **dict.fromkeys(FLEX, flex),
}
NOT_HAD = {
    "flex-doc": "the type of the tensor that its mask asks was not recorded",
    "sdpa-bias": "a kernel of PyTorch's library, which is described in the catalog",
}


class NoCheckoutError(Exception):
    """A repository is not among the sources."""


def checkout(sources: Path, name: str, file: str) -> Path:
    path = sources / name / file
    if not path.is_file():
        raise NoCheckoutError(f"{name}: no {path}")
    return path


@cache
def counted(gpu: str) -> dict[str, dict[str, str]]:
    """A case's own launch, casts and fills beside it left out."""
    with measurements(f"{gpu}_user_kernels.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if not row["kernel"].startswith("at::")]
    return {row["case"]: row for row in rows}


def rows(
    gpus: Sequence[str], wanted: str | None, sources: Path, folder: Path
) -> Iterator[dict[str, Any]]:
    """A row a case and GPU: each quantity counted and predicted, or why there is none."""
    for name in dict.fromkeys(name for gpu in gpus for name in counted(gpu)):
        case = Case(name)
        if wanted and not name.startswith(wanted):
            continue
        try:
            if case.family not in FAMILIES:
                raise NoCheckoutError(NOT_HAD[case.family])
            launch = FAMILIES[case.family](case, sources, folder)
        except NoCheckoutError as error:
            sys.stderr.write(f"{name}: left out ({error})\n")
            continue
        for gpu in (gpu for gpu in gpus if name in counted(gpu)):
            yield {"gpu": gpu, "case": name, **compared(launch.predicted(gpu), counted(gpu)[name])}


def compared(prediction: CodePrediction, row: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """(predicted, counted) of each quantity that was counted and is large enough to say something."""
    counters = prediction.to_dict()["counters"]
    predicted = {
        "l2_read": prediction.l2.read,
        "l2_write": prediction.l2.write,
        "hbm_read": prediction.hbm.read,
        "hbm_write": prediction.hbm.write,
        **{name: counters.get(name, 0) for name in COUNTERS},
        "seconds": prediction.time_s,
    }
    return {
        quantity: (predicted[quantity], float(row[quantity]))
        for quantity in QUANTITIES
        if row[quantity] and float(row[quantity]) >= LEAST.get(quantity, 1000.0)
    }


def error(row: Mapping[str, Any], quantity: str) -> str:
    if quantity not in row:
        return ""
    predicted, measured = row[quantity]
    return f"{predicted / measured - 1:+.1%}" if quantity != "seconds" else (
        f"{predicted * 1e3:.3g} ms for {measured * 1e3:.3g} ({predicted / measured - 1:+.0%})"
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, default=Path("sources"), help="the checkouts")
    parser.add_argument("--gpu", choices=GPUS, help="one of the two alone")
    parser.add_argument("--case", help="cases whose names begin so")
    given = parser.parse_args()
    gpus = (given.gpu,) if given.gpu else GPUS
    with tempfile.TemporaryDirectory() as folder:
        made = list(rows(gpus, given.case, given.sources, Path(folder)))
    lines = [
        (row["case"], row["gpu"], *(error(row, quantity) for quantity in QUANTITIES))
        for row in made
    ]
    for share, of in ((statistics.median, "median size"), (max, "largest")):
        sizes = [
            [abs(row[q][0] / row[q][1] - 1) for row in made if q in row] or [0.0]
            for q in QUANTITIES
        ]
        lines.append(("all", of, *(f"{share(size):.1%}" for size in sizes)))
    columns = tuple(Column(name, name) for name in ("case", "gpu", *QUANTITIES))
    sys.stdout.write(Table(columns, tuple(lines)).text())


if __name__ == "__main__":
    main()
