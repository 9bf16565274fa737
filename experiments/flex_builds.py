"""What PyTorch's templates of FlexAttention compile to, without a GPU: `python experiments/flex_builds.py --out FILE.csv`.

The templates of the installed PyTorch are filled in as Inductor does it (no gradient of lengths, `dynamic=False`), and
Triton compiles them for cc 9.0. A row is a build: its registers and stack, and the instructions that a warp issues
before its first loop with products, in it, between two, in the second, and behind; loads and stores of spilled
registers, and the bytes of the stores, in each. Where there is but one loop, the second's cells are 0; a build for
short queries may have no loop, where all keys are one step. Held against h200_flex_loops.csv: registers, stacks and
loops of 2,048, 2,040 and 2,039 tokens are those that PyTorch 2.11 compiled on a GPU, within two instructions.
`--short`: builds of 128 rows of head_dim 64 for short queries under a window, whose limits the lengths allow or not.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd
from experiment import run_script

from iosim.base.files import write_whole

CC, SMS, MASK_BLOCK, NO_BLOCKS = 90, 132, 128, 1 << 30
TILES = {16: (64, 64, 4), 32: (64, 64, 4), 64: (128, 128, 4), 128: (128, 64, 8), 256: (64, 32, 4)}
"""head_dim -> BLOCK_M, BLOCK_N and warps of the main kernel, with three stages."""
SHORT = (64, 2)
"""BLOCK_N and warps of the kernel for short queries, with one stage."""
LENGTHS = 4096, 4088, 4087
SIZES = {"": 4, ".64": 8, ".128": 16, ".U8": 1, ".U16": 2, ".S16": 2}
ARGUMENTS = ("KV_NUM_BLKS", "KV_IDX", "FULL_KV_NUM_BLKS", "FULL_KV_IDX")
CONDITIONS = {
    "none": "tl.full([1], True, tl.int1)",
    "causal": "m >= n",
    "window": "(m >= n) & (m - n <= tl.full([1], WINDOW, tl.int32))",
}
SHORT_BUILDS = (
    (2, 26, 71, 71, 30), (2, 26, 71, 71, 40), (2, 26, 71, 71, 120), (2, 26, 71, 71, 200), (2, 26, 72, 72, 30),
    (2, 26, 90, 90, 40), (2, 26, 111, 111, 30), (2, 26, 127, 127, 60), (4, 10, 90, 90, 30), (4, 10, 90, 90, 40),
    (4, 10, 91, 91, 40), (8, 8, 100, 100, 50), (8, 8, 101, 101, 50), (1, 8, 96, 96, 16), (2, 26, 71, 90, 30),
    (2, 26, 90, 71, 30),
)  # fmt: skip
"""Sequences, heads, queries, keys and the window of `--short`."""


class Build(NamedTuple):
    head_dim: int
    mask: str
    batch: int
    heads: int
    tokens: int
    keys: int | None = None
    window: int = 256
    kv_heads: int | None = None
    """Heads of K and V; as many as of Q where it is not said."""
    score: str = "qk"
    """What the score function is compiled to."""
    condition: str | None = None
    """And the mask's, where it is none of `CONDITIONS`."""

    @property
    def group(self) -> int:
        return self.heads // (self.kv_heads or self.heads)

    @property
    def seq_k(self) -> int:
        return self.tokens if self.keys is None else self.keys

    @property
    def short(self) -> bool:
        return self.tokens < MASK_BLOCK

    @property
    def tile(self) -> tuple[int, int, int]:
        if not self.short:
            return TILES[self.head_dim]
        return max(16, 1 << (self.tokens - 1).bit_length()), *SHORT


def builds() -> Iterator[Build]:
    for width, mask in itertools.product(TILES, CONDITIONS):
        for tokens in LENGTHS:
            yield Build(width, mask, 4, 2, tokens)
    # Of the widest build without a mask lengths that are odd, strides of one head and of many.
    yield Build(64, "none", 4, 1, 4087)
    yield Build(64, "none", 4, 16, 4087)


def short_builds() -> Iterator[Build]:
    for batch, heads, queries, keys, window in SHORT_BUILDS:
        yield Build(64, "window", batch, heads, queries, keys, window)


def template(name: str) -> str:
    import torch

    folder = Path(torch.__file__).parent / "_inductor/kernel/flex/templates"
    return (folder / f"{name}.py.jinja").read_text(encoding="utf-8")


def settings(b: Build) -> dict[str, Any]:
    """The constants of a build, as flex_attention.py and flex_decoding.py make them."""
    whole, plain = b.tokens % MASK_BLOCK == 0, b.mask == "none"
    block = NO_BLOCKS if plain else MASK_BLOCK
    names = (
        "PRESCALE_QK",
        "ROWS_GUARANTEED_SAFE",
        "BLOCKS_ARE_CONTIGUOUS",
        "OUTPUT_MAX",
        "USE_TMA",
    )
    of_lengths = {"SAFE_M_BOUNDARY": b.tokens % b.tile[0] == 0, "SPLIT_KV": splits(b)}
    return {
        **dict.fromkeys(names, False), "OUTPUT_LOGSUMEXP": True, "FLOAT32_PRECISION": "'tf32'",
        "IS_DIVISIBLE": whole, "SM_SCALE": b.head_dim**-0.5, "GQA_SHARED_HEADS": b.group,
        "HAS_FULL_BLOCKS": not plain, "SAFE_HEAD_DIM": True, "BLOCK_M": b.tile[0],
        "BLOCK_N": b.tile[1], "SPARSE_Q_BLOCK_SIZE": block, "SPARSE_KV_BLOCK_SIZE": block,
        "INDEX_DTYPE": "tl.int32", **(of_lengths if b.short else {}),
        **{f"{n}_HEAD_DIM{r}": b.head_dim for n in ("QK", "V") for r in ("", "_ROUNDED")},
    }  # fmt: skip


def splits(b: Build) -> int:
    return max(1, SMS // (b.batch * b.heads) * 2)


def sizes(b: Build) -> dict[str, tuple[int, ...]]:
    blocks = 1 if b.mask == "none" else -(-b.tokens // MASK_BLOCK)
    rows = (b.batch, b.heads, b.tokens, b.head_dim)
    keys = (b.batch, b.heads // b.group, b.seq_k, b.head_dim)
    lists = {"KV_NUM_BLKS": (1, 1, blocks), "KV_IDX": (1, 1, blocks, blocks)}
    full = {f"FULL_{n}": s if b.mask != "none" else (0,) for n, s in lists.items()}
    partial = (b.batch, splits(b), b.heads, b.tokens)
    query = (b.batch, b.heads, 1, b.tokens, b.head_dim) if b.short else rows
    return {"Q": query, "K": keys, "V": keys, "M": partial, "L": partial, **lists, **full}


def source(b: Build) -> tuple[str, Sequence[str]]:
    """The kernel's text, and its arguments."""
    import jinja2

    of = settings(b)
    arguments = ("Q", "K", "V", *(("M", "L") if b.short else ("LSE", "MAX")), *ARGUMENTS)
    signature = ", ".join([*(f"arg_{name}" for name in arguments), "out_ptr0"])
    constants = [f"{name}: tl.constexpr = {value}" for name, value in of.items()]

    def stride(name: str, axis: int | None = None) -> str:
        shape = sizes(b)[name]
        steps = [str(int(pd.Series(shape[n + 1 :]).prod())) for n in range(len(shape))]
        return ", ".join(steps) if axis is None else steps[axis]

    def def_kernel(*_: str) -> str:
        head = [
            "import triton",
            "import triton.language as tl",
            "from torch._inductor.runtime.triton_helpers import libdevice, remainder_integer",
            "@triton.jit",
            f"def kernel({signature}):",
        ]
        return "\n".join(
            [*head, *(f"    {c}" for c in constants), *(f"    {a} = arg_{a}" for a in arguments)]
        )

    def modification(subgraph_number: int, output_name: str, **_: object) -> str:
        kept = b.condition or CONDITIONS[b.mask].replace("WINDOW", str(b.window))
        return f"{output_name} = {kept if subgraph_number else b.score}"

    def store_output(
        _: object, value: str, mask: str, val_shape: Sequence[str], **__: object
    ) -> str:
        head, split = b.head_dim * b.tokens, b.head_dim * b.tokens * b.heads
        index = f"idx_d + {b.head_dim} * idx_m + {head} * "
        index += (
            f"idx_hq + {split} * idx_t + {split * splits(b)} * idx_z"
            if b.short
            else f"idx_hq + {split} * idx_zq"
        )
        return f"tl.store(out_ptr0 + tl.broadcast_to({index}, [{', '.join(val_shape)}]), {value}, {mask})"

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["indent_except_first"] = lambda text, n: text.replace(
        "\n", "\n" + "    " * n
    )
    main = "flex_decode" if b.short else "flex_attention"
    text = environment.from_string("".join(map(template, (main, "utilities", "common")))).render(
        def_kernel=def_kernel, stride=stride, size=lambda name, axis: str(sizes(b)[name][axis]),
        gen_argdefs=lambda: signature, gen_defines=lambda: "\n".join(constants),
        modification=modification, store_output=store_output, **of,
    )  # fmt: skip
    return text.lstrip(), arguments


def built(b: Build, folder: Path) -> Any:
    """What Triton compiles of a build."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    text, arguments = source(b)
    module_file = folder / ("_".join(map(str, ("flex", *b[:7]))) + ".py")
    module_file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(module_file.stem, module_file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    types = {
        "Q": "*bf16",
        "K": "*bf16",
        "V": "*bf16",
        **dict.fromkeys(("M", "L", "LSE", "MAX"), "*fp32"),
    }
    signature = {f"arg_{name}": types.get(name, "*i32") for name in arguments}
    signature["out_ptr0"] = "*fp32" if b.short else "*bf16"
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(signature))}
    return triton.compile(
        ASTSource(module.kernel, signature, {}, aligned), target=GPUTarget("cuda", CC, 32),
        options={"num_warps": b.tile[2], "num_stages": 1 if b.short else 3},
    )  # fmt: skip


def compiled(b: Build, folder: Path) -> Path:
    """The build's cubin."""
    cubin = folder / ("_".join(map(str, ("flex", *b[:7]))) + ".cubin")
    cubin.write_bytes(built(b, folder).asm["cubin"])
    return cubin


def cuobjdump(option: str, cubin: Path) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, option, cubin], capture_output=True, text=True, check=True).stdout


PARTS = ("begin", "first", "between", "second", "behind")


def counted(cubin: Path) -> dict[str, int]:
    code = re.findall(r"/\*([0-9a-f]{4,})\*/ +(?:@!?U?P\w+ +)?([^;]*);", cuobjdump("-sass", cubin))
    places = {int(at, 16): n for n, (at, _) in enumerate(code)}
    loops = []
    for n, (at, text) in enumerate(code):
        to = re.search(r"^BRA\b.* 0x([0-9a-f]+)", text)
        if to and int(to[1], 16) < int(at, 16):
            first = places[int(to[1], 16)]
            if any("MMA." in line for _, line in code[first:n]):
                loops.append((first, n + 1))
    edges = [0, *(edge for loop in loops for edge in loop), len(code)]
    edges = (
        edges
        if len(loops) == 2
        else [*edges[:3], *edges[2:3] * 2, len(code)]
        if loops
        else [0, *[len(code)] * 5]
    )
    (registers, stack), *_ = re.findall(
        r"REG:(\d+) STACK:(\d+)", cuobjdump("--dump-resource-usage", cubin)
    )
    row = {"registers": int(registers), "stack": int(stack)}
    for part, (first, end) in zip(PARTS, itertools.pairwise(edges), strict=True):
        spilled = [re.match(r"(LDL|STL)((?:\.\w+)*) ", f"{text} ") for _, text in code[first:end]]
        kinds = [found[1] for found in spilled if found]
        row[part] = end - first
        row[f"{part}_spills"] = len(kinds)
        row[f"{part}_stored"] = sum(
            width(found[2]) for found in spilled if found and found[1] == "STL"
        )
        row[f"{part}_loaded"] = sum(
            width(found[2]) for found in spilled if found and found[1] == "LDL"
        )
    return row


def width(suffixes: str) -> int:
    """Bytes that a thread moves in an access."""
    return max(
        (SIZES[f".{word}"] for word in suffixes.split(".") if f".{word}" in SIZES), default=4
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="of one head_dim", type=int)
    parser.add_argument("--short", action="store_true", help="of short queries under a window")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for b in short_builds() if given.short else builds():
            if given.only in (None, b.head_dim):
                facts = dict(zip(Build._fields[: 7 if given.short else 5], b, strict=False))
                rows.append({**facts, **counted(compiled(b, Path(folder)))})
                print(rows[-1], flush=True)
    write_whole(given.out, pd.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    run_script(main)
