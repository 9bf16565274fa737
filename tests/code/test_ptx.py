"""PTX evaluated for addresses: against an interpreter that goes lane by lane, and kernels whose accesses are known by
hand."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import measurements

from iosim.base.errors import InputError
from iosim.code.addresses import SHARED, Evaluated, evaluate
from iosim.code.addresses_l1 import missed_shares
from iosim.code.addresses_moves import Shapes, all_moves, expanded
from iosim.code.addresses_objects import cut, key_of, listed
from iosim.code.arguments import TensorArgument, bind, place
from iosim.code.ptx import Entry, entries
from iosim.kernel.launch import Mode

PTX = Path(__file__).parent / "ptx"
ACCESSES = entries((PTX / "accesses.ptx").read_text(encoding="utf-8"))
FORWARD = entries((PTX / "flash_forward.ptx").read_text(encoding="utf-8"))["flash_forward"]


def tensor(
    name: str, *shape: int, dtype: str = "fp32", values: tuple[int, ...] = ()
) -> TensorArgument:
    return TensorArgument(name, shape, dtype, values)


# ---- against an interpreter that knows no arrays ----

Touched = Counter[tuple[int, int, int]]
"""(instruction, CTA, address) -> how often."""


def interpreted(
    entry: Entry, grid: tuple[int, int, int], lanes: int, values: dict[str, int]
) -> Touched:
    """What lanes touch, one lane after the other, in plain Python."""
    touches: Touched = Counter()
    for cta, (z, y, x) in enumerate(itertools.product(*(range(side) for side in grid[::-1]))):
        for lane in range(lanes):
            special = {
                "%tid.x": lane,
                "%ctaid.x": x,
                "%ctaid.y": y,
                "%ctaid.z": z,
                "%ntid.x": lanes,
            }
            _one_lane(entry, special, values, cta, touches)
    return touches


def _one_lane(
    entry: Entry, special: dict[str, int], values: dict[str, int], cta: int, touches: Touched
) -> None:
    registers: dict[str, int] = dict(special)
    at = 0

    def get(text: Any) -> int:
        return registers[text] if text in registers else int(text, 0)

    while at < len(entry.instructions):
        instruction = entry.instructions[at]
        at += 1
        if instruction.guard and bool(registers[instruction.guard]) == instruction.negated:
            continue
        name, o = instruction.name, instruction.operands
        if name == "ret":
            return
        if name == "bra":
            at = instruction.target
        elif name == "ld" and "param" in instruction.opcode:
            registers[str(o[0])] = values[str(o[1]).strip("[]")]
        elif name in ("ld", "st"):
            address = get(str(o[1] if name == "ld" else o[0]).strip("[]"))
            touches[at - 1, cta, address] += 1
        else:
            registers[str(o[0])] = _result(instruction.text, [get(x) for x in o[1:]])


def _result(text: str, v: list[int]) -> int:
    match text:
        case "mov.u32" | "cvt.s64.s32" | "cvta.to.global.u64":
            return v[0]
        case "add.s32" | "add.s64":
            return v[0] + v[1]
        case "sub.s32":
            return v[0] - v[1]
        case "mul.lo.s32" | "mul.wide.s32":
            return v[0] * v[1]
        case "mul.hi.u32":
            return v[0] * v[1] >> 32
        case "popc.b32":
            return v[0].bit_count()
        case "bfe.u32":
            return v[0] >> v[1] & (1 << v[2]) - 1
        case "mad.lo.s32":
            return v[0] * v[1] + v[2]
        case "shl.b32":
            return v[0] << v[1]
        case "and.b32":
            return v[0] & v[1]
        case "or.b32":
            return v[0] | v[1]
        case "rem.u32":
            return v[0] % v[1]
        case "shr.u32":
            return v[0] >> v[1]
        case "min.s32":
            return min(v)
        case "selp.b32":
            return v[0] if v[2] else v[1]
        case "setp.lt.s32":
            return int(v[0] < v[1])
        case "setp.ge.s32":
            return int(v[0] >= v[1])
        case "setp.eq.s32":
            return int(v[0] == v[1])
    raise AssertionError(text)


def touched(evaluated: Evaluated) -> Touched:
    """The same, of the folded trace written out."""
    touches: Touched = Counter()
    before = 0
    for trace in evaluated.traces:
        for access, folds in trace.walk():
            assert access.pattern is not None
            pattern = trace.patterns[access.pattern]
            offsets = pattern.offset[pattern.active]
            for n, cta in enumerate(access.ctas):
                counts = [range(int(fold.count[cta])) for fold in folds]
                for trips in itertools.product(*counts):
                    base = access.base[n] + sum(
                        t * s[n] for t, s in zip(trips, access.strides, strict=True)
                    )
                    for offset in offsets:
                        touches[access.site // 2, before + int(cta), int(base + offset)] += 1
        before += trace.ctas
    return touches


def agree(entry: Entry, grid: tuple[int, int, int], lanes: int, arguments: dict[str, Any]) -> None:
    evaluated = evaluate(entry, grid, arguments, (lanes, 1, 1))
    values = {
        name: value for name, value in bind(entry, arguments).values.items() if value is not None
    }
    assert touched(evaluated) == interpreted(entry, grid, lanes, values)


LOOP = """
.visible .entry kernel(.param .u64 x, .param .u32 n, .param .u32 m)
{{
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [m];
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r20, %ctaid.y;
    mad.lo.s32 %r5, %r4, {per_cta}, %r3;
    mad.lo.s32 %r5, %r20, 1000, %r5;
    mov.u32 %r6, {first};
    mad.lo.s32 %r19, %r4, {longer}, %r1;
OUTER:
    setp.ge.s32 %p1, %r6, %r19;
    @%p1 bra DONE;
    mov.u32 %r7, 0;
INNER:
    {bend}
    add.s32 %r9, %r8, %r7;
    setp.lt.s32 %p2, %r9, {limit};
    mul.wide.s32 %rd2, %r9, {element};
    add.s64 %rd3, %rd1, %rd2;
    @%p2 ld.global.f32 %f1, [%rd3];
    add.s32 %r7, %r7, {inner};
    setp.lt.s32 %p3, %r7, %r2;
    @%p3 bra INNER;
    setp.eq.s32 %p4, %r3, {lane};
    @%p4 bra SKIP;
    mul.wide.s32 %rd4, %r6, 4;
    add.s64 %rd5, %rd1, %rd4;
    st.global.f32 [%rd5], %f1;
SKIP:
    add.s32 %r6, %r6, {outer};
    bra OUTER;
DONE:
    ret;
}}
"""
BENDS = (
    "mad.lo.s32 %r8, %r6, 3, %r5;",
    "and.b32 %r10, %r6, 3; mad.lo.s32 %r8, %r10, 64, %r5;",
    "shl.b32 %r10, %r3, 8; and.b32 %r11, %r6, 255; or.b32 %r8, %r10, %r11;",
    "rem.u32 %r10, %r6, 5; add.s32 %r8, %r10, %r5;",
    "shr.u32 %r10, %r6, 1; mad.lo.s32 %r8, %r10, 7, %r5;",
    "min.s32 %r8, %r6, 9; add.s32 %r8, %r8, %r5;",
    "shl.b32 %r10, 1, %r7; add.s32 %r8, %r10, %r5;",
    "mul.hi.u32 %r10, %r6, 0x55555556; add.s32 %r8, %r10, %r5;",
    "popc.b32 %r10, %r6; add.s32 %r8, %r10, %r5;",
    "bfe.u32 %r10, 0x5555, %r7, 3; add.s32 %r8, %r10, %r5;",
    "setp.lt.s32 %p7, %r6, 6; selp.b32 %r10, %r6, 2, %p7; add.s32 %r8, %r10, %r5;",
)


@given(
    bend=st.sampled_from(BENDS),
    per_cta=st.integers(0, 70),
    first=st.integers(0, 3),
    longer=st.integers(0, 3),
    limit=st.integers(1, 90),
    element=st.sampled_from((2, 4, 16)),
    inner=st.integers(1, 3),
    outer=st.integers(1, 4),
    lane=st.integers(-1, 4),
    n=st.integers(0, 24),
    m=st.integers(1, 7),
    ctas=st.integers(1, 3),
    rows=st.integers(1, 2),
)
@settings(deadline=None)
def test_what_is_evaluated_together_is_what_each_lane_does(
    bend: str, n: int, m: int, ctas: int, rows: int, **numbers: int
) -> None:
    """Loops in loops, ragged ends, masks by lane and by CTA, trips that differ by CTA, operations that bend."""
    entry = entries(LOOP.format(bend=bend, **numbers))["kernel"]
    agree(entry, (ctas, rows, 1), 5, {"x": tensor("x", 4096), "n": n, "m": m})


def test_many_trips_cost_as_little_as_few() -> None:
    numbers = {
        "per_cta": 32,
        "first": 0,
        "longer": 0,
        "limit": 1 << 30,
        "element": 4,
        "inner": 1,
        "outer": 1,
        "lane": -1,
    }
    entry = entries(LOOP.format(bend=BENDS[0], **numbers))["kernel"]
    short, long = (
        evaluate(entry, (4,), {"x": tensor("x", 4), "n": n, "m": n}, (32,)) for n in (20, 20_000)
    )
    assert long.traces[0].executed == short.traces[0].executed
    loads = next(site for site in long.sites if site.mode is Mode.LOAD)
    assert loads.requests == 4 * 20_000 * 20_000


# ---- kernels whose accesses are known by hand ----


def test_a_column_store_takes_a_sector_a_lane() -> None:
    rows, cols = 1000, 64
    arguments = {
        "in": tensor("in", cols, rows),
        "out": tensor("out", rows, cols),
        "rows": rows,
        "cols": cols,
    }
    counts = evaluate(ACCESSES["column_store"], (8,), arguments, (128,))
    assert counts.sectors(Mode.STORE) == rows * cols
    # Rows of 4,000 bytes begin at a sector; of 32 warps the last has 8 rows: 31 x 4 + 1 sectors a column.
    assert counts.sectors(Mode.LOAD) == cols * (31 * 4 + 1)
    store = next(site for site in counts.sites if site.mode is Mode.STORE)
    assert store.used_share == pytest.approx(1 / 8)
    assert store.line.startswith("accesses.cu:")


def test_a_column_of_shared_memory_takes_32_cycles() -> None:
    n = 256
    counts = evaluate(
        ACCESSES["transpose"],
        (8, 8),
        {"in": tensor("in", n, n), "out": tensor("out", n, n), "n": n},
        (32, 8),
    )
    requests = 8 * 8 * 32  # CTAs x rows of a tile
    assert counts.wavefronts(Mode.STORE) == requests
    assert counts.wavefronts(Mode.LOAD) == 32 * requests
    assert counts.sectors(Mode.LOAD) == counts.sectors(Mode.STORE) == n * n * 4 // 32
    conflict = next(
        site for site in counts.sites if site.space == SHARED and site.mode is Mode.LOAD
    )
    assert conflict.wavefronts == 32 * conflict.least_wavefronts


def test_a_norm_reads_its_row_again_from_l1_where_it_is_held() -> None:
    cols = 4096
    arguments = {
        "in": tensor("in", 300, cols),
        "out": tensor("out", 300, cols),
        "w": tensor("w", cols),
        "cols": cols,
    }
    counts = evaluate(ACCESSES["row_norm"], (300,), arguments, (256,))
    assert counts.sectors(Mode.LOAD) == 3 * 300 * cols * 4 // 32
    assert counts.sectors(Mode.STORE) == 300 * cols * 4 // 32
    held, lost = 2 << 20, 1 << 10  # bytes of L1; a row has 16 KiB, and its output as many
    by_size = {size: missed_shares(counts, size, 1, 132) for size in (held, lost)}
    loads = [s for s in counts.sites if s.tensor == "in" and s.mode is Mode.LOAD]
    for size, times in ((held, 1), (lost, 2)):
        missed = sum(by_size[size][s.number] * s.sectors for s in loads)
        assert missed == pytest.approx(times * 300 * cols * 4 / 32, rel=0.03)
    weight = next(s for s in counts.sites if s.tensor == "w").number
    # CTAs of an SM read the weights for one another
    assert missed_shares(counts, 2 << 20, 3, 100)[weight] < 0.4
    assert by_size[lost][weight] > 0.97


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_what_is_stored_beside_a_second_reading_drives_out_the_rest(gpu: str) -> None:
    """Rows of 16 and 32 KiB of eight CTAs, read twice beside stores (..._cache_edges.csv, twice-4096-1, twice-8192-1):
    which share of all loads L1 serves. Every second row of the H100's table was fitted on, these were not; the H200's
    was counted after the model stood."""
    with measurements(f"{gpu}_cache_edges.csv").open(encoding="utf-8", newline="") as file:
        counted = {row["case"]: row for row in csv.DictReader(file)}
    for cols, within in ((4096, 0.06), (8192, 0.03)):
        arguments = {
            "in": tensor("in", 4224, cols),
            "out": tensor("out", 4224, cols),
            "w": tensor("w", cols),
            "cols": cols,
        }
        evaluated = evaluate(ACCESSES["row_norm"], (4224,), arguments, (256,))
        missed = missed_shares(evaluated, 240 << 10, 8, 132)
        again = [s for s in evaluated.sites if s.tensor == "in" and s.mode is Mode.LOAD][-1]
        row = counted[f"twice-{cols}-1"]
        share = float(row["global_load_sectors_hit_l1"]) / float(row["global_load_sectors"])
        assert (1 - missed[again.number]) / 2 == pytest.approx(
            share, abs=within
        )  # of both readings


def test_objects_are_whole_lines_of_which_some_sectors_are_touched() -> None:
    shapes = Shapes()
    sector = shapes.number(np.array([0]))
    pair = shapes.number(np.array([0, 4]))
    same_line = np.array([key_of(np.array([0]), sector)[0], key_of(np.array([32]), sector)[0]])
    objects = cut(np.unique(same_line), shapes)  # the first two sectors of a line, by a move each
    assert (objects.sizes.tolist(), objects.used) == ([128], 0.5)
    assert objects.pieces.tolist() == [0, 0]
    apart = np.unique(key_of(np.array([0, 2048]), pair))  # two lines each, a sector of each line
    objects = cut(apart, shapes)
    assert (objects.sizes.tolist(), objects.used) == ([256, 256], 0.25)


def test_numbers_in_memory_decide_addresses_where_they_are_given() -> None:
    tokens, tile = 100, 32
    starts = tensor("starts", 2, dtype="int32", values=(0, 5000))
    arguments = {
        "keys": tensor("keys", 8192, 64),
        "out": tensor("out", 4096),
        "starts": starts,
        "n": tokens,
        "tile": tile,
    }
    counts = evaluate(ACCESSES["causal_loads"], (4, 2), arguments, (128,))
    rows = 2 * sum(
        min(tokens, (x + 1) * tile) for x in range(4)
    )  # a row of 16 lanes of 16 bytes: 8 sectors
    assert next(s for s in counts.sites if s.tensor == "keys").sectors == 8 * rows
    moves, shapes = all_moves(counts)
    keys = [m for m in moves if counts.bound.tensors[m.tensor].name == "keys"]
    assert min(int(m.anchor.min()) for m in keys) == place(0)
    assert max(int(expanded(m).anchor.max()) for m in keys) >= place(0) + 5000 * 256
    unknown = evaluate(
        ACCESSES["causal_loads"],
        (4, 2),
        {**arguments, "starts": tensor("starts", 2, dtype="int32")},
        (128,),
    )
    assert any("loaded" in note for note in unknown.notes)
    del shapes


def test_a_flash_forward_moves_whole_tiles() -> None:
    """64 x 64 tiles, causal: block i of a head reads i + 1 blocks of keys, of 64 x 64 x 2 bytes."""
    heads, tokens = 6, 1024
    matrix = {
        name: tensor(name, heads, tokens, 64, dtype="bf16") for name in ("Q", "K", "V", "Out")
    }
    arguments = {
        "scale": 0.1,
        "M": tensor("M", heads, tokens),
        "Z": 1,
        "H": heads,
        **matrix,
        "N": tokens,
    }
    counts = evaluate(FORWARD, (tokens // 64, heads), arguments)
    blocks, tile = tokens // 64, 64 * 64 * 2 // 32
    visits = heads * blocks * (blocks + 1) // 2
    by_tensor = {
        name: sum(s.sectors for s in counts.sites if s.tensor == name)
        for name in ("Q", "K", "V", "Out", "M")
    }
    assert by_tensor == {
        "Q": heads * blocks * tile,
        "K": visits * tile,
        "V": visits * tile,
        "Out": heads * blocks * tile,
        "M": heads * tokens * 4 // 32,
    }
    objects = listed(*all_moves(counts), counts.ctas)
    names = [t.name for t in counts.bound.tensors]
    for number, sizes in objects.sizes.items():
        if names[number] in ("Q", "K", "V", "Out"):
            assert np.unique(sizes).tolist() == [64 * 64 * 2]
    assert objects.entries.size == 2 * visits + 3 * heads * blocks  # K and V; Q, Out and M
    assert any(s.moves_with_loop for s in counts.sites if s.tensor == "K")
    assert not any(s.strides for s in counts.sites if s.tensor == "Q")


# ---- what is refused, and what is said ----


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    entry = ACCESSES["transpose"]
    good = {"in": tensor("in", 8, 8), "out": tensor("out", 8, 8), "n": 8}
    with pytest.raises(InputError, match="takes 3"):
        evaluate(entry, (1,), {"in": good["in"]}, (32, 8))
    with pytest.raises(InputError, match="block is missing"):
        evaluate(entry, (1,), good)
    with pytest.raises(InputError, match="is a tensor, but parameter"):
        evaluate(entry, (1,), {**good, "n": tensor("n", 4)}, (32, 8))
    with pytest.raises(InputError, match=r"no PTX of a kernel"):
        entries("int main() {}")


def test_a_branch_on_what_was_loaded_is_said() -> None:
    text = """.visible .entry k(.param .u64 x) {
        ld.param.u64 %rd1, [x];
        ld.global.f32 %f1, [%rd1];
        setp.lt.f32 %p1, %f1, 0f00000000;
        @%p1 bra END;
        st.global.f32 [%rd1], %f1;
    END:
        ret;
    }"""
    counts = evaluate(entries(text)["k"], (1,), {"x": tensor("x", 4)}, (32,))
    assert counts.sectors(Mode.STORE) == 1
    assert [note for note in counts.notes if "branch on floating point" in note]


def test_an_indirect_branch_is_named() -> None:
    text = ".visible .entry k(.param .u64 x) { brx.idx %r1, table; ret; }"
    with pytest.raises(InputError, match="branches through a table"):
        evaluate(entries(text)["k"], (1,), {"x": tensor("x", 4)}, (32,))


def test_lines_run_as_often_as_their_blocks() -> None:
    cols = 1024
    arguments = {
        "in": tensor("in", 3, cols),
        "out": tensor("out", 3, cols),
        "w": tensor("w", cols),
        "cols": cols,
    }
    counts = evaluate(ACCESSES["row_norm"], (3,), arguments, (128,))
    square = next(s for s in counts.sites if s.tensor == "w")
    row = counts.entry.instructions[square.number // 2].row
    assert counts.runs[row] == pytest.approx(
        square.requests
        / (3 * 4)
        / sum(instruction.row == row for instruction in counts.entry.instructions)
    )


def test_a_vector_of_one_is_a_scalar() -> None:
    """As Triton writes `ld.global.b32 { %r39 }, [ %rd18 + 0 ]`: what it loads may decide addresses."""
    text = """
.version 8.7
.target sm_90
.visible .entry one(.param .u64 one_param_0, .param .u64 one_param_1)
.reqntid 32
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<8>;
	ld.param.u64 %rd1, [one_param_0];
	ld.param.u64 %rd2, [one_param_1];
	ld.global.b32 { %r1 }, [ %rd1 + 0 ];
	mul.wide.s32 %rd3, %r1, 4;
	add.s64 %rd4, %rd2, %rd3;
	ld.global.b32 { %r2 }, [ %rd4 + 0 ];
	ret;
}
"""
    (entry,) = entries(text).values()
    evaluated = evaluate(
        entry, (1,), {"a": tensor("a", 1, dtype="int32", values=(7,)), "x": tensor("x", 64)}
    )
    assert {site.tensor for site in evaluated.sites} == {"a", "x"}
    assert evaluated.notes == ()


TWO_WAYS = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry two_ways(.param .u64 x, .param .u64 out)
.reqntid 32
{
	.reg .pred %p<2>;
	.reg .b32 %r<3>;
	.reg .f32 %f<6>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [x];
	ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.f32 %f1, [%rd4];
	setp.ltu.f32 %p1, %f1, 0f3F19999A;
	@%p1 bra SHORT;
	bra.uni LONG;
SHORT:
	mul.f32 %f2, %f1, %f1;
	bra.uni DONE;
LONG:
	ex2.approx.ftz.f32 %f3, %f1;
	add.f32 %f4, %f3, %f3;
	rcp.approx.ftz.f32 %f2, %f4;
DONE:
	st.global.f32 [%rd5], %f2;
	ret;
}
"""


def test_of_two_ways_that_meet_again_lanes_go_the_shorter() -> None:
    (entry,) = entries(TWO_WAYS).values()
    evaluated = evaluate(entry, (1,), {"x": tensor("x", 32), "out": tensor("out", 32)})
    times = {
        instruction.text: evaluated.runs[instruction.row]
        for instruction in entry.instructions
        if "f32" in instruction.text
    }
    assert {text.split()[0]: n for text, n in times.items()} == {
        "ld.global.f32": 1,
        "setp.ltu.f32": 1,
        "mul.f32": 1,
        "ex2.approx.ftz.f32": 0,
        "add.f32": 0,
        "rcp.approx.ftz.f32": 0,
        "st.global.f32": 1,
    }
    assert evaluated.shares.tolist() == [1.0]
