"""A kernel of 5,000 instructions is read in 5 seconds, addresses and machine code, or refused by then.

A machine that runs much else takes up to twice as many seconds of its processor, so that these tests allow three times 5.
"""

from __future__ import annotations

import time

import pytest

from iosim.base.errors import InputError
from iosim.code.addresses import evaluate
from iosim.code.arguments import TensorArgument
from iosim.code.ptx import Entry, entries

ALLOWED_S, LOADS, TRIPS = 3 * 5.0, 1250, 64
HEAD = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry many(.param .u64 x, .param .u64 out)
.reqntid 256
{
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<4>;
ld.param.u64 %rd1, [x];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mad.lo.s32 %r3, %r2, 256, %r1;
mul.wide.s32 %rd3, %r3, 4;
add.s64 %rd4, %rd1, %rd3;
mov.u32 %r4, 0;
$L1:
"""
TURN = """add.s32 %r5, %r4, {n};
mul.wide.s32 %rd5, %r5, 1024;
add.s64 %rd6, %rd4, %rd5;
ld.global.f32 %f1, [%rd6];
"""
TAIL = f"""add.s32 %r4, %r4, 1;
setp.lt.s32 %p1, %r4, {TRIPS};
@%p1 bra $L1;
add.s64 %rd7, %rd2, %rd3;
st.global.f32 [%rd7], %f1;
ret;
}}
"""
ROWS = TensorArgument("x", (4096, 4096), "fp32")


@pytest.fixture(scope="module")
def many() -> Entry:
    text = HEAD + "".join(TURN.format(n=n) for n in range(LOADS)) + TAIL
    (entry,) = entries(text).values()
    assert len(entry.instructions) > 5000
    return entry


def test_five_thousand_instructions_are_read_in_seconds(many: Entry) -> None:
    begun = time.process_time()
    out = TensorArgument("out", (131072,), "fp32")
    evaluated = evaluate(many, (512,), {"x": ROWS, "out": out}, seconds=ALLOWED_S)
    loads = sum(site.requests for site in evaluated.sites if site.tensor == "x")
    assert loads == 512 * 8 * TRIPS * LOADS  # CTAs x warps x turns x loads
    assert time.process_time() - begun < ALLOWED_S


def test_what_takes_longer_is_refused(many: Entry) -> None:
    with pytest.raises(InputError, match="was not evaluated within"):
        evaluate(many, (512,), {"x": ROWS, "out": ROWS}, seconds=0.01)
