"""What Triton's compiler is asked for, and what it says: Triton is a stand-in that notes how it is called."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from triton_in_numpy import triton_in_numpy

from iosim import AttentionProblem
from iosim.base.errors import InputError
from iosim.catalog.resource_table import BuildReport
from iosim.code.cubin import CubinReport
from iosim.hardware.profile import load_profile
from iosim.integrations.triton import compiled
from iosim.integrations.triton.compiled import compile_for, compiled_configs, schedule_of
from iosim.integrations.triton.kernel import Config
from iosim.kernel.kernel import Tile
from iosim.kernel.schedule import Order, Schedule

PROBLEM = AttentionProblem(heads=8, seq_q=1024, head_dim=64, dtype="bf16")
WINDOW = {"mask": "window", "window": 64}
H100 = load_profile("h100")


def stand_in(monkeypatch: pytest.MonkeyPatch, **result: Any) -> list[SimpleNamespace]:
    """Notes each call of triton.compile, which gives `result`; registers are those that stand in it."""
    calls: list[SimpleNamespace] = []
    triton: Any = ModuleType("triton")
    triton.compiler = SimpleNamespace(
        ASTSource=lambda fn, signature, constexprs, attrs: SimpleNamespace(
            fn=fn, signature=signature, constants=constexprs, attributes=attrs
        )
    )
    target = SimpleNamespace(GPUTarget=lambda *parts: parts)
    triton.backends = SimpleNamespace(compiler=target)

    def compile_(source: Any, target: Any, options: Any) -> Any:
        calls.append(SimpleNamespace(source=source, target=target, options=options))
        metadata = SimpleNamespace(shared=4096, num_warps=options["num_warps"], name="k")
        return SimpleNamespace(metadata=metadata, **result)

    triton.compile = compile_
    monkeypatch.setattr(compiled, "_triton", lambda: triton)
    return calls


def parameter(name: str, **more: Any) -> Any:
    plain = {
        "is_constexpr": False,
        "annotation_type": "",
        "do_not_specialize": False,
        "has_default": False,
        "default": None,
    }
    return SimpleNamespace(name=name, **{**plain, **more})


def function(*parameters: Any) -> Any:
    return SimpleNamespace(arg_names=[p.name for p in parameters], params=list(parameters))


@pytest.mark.parametrize(
    ("value", "more", "kind"),
    [
        (0, {}, "i32"),
        (
            1,
            {},
            "constexpr",
        ),  # Triton makes a 1 part of the code, unless the argument says otherwise
        (1, {"annotation_type": "i32"}, "i32"),
        (1, {"do_not_specialize": True}, "i32"),
        (True, {}, "i1"),
        (None, {}, "constexpr"),
        (5, {"is_constexpr": True}, "constexpr"),
        (2**31 - 1, {}, "i32"),
        (2**31, {}, "i64"),
        (-(2**31), {}, "i64"),
        (0.5, {}, "fp32"),
        ("*fp16", {}, "*fp16"),
        (SimpleNamespace(dtype="torch.bfloat16"), {}, "*bf16"),
        (SimpleNamespace(dtype="torch.int64"), {}, "*i64"),
        (SimpleNamespace(dtype="torch.bool"), {}, "*i1"),
    ],
)
def test_types_of_arguments(
    value: Any, more: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stand_in(monkeypatch)
    compile_for(function(parameter("x", **more)), {"x": value}, H100, 4, 3)
    (source,) = (c.source for c in calls)
    assert source.signature == {"x": kind}
    assert source.constants == ({"x": value} if kind == "constexpr" else {})


def test_what_is_divisible_by_16_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pointers are taken to be, numbers where they are."""
    calls = stand_in(monkeypatch)
    fn = function(*(parameter(name) for name in ("p", "a", "b", "c")))
    compile_for(fn, {"p": "*fp16", "a": 32, "b": 33, "c": 1}, "a100", 8, 2, registers=128)
    (call,) = calls
    assert call.source.attributes == {
        (0,): [["tt.divisibility", 16]],
        (1,): [["tt.divisibility", 16]],
    }
    assert call.target == ("cuda", 80, 32)
    assert call.options == {"num_warps": 8, "num_stages": 2, "maxnreg": 128}
    compile_for(fn, {"p": "*fp16", "a": 32, "b": 33, "c": 1}, "a100", 4, 3)
    assert calls[1].options == {"num_warps": 4, "num_stages": 3}


def test_what_is_left_out_is_the_functions_default(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stand_in(monkeypatch)
    fn = function(parameter("a", has_default=True, default=7), parameter("b"))
    compile_for(fn, {"b": 2}, H100, 4, 3)
    compile_for(fn, {"a": 0.5, "b": 2}, H100, 4, 3)
    assert [c.source.signature["a"] for c in calls] == ["i32", "fp32"]
    with pytest.raises(InputError, match="args lacks b"):
        compile_for(fn, {}, H100, 4, 3)


@pytest.mark.parametrize("value", [object(), SimpleNamespace(dtype="torch.complex64")])
def test_a_type_that_is_not_known(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    with pytest.raises(InputError, match=r"args x .* is no number, tensor or word"):
        compile_for(function(parameter("x")), {"x": value}, H100, 4, 3)


def forward_parameters() -> Any:
    names = [
        "sm_scale",
        "M",
        "Z",
        "H",
        "Q",
        "K",
        "V",
        "Out",
        "N_CTX",
        "HEAD_DIM",
        "BLOCK_M",
        "BLOCK_N",
        "STAGE",
    ]
    constants = names[-4:]
    return function(*(parameter(n, is_constexpr=n in constants) for n in names))


@pytest.mark.parametrize(("mask", "stage"), [("none", 1), ("causal", 3)])
def test_configurations_that_are_compiled(
    mask: str, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones of the list, each with its tile, warps and stages, and the problem's types and mask."""
    calls = stand_in(monkeypatch, asm={}, n_regs=90, n_spills=3)
    configs = [Config(64, 32, 4, 2), Config(128, 64, 8, 3), Config(16, 16)]
    with triton_in_numpy():
        import iosim.integrations.triton.forward as module

        monkeypatch.setattr(module, "flash_forward", forward_parameters())
        reports = compiled_configs(configs, PROBLEM.with_(mask=mask), H100, 2)
    # Spills are given in words of 4 bytes.
    assert reports == dict.fromkeys(configs[:2], BuildReport(90, 4096, 12))
    assert [c.options for c in calls] == [
        {"num_warps": 4, "num_stages": 2},
        {"num_warps": 8, "num_stages": 3},
    ]
    tensors = dict.fromkeys(("Q", "K", "V", "Out"), "*bf16")
    numbers = {"M": "*fp32", "sm_scale": "fp32", "Z": "i32", "H": "i32", "N_CTX": "i32"}
    for call, config in zip(calls, configs, strict=False):
        constants = {"HEAD_DIM": 64, "STAGE": stage}
        constants |= {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
        assert call.source.constants == constants
        assert call.source.signature == {
            **tensors,
            **numbers,
            **dict.fromkeys(constants, "constexpr"),
        }
        # N_CTX, a multiple of the blocks, and the pointers
        assert sorted(call.source.attributes) == [(1,), (4,), (5,), (6,), (7,), (8,)]


def test_without_a_report_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, asm={})
    with triton_in_numpy():
        import iosim.integrations.triton.forward as module

        monkeypatch.setattr(module, "flash_forward", forward_parameters())
        assert compiled_configs([Config(64, 32)], PROBLEM, H100, 1) == {}


@pytest.mark.parametrize(
    ("changes", "limit", "words"),
    [
        ({}, 0, "compile 0 is out of range"),
        (WINDOW, 1, "mask window: Triton's forward"),
        ({"head_dim_v": 32}, 1, "compiled for full and causal attention"),
        ({**WINDOW, "head_dim_v": 32}, 1, "compiled for full and causal attention"),
        ({"dtype": "tf32"}, 1, "dtype tf32 is not compiled by Triton"),
    ],
)
def test_what_is_not_compiled(
    changes: dict[str, Any], limit: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    with pytest.raises(InputError, match=words):
        compiled_configs([Config(64, 32)], PROBLEM.with_(**changes), H100, limit)


@pytest.mark.parametrize(
    ("flags", "mask"),
    [
        ({"CAUSAL": True, "IS_CAUSAL": False}, "causal"),  # one that is set is enough
        ({"CAUSAL": False, "IS_CAUSAL": False}, "none"),
        ({"STAGE": 3}, "causal"),
        ({"STAGE": 1}, "none"),
    ],
)
def test_flags_of_a_mask(flags: dict[str, Any], mask: str) -> None:
    sizes = {"Z": 1, "H": 8, "N_CTX": 1024, "HEAD_DIM": 64}
    assert compiled.tutorial_problem(sizes | flags).mask == mask


def test_grids_of_ragged_blocks_and_of_sides_of_one() -> None:
    tile = Tile(64, 32, 4, 2)
    ragged = PROBLEM.with_(seq_q=1000)  # 15.6 blocks are 16
    assert schedule_of((16, 8), ragged, tile) == (Schedule(), None)
    assert schedule_of((15, 8), ragged, tile)[1] == 120  # fewer programs than tiles: they stay
    assert schedule_of((1, 8, 16), PROBLEM, tile) == (Schedule(order=Order.HEAD), None)


@pytest.mark.parametrize(
    ("gpu", "cc", "is_read"),
    [("h100", 90, True), ("h100", 80, False), (None, 80, True), (None, 35, False)],
    ids=["its GPU", "another GPU", "a GPU like it", "no such GPU"],
)
def test_machine_code_is_read_for_a_gpu_like_its_own(
    gpu: str | None, cc: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    function_read = SimpleNamespace(cc=cc)
    module = SimpleNamespace(function=lambda: function_read)
    monkeypatch.setattr(compiled, "read_module", lambda _: module)
    calls_made: list[Any] = []

    def facts(*values: Any, threads: int) -> Any:
        calls_made.append((*values, threads))
        return SimpleNamespace(notes=("one", "two"))

    monkeypatch.setattr(compiled, "kernel_facts", facts)
    fn: Any = SimpleNamespace(asm={"cubin": b""}, metadata=SimpleNamespace(num_warps=8))
    facts_read, notes = compiled._facts(fn, gpu)
    if not is_read:
        assert (facts_read, notes, calls_made) == (None, (), [])
        return
    assert notes == ("Of its machine code: one; two",)
    ((code, profile, threads),) = calls_made
    assert (code, profile.cc, profile.is_amd, threads) == (function_read, cc, False, 256)


def test_why_machine_code_is_not_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Any) -> Any:
        raise InputError("no tool")

    monkeypatch.setattr(compiled, "read_module", missing)
    fn: Any = SimpleNamespace(asm={"cubin": b""}, metadata=SimpleNamespace(num_warps=8))
    assert compiled._facts(fn, None) == (None, ("Its machine code was not read: no tool",))
    assert compiled._facts(SimpleNamespace(asm=None), None) == (None, ())


def test_of_several_kernels_the_one_of_that_name_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = {"first": CubinReport(10, 4), "second": CubinReport(20, 8)}
    monkeypatch.setattr(compiled, "read_cubin", lambda _: reports)
    for name, report in (
        ("second", BuildReport(20, 64, 8)),
        ("first", BuildReport(10, 64, 4)),
        ("another", BuildReport(10, 64, 4)),  # the first one
    ):
        fn = SimpleNamespace(asm={"cubin": b""}, metadata=SimpleNamespace(shared=64, name=name))
        assert compiled.report_of(fn) == report
