"""Files of machine code: what is read of a cubin, a shared object and a listing, and what is said where none is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from machine_code import LISTING, SOURCE, built, only, tool_or_skip
from nvcc import nvcc_or_skip

from iosim.base.errors import InputError
from iosim.code.cubin import is_cubin
from iosim.code.kernel_facts import residents
from iosim.code.module import read_module
from iosim.hardware.profile import load_profile


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_a_cubin_says_what_a_cta_takes(tmp_path: Path, arch: str) -> None:
    tool_or_skip()
    function = only(read_module(built(tmp_path, "-cubin", "-lineinfo", arch=arch)))
    assert (function.cc, function.shared_memory_bytes, function.threads) == (
        int(arch[3:]),
        32 * 32 * 4,
        128,
    )
    kinds = [instruction.kind for instruction in function.instructions]
    assert {"LDG", "STS", "LDS", "BAR"} <= set(kinds)
    assert any(
        instruction.source and instruction.source[1] == 5
        for instruction in function.instructions
        if instruction.kind == "LDG"
    )
    assert function.ptx.splitlines()[
        next(
            instruction.ptx_line
            for instruction in function.instructions
            if instruction.kind == "BAR"
        )
        - 1
    ]
    stalls = {instruction.control.stall for instruction in function.instructions}
    assert len(stalls) > 3
    assert any(
        instruction.control.waits
        for instruction in function.instructions
        if instruction.kind == "FADD"
    )


@pytest.mark.parametrize(("shared", "l1_kib"), [(49_152, 156), (49_153, 28)])
def test_tritons_launcher_takes_l1_for_shared_memory(
    tmp_path: Path, shared: int, l1_kib: int
) -> None:
    """Above 48 KiB a CTA it asks for the largest split: 228 of an H100's 256 KiB; below, two CTAs of 49 take 100."""
    tool_or_skip()
    file = built(tmp_path, "-cubin")
    facts = f'{{"shared": {shared}, "num_warps": 32}}'
    file.with_suffix(".json").write_text(facts, encoding="utf-8")
    function = only(read_module(file))
    profile = load_profile("h100")
    split = residents(function, profile, 1024, 0).shared_memory_carveout_bytes
    assert profile.need_int("l1_shared_bytes") - split == l1_kib * 1024


def test_a_shared_object_holds_code_for_several_gpus(tmp_path: Path) -> None:
    tool_or_skip()
    options = (
        "-gencode=arch=compute_75,code=sm_75",
        "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    )
    source, file = tmp_path / "code.cu", tmp_path / "code.so"
    source.write_text(SOURCE, encoding="utf-8")
    command = [nvcc_or_skip(), *options, "-shared", "-Xcompiler", "-fPIC", source, "-o", file]
    subprocess.run(command, check=True, capture_output=True)
    module = read_module(file)
    assert sorted(f.cc for f in module.functions) == [75, 90]
    assert module.function("column", cc=90).cc == 90
    assert module.function("column", cc=75).cc == 75
    assert any(".entry column" in text for text in module.ptx)
    with pytest.raises(InputError, match=r"none for compute capability 8\.6; accepted: .*7\.5"):
        module.function("column", cc=86)


def test_what_is_no_machine_code_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match="is no machine code; accepted: a cubin"):
        read_module(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_module(tmp_path / "absent.cubin")
    with pytest.raises(InputError, match=r"holds no \.cubin file"):
        read_module(tmp_path)


def test_of_several_kernels_one_must_be_named(tmp_path: Path) -> None:
    file = tmp_path / "two.sass"
    file.write_text(LISTING + LISTING.replace("function loop", "function other"), encoding="utf-8")
    module = read_module(file)
    assert module.function("oth").name == "other"
    with pytest.raises(InputError, match=r"`?entry`? is missing.*accepted: loop, other"):
        module.function()


def elf(size: int, magic: bytes = b"\x7fELF", machine: int = 190) -> bytes:
    """The beginning of an ELF file; 190 is the number of NVIDIA's machines, which stands at byte 18."""
    data = bytearray(size)
    data[:4] = magic
    data[18:20] = machine.to_bytes(2, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (elf(52), True),  # flags stand at byte 48, and have four
        (elf(51), False),
        (elf(64, magic=b"\x7fELG"), False),
        (elf(64, machine=62), False),  # x86-64
        (b"", False),
    ],
)
def test_which_files_are_cubins(data: bytes, is_one: bool) -> None:
    assert is_cubin(data) == is_one
