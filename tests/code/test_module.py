"""Files of machine code: what is read of a cubin, a shared object and a listing, and what is said where none is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nvcc import nvcc_or_skip

from iosim.base.errors import InputError
from iosim.code import tools
from iosim.code.kernel_facts import residents
from iosim.code.listing import Control, read_listing
from iosim.code.module import Function, Module, read_module
from iosim.hardware.profile import load_profile

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) column(const float* x, float* y, int n) {
    __shared__ float tile[32][32];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[i];
    tile[threadIdx.x % 32][threadIdx.x / 32] = sum;
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x / 32][threadIdx.x % 32];
}
"""
LISTING = """
// function loop cc=90 registers=24 frame=8 shared=1024 threads=128
/*0000*/ MOV R3, RZ ;  // c=0x7e2
.L_x_10:
/*0010*/ LDG.E R5, desc[UR8][R4.64] ;  // c=0x742 p=57 a.cu:3
/*0020*/ FADD R3, R3, R5 ;  // c=0x27e4 a.cu:3
/*0030*/ @!P0 BRA `(.L_x_10) ;  // c=0x7ea
/*0040*/ EXIT ;  // c=0x7f5
"""


def built(folder: Path, *options: str, name: str = "code.cubin", arch: str = "sm_90") -> Path:
    source, file = folder / "code.cu", folder / name
    source.write_text(SOURCE, encoding="utf-8")
    subprocess.run(
        [nvcc_or_skip(), f"-arch={arch}", *options, source, "-o", file],
        check=True,
        capture_output=True,
    )
    return file


def tool_or_skip() -> None:
    for name in ("nvdisasm", "cuobjdump"):
        try:
            tools.find_tool(name)
        except InputError as error:
            pytest.skip(str(error))


def only(module: Module) -> Function:
    assert module.names == ("column",)
    return module.function("column")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_a_cubin_says_what_a_cta_takes(tmp_path: Path, arch: str) -> None:
    tool_or_skip()
    function = only(read_module(built(tmp_path, "-cubin", "-lineinfo", arch=arch)))
    assert (function.cc, function.shared_memory_bytes, function.threads) == (
        int(arch[3:]),
        32 * 32 * 4,
        128,
    )
    kinds = [one.kind for one in function.instructions]
    assert {"LDG", "STS", "LDS", "BAR"} <= set(kinds)
    assert any(
        one.source and one.source[1] == 5 for one in function.instructions if one.kind == "LDG"
    )
    assert function.ptx.splitlines()[
        next(one.ptx_line for one in function.instructions if one.kind == "BAR") - 1
    ]
    stalls = {one.control.stall for one in function.instructions}
    assert len(stalls) > 3
    assert any(one.control.waits for one in function.instructions if one.kind == "FADD")


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


def test_a_listing_is_read_as_the_code_that_it_was_written_from(tmp_path: Path) -> None:
    tool_or_skip()
    function = only(read_module(built(tmp_path, "-cubin")))
    file = tmp_path / "column.sass"
    file.write_text(function.listing, encoding="utf-8")
    again = only(read_module(file))
    assert again.instructions == function.instructions
    assert again.head == function.head


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


def test_a_listing_needs_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "candidates", lambda _: iter(()))
    file = tmp_path / "loop.sass"
    file.write_text(LISTING, encoding="utf-8")
    function = read_module(file).function()
    assert (function.cc, function.registers, function.frame_bytes, function.threads) == (
        90,
        24,
        8,
        128,
    )
    load, add, back = function.instructions[1:4]
    assert (load.kind, load.modifiers, load.source) == ("LDG", ("E",), ("a.cu", 3))
    assert (load.ptx_line, add.ptx_line) == (57, None)
    assert load.control == Control(stall=2, sets=2, frees=None, waits=0)
    assert add.control.waits == 1 << 2
    assert (back.predicate, back.target) == ("!P0", 0x10)


def test_control_words_are_read_as_written() -> None:
    control = Control(stall=13, sets=3, frees=None, waits=0b101)
    assert Control.of(control.word) == control


def test_blackwells_listing_has_no_semicolons() -> None:
    line = "        /*0160*/      LDG.E R5, desc[UR8][R4.64]        &wr=0x2          ?trans1;"
    (one,) = read_listing(line)
    assert (one.opcode, one.operands) == ("LDG.E", ("R5", "desc[UR8][R4.64]"))


def test_where_no_tool_is_one_line_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "candidates", lambda _: iter(()))
    with pytest.raises(
        InputError, match=r"nvdisasm is not found.*Triton wheel.*NVDISASM"
    ) as refused:
        tools.disassembled(b"")
    assert "\n" not in str(refused.value)


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
