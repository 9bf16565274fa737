"""What builds of PyTorch's attention kernels spill: `python experiments/library_builds.py --write`.

Makes iosim/catalog/libraries/pytorch-builds.csv, a row a build, of what was recorded: bytes of spilled registers that a
thread stores in a work tile and in a visited pair of blocks, from the counters of two lengths
(h100_library_builds.csv); its registers and stack frame (library_resources.csv); and the loads and stores of spilled
registers in its loop and outside of it (h200_library_instructions.csv), or where no loop is listed as many words as
were counted; of FlashAttention-2's forward the loop's alone, since those outside show in no time, and how its code is
laid out (library_code.csv). `edges` says for which calls a build is: `whole` tiles of full width, `ragged` lengths,
`full` rows and lengths of every kind, `narrow` rows, of fewer columns than the build has. Builds with a window or with
dropout were not run: what they store follows from their instructions and their frame, and `known` says so.

Builds for cc 7.5 and 8.0 were not run either: `code` means counted in their machine code (pytorch_loops.csv), whose
loops on cc 9.0 store and load what the counters say there, to the byte. Code for cc 8.0 runs on cc 8.6 and 8.9, too.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flex import CASES

from iosim import AttentionProblem
from iosim.base.files import write_whole
from iosim.kernel.launch import Domain

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "measurements"
TABLE = HERE.parent / "iosim" / "catalog" / "libraries" / "pytorch-builds.csv"
COLUMNS = (
    "kernel",
    "cc",
    "pass",
    "head_dim",
    "block_q",
    "block_k",
    "warps",
    "dtype",
    "mask",
    "dropout",
    "edges",
    "registers",
    "frame",
    "write_per_tile",
    "write_per_pair",
    "write_of_one",
    "write_of_two",
    "read_per_pair",
    "accesses_per_tile",
    "accesses_per_pair",
    "known",
    "code",
)
SPLIT_FLAGS = ("causal", "local", "alibi", "even_mn", "even_k", "softcap", "split", "append")
SPLIT_TILES = {
    (32, 64, 256),
    (64, 64, 256),
    (96, 64, 128),
    (128, 64, 128),
    (192, 64, 64),
    (256, 64, 64),
}
"""(head_dim, block_q, block_k) of the split kernel (flash_fwd_launch_template.h, run_mha_fwd_splitkv_dispatch)."""
FLASH = re.compile(r"flash_(fwd|bwd)_\w*kernel<Flash_\w+_traits<(\d+), (\d+), (\d+), (\d+)")
EFFICIENT = re.compile(r"fmha_cutlass([FB])_(bf16|f16|f32)_aligned_(\d+)x(\d+)_")
EFFICIENT_CODE = re.compile(r"fmha_cutlassF_(bf16|f16|f32)_aligned_(\d+)x(\d+)_(rf|gmem)_sm")
LARGE = {
    (32, 128, 128): (1, 0),
    (96, 64, 128): (0, 0),
    (192, 64, 64): (0, 0),
    (256, 64, 64): (0, 1),
}
"""Whether V stays in registers, and Q in one buffer, in the backward of a GPU with 163 KB of shared memory, by
(head_dim, block_q, block_k), where smaller ones take another build; of 96 with dropout alone."""
DROPOUT, CAUSAL, LOCAL, ALIBI, EVEN_MN, EVEN_K, SOFTCAP = range(7)
"""The flags behind a template's traits."""
WIDEST_EVEN_MN = 128
"""Head dimensions beyond it have one build for all lengths."""
TRAITS = re.compile(r"(Flash_\w+_traits<[^<>]*?(?:bfloat16_t|half_t)),")
WITH_DROPOUT = {(64, 128, 64), (128, 128, 32), (192, 64, 64)}
"""Forward tiles that are launched on cc 9.0 with dropout alone (flash_fwd_launch_template.h)."""
BUILT = 90
"""Compute capability of the builds whose counters were read."""
RUNS_ON = {"75": "75", "80": "80 86 89"}
"""Compute capabilities on which code for one runs."""
OTHERS_SHARED = "86 89"
"""Those of them whose CTAs have less shared memory, for which a backward's tile may have a build of its own."""
MANGLED = re.compile(
    r"flash_(fwd_kernel|bwd_dq_dk_dv_loop_seqk_parallel_kernel)I\d*Flash_\w+?_traitsI((?:Li\d+E)+)((?:Lb[01]E)*)\w*?"
    r"half_t\w*?EE((?:Lb[01]E)+)EEv"
)
WORD, PAIRS = 4, 5
SHORT = 2
"""Visited key blocks of a tile up to which its stores are told apart."""
SHORTEST = 1000
"""Tokens of the calls that tell a step from a tile."""
FLEX_BLOCK = 128
"""Rows of a block of FlexAttention's lists, and threads of a CTA of its forward at head_dim 64."""
FLEX_STEP = 64
"""Rows that its backward takes of a block in a step."""


def flags(template: str) -> list[bool]:
    """The truth values at the end of a kernel's template."""
    tail = template[template.rindex(">,") + 2 :]
    return [word in ("true", "1") for word in re.findall(r"true|false|[01]\b", tail)]


def plain(kernel: str) -> str:
    """A kernel's name, whichever way its template writes truth values and brackets."""
    return kernel.replace("true", "1").replace("false", "0").replace(" ", "")


def recorded(name: str) -> list[dict[str, str]]:
    with (RECORDED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def visited(seq: int, block_q: int, block_k: int, causal: bool) -> np.ndarray[Any, Any]:
    """Visited key blocks of each query block of a head."""
    mask = AttentionProblem(seq_q=seq, mask="causal" if causal else "none").pair_mask
    return np.asarray(Domain(1, 1, seq, seq, block_q, block_k, mask).visited.count)


def pairs(seq: int, block_q: int, block_k: int, causal: bool) -> int:
    """Visited pairs of blocks of a head."""
    return int(visited(seq, block_q, block_k, causal).sum())


def drawn(*numbers: int) -> list[dict[str, str]]:
    """The calls drawn at random, of the first draws and of those with these numbers."""
    names = [f"../../kernels/measurements/{gpu}_random.csv" for gpu in ("h100", "h200")]
    names += [f"{gpu}_random_{n}.csv" for gpu in ("h100", "h200") for n in numbers]
    return [row for name in names for row in recorded(name)]


def build_name(call: dict[str, str]) -> str:
    """Of a build of FlashAttention-2, whichever of the two types of 16 bits it is for."""
    return plain(call["kernel"]).replace("half_t", "bfloat16_t")


def short_tiles() -> dict[str, dict[int, float]]:
    """Build of FlashAttention-2's forward -> visited key blocks -> what a thread stores in a tile with so many: the
    median of drawn calls that have no others, where rows leave in whole packets. The first steps, which mask, are
    compiled apart, and a tile that ends in them leaves before the loop's stores. A tile with two follows from a call
    with tiles of one and of two."""
    words_by_build: dict[tuple[str, int], list[float]] = defaultdict(list)
    for call in drawn(2, 3, 4):
        match = FLASH.search(call["kernel"])
        width = 2 * int(call["head_dim"] or 0)
        if (
            match is None
            or not call["kernel"].startswith("flash_fwd_kernel")
            or call["seq_q"] == "1"
        ):
            continue
        if width % 32 and width > (
            128 if int(match[2]) % 64 == 0 else 64
        ):  # rows of several pieces
            continue
        if call["seq_lens"] or call["window"]:
            continue
        block_q, block_k, warps = map(int, match.groups()[2:])
        seq_q = int(call["seq_q"])
        seq_k = int(call["seq_k"])
        if call["causal"] == "1" and not seq_q == seq_k <= block_q:
            continue
        heads = int(call["batch"]) * int(call["heads"])
        key_blocks = -(-seq_k // block_k)
        stored = int(call["l2_write"]) - heads * seq_q * (width + WORD)
        words_by_build[build_name(call), key_blocks].append(
            stored / heads / -(-seq_q // block_q) / (32 * warps)
        )
    short: dict[str, dict[int, float]] = defaultdict(dict)
    for (name, key_blocks), words in words_by_build.items():
        if key_blocks <= SHORT:
            short[name][key_blocks] = WORD * round(median(words) / WORD)
    for call in recorded("h100_library_builds.csv"):
        match = FLASH.search(call["kernel"])
        alone = short[build_name(call)].get(1)
        if (
            match is None
            or alone is None
            or "splitkv" in call["kernel"]
            or int(call["seq_q"]) >= SHORTEST
        ):
            continue
        block_q, block_k, warps = map(int, match.groups()[2:])
        counts = visited(int(call["seq_q"]), block_q, block_k, call["causal"] == "1")
        if set(counts) == {1, 2}:
            stored = int(call["local_write"]) / int(call["heads"]) / (32 * warps) - alone * int(
                (counts == 1).sum()
            )
            short[build_name(call)][2] = stored / int((counts == 2).sum())
    return short


def solved(points: list[tuple[int, int, float]]) -> tuple[float, float]:
    """(x, y) with x tiles + y pairs = bytes at points (tiles, pairs, bytes), in least squares where there are three."""
    *work, stored = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    x, y = np.linalg.lstsq(np.column_stack(work), stored)[0]
    return float(x), float(y)


def number(value: float) -> str:
    """To a quarter of a byte, without noughts."""
    return f"{round(round(4 * value, 6)) / 4:g}"


def flash_rows(calls: list[dict[str, str]]) -> list[dict[str, str]]:
    """A row a build of FlashAttention-2; builds for fp16 and bf16 are the same but for the instructions' type."""
    used = {plain(r["kernel"] + r["template"]): r for r in recorded("library_resources.csv")}
    loops: dict[str, list[dict[str, str]]] = defaultdict(list)
    for r in recorded("h200_library_instructions.csv"):
        loops[plain(r["kernel"] + r["template"])].append(r)
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for call in calls:
        if call["implementation"].startswith("pytorch_flash") and call["dtype"] == "bfloat16":
            groups[plain(call["kernel"])].append(call)
    rows, short_of, code, listed = [], short_tiles(), laid_out(), listed_loops()
    for name, members in groups.items():
        (full,) = [other for other in used if other.startswith(name)]
        match = FLASH.search(members[0]["kernel"])
        assert match is not None
        passes, (width, block_q, block_k, warps) = match[1], map(int, match.groups()[1:])
        causal = bool(int(members[0]["causal"]))
        threads, stored, words_moved = 32 * warps, [], []
        for call in members:
            seq = int(call["seq_q"])
            heads = int(call["heads"])
            tiles = -(-seq // (block_q if passes == "fwd" else block_k))
            work = (tiles, pairs(seq, block_q, block_k, causal))
            stores, loads = (
                int(call[f"local_{way}"]) / heads / threads for way in ("write", "read")
            )
            counts = visited(seq, block_q, block_k, causal) if passes == "fwd" else np.zeros(0)
            short = {n: words for n, words in short_of[build_name(call)].items() if passes == "fwd"}
            in_short = sum(int((counts == n).sum()) * words for n, words in short.items())
            fewer = [
                int(np.isin(counts, [*short]).sum()),
                int(counts[np.isin(counts, [*short])].sum()),
            ]
            stored.append((work[0] - fewer[0], work[1] - fewer[1], stores - in_short))
            words_moved.append((*work, (stores + loads) / WORD))
        per_tile, per_pair = solved(stored)
        apart = [
            number(short[n]) if n in short and abs(short[n] - per_tile - n * per_pair) > 1 else ""
            for n in range(1, SHORT + 1)
        ]
        accesses = tuple(round(max(0.0, words)) for words in solved(words_moved))
        if passes == "fwd" and loops[full]:
            loop = max(loops[full], key=lambda r: int(r["HMMA"]))
            least = -(-words_of(listed[build_key(full)]) // 2)  # an access is of two words at most
            accesses = (0, max(least, int(loop["LDL"]) + int(loop["STL"])))
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    (
                        "fa2",
                        BUILT,
                        passes,
                        width,
                        block_q,
                        block_k,
                        warps,
                        "fp16 bf16",
                        "causal" if causal else "none",
                        0,
                        edges_of(full, width),
                        used[full]["registers"],
                        used[full]["stack_bytes"],
                        number(per_tile),
                        number(per_pair),
                        *apart,
                        0,
                        *accesses,
                        "counted",
                        code.get(full, ""),
                    ),
                    strict=True,
                )
            )
        )
    run = {TRAITS.findall(name)[0] for name in groups}
    for full, looped in loops.items():
        row = inferred(full, used[full], looped, code.get(full, ""))
        if row is None:
            continue
        tile = (row["head_dim"], row["block_q"], row["block_k"])
        if TRAITS.findall(full)[0] in run or (
            row["pass"] == "fwd" and row["dropout"] and tile in WITH_DROPOUT
        ):
            rows.append(row)
    return rows + [
        row
        for full, layout in code.items()
        if ">," in full and (row := of_splits(full, used.get(full, {}), layout))
    ]


def build_key(name: str) -> tuple[Any, ...]:
    """(pass, sizes, flags of its traits, flags) of a build of FlashAttention-2, however its name is written."""
    if match := MANGLED.search(name):
        sizes, traits, on = (
            tuple(map(int, re.findall(r"L[ib](\d+)E", part))) for part in match.groups()[1:]
        )
        return match[1][:3], sizes, traits, on
    match = FLASH.search(name.replace(",", ", "))
    words = name[name.index("_traits<") + len("_traits<") :].split(",")
    numbers = [{"true": "1", "false": "0"}.get(w.strip(), w.strip()) for w in words]
    first = next(n for n, word in enumerate(numbers) if not word.isdecimal())
    values = tuple(map(int, numbers[:first]))
    assert match is not None
    many = 4 if match[1] == "fwd" else 7
    return match[1], values[:many], values[many:], tuple(map(int, flags(name)))


def words_of(loop: dict[str, str]) -> int:
    """Loads and stores of a spilled register in a turn of a loop, each of which may be of several."""
    return int((float(loop["local_load_bytes"]) + float(loop["local_store_bytes"])) / WORD)


def listed_loops() -> dict[tuple[Any, ...], dict[str, str]]:
    """The loop of each build of FlashAttention-2 for cc 9.0, by `build_key`."""
    rows = recorded("pytorch_loops.csv")
    return {
        build_key(r["kernel"]): r
        for r in rows
        if r["cc"] == str(BUILT) and MANGLED.search(r["kernel"])
    }


def accesses_of(loop: dict[str, str]) -> int:
    """Loads and stores of a turn of a forward's loop: of what it loads and does not store, five are second words of
    pointers, which one load takes, as in the builds for cc 9.0 whose instructions are listed."""
    beyond = (float(loop["local_load_bytes"]) - float(loop["local_store_bytes"])) / WORD
    return max(-(-words_of(loop) // 2), int(words_of(loop) - min(PAIRS, max(0.0, beyond))))


def code_rows(counted: list[dict[str, str]]) -> list[dict[str, Any]]:
    """A row a build for another compute capability than the one whose counters were read, of its loop's code.
    `counted`: the rows of the memory-efficient forward for that one."""
    rows: list[dict[str, Any] | None] = []
    turned = turns_inside(counted)
    for loop in recorded("pytorch_loops.csv"):
        if loop["cc"] not in RUNS_ON:
            continue
        if MANGLED.search(loop["kernel"]):
            rows.append(flash_code_row(loop))
        elif match := EFFICIENT_CODE.search(loop["kernel"]):
            spills = float(loop["local_store_bytes"]) > 0
            inner = turned.get(match.groups(), (1, 1, 1)) if spills else (1, 1, 1)
            rows += efficient_code_rows(loop, match, inner)
    return [row for row in rows if row is not None]


def turns_inside(counted: list[dict[str, str]]) -> dict[tuple[str, ...], tuple[float, ...]]:
    """(type, tile and place of the sums) of a build for cc 9.0 that spills in its loop -> counted over listed stores of
    a tile and of a step, and accesses of a step: the loop inside its step is listed once."""
    by_build = {
        (r["dtype"], str(r["block_q"]), str(r["block_k"]), r["head_dim"]): r for r in counted
    }
    turned = {}
    for loop in recorded("pytorch_loops.csv"):
        match = EFFICIENT_CODE.search(loop["kernel"])
        if match is None or loop["cc"] != str(BUILT) or not float(loop["local_store_bytes"]):
            continue
        width = int(match[3]) if match[4] == "rf" else 65536
        row = by_build["fp32" if match[1] == "f32" else "fp16", match[2], match[3], width]  # type: ignore[index]
        turned[match.groups()] = (
            float(row["write_per_tile"]) / float(loop["local_stores_beside"]),
            float(row["write_per_pair"]) / float(loop["local_store_bytes"]),
            float(row["accesses_per_pair"]) / words_of(loop),
        )
    return turned


def flash_code_row(loop: dict[str, str]) -> dict[str, Any] | None:
    """The row of a build of FlashAttention-2; None of one that no call of PyTorch's takes.

    The first steps of a forward, which mask, are compiled apart and store what every step does: what a tile stores is
    what stands beside its loop less theirs. A backward's loop holds its last turn, too, in which what was stored before
    it is loaded: on cc 9.0 no step of the five builds with stores in their loop stores anything, by counters, and loads
    twice as many words a step as the loop's listed stores.
    """
    passes, sizes, traits, on = build_key(loop["kernel"])
    width, block_q, block_k, warps = sizes[:4]
    if on[ALIBI] or on[SOFTCAP] or (passes == "fwd" and on[-1]):
        return None
    mask = "window" if on[LOCAL] else "causal" if on[CAUSAL] else "none"
    inside = float(loop["local_store_bytes"])
    beside = float(loop["local_stores_beside"])
    if passes == "fwd":
        masked = 1 if mask == "none" else -(-block_q // block_k) + (not on[EVEN_MN])
        per_tile, accesses, known = (
            max(0.0, beside - masked * inside),
            (0, accesses_of(loop)),
            "code",
        )
    else:
        known = "inferred" if inside else "code"
        accesses = (int(2 * (beside + inside) / WORD), int(2 * inside / WORD))
        per_tile, inside = beside + inside, 0.0
    return dict(
        zip(
            COLUMNS,
            (
                "fa2",
                shares(passes, width, block_q, block_k, bool(on[DROPOUT]), traits),
                passes,
                width,
                block_q,
                block_k,
                warps,
                "fp16 bf16",
                mask,
                on[DROPOUT],
                edges(not on[EVEN_K], width > WIDEST_EVEN_MN or bool(on[LOCAL]), bool(on[EVEN_MN])),
                loop["registers"],
                loop["frame"],
                number(per_tile),
                number(inside),
                "",
                "",
                0,
                *accesses,
                known,
                "",
            ),
            strict=True,
        )
    )


def shares(
    passes: str, width: int, block_q: int, block_k: int, dropout: bool, traits: tuple[int, ...]
) -> str:
    """The compute capabilities on which a build is taken (flash_bwd_launch_template.h): of a backward's tile, those
    with 163 KB and more of shared memory to a CTA may have another than those with 99."""
    alike = (width, block_q, block_k) not in LARGE or (width == 96 and not dropout)
    if passes == "fwd" or alike:
        return RUNS_ON["80"]
    return "80" if traits == LARGE[width, block_q, block_k] else OTHERS_SHARED


def efficient_code_rows(
    loop: dict[str, str], match: re.Match[str], turned: tuple[float, ...]
) -> list[dict[str, Any]]:
    """The rows of a build of the memory-efficient forward, one a type: bf16's code is that of fp16. The loop inside its
    step turns as often as in the build for cc 9.0 (`turned`), whose source is the same."""
    block_q = int(match[2])
    block_k = int(match[3])
    width = block_k if match[4] == "rf" else 65536
    types = ["fp32"] if match[1] == "f32" else ["fp16"] if loop["cc"] == "75" else ["fp16", "bf16"]
    if match[1] == "bf16":
        return []
    stores = (float(loop["local_stores_beside"]), float(loop["local_store_bytes"]), words_of(loop))
    beside, inside, accesses = (count * share for count, share in zip(stores, turned, strict=True))
    known = "code" if turned == (1, 1, 1) else "inferred"
    return [
        dict(
            zip(
                COLUMNS,
                (
                    "cutlass",
                    RUNS_ON[loop["cc"]],
                    "fwd",
                    width,
                    block_q,
                    block_k,
                    block_q * block_k // 1024,
                    dtype,
                    "",
                    "",
                    "",
                    loop["registers"],
                    loop["frame"],
                    number(beside),
                    number(inside),
                    "",
                    "",
                    0,
                    0,
                    round(accesses),
                    known,
                    "",
                ),
                strict=True,
            )
        )
        for dtype in types
    ]


def laid_out() -> dict[str, str]:
    """How the code of each forward build is laid out."""
    return {plain(r["kernel"] + r["template"]): r["code"] for r in recorded("library_code.csv")}


def of_splits(full: str, used: dict[str, str], layout: str) -> dict[str, Any] | None:
    """A row of a build of the split kernel, next to none of which spills; None where no call of PyTorch's takes it."""
    match = FLASH.search(full.replace(",", ", "))
    on = dict(zip(SPLIT_FLAGS, flags(full), strict=False))
    if (
        match is None
        or not used
        or "splitkv" not in full
        or on["alibi"]
        or on["softcap"]
        or on["append"]
        or not on["split"]
    ):
        return None
    width, block_q, block_k, warps = map(int, match.groups()[1:])
    if (width, block_q, block_k) not in SPLIT_TILES:
        return None
    of_calls = edges(not on["even_k"], width > WIDEST_EVEN_MN or on["local"], on["even_mn"])
    mask = "window" if on["local"] else "causal" if on["causal"] else "none"
    return dict(
        zip(
            COLUMNS,
            (
                "fa2",
                BUILT,
                "fwd",
                width,
                block_q,
                block_k,
                warps,
                "fp16 bf16",
                mask,
                0,
                f"split {of_calls}",
                used["registers"],
                used["stack_bytes"],
                0,
                0,
                "",
                "",
                0,
                0,
                0,
                "inferred",
                layout,
            ),
            strict=True,
        )
    )


def edges_of(full: str, width: int) -> str:
    """For which calls a build of FlashAttention-2 is."""
    on = flags(full)
    return edges(not on[EVEN_K], width > WIDEST_EVEN_MN or on[LOCAL], on[EVEN_MN])


def edges(narrow: bool, any_length: bool, whole: bool) -> str:
    return "narrow" if narrow else "full" if any_length else "whole" if whole else "ragged"


def inferred(
    full: str, used: dict[str, str], loops: list[dict[str, str]], layout: str
) -> dict[str, Any] | None:
    """A row of a build that was not run; None where no call of PyTorch's takes it."""
    on = flags(full)
    match = FLASH.search(full.replace(",", ", "))
    if (
        match is None
        or "splitkv" in full
        or on[ALIBI]
        or on[SOFTCAP]
        or (match[1] == "fwd" and on[-1])
    ):
        return None
    if not (on[LOCAL] or on[DROPOUT]):
        return None
    passes, (width, block_q, block_k, warps) = match[1], map(int, match.groups()[1:])
    loop = max(loops, key=lambda r: int(r["HMMA"]))
    frame, inside, outside = (
        int(used["stack_bytes"]),
        WORD * int(loop["STL"]),
        WORD * int(loop["STL_outside"]),
    )
    outside_too = ("_outside", "") if passes == "bwd" else ("",)
    counts = [int(loop[f"LDL{at}"]) + int(loop[f"STL{at}"]) for at in outside_too]
    accesses = (*[0] * (2 - len(counts)), *counts)
    mask = "window" if on[LOCAL] else "causal" if on[CAUSAL] else "none"
    return dict(
        zip(
            COLUMNS,
            (
                "fa2",
                BUILT,
                passes,
                width,
                block_q,
                block_k,
                warps,
                "fp16 bf16",
                mask,
                int(on[DROPOUT]),
                edges_of(full, width),
                used["registers"],
                frame,
                number(max(0, min(outside, frame - inside))),
                number(min(inside, frame)),
                "",
                "",
                0,
                *accesses,
                "inferred",
                layout,
            ),
            strict=True,
        )
    )


def efficient_rows(calls: list[dict[str, str]]) -> list[dict[str, str]]:
    """A row a build of the memory-efficient forward; one build serves every mask and length."""
    used = {r["kernel"]: r for r in recorded("library_resources.csv")}
    code = laid_out()
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for call in calls:
        if call["implementation"] == "pytorch_mem_efficient" and call["causal"] == "0":
            groups[call["kernel"]].append(call)
    rows = []
    for kernel, members in groups.items():
        match = EFFICIENT.search(kernel)
        assert match is not None
        block_q = int(match[3])
        block_k = int(match[4])
        width = block_k if "_rf_" in kernel else 65536
        wide = [call for call in members if int(call["head_dim"]) == min(width, 256)]
        size, dtype = (
            (4, "fp32") if match[2] == "f32" else (2, {"f16": "fp16", "bf16": "bf16"}[match[2]])
        )
        threads = 32 * (block_q * block_k // (32 * 32))
        points, reads = [], []
        for call in wide:
            seq = int(call["seq_q"])
            heads = int(call["heads"])
            d = int(call["head_dim"])
            work = -(-seq // block_q), pairs(seq, block_q, block_k, False)
            points.append((*work, int(call["local_write"]) / heads / threads))
            key_blocks = -(-seq // block_k)
            requested = (key_blocks * seq + 2 * work[0] * seq) * d * size
            if "_gmem_" in kernel:
                requested += (key_blocks - 1) * seq * d * 4
            reads.append((int(call["l2_read"]) / heads - requested) / threads / work[1])
        per_tile, per_pair = solved(points)
        words = (
            (int(wide[0]["local_read"]) + int(wide[0]["local_write"]))
            / int(wide[0]["heads"])
            / threads
            / WORD
        )
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    (
                        "cutlass",
                        BUILT,
                        "fwd",
                        width,
                        block_q,
                        block_k,
                        threads // 32,
                        dtype,
                        "",
                        "",
                        "",
                        used[kernel]["registers"],
                        used[kernel]["stack_bytes"],
                        number(max(0.0, per_tile)),
                        number(per_pair),
                        "",
                        "",
                        number(max(0.0, reads[0])),
                        0,
                        round(words / points[0][1]),
                        "counted",
                        code[kernel],
                    ),
                    strict=True,
                )
            )
        )
    return rows


def flex_rows() -> list[dict[str, str]]:
    """FlexAttention's builds at head_dim 64, where a thread has 128 scores: what calls drawn at random stored beside O
    and its log-sum-exps, over 128 threads and their steps; the median call of those under a mask, as no two builds
    (a length, a mask, a type) keep the same registers. Of whole blocks next to nothing is spilled."""
    words_by_mask: dict[str, list[float]] = defaultdict(list)
    for call in drawn(2, 3, 4):
        seq = int(call["seq_q"])
        heads = int(call["batch"]) * int(call["heads"])
        main = call["implementation"] == "pytorch_flex" and call["kernel"].startswith("triton_tem")
        if not main or call["head_dim"] != "64" or seq < FLEX_BLOCK or seq % FLEX_BLOCK == 0:
            continue
        window = int(call["window"]) if call["window"] else None
        mask = "window" if window else "causal" if call["causal"] == "1" else "none"
        tiles, steps = -(-seq // FLEX_BLOCK), 0
        for tile in range(tiles):
            first = max(0, tile * FLEX_BLOCK - (window or tile * FLEX_BLOCK)) // FLEX_BLOCK
            steps += (tiles - 1 if mask == "none" else tile) - first + 1
        beside = int(call["l2_write"]) - heads * seq * (64 * 2 + 4)
        words_by_mask[mask].append(beside / heads / steps / FLEX_BLOCK)
    rows = []
    for mask, words in sorted(words_by_mask.items()):
        stored = median(words)
        numbers = (
            255,
            WORD * round(stored / WORD),
            0,
            number(stored),
            "",
            "",
            0,
            0,
            round(2 * stored / WORD),
            "counted",
            "",
        )
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    (
                        "flex",
                        BUILT,
                        "fwd",
                        64,
                        128,
                        128,
                        4,
                        "fp16 bf16",
                        mask,
                        "",
                        "ragged",
                        *numbers,
                    ),
                    strict=True,
                )
            )
        )
    return rows


def flex_backward_rows(calls: list[dict[str, str]]) -> list[dict[str, str]]:
    """FlexAttention's backward, from what its one launch stored beside dQ, dK and dV. At head_dim 128 the six calls are
    met to the byte by 52 bytes a thread for a tile of keys and one of queries, and 8 for a step of each; how they
    divide is not told, as all have as many tiles and steps of either kind, and each is given half. The frame is not
    known."""
    rows_by_build: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    used: dict[str, dict[str, str]] = {}
    for call, (heads, kv_heads, tokens, head_dim, mask, words) in zip(calls, CASES, strict=True):
        blocks = AttentionProblem(seq_q=tokens, mask=mask, **words).pair_mask
        threads = int(call["block"][1:].split(",")[0])
        build_width = call["head_dim"]
        beside = int(call["l2_write"]) - (heads + 2 * kv_heads) * tokens * head_dim * 2
        works = (2 * tokens // FLEX_BLOCK, 2 * blocks.nnz * FLEX_BLOCK // FLEX_STEP)
        rows_by_build[build_width].append((*works, beside / heads / threads))
        used[build_width] = call
    rows = []
    for head_dim, points in rows_by_build.items():
        per_tile, per_pair = solved(points)
        accesses = (round(2 * words / WORD) for words in (per_tile, per_pair))
        numbers = (
            used[head_dim]["registers"],
            0,
            number(per_tile),
            number(per_pair),
            "",
            "",
            0,
            *accesses,
        )
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    (
                        "flex",
                        BUILT,
                        "bwd",
                        head_dim,
                        FLEX_STEP,
                        FLEX_BLOCK,
                        8,
                        "fp16 bf16",
                        "",
                        "",
                        "",
                        *numbers,
                        "counted",
                        "",
                    ),
                    strict=True,
                )
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table; else print it")
    arguments = parser.parse_args()
    calls = [
        r
        for r in recorded("h100_library_builds.csv")
        if int(r["seq_q"]) >= SHORTEST and "splitkv" not in r["kernel"]
    ]
    efficient = efficient_rows(calls)
    rows = flash_rows(calls) + efficient + flex_rows() + code_rows(efficient)
    rows += flex_backward_rows(recorded("h100_flex_backward.csv"))
    order = (
        "kernel",
        "cc",
        "pass",
        "head_dim",
        "block_q",
        "block_k",
        "dtype",
        "mask",
        "dropout",
        "edges",
    )
    numbers = ("head_dim", "block_q", "block_k")
    rows.sort(key=lambda r: tuple(int(r[c]) if c in numbers else str(r[c]) for c in order))
    lines = [",".join(COLUMNS), *(",".join(str(r[c]) for c in COLUMNS) for r in rows)]
    text = "\n".join(lines) + "\n"
    if arguments.write:
        write_whole(TABLE, text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
