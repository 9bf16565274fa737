"""An attention's loads and stores in PTX, with the axes of its grid, its tensors' axes and its order as asked.

A CTA of 32 lanes takes 32 query rows, a lane each, walks the keys 16 at a time, two lanes a row, and stores its rows.
Nothing is computed: what an attention reads and writes is what is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosim.code.addresses import Evaluated, evaluate
from iosim.code.arguments import TensorArgument
from iosim.code.ptx import entries

ROWS, KEYS, WIDTH = 32, 16, 16
"""Query rows, keys of a step, and head dimension: a row of fp16 is 32 bytes, a sector."""
AXES = ("blocks", "heads", "batch")
PLACES = dict(zip(AXES, ("%r1", "%r2", "%r3"), strict=True))
TEXT = """
.visible .entry attention(.param .u64 {q}, .param .u64 {k}, .param .u64 {out}, .param .u64 {starts},
    .param .u32 tokens, .param .u32 row, .param .u32 head, .param .u32 sequence)
.reqntid 32
{{
    ld.param.u64 %rd1, [{q}];
    ld.param.u64 %rd2, [{k}];
    ld.param.u64 %rd3, [{out}];
    ld.param.u64 %rd4, [{starts}];
    ld.param.u32 %r10, [tokens];
    ld.param.u32 %r11, [row];
    ld.param.u32 %r12, [head];
    ld.param.u32 %r13, [sequence];
    mov.u32 {x}, %ctaid.x;
    mov.u32 {y}, %ctaid.y;
    mov.u32 {z}, %ctaid.z;
    mov.u32 %r4, 0;
    mov.u32 %r14, %tid.x;
    {split}
    {down}
    {base}
    mad.lo.s32 %r20, %r2, %r12, %r20;
    shl.b32 %r21, %r1, 5;
    add.s32 %r21, %r21, %r14;
    setp.lt.s32 %p8, %r21, %r10;
    setp.eq.s32 %p9, %r14, 0;
    mad.lo.s32 %r22, %r21, %r11, %r20;
    mad.wide.s32 %rd10, %r22, 2, %rd1;
    mad.wide.s32 %rd11, %r22, 2, %rd3;
    {query_once}
    mul.lo.s32 %r30, %r10, %r4;
    div.u32 %r30, %r30, {splits};
    div.u32 %r31, %r10, {splits};
    add.s32 %r31, %r30, %r31;
    {first}
STEP:
    {query_again}
    shr.u32 %r32, %r14, 1;
    add.s32 %r32, %r32, %r30;
    mad.lo.s32 %r33, %r32, %r11, %r20;
    and.b32 %r34, %r14, 1;
    shl.b32 %r34, %r34, 3;
    add.s32 %r33, %r33, %r34;
    mad.wide.s32 %rd12, %r33, 2, %rd2;
    ld.global.v4.b32 {{%r90, %r91, %r92, %r93}}, [%rd12];
    {next}
    @%p1 bra STEP;
    @%p8 st.global.v4.b32 [%rd11], {{%r90, %r91, %r92, %r93}};
    @%p8 st.global.v4.b32 [%rd11+16], {{%r90, %r91, %r92, %r93}};
    ret;
}}
"""
QUERY = (
    "@%p8 ld.global.v4.b32 {%r80, %r81, %r82, %r83}, [%rd10]; "
    "@%p8 ld.global.v4.b32 {%r84, %r85, %r86, %r87}, [%rd10+16];"
)
ONE_ROW = QUERY.replace("%p8", "%p9")
UP = ("", f"add.s32 %r30, %r30, {KEYS}; setp.lt.s32 %p1, %r30, %r31;")
DOWN = (
    f"mov.u32 %r35, %r30; sub.s32 %r30, %r31, {KEYS};",
    f"sub.s32 %r30, %r30, {KEYS}; setp.ge.s32 %p1, %r30, %r35;",
)
"""Before the steps and behind each of them: from the first keys, from the last."""
NAMES = {"q": "q", "k": "k", "out": "out", "starts": "starts"}


def text(
    axes: Sequence[str] = AXES,
    splits: int = 1,
    is_packed: bool = False,
    is_heavy_first: bool = False,
    is_descending: bool = False,
    loads_q: str = "once",
    names: Mapping[str, str] = NAMES,
) -> str:
    """The kernel whose grid has these axes, the fastest first; `splits` CTAs of a sequence's axis share the keys, and
    Q is loaded once, in every step, never, or once with one row of it again in every step. What lies behind the last
    token is left out."""
    first, after = DOWN if is_descending else UP
    places = (PLACES[axis] for axis in axes)
    return TEXT.format(
        **dict(zip("xyz", places, strict=True)),
        **names,
        split=f"rem.u32 %r4, %r3, {splits}; div.u32 %r3, %r3, {splits};" if splits > 1 else "",
        down="shr.u32 %r5, %r10, 5; sub.s32 %r5, %r5, 1; sub.s32 %r1, %r5, %r1;"
        if is_heavy_first
        else "",
        base="mul.wide.u32 %rd5, %r3, 4; add.s64 %rd5, %rd4, %rd5; ld.global.u32 %r20, [%rd5]; "
        "mul.lo.s32 %r20, %r20, %r11;"
        if is_packed
        else "mul.lo.s32 %r20, %r3, %r13;",
        query_once=QUERY if loads_q in ("once", "a row again") else "",
        query_again={"each step": QUERY, "a row again": ONE_ROW}.get(loads_q, ""),
        splits=splits,
        first=first,
        next=after,
    )


def strides(axes: Sequence[str], sides: Mapping[str, int]) -> dict[str, int]:
    """Elements from row to row, head to head and sequence to sequence of a tensor whose outer axes stand so."""
    by_axis, step = {}, WIDTH
    for axis in reversed(axes):
        by_axis[axis] = step
        step *= sides[axis]
    return {"row": by_axis["tokens"], "head": by_axis["heads"], "sequence": by_axis["batch"]}


def arguments(
    shape: Sequence[int],
    steps: Mapping[str, int],
    tokens: int,
    starts: Sequence[int] = (),
    names: Mapping[str, str] = NAMES,
) -> dict[str, TensorArgument | int]:
    """What the kernel is given: tensors of that outer shape, and the strides of its axes."""
    tensors = {
        names[role]: TensorArgument(names[role], (*shape, WIDTH), "fp16")
        for role in ("q", "k", "out")
    }
    first = TensorArgument(names["starts"], (max(1, len(starts)),), "int32", tuple(starts))
    return {**tensors, names["starts"]: first, "tokens": tokens, **steps}


def evaluated(
    code: str, grid: Sequence[int], parameters: Mapping[str, TensorArgument | int]
) -> Evaluated:
    (entry,) = entries(code).values()
    return evaluate(entry, tuple(grid), parameters)
