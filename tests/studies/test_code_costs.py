"""`iosim explain --code`: bank conflicts, spills and uncoalesced stores are found where they stand in the source."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from example_kernels import cases, function_of, plain_cubin, tools_or_skip
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.code import tools
from iosim.code.module import Module
from iosim.commands.cli import main
from iosim.studies import code_costs
from iosim.studies.code_costs import CodeCosts, costs_of_code
from iosim.studies.code_costs_face import as_text, costs_answer
from iosim.studies.requests import CodeRequest

SOURCE = (ROOT / "examples" / "kernels" / "plain.cu").read_text(encoding="utf-8").splitlines()


def line_with(text: str) -> str:
    """Where a text stands in plain.cu, as an answer names it."""
    (number,) = [n for n, line in enumerate(SOURCE, 1) if text in line]
    return f"plain.cu:{number}"


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_cubin(tmp_path_factory.mktemp("plain"))


def costs(cubin: Path, entry: str) -> CodeCosts:
    return costs_of_code(CodeRequest(code=str(cubin), entry=entry, gpu="h100"))


def test_a_column_store_is_found(cubin: Path) -> None:
    costs_found = costs(cubin, "column_store")
    first = costs_found.costs[0]
    assert (first.kind, first.place) == (
        "uncoalesced",
        line_with("out[(size_t)column * rows + row] = in["),
    )
    assert "32 sectors of 32 a request, 4 would do" in first.detail
    assert first.time_without_s < 0.4 * costs_found.prediction.time_s
    assert not [cost for cost in costs_found.costs if cost.kind in ("spills", "bank conflicts")]


def test_a_column_read_of_shared_memory_is_found(cubin: Path) -> None:
    costs_found = costs(cubin, "column_read")
    first = costs_found.costs[0]
    assert (first.kind, first.place) == ("bank conflicts", line_with("= tile[threadIdx.x][y]"))
    assert first.detail == "LDS takes 32 wavefronts, 1 without conflicts"
    assert first.time_without_s < 0.6 * costs_found.prediction.time_s
    assert not [cost for cost in costs_found.costs if cost.kind == "uncoalesced"]


@pytest.mark.slow
def test_a_spill_is_found(cubin: Path) -> None:
    costs_found = costs(cubin, "spilling_tile")
    first = costs_found.costs[0]
    assert first.kind == "spills"
    assert first.place.startswith("plain.cu:")
    assert first.detail.startswith(f"{costs_found.function.frame_bytes} bytes of a thread's frame")
    assert first.time_without_s < 0.6 * costs_found.prediction.time_s


def test_a_kernel_with_nothing_odd_has_no_such_cost(cubin: Path) -> None:
    costs_found = costs(cubin, "matrix_product")
    assert not [cost for cost in costs_found.costs if cost.kind != "waits for loads"]


def test_loops_have_their_units_and_add_up(cubin: Path) -> None:
    costs_found = costs(cubin, "matrix_product")
    assert sum(loop.share for loop in costs_found.loops) == pytest.approx(1.0)
    product = max(costs_found.loops, key=lambda loop: loop.share)
    assert product.turns == 4096 / 32
    assert product.lines.startswith("plain.cu:")
    assert product.units["fma"] > 0
    assert product.cycles >= max(product.units.values())


def test_instructions_are_counted_as_a_profiler_does(cubin: Path) -> None:
    """A CTA of 32 x 8 threads of `column_store` walks four rows: what stands before its loop, four turns, the exit."""
    arguments = ("in=TENSOR(512x512,fp32)", "out=TENSOR(512x512,fp32)", "rows=512", "columns=512")
    request = CodeRequest(
        code=str(cubin), entry="column_store", gpu="h100", grid="16,16", block="32,8", arg=arguments
    )
    counters = costs_of_code(request).prediction.to_dict()["counters"]
    assert counters["global_store_sectors"] == 512 * 512
    assert counters["local_load_sectors"] == 0
    (loop,) = [loop for loop in costs_of_code(request).loops if loop.name.startswith("loop")]
    (once,) = [loop for loop in costs_of_code(request).loops if loop.name.startswith("outside")]
    assert loop.turns == 4
    assert counters["instructions"] == pytest.approx(
        256 * 8 * (once.instructions + 4 * loop.instructions), rel=0.04
    )


def test_loads_that_the_assembler_merges_are_counted_merged(cubin: Path) -> None:
    """A warp of `matrix_product` reads 32 rows of B word by word, and 32 words of A, the same for all of its lanes, in
    eight loads of four words, which take two wavefronts each."""
    arguments = (
        "a=TENSOR(64x64,fp32)",
        "b=TENSOR(64x64,fp32)",
        "c=TENSOR(64x64,fp32)",
        "columns=64",
        "depth=64",
    )
    request = CodeRequest(
        code=str(cubin),
        entry="matrix_product",
        gpu="h100",
        grid="2,2",
        block="32,32",
        arg=arguments,
    )
    counters = costs_of_code(request).prediction.to_dict()["counters"]
    turns = 4 * 32 * 2  # CTAs x warps x turns of the loop over depth
    assert counters["shared_load_wavefronts"] == turns * (32 + 8 * 2)
    assert counters["shared_store_wavefronts"] == turns * 2


def test_what_is_assumed_is_said(cubin: Path) -> None:
    notes = costs(cubin, "rms_norm").notes
    assert any("no grid is given" in note for note in notes)
    assert any("no arguments are given" in note for note in notes)
    assert any("no block is given" in note for note in notes)


def test_the_command_prints_a_table_a_loop(cubin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        f"--arg={name}={value}"
        for name, value in (
            ("in", "TENSOR(4096x4096,fp32)"),
            ("out", "TENSOR(4096x4096,fp32)"),
            ("rows", 4096),
            ("columns", 4096),
        )
    ]
    command = [
        "explain",
        "--code",
        str(cubin),
        "--entry",
        "column_read",
        "--grid",
        "128,128",
        "--block",
        "32,8",
    ]
    assert main([*command, *arguments, "--gpu", "h100"]) == 0
    out = capsys.readouterr().out
    assert "bank conflicts" in out
    assert "cycles a turn" in out
    assert main([*command, *arguments, "--gpu", "h100", "--format", "json"]) == 0
    explanation = json.loads(capsys.readouterr().out)["explanations"][0]
    assert explanation["costs"][0]["kind"] == "bank conflicts"
    assert explanation["loops"][0]["units"]


def test_without_machine_code_it_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "candidates", lambda _: iter(()))  # no ptxas that would make some
    file = tmp_path / "k.ptx"
    file.write_text(
        ".version 8.0\n.target sm_90\n.visible .entry k()\n{\n ret;\n}\n", encoding="utf-8"
    )
    with pytest.raises(
        InputError, match="no machine code; accepted: a cubin compiled with -lineinfo"
    ):
        costs_of_code(CodeRequest(code=str(file), gpu="h100"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, case in cases().items() if case["file"].endswith(".py")]
)
def test_triton_kernels_are_explained(name: str, tmp_path: Path) -> None:
    tools_or_skip()
    case = cases()[name]
    function = function_of(name, tmp_path)
    arguments = {
        n: f"TENSOR({value.split()[1]},{value.split()[0]})" if isinstance(value, str) else value
        for n, value in case["arguments"].items()
    }
    module = Module(name, (function,), (function.ptx,))
    costs_found = costs_of_code(
        CodeRequest(code=module, gpu="h100", grid=case["grid"], arg=arguments)
    )
    assert costs_answer(costs_found)
    assert "outside of loops" in as_text(costs_found)
    assert ("spills" in {cost.kind for cost in costs_found.costs}) == (name == "attention-spilling")


@pytest.mark.parametrize(("wavefronts", "least", "reported"), [
    # Half as many wavefronts more than the least are worth a sentence.
    (1.0, 1, False), (1.49, 1, False), (1.5, 1, True), (32.0, 1, True),
    (2.9, 2, False), (3.0, 2, True), (5.9, 4, False), (6.0, 4, True),
    (None, 1, False),  # an instruction whose addresses are not known
])  # fmt: skip
def test_conflicts_are_told_from_half_as_many_wavefronts_more(
    wavefronts: float | None, least: int, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CUDA's tools: what reads machine code and plays it is replaced."""
    machine = SimpleNamespace(on_sm=SimpleNamespace(machine=None))
    replaced: dict[str, Any] = {
        "_worst": lambda *args: SimpleNamespace(opcode="LDS"),
        "operation": lambda instruction, cc: SimpleNamespace(group="shared"),
        "default_use": lambda instruction, group: SimpleNamespace(wavefronts=least),
        "with_work": lambda *args: machine,
        "_whole_cycles": lambda *args: 1,
        "_place": lambda instruction: "line 1",
        "_cost": lambda kind, place, detail, *more: (kind, place, detail),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(code_costs, name, value)
    use = None if wavefronts is None else SimpleNamespace(wavefronts=wavefronts)
    read: Any = SimpleNamespace(cc=90, launch=None, profile=None)
    conflicts = code_costs._conflicts(read, read, read, lambda instruction: cast("Any", use), 1.0)
    detail = f"LDS takes {wavefronts or 0:.3g} wavefronts, {least} without conflicts"
    assert conflicts == (("bank conflicts", "line 1", detail) if reported else None)
