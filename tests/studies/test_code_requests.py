"""Launches of kernels that are known by their code: what is asked for, which kernel is meant, what of an attention's code
becomes a kernel file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attention_in_ptx as ptx
import pytest
from attention_in_ptx import KEYS, ROWS, WIDTH

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.libraries import resolve
from iosim.code.addresses_launch import ALL_SHARED, CodeResources
from iosim.code.arguments import TensorArgument, read_argument
from iosim.code.listing import read_listing
from iosim.code.module import Function, Module, read_module
from iosim.code.ptx import entries
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Spill
from iosim.prediction import code as prediction_code
from iosim.prediction.code import CodeCall, entry_of, planned_code
from iosim.problem.attention import AttentionProblem
from iosim.studies import kernel_from_code
from iosim.studies.code import arguments, call_of, module_of, sides, whole_texts
from iosim.studies.code_costs import _assumed
from iosim.studies.kernel_from_code import _heads, _plain, _spill, kernel_file, kernel_of_code
from iosim.studies.requests import CodeRequest

H100 = load_profile("h100")
ONE = ".visible .entry {}(.param .u64 x)\n{{ .shared .align 4 .b8 tile[{}]; mov.u64 %rd1, tile; ret; }}\n"
LISTING = "/*0000*/ MOV R1, R2 ;  // c=0x7e1{}\n/*0010*/ EXIT ;  // c=0x7e1\n"


def function(name: str = "one", cc: int = 90, row: int | None = 2, **more: Any) -> Function:
    text = LISTING.format("" if row is None else f" p={row}")
    values = {"registers": 40, "frame_bytes": 0, "shared_memory_bytes": 512, "threads": 64}
    return Function(name, cc, instructions=read_listing(text), **{**values, **more})


@pytest.fixture
def no_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> bytes:
        raise InputError("ptxas is not found")

    monkeypatch.setattr(prediction_code, "assembled", missing)


# ---- what is asked for ----


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("64,32,1", (64, 32, 1)),
        ("64x32", (64, 32)),
        ("7", (7,)),
        (" 7 , 8", (7, 8)),
        ((1, 2, 3), (1, 2, 3)),
        ([5], (5,)),
        ("0", None),
        ("4,0", None),
        ("1,2,3,4", None),
        ("", None),
        ("4,", None),
        ("-1", None),
        ("4,a", None),
        ((), None),
        ((1.5,), None),
    ],
)
def test_sides_of_a_grid(value: Any, expected: tuple[int, ...] | None) -> None:
    if expected is not None:
        assert sides("grid", value) == expected
        return
    with pytest.raises(InputError, match="accepted: one to three whole numbers from 1"):
        sides("grid", value)


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("n=5", ("n", 5)),
        (" n = 0x10 ", ("n", 16)),
        ("n=-3", ("n", -3)),
        ("scale=0.5", ("scale", 0.5)),
        ("flag=true", ("flag", 1)),
        ("flag=False", ("flag", 0)),
        ("a=TENSOR(8x4,bf16)", ("a", TensorArgument("a", (8, 4), "bf16"))),
        ("a=TENSOR(8,4,bfloat16)", ("a", TensorArgument("a", (8, 4), "bf16"))),
        ("a=VALUES(int32,5)", ("a", TensorArgument("a", (1,), "int32", (5,)))),
        ("a=VALUES(int32,0:6:2,9)", ("a", TensorArgument("a", (4,), "int32", (0, 2, 4, 9)))),
        ("a", None),
        ("=5", None),
        ("a=", None),
        ("", None),
        ("a=b", None),
        ("a=TENSOR(bf16)", None),
        ("a=TENSOR(8x0,bf16)", None),
        ("a=TENSOR(8x-1,bf16)", None),
        ("a=TENSOR(8xb,bf16)", None),
        ("a=TENSOR(bx8,bf16)", None),
        ("a=TENSOR(8,float99)", None),
        ("a=VALUES(int32)", None),
        ("a=VALUES(int32,1.5)", None),
        ("a=VALUES(int32,0:6:2:2)", None),
    ],
)
def test_texts_of_arguments(text: str, argument: Any) -> None:
    if argument is not None:
        assert read_argument(text) == argument
        return
    with pytest.raises(InputError, match="arg"):
        read_argument(text)


def test_arguments_of_the_command_line_and_of_python() -> None:
    assert arguments(None) == {}
    assert arguments(["n=5", "a=TENSOR(8x4", "bf16)"]) == {
        "n": 5,
        "a": TensorArgument("a", (8, 4), "bf16"),
    }
    with pytest.raises(InputError, match="n is given twice"):
        arguments(["n=5", "n=6"])
    assert whole_texts(["a=VALUES(int32", "1", "2)", "n=3"]) == ["a=VALUES(int32,1,2)", "n=3"]
    tensor = TensorArgument("t", (2,), "fp16")
    values = {
        "n": 5,
        "flag": True,
        "scale": 0.5,
        "t": tensor,
        "text": "TENSOR(8,fp32)",
        "like": SimpleNamespace(shape=(3, 4), dtype="torch.float16"),
        "none": SimpleNamespace(shape=(), dtype="torch.int64"),
    }
    read = arguments(values)
    assert read == {
        "n": 5,
        "flag": 1,
        "scale": 0.5,
        "t": tensor,
        "text": TensorArgument("text", (8,), "fp32"),
        "like": TensorArgument("like", (3, 4), "fp16"),
        "none": TensorArgument("none", (1,), "int64"),  # a tensor of no axes is one number
    }
    assert read["flag"] is not True
    for value in (None, SimpleNamespace(shape=(3,)), SimpleNamespace(dtype="torch.int64")):
        with pytest.raises(InputError, match="is no number and no tensor"):
            arguments({"n": value})


def test_code_that_is_read_already_its_text_and_its_file(tmp_path: Path) -> None:
    module = Module("given", ptx=(ONE.format("one", 4),))
    assert module_of(module, 90) is module
    assert module_of(ONE.format("one", 4), 90).names == ("one",)
    file = tmp_path / "one.ptx"
    file.write_text(ONE.format("other", 4), encoding="utf-8")
    assert module_of(str(file), 90).names == ("other",)
    assert module_of(file, 90).names == ("other",)


def test_a_launch_that_is_asked_for(no_assembler: None) -> None:
    code = Module("given", (function(),), (ONE.format("one", 512),))
    request = CodeRequest(code=code, grid="3,2", arg={"x": 5}, gpu="h100")
    assert call_of(request, H100) == CodeCall(
        entries(ONE.format("one", 512))["one"], (3, 2), {"x": 5}, None, code.functions[0], 0
    )
    more = replace(request, block="64,2", shared_bytes=1024)
    assert (call_of(more, H100).block, call_of(more, H100).shared_memory_bytes) == ((64, 2), 1024)
    with pytest.raises(InputError, match="grid is missing"):
        call_of(replace(request, grid=None), H100)


def test_what_is_taken_of_an_sm() -> None:
    """Shared memory of the launch comes beside what the code declares; 0 registers are none that are known."""
    entry = entries(ONE.format("one", 300))["one"]
    call = CodeCall(entry, (1,), {}, shared_memory_bytes=1000)
    assert call.resources == CodeResources(None, 1300)
    with_code = replace(call, function=function())
    assert with_code.resources == CodeResources(40, 1512)
    asks = replace(call, function=function(registers=0, prefers_shared=True))
    assert asks.resources == CodeResources(None, 1512, ALL_SHARED)


def test_which_kernel_of_a_module_is_meant(no_assembler: None) -> None:
    texts = (ONE.format("one_kernel", 4), ONE.format("two_kernel", 4) + ONE.format("kernel", 4))
    plain = Module("m", ptx=texts)
    for name, entry in (("one", "one_kernel"), ("two_kernel", "two_kernel"), ("kernel", "kernel")):
        expected, code = entry_of(plain, name, 90)
        assert (expected.name, code) == (entry, None)
    for wanted in ("e_kernel", "_kernel", None, "three"):
        if wanted == "e_kernel":
            assert entry_of(plain, wanted, 90)[0].name == "one_kernel"
            continue
        words = "accepted: one_kernel, two_kernel, kernel"
        with pytest.raises(InputError, match=words):
            entry_of(plain, wanted, 90)
    with pytest.raises(InputError, match="holds no PTX"):
        entry_of(Module("m"), None, 90)
    # The machine code's name goes before the part of it that was asked for.
    both = Module("m", (function("two_kernel"),), texts)
    assert entry_of(both, "two", 90) == (entries(texts[1])["two_kernel"], both.functions[0])


def test_machine_code_without_lines_is_made_anew_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assembled_code = function(row=2)
    launch: list[Any] = []

    def assembled(text: str, entry: Any, cc: int) -> Function | None:
        launch.append((entry.name, cc))
        return assembled_code if cc == 90 else None

    monkeypatch.setattr(prediction_code, "_assembled", assembled)
    text = ONE.format("one", 4)
    lined, bare = function(row=7), function(row=None)
    assert entry_of(Module("m", (lined,), (text,)), None, 90)[1] is lined
    assert launch == []
    assert entry_of(Module("m", (bare,), (text,)), None, 90)[1] is assembled_code
    assert entry_of(Module("m", (replace(bare, cc=80),), (text,)), None, 80)[1] == replace(
        bare, cc=80
    )
    assert entry_of(Module("m", ptx=(text,)), None, 90)[1] is assembled_code
    assert launch == [("one", 90), ("one", 80), ("one", 90)]


def test_a_cta_that_fits_on_no_sm() -> None:
    entry = entries(ONE.format("one", 4))["one"]
    call = CodeCall(entry, (1,), {"x": 1}, (32,), shared_memory_bytes=1 << 20)
    with pytest.raises(InputError, match=r"one: .*shared memory"):
        planned_code(call, H100)
    fits = planned_code(replace(call, shared_memory_bytes=0), H100)
    assert (fits.work, fits.notes) == (None, ())


def test_arguments_that_are_assumed() -> None:
    """64-bit arguments are pointers, but for floating point."""
    text = ".visible .entry k(.param .u64 a, .param .f64 b, .param .f32 c, .param .u32 d) { ret; }"
    assumed = dict(_assumed(entries(text)["k"]))
    assert assumed["a"] == TensorArgument("argument 0", (4096, 4096), "fp32")
    assert (assumed["b"], assumed["c"], assumed["d"]) == (1.0, 1.0, 4096)


# ---- a kernel file ----

HEADS, TOKENS = 4, 96
SHAPE = (2, HEADS, TOKENS)
AXES = ("batch", "heads", "tokens")


def request(
    batch_parts: int = 1, gpu: str = "h100", tokens: int = TOKENS, **how: Any
) -> CodeRequest:
    """[2 sequences, 4 heads, tokens, 16], of which each CTA takes 32 rows."""
    axes = how.get("axes", ptx.AXES)
    shape = (2, HEADS, tokens)
    sizes = {"blocks": -(-tokens // ROWS), "heads": HEADS, "batch": 2 * batch_parts}
    values = ptx.arguments(shape, ptx.strides(AXES, dict(zip(AXES, shape, strict=True))), tokens)
    grid = [sizes[axis] for axis in axes]
    return CodeRequest(code=ptx.text(**how), grid=grid, arg=values, gpu=gpu)


def kernel_keys(**how: Any) -> dict[str, Any]:
    return dict(tomllib.loads(kernel_file(request(**how)))["kernel"])


PLAIN = {
    "order": "query",
    "start": "light-first",
    "direction": "ascending",
    "writes_lse": False,
    "edge_q": "exact",
    "edge_k": "exact",
    "matrix_unit": "fp32",
    "shared_memory_bytes": 0,
}


def test_a_kernel_file_says_what_the_addresses_say(no_assembler: None) -> None:
    data = tomllib.loads(kernel_file(request(), "mine"))
    assert data["kernel"] == PLAIN
    assert data["tile"] == [
        {"head_dim": WIDTH, "block_q": ROWS, "block_k": KEYS, "warps": 1, "stages": 1}
    ]
    assert (data["name"], data["title"], data["requires"]["dtypes"]) == (
        "mine",
        "attention",
        ["fp16"],
    )
    assert "spill" not in data
    assert "splits" not in data["source"]
    assert tomllib.loads(kernel_file(request()))["name"] == "attention"


@pytest.mark.parametrize(
    ("how", "changes"),
    [
        ({"is_descending": True}, {"direction": "descending"}),
        ({"is_heavy_first": True}, {"start": "heavy-first"}),
        ({"loads_q": "each step"}, {"rereads_q": True}),
        ({"axes": ("heads", "blocks", "batch")}, {"order": "head", "section_heads": HEADS}),
        ({"axes": ("heads", "batch", "blocks")}, {"order": "head"}),
        # 80 tokens: loads of Q end with the last one, the last step of K reads 16 rows more of the last head.
        ({"tokens": 72}, {"edge_k": "whole"}),
    ],
)
def test_keys_of_a_kernel_file(
    how: dict[str, Any], changes: dict[str, Any], no_assembler: None
) -> None:
    assert kernel_keys(**how) == {**PLAIN, **changes}


def test_splits_stand_in_the_source_and_in_the_kernel(no_assembler: None) -> None:
    data = tomllib.loads(kernel_file(request(2, splits=2)))
    assert data["source"].endswith("; 2 splits, by its grid")
    problem = AttentionProblem(batch=2, heads=HEADS, seq_q=TOKENS, head_dim=WIDTH, dtype="fp16")
    for launch, splits in ((request(2, splits=2), 2), (request(), 1)):
        kernel = resolve(kernel_of_code(launch, problem), problem, H100)
        assert (kernel.splits, kernel.tile.block_q) == (splits, ROWS)


@pytest.mark.parametrize(
    ("name", "known_as"), [("fa2", "fa2-by-code"), ("sdpa", "sdpa-by-code"), ("mine", "mine")]
)
def test_a_name_of_the_catalog_stands_for_the_catalogs(
    name: str, known_as: str, no_assembler: None
) -> None:
    launch = request()
    text = launch.code.replace(".entry attention", f".entry {name}")
    assert kernel_of_code(replace(launch, code=text)) == known_as


def test_what_machine_code_adds_to_a_kernel_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers and spills, with one digit behind the point."""
    code = function("attention", row=None, registers=72, shared_memory_bytes=2048)
    monkeypatch.setattr(prediction_code, "_assembled", lambda *_: code)
    spill = Spill(1.25, 2.36, 3.0, 4.0, 5.5, source="counted", frame=6.9)
    facts = SimpleNamespace(spill=spill, machine="played")
    monkeypatch.setattr(kernel_from_code, "launch_facts", lambda *_: facts)
    data = tomllib.loads(kernel_file(request()))
    assert data["kernel"] == {**PLAIN, "registers": 72, "shared_memory_bytes": 2048}
    (row,) = data["spill"]
    numbers = [
        row[n] for n in ("write_per_tile", "write_per_pair", "read_per_tile", "read_per_pair")
    ]
    assert numbers == [1.2, 2.4, 3.0, 4.0]
    assert (row["accesses_per_pair"], row["frame"], row["head_dim"]) == (5.5, 6, WIDTH)
    assert _spill(SimpleNamespace(spill=None), 64, "") == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cc", "gpu", "is_played"),
    [
        (90, "h100", True),
        (80, "a100", True),
        (80, "rtx-3090", True),
        (86, "a100", False),
        (90, "a100", False),
        (80, "h100", False),
    ],
)
def test_machine_code_is_played_on_gpus_that_run_it(
    cc: int, gpu: str, is_played: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code runs on its own major version, from its own minor version on."""
    monkeypatch.setattr(
        kernel_from_code, "launch_facts", lambda *_: SimpleNamespace(machine="played")
    )
    call: Any = SimpleNamespace(function=SimpleNamespace(cc=cc))
    read = kernel_from_code._Read(call, None, None, {})  # type: ignore[arg-type]
    assert read.machine(load_profile(gpu)) == ("played" if is_played else None)
    without: Any = SimpleNamespace(function=None)
    assert replace(read, call=without).machine(load_profile(gpu)) is None


@pytest.mark.parametrize(
    ("shape", "heads"),
    [
        ((2, 4, 96, 16), (2, 4)),
        ((4, 96, 16), (1, 4)),
        ((96, 16), (1, 1)),
        ((2, 3, 4, 96, 16), (2, 12)),
    ],
)
def test_sequences_and_heads_of_a_shape(shape: tuple[int, ...], heads: tuple[int, int]) -> None:
    assert _heads(TensorArgument("q", shape, "fp16")) == heads


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_Z3fooPf", "z3foopf"),
        ("flash_fwd__v2", "flash-fwd-v2"),
        ("___", "my-kernel"),
        ("é", "my-kernel"),
    ],
)
def test_a_kernels_name_in_plain_letters(name: str, plain: str) -> None:
    assert _plain(name) == plain


# ---- modules ----


def test_names_of_machine_code_go_before_those_of_ptx() -> None:
    text = ONE.format("ptx_one", 4) + ONE.format("ptx_two", 4)
    assert Module("m", (function("a"), function("a", 80), function("b")), (text,)).names == (
        "a",
        "b",
    )
    assert Module("m", ptx=(text, text)).names == ("ptx_one", "ptx_two")


def test_of_several_compute_capabilities_the_newest_that_runs() -> None:
    module = Module("m", tuple(function("a", cc) for cc in (86, 80, 90, 75)))
    for cc, taken in ((89, 86), (86, 86), (80, 80), (90, 90), (75, 75)):
        assert module.function("a", cc).cc == taken
    with pytest.raises(
        InputError, match=r"none for compute capability 10\.0; accepted: 8\.6, 8\.0"
    ):
        module.function("a", 100)
    assert module.function("a").cc == 86  # the first
    two = Module("m", (function("ab", 80), function("abc", 80)))
    assert two.function("ab", 80).name == "ab"
    assert two.function("bc").name == "abc"
    for wanted in ("a", "x", None):
        with pytest.raises(InputError, match="accepted: ab, abc"):
            two.function(wanted, 80)


def test_a_listing_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    for threads in (None, 96):
        written = function(threads=threads)
        assert f"threads={threads or 0}" in written.head
        file = tmp_path / "one.sass"
        file.write_text(written.listing, encoding="utf-8")
        again = read_module(file).function()
        assert again.threads == threads
        assert replace(again, source="") == written


@pytest.mark.parametrize(
    ("facts", "threads", "expected"),
    [
        ({"shared": 49_152, "num_warps": 4}, None, (49_152, 128, False)),
        ({"shared": 49_153, "num_warps": 4}, None, (49_153, 128, True)),
        ({"shared": 100, "num_warps": 4}, 64, (512, 64, False)),  # the code declares more
        ({"num_warps": 8}, None, (512, 256, False)),
        ({"shared": 1000}, None, (1000, None, False)),
        ({"shared": None, "num_warps": None}, None, (512, None, False)),
    ],
)
def test_what_tritons_metadata_says(
    facts: dict[str, Any], threads: int | None, expected: tuple[int, int | None, bool]
) -> None:
    from iosim.code.module import _with_facts

    read = _with_facts(function(threads=threads), facts)
    assert (read.shared_memory_bytes, read.threads, read.prefers_shared) == expected
