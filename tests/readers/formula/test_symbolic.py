"""The formula reader against the counter, to the byte; sweeps against both; leading terms; hand tables."""

import re
import subprocess
import sys
from itertools import product

import counter as counting
import numpy as np
import pytest
import sympy as sp
from counter import count
from effort import examples, quick_first, some
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import on_arrays

from iosim.base.errors import InputError
from iosim.catalog.algorithms import algorithms, plan
from iosim.catalog.algorithms.flash1 import Flash1Options
from iosim.catalog.algorithms.naive import NaiveOptions, ProductOptions
from iosim.commands.cli import main
from iosim.kernel.kernel import Edge, Kernel, PassSettings, Tile
from iosim.kernel.launch import (
    Access,
    Domain,
    Fetch,
    Launch,
    Mode,
    Outer,
    Overhead,
    Per,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.schedule import Schedule, Scheduler
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask
from iosim.readers.formula.closed_form import access_bytes, closed_form, overhead_bytes
from iosim.readers.formula.sums import BlockSums
from iosim.readers.formula.symbolic import derive, leading, symbol

WORKED_EXAMPLES = ("linear",)  # of tests/how_to_add, there where its test was collected before
SEQUENTIAL = ("delta_rule", "ssd")
"""Of tokens that change a state: tests/catalog/algorithms/test_states.py holds their formulas."""
ALGORITHMS = tuple(name for name in algorithms() if name not in (*WORKED_EXAMPLES, *SEQUENTIAL))
FAST = ("flash", "flash1")


def table(traffic):
    return {(r.launch, r.tensor, r.direction): int(r.bytes) for r in traffic}


@st.composite
def masks(draw):
    side = st.integers(0, 40)
    kind = draw(st.sampled_from(("none", "causal", "window", "both", "left")))
    offset = draw(st.integers(-90, 90))
    return {
        "none": IntervalMask(),
        "causal": IntervalMask(None, draw(side), offset),
        "window": IntervalMask(draw(side), 0, offset),
        "both": IntervalMask(draw(side), draw(side), offset),
        "left": IntervalMask(draw(side), None, offset),
    }[kind]


@st.composite
def domains(draw):
    pack = draw(st.sampled_from((1, 1, 2, 3, 8)))
    seq_k = draw(st.integers(1, 90))
    block_k = draw(st.integers(1, 30))
    return Domain(
        batch=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        rows=draw(st.integers(1, 70)) * pack,
        seq_k=seq_k,
        block_q=draw(st.integers(1, 30)),
        block_k=block_k,
        mask=draw(masks()),
        pack=pack,
        splits=draw(st.integers(1, -(-seq_k // block_k))),
    )


@st.composite
def accesses(draw):
    per = draw(st.sampled_from(tuple(Per)))
    return Access(
        "X",
        draw(st.sampled_from(tuple(Mode))),
        draw(st.sampled_from((Rows.QUERY, Rows.KEY, Rows.PAIR))),
        per,
        edge=draw(st.sampled_from(tuple(Edge))),
        visited_only=draw(st.booleans()),
        times=draw(st.integers(1, 3)),
        skip=draw(st.integers(0, 1)) if per is Per.PAIR else 0,
        packet_rows=draw(st.sampled_from((0, 0, 4, 16))),
        fetch=draw(st.sampled_from(tuple(Fetch))),
    )


@settings(max_examples=examples(600), deadline=None)
@given(
    domains(),
    accesses(),
    st.sampled_from((1, 1, 5, 8, 40, 56)),
    st.sampled_from((1, 2, 4)),
    st.booleans(),
)
def test_every_access_of_every_domain(domain, access, cols, element_bytes, strided):
    tensor = Tensor("X", 1, 1, 1, cols, element_bytes, Role.INPUT, strided=strided)
    sums = access_bytes(BlockSums(domain), tensor, access)
    assert sums == counting.access_bytes(domain, tensor, access)


@settings(max_examples=examples(150), deadline=None)
@given(domains(), st.sampled_from(list(Outer)), st.none() | st.integers(1, 200))
def test_overheads(domain, outer, persistent):
    overhead = Overhead(
        "spill", Mode.STORE, per_cta=3, per_tile=50, per_pair=700, per_tile_fetch=11_000
    )
    launch = Launch("main", domain, outer, (), persistent_ctas=persistent)
    assert overhead_bytes(launch, overhead) == counting.overhead_bytes(launch, overhead)


OPTIONS = {
    "flash1": (None, Flash1Options(to_the_letter=False)),
    "naive": (None, NaiveOptions(gemm_tile=(64, 64))),
    "math": (None, ProductOptions(gemm_tile=(64, 64))),
}


@st.composite
def problems(draw, algorithm="flash"):
    mask = draw(st.sampled_from(("none", "causal", "window")))
    size = st.one_of(st.integers(1, 8), st.integers(1, 300))
    kv_heads = draw(st.integers(1, 3))
    group = draw(st.sampled_from((1, 1, 2, 4)))
    seq_q = draw(size)
    seq_k = seq_q if draw(st.booleans()) else draw(size)
    shift = mask != "none" and draw(st.booleans())
    dtype = draw(st.sampled_from(("fp32", "fp16", "bf16", "fp8")))
    passes = draw(st.sampled_from(("fwd", "bwd", "fwd+bwd")))
    if algorithm == "minimal":
        mask, shift, dtype, passes, group, seq_q, seq_k = (
            "none",
            False,
            "fp32",
            "fwd",
            1,
            32 * seq_q,
            32 * seq_k,
        )
    return AttentionProblem(
        batch=draw(st.integers(1, 3)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=draw(st.integers(1, 130)),
        head_dim_v=draw(st.integers(1, 130)),
        dtype=dtype,
        mask=mask,
        window=draw(st.integers(0, 80)) if mask == "window" else None,
        offset=draw(st.integers(-350, 350)) if shift else None,
        passes=passes,
        dropout=draw(st.sampled_from((0.0, 0.1))),
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
    )


@st.composite
def calls(draw, algorithm=None):
    """(problem, kernel) that plan without complaint."""
    algorithm = algorithm or draw(st.sampled_from(ALGORITHMS))
    problem = draw(problems(algorithm))
    side = st.integers(1, 140)
    tile = Tile(32, 32) if algorithm == "minimal" else Tile(draw(side), draw(side))
    edges = st.sampled_from(tuple(Edge))
    scheduler = draw(st.sampled_from((Scheduler.STATIC, Scheduler.DYNAMIC)))
    blocks = -(-problem.seq_k // tile.block_k)
    kernel = Kernel(
        "random",
        algorithm,
        tile,
        edge_q=draw(edges),
        edge_k=draw(edges),
        rereads_q=draw(st.booleans()),
        backward=PassSettings(Tile(draw(side), draw(side)) if draw(st.booleans()) else None),
        packs_group=draw(st.booleans()),
        writes_lse=draw(st.booleans()),
        splits=draw(st.integers(1, min(5, blocks))) if algorithm == "flash" else 1,
        overheads=(
            Overhead("counter", Mode.STORE, per_cta=32, per_tile=8, per_pair=2, per_tile_fetch=4),
        ),
        schedule=Schedule(scheduler=scheduler),
        persistent_ctas=draw(st.sampled_from((None, 7, 132))),
        options=draw(st.sampled_from(OPTIONS.get(algorithm, (None,)))),
    )
    try:
        plan(problem, kernel)
    except InputError:
        assume(False)
    return problem, kernel


@settings(max_examples=examples(350), deadline=None)
@given(calls())
def test_closed_form_of_numbers_is_the_count(call):
    chain = plan(*call)
    assert table(closed_form(chain)) == table(count(chain))


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(calls())
def test_symbols_with_their_numbers_put_in_are_the_count(call):
    formula = derive(*call)
    assert table(formula.numbers()) == table(count(plan(*call)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", FAST)
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_a_formula_holds_beyond_the_problem_it_was_derived_from(algorithm, mask):
    window = 37 if mask == "window" else None
    problem = AttentionProblem(
        heads=4, kv_heads=2, seq_q=300, seq_k=411, head_dim=72, mask=mask, window=window
    )
    kernel = Kernel("k", algorithm, Tile(48, 80))
    formula = derive(problem, kernel)
    rng = np.random.default_rng(3)
    for _ in range(3):
        seq_q, seq_k, d, bq, bk, w, group = (int(x) for x in rng.integers(2, 200, 7))
        size = {
            "seq_q": seq_q,
            "seq_k": seq_k,
            "head_dim": d,
            "block_q": bq,
            "block_k": bk,
            "batch": 3,
        }
        size |= {"kv_heads": 5, "group": group, "element_bytes": 2} | (
            {"window": w} if window is not None else {}
        )
        put_in = formula.substitute(size)
        assert put_in.conditions == ()
        other = AttentionProblem(
            batch=3,
            heads=5 * group,
            kv_heads=5,
            seq_q=seq_q,
            seq_k=seq_k,
            head_dim=d,
            mask=mask,
            window=None if window is None else w,
        )
        assert table(put_in.traffic) == table(count(plan(other, kernel.with_(tile=Tile(bq, bk)))))


def test_conditions_are_said_and_matter():
    formula = derive(
        AttentionProblem(heads=8, kv_heads=2, seq_q=64, passes="bwd"),
        Kernel("k", "flash", Tile(64, 64)),
    )
    assert (symbol("group") > 1) in formula.conditions  # a launch sums dK over the group
    one_head = formula.substitute({"group": 1})
    assert sp.false in one_head.conditions


def test_a_number_taken_by_the_description_is_said():
    problem = AttentionProblem(heads=2, seq_q=512, head_dim=64, page_size=16)
    formula = derive(problem, Kernel("k", "flash", Tile(64, 64), splits=3))
    assert formula.fixed == {
        "block_k": 64
    }  # a split's sectors of the block table go by whole key blocks
    assert symbol("block_k") not in formula.total().free_symbols


def test_the_size_of_an_element_stays_a_symbol():
    for algorithm in ("flash", "flash1", "naive"):
        formula = derive(
            AttentionProblem(heads=2, seq_q=64, head_dim=64), Kernel("k", algorithm, Tile(64, 64))
        )
        assert not formula.fixed
        assert symbol("element_bytes") in formula.total().free_symbols


def test_flash_by_hand():
    # 32 heads x 4096 / 128 query blocks = 1,024 CTAs; each reads its Q tile of 128 x 128 x 2 bytes
    # and all of K and V, 2 x 4096 x 128 x 2 bytes; writes O, 128 x 128 x 2, and 128 fp32 of LSE.
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=128, dtype="fp16")
    formula = closed_form(plan(problem, Kernel("k", "flash", Tile(128, 64))))
    assert formula.total("l2", "read") == 1024 * (32_768 + 2_097_152) == 2_181_038_080
    assert formula.total("l2", "write") == 1024 * (32_768 + 512) == 34_078_720


def test_causal_flash_by_hand():
    # 300 tokens, one head, d 8, fp16; query blocks of 128: last rows 127, 255, 299, so 128, 256, 300 keys are kept.
    # Key blocks of 96: ceil(128/96) = 2, ceil(256/96) = 3, 4 blocks = 192, 288, 300 rows (the 4th holds 12).
    problem = AttentionProblem(seq_q=300, head_dim=8, mask="causal")
    kernel = Kernel("k", "flash", Tile(128, 96))
    rows = {Edge.EXACT: 192 + 288 + 300, Edge.WHOLE: 192 + 288 + 384, Edge.NEEDED: 128 + 256 + 300}
    for edge, expected in rows.items():
        formula = closed_form(plan(problem, kernel.with_(edge_k=edge)))
        assert formula.total("l2", tensor="K") == expected * 8 * 2
    # LSE in whole sectors: 128 x 4 = 512 bytes twice, 44 x 4 = 176 -> 192
    assert closed_form(plan(problem, kernel)).total("l2", tensor="LSE") == 512 + 512 + 192


def test_window_by_hand():
    # Query blocks of 4 over 10 rows: rows 0-3, 4-7, 8-9; a window of 2 keeps keys 0-3, 2-7, 6-9.
    # In key blocks of 3: blocks 0-1 (6 rows), 0-2 (9 rows), 2-3 (3 + 1 rows).
    problem = AttentionProblem(seq_q=10, head_dim=8, mask="window", window=2)
    formula = closed_form(plan(problem, Kernel("k", "flash", Tile(4, 3))))
    assert formula.total("l2", tensor="V") == (6 + 9 + 4) * 8 * 2


def test_a_window_to_the_right_is_a_size_of_its_own():
    """Three keys back and two ahead of ten rows in blocks of 4: keys 0-5, 1-9, 5-9, in blocks of 3: 6 + 10 + 7 rows; a
    right of 5 keeps 0-8, 1-9, 5-9: 9 + 10 + 7."""
    kernel = Kernel("k", "flash", Tile(4, 3))
    sizes = {"seq_q": 10, "head_dim": 8, "mask": "window", "window": 3}
    formula = derive(AttentionProblem(**sizes, window_right=2), kernel)
    for right, rows in ((2, 6 + 10 + 7), (5, 9 + 10 + 7)):
        formula_numbers = formula.substitute({"window_right": right}).numbers()
        assert formula_numbers.total("l2", tensor="V") == rows * 8 * 2


def test_text_of_the_plain_formula():
    formula = derive(
        AttentionProblem(heads=32, seq_q=4096, head_dim=128), Kernel("k", "flash", Tile(128, 64))
    )
    b, h, n, d, e, bq = (
        symbol(x) for x in ("batch", "heads", "seq", "head_dim", "element_bytes", "block_q")
    )
    assert formula.total("read", tensor="Q") == b * h * n * d * e
    assert formula.total("read", tensor="K") == b * h * n * d * e * sp.ceiling(n / bq)
    assert formula.total("write", tensor="O") == b * h * n * d * e


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "mask", "passes"),
    some(
        product(
            [
                a
                for a in ALGORITHMS
                if a not in ("cascade", "minimal", "minimal-cu", "mla", "moba", "nsa")
            ],
            ["none", "causal", "window"],
            ["fwd", "bwd"],
        )
    ),
)
def test_arrays_are_counts(algorithm, mask, passes):
    rng = np.random.default_rng(7)
    n = 250
    values = {
        "seq_q": rng.integers(1, 600, n),
        "seq_k": rng.integers(1, 600, n),
        "head_dim": rng.integers(1, 200, n),
        "kv_heads": rng.integers(1, 4, n),
        "block_q": rng.integers(1, 257, n),
        "block_k": rng.integers(1, 257, n),
    }
    one_head = algorithm.startswith(("uniform", "flash-cu"))
    values["heads"] = values["kv_heads"] * (1 if one_head else rng.integers(1, 3, n))
    if mask == "window":
        values["window"] = rng.integers(0, 400, n)
    problem = AttentionProblem(
        batch=2, seq_q=8, mask=mask, window=1 if mask == "window" else None, passes=passes
    )
    kernel = Kernel("k", algorithm, Tile(64, 64), edge_k=Edge.NEEDED)
    remaining = np.arange(n)
    while remaining.size:
        numbers = {name: int(v[remaining[0]]) for name, v in values.items()}
        tile = Tile(numbers.pop("block_q"), numbers.pop("block_k"))
        first = problem.with_(**numbers, head_dim_v=numbers["head_dim"])
        if algorithm in ("math", "flash_fp8") and passes == "bwd":
            with pytest.raises(InputError, match="not described"):
                plan(first, kernel.with_(tile=tile))
            return
        arrays = {name: v[remaining] for name, v in values.items()}
        read, write, holds = on_arrays(
            first, kernel.with_(tile=tile), **arrays, head_dim_v=arrays["head_dim"]
        )
        assert holds[0]
        for i in np.flatnonzero(holds):
            numbers = {name: int(v[i]) for name, v in arrays.items()}
            tile = Tile(numbers.pop("block_q"), numbers.pop("block_k"))
            counted = count(
                plan(
                    problem.with_(**numbers, head_dim_v=numbers["head_dim"]),
                    kernel.with_(tile=tile),
                )
            )
            assert (read[i], write[i]) == (
                counted.total("l2", "read"),
                counted.total("l2", "write"),
            )
        remaining = remaining[~holds]


def test_arrays_broadcast_and_know_the_tiles_of_the_backward():
    problem = AttentionProblem(
        heads=4, seq_q=64, head_dim=64, mask="causal", offset=3, passes="bwd"
    )
    kernel = Kernel("k", "flash", Tile(64, 64), backward=PassSettings(Tile(32, 32)))
    seq = np.arange(64, 400, 7)[:, None]
    blocks = np.array([16, 48])
    read, write, holds = on_arrays(problem, kernel, seq_q=seq, seq_k=seq, backward_block_k=blocks)
    assert read.shape == (48, 2)
    assert holds.all()
    for i, j in ((0, 0), (31, 1), (47, 1)):
        case = problem.with_(seq_q=int(seq[i, 0]), seq_k=int(seq[i, 0]))
        counted = count(plan(case, kernel.with_(backward=PassSettings(Tile(32, int(blocks[j]))))))
        assert read[i, j] + write[i, j] == counted.total("l2")


def test_closed_forms_need_no_sympy():
    code = "import sys, iosim.readers.formula.lifting; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


B, H, N, D, E = (symbol(x) for x in ("batch", "heads", "seq", "head_dim", "element_bytes"))
BQ, BK, W = (symbol(x) for x in ("block_q", "block_k", "window"))


@pytest.mark.parametrize(
    ("algorithm", "extra", "expected"),
    quick_first(
        [
            ("flash", {}, 2 * B * H * N**2 * D * E / BQ),  # K and V once a query block
            ("flash", {"mask": "causal"}, B * H * N**2 * D * E / BQ),  # half of it
            ("flash", {"mask": "window", "window": 100}, B * H * W * (2 * N - W) * D * E / BQ),
            # Q, dO (e bytes), dQ (4 bytes), LSE and D (4 bytes a row) once a key block
            ("flash", {"passes": "bwd"}, B * H * N**2 * (2 * D * E + 4 * D + 8) / BK),
            # Q, O in, O out, l and m in and out
            ("flash1", {}, B * H * N**2 * (3 * D * E + 16) / BK),
        ],
        2,
    ),
)
def test_leading_terms(algorithm, extra, expected):
    formula = derive(
        AttentionProblem(heads=32, seq_q=4096, head_dim=128, **extra),
        Kernel("k", algorithm, Tile(128, 64)),
    )
    assert sp.simplify(leading(formula.total()) - expected) == 0


@pytest.mark.slow
def test_leading_term_of_unequal_lengths_takes_their_order_from_values():
    problem = AttentionProblem(heads=32, seq_q=1000, seq_k=4000, head_dim=128, mask="causal")
    formula = derive(problem, Kernel("k", "flash", Tile(128, 64)))
    nq, nk = symbol("seq_q"), symbol("seq_k")
    # pairs kept: N_q N_k - N_q^2 / 2
    assert (
        sp.simplify(
            leading(formula.total(), formula.values) - B * H * nq * (2 * nk - nq) * D * E / BQ
        )
        == 0
    )
    open_form = leading(formula.total())
    assert open_form.has(sp.Max)
    assert open_form.subs({nq: 1000, nk: 4000, BK: 64}).equals(
        leading(formula.total(), formula.values).subs({nq: 1000, nk: 4000})
    )


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "passes"), [("flash", "fwd"), ("flash1", "bwd")])
@pytest.mark.parametrize(
    "extra",
    some(
        [
            {},
            {"mask": "causal"},
            {"mask": "causal", "seq_k": 3 << 16},
            {"mask": "causal", "offset": -(1 << 17)},
            {"mask": "window", "window": 1 << 16},
            {"mask": "window", "window": 1 << 20},
            {"mask": "window", "window": 1 << 16, "offset": 1 << 17},
        ]
    ),
)
def test_leading_comes_near(algorithm, passes, extra):
    problem = AttentionProblem(heads=4, seq_q=1 << 18, head_dim=128, passes=passes, **extra)
    formula = derive(problem, Kernel("k", algorithm, Tile(128, 64)))
    values = {symbol(name): value for name, value in formula.values.items()}
    exact = formula.numbers().total("l2")
    assert float(leading(formula.total(), formula.values).subs(values)) == pytest.approx(
        exact, rel=0.01
    )


def test_flash_meets_the_papers_term_up_to_eight():
    # block_q = M / 4d: 2 N^2 d / block_q = 8 N^2 d^2 / M elements a head
    from iosim.readers.formula.theory import bound

    formula = derive(
        AttentionProblem(heads=32, seq_q=4096, head_dim=128), Kernel("k", "flash", Tile(128, 64))
    )
    term = leading(formula.total()).subs(BQ, sp.Symbol("M", positive=True) / (4 * D)) / (B * H * E)
    assert sp.simplify(term / bound("flash").expression()) == 8


def run(*words):
    import json

    from iosim.commands.cli import build_parser
    from iosim.studies.formulas.study import describe

    args = build_parser("formula").parse_args(["formula", *words])
    return json.loads(json.dumps(describe(vars(args)).to_dict())), args


def test_command_in_symbols():
    printed, _ = run("flash")
    k = next(r for r in printed["traffic"] if r["tensor"] == "K")
    assert (k["text"], k["bytes"]) == ("B*H*N*d*e*n_q", None)
    assert printed["theta"]["ratio"]["text"] == "8"
    assert {"symbol": "n_q", "meaning": "query blocks, ceil(N/B_q)", "value": None} in printed[
        "symbols"
    ]


@pytest.mark.parametrize("name", ["flash", "flash1", "naive", "fa2"])
def test_every_symbol_that_is_printed_is_defined(name):
    answer, _ = run(name)
    defined = {s["symbol"] for s in answer["symbols"]}
    printed = " ".join(
        [
            answer["leading"]["text"],
            answer["theta"]["text"],
            *(r["text"] for r in answer["traffic"]),
        ]
    )
    assert set(re.findall(r"[A-Za-z]\w*", printed)) - {"ceil", "floor", "min", "sqrt"} <= defined


def test_why_the_papers_term_in_numbers_for_a_gpu():
    assert run("flash")[0]["why"] is None
    why = run("flash", "--gpu", "a100")[0]["why"]
    # 166,912 bytes of shared memory hold 83,456 fp16 elements: M / (4 x 128) = 163 rows, 4,096 / 163 passes
    assert why["fast_elements"] == 166_912 // 2
    assert why["rows"] == 83_456 / 512
    assert why["passes"] == pytest.approx(4096 / 163)
    # each pass reads K and V, 2 N d elements: 8 N^2 d^2 / M in all
    assert why["tiled_elements"] == pytest.approx(8 * 4096**2 * 128**2 / 83_456)
    # the kernel's 128 rows make 32 passes: Q and 32 times K and V of 1 MiB a head, O, and 4 bytes a row of LSE
    assert why["kernel_bytes"] == 32 * ((1 + 32 * 2 + 1) * 4096 * 128 * 2 + 4 * 4096)
    assert "163 query rows" in why["text"]
    assert run("fa1", "--gpu", "a100")[0]["why"]["walked"] == 3
    naive = run("naive", "--gpu", "a100")[0]["why"]
    assert naive["rows"] is None
    assert naive["term_elements"] == 4096 * 128 + 4096**2


def test_command_with_numbers():
    sizes = ("--batch", "1", "--heads", "32", "--seq-len", "4k", "--head-dim", "128")
    printed, _ = run("flash", *sizes, "--dtype", "fp16", "--tile", "128x64")
    assert printed["totals"]["read"]["bytes"] == 2_181_038_080
    assert printed["totals"]["write"]["bytes"] == 34_078_720
    assert printed["conditions"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "name"),
    some(
        product(
            ["table", "csv", "md", "json"],
            [*(a for a in ALGORITHMS if a not in ("moba", "nsa")), "fa2", "cutlass"],
        )
    ),
)
def test_command_prints(name, form, capsys):
    assert main(["formula", name, "--format", form, "--latex"]) == 0
    out = capsys.readouterr().out
    assert "read" in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("flash", "--batch", "0"),
        ("flash", "--causal", "--mask", "butterfly"),
        ("naive", "--splits", "2"),
        ("flash", "--splits", "0"),
        ("flash", "--heads", "3", "--kv-heads", "2"),
        ("minimal", "--causal"),
        ("fa2", "--gpu", "t4"),
    ],
)
def test_command_refuses(words):
    with pytest.raises(InputError):
        run(*words)


def test_a_larger_or_lesser_size_that_is_open_stays():
    nq, nk = symbol("seq_q"), symbol("seq_k")
    assert leading(sp.Max(nq, nk)) == sp.Max(nq, nk)
    assert leading(sp.Min(nq, nk) + sp.floor(nk / 2)) == sp.Min(nq, nk) + nk / 2
    assert leading(sp.Max(nq, nk), {"seq_q": 3, "seq_k": 4}) == nk
    assert leading(sp.Min(nq, nk), {"seq_q": 3, "seq_k": 4}) == nq
