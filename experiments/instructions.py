"""What PyTorch's attention kernels are compiled to:
`python experiments/instructions.py LOOPS.csv RESOURCES.csv CODE.csv`.

Needs PyTorch with CUDA and `cuobjdump`, and no GPU. A row of RESOURCES.csv is a kernel of FlashAttention-2 or of the
memory-efficient backend as `cuobjdump --dump-resource-usage` has it: registers, bytes of stack a thread. A row of
LOOPS.csv is a loop with products and exponentials of one of FlashAttention-2's kernels for bf16: how many instructions
of each kind it has, and how many loads and stores of spilled registers lie outside of all such loops. A row of CODE.csv
is one of its forward kernels for bf16: how many instructions stand before the first product of each step that is
compiled for itself, the last of them in the loop, before what follows the loop's last product, and in all; or one of
the memory-efficient forward's: before its loop over keys, before what follows it, and in all.
"""

from __future__ import annotations

import csv
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KINDS = (
    "HMMA",
    "MUFU",
    "FFMA",
    "FMUL",
    "FADD",
    "FMNMX",
    "F2FP",
    "LDSM",
    "LDS",
    "STS",
    "LDGSTS",
    "LDG",
    "STG",
    "RED",
    "LDL",
    "STL",
    "BAR",
    "SHFL",
)
COLUMNS = (
    "kernel",
    "template",
    "stack_bytes",
    "loop_first",
    "instructions",
    *KINDS,
    "LDL_outside",
    "STL_outside",
)
RESOURCES = ("kernel", "template", "registers", "stack_bytes")
ATTENTION = re.compile(r"flash_(fwd|bwd)\w*kernel|fmha_cutlass[FB]")
CODE = ("kernel", "template", "code")
OVER_KEYS = re.compile(r"fmha_cutlassF_\w+_aligned_\w+_sm80")
TRAITS = re.compile(r"<Flash_fwd_kernel_traits<(\d+), (\d+), (\d+), (\d+)")
LEAST_PRODUCTS, LEAST_EXPONENTIALS = 16, 8
PARTS = 14
"""Calls of cuobjdump at once: a command line holds the names of so many kernels."""


def cuobjdump(*arguments: str) -> str:
    done = subprocess.run(
        ["cuobjdump", "-arch", "sm_90", *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout


def resources(library: str) -> dict[str, tuple[str, str]]:
    """(registers, bytes of stack) of each attention kernel."""
    by_kernel, name = {}, ""
    for line in cuobjdump("--dump-resource-usage", library).splitlines():
        function = re.match(r"\s*Function (\S+):", line)
        if function:
            name = function[1]
        elif (used := re.search(r"REG:(\d+) STACK:(\d+)", line)) and ATTENTION.search(name):
            by_kernel[name] = (used[1], used[2])
    return by_kernel


def shown(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """(kernel, template) of mangled names."""
    listed = list(names)
    done = subprocess.run(
        ["c++filt"], input="\n".join(listed), capture_output=True, text=True, check=True
    )
    by_function = {}
    for name, text in zip(listed, done.stdout.splitlines(), strict=True):
        kernel = re.match(r"(?:void )?([\w:]+)", text)
        head = re.sub(r"\(.*", "", text)
        template = head[head.find("<") :] if "<" in head else ""
        by_function[name] = (
            kernel[1].split("::")[-1] if kernel else "",
            re.sub(r"cutlass::|pytorch_flash::", "", template),
        )
    return by_function


def kind(instruction: str) -> str:
    """HMMA of `@!P0 HMMA.16816.F32.BF16 R4, ...`."""
    return re.sub(r"^@!?U?P\w+ ", "", instruction).split()[0].split(".")[0]


def instructions(library: str, names: list[str]) -> dict[str, list[tuple[int, str]]]:
    """(address, instruction) of each kernel."""
    with ThreadPoolExecutor(PARTS) as pool:
        parts = [names[n::PARTS] for n in range(PARTS)]
        text = "\n".join(
            pool.map(lambda part: cuobjdump("-sass", "-fun", ",".join(part), library), parts)
        )
    by_function: dict[str, list[tuple[int, str]]] = {}
    name = ""
    for line in text.splitlines():
        if "Function" in line:
            name = line.split()[-1]
            by_function[name] = []
        elif match := re.match(r"\s*/\*([0-9a-f]{4,5})\*/\s+(.*?);", line):
            by_function[name].append((int(match[1], 16), match[2]))
    return by_function


def loops(lines: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """(first, last) of each loop: a branch that goes back."""
    place = {address: n for n, (address, _) in enumerate(lines)}
    back = []
    for n, (address, text) in enumerate(lines):
        to = re.search(r"BRA.*? \(?0x([0-9a-f]+)", text)
        if to and int(to[1], 16) < address and int(to[1], 16) in place:
            back.append((place[int(to[1], 16)], n))
    return back


def layout(template: str, lines: list[tuple[int, str]]) -> str:
    """Where the steps of a forward stand in its code; of FlashAttention-2 empty where they cannot be told apart."""
    if not template:
        first, last = max(loops(lines), key=lambda loop: loop[1] - loop[0])
        return f"{first} {last + 1} {len(lines)}"
    width, block_q, block_k, warps = map(int, TRAITS.findall(template)[0])
    products = [n for n, (_, text) in enumerate(lines) if kind(text) == "HMMA"]
    per_product = 2 * (block_q // warps // 16) * (block_k // 8) * (width // 16)
    if len(products) % per_product:
        return ""
    return " ".join(map(str, [*products[::per_product], products[-1], len(lines)]))


def main() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or len(sys.argv) != 4:
        raise SystemExit("instructions: needs PyTorch, and the three files to write")
    library = str(Path(spec.origin).parent / "lib" / "libtorch_cuda.so")
    used = resources(library)
    names = shown(used)
    with Path(sys.argv[2]).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(RESOURCES)
        writer.writerows(sorted([*names[name], *used[name]] for name in used))
    code = instructions(library, [name for name in used if "bfloat16" in name and "flash_" in name])
    over_keys = instructions(library, [name for name in used if OVER_KEYS.match(names[name][0])])
    with Path(sys.argv[3]).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CODE)
        writer.writerows(
            sorted(
                [*names[name], layout(names[name][1], lines)]
                for name, lines in (code | over_keys).items()
                if TRAITS.search(names[name][1]) or name in over_keys
            )
        )
    with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, lines in code.items():
            counted = [
                (a, b, Counter(kind(text) for _, text in lines[a : b + 1])) for a, b in loops(lines)
            ]
            chosen = [
                c
                for c in counted
                if c[2]["HMMA"] >= LEAST_PRODUCTS and c[2]["MUFU"] >= LEAST_EXPONENTIALS
            ]
            inside = {n for a, b, _ in chosen for n in range(a, b + 1)}
            outside = Counter(kind(text) for n, (_, text) in enumerate(lines) if n not in inside)
            for a, b, counts in chosen:
                writer.writerow(
                    [
                        *names[name],
                        used[name][1],
                        a,
                        b - a + 1,
                        *(counts[k] for k in KINDS),
                        outside["LDL"],
                        outside["STL"],
                    ]
                )


if __name__ == "__main__":
    main()
