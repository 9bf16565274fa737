"""PyTorch's chains and cuDNN's backward, launch by launch, beside the profiler's list of PyTorch 2.11 on an H200.

Megabytes are the profiler's, three decimals. Tiles are in the listed kernels' names.
"""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from counter import count
from scripts import measurements

from iosim import predict
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.matrix_tiles import fp32_tile, half_tile, wave_tile
from iosim.catalog.algorithms.naive import NaiveOptions, Pass, softmax_issues
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Chain
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.blocks import addresses
from iosim.readers.replay.lowering import lower

H200 = load_profile("h200")
MIB = 1 << 20


def problem(
    heads: int, seq: int, head_dim: int = 64, batch: int = 1, **more: object
) -> AttentionProblem:
    return AttentionProblem(
        batch=batch, heads=heads, seq_q=seq, head_dim=head_dim, dtype="fp16", **more
    )


def chain(kernel: str, p: AttentionProblem) -> Chain:
    return plan(p, resolve(kernel, p, H200))


def megabytes(planned: Chain) -> dict[str, tuple[float, float]]:
    """Launch -> (read, written) between SMs and L2."""
    sums = {launch.name: [0, 0] for launch in planned.launches}
    for row in count(planned).rows:
        sums[row.launch][row.direction == "write"] += row.bytes
    return {name: (read / 1e6, write / 1e6) for name, (read, write) in sums.items()}


# The math path, 8 heads of 64. u = heads x N x 64 x 2 bytes, n = heads x N x N x 2 bytes.

MATH_512 = {
    **{f"cast_{x}": (0.524, 1.049) for x in "QKV"},  # u read, 2 u written
    **{f"scale_{x}": (1.049, 1.049) for x in "QK"},  # 2 u, 2 u
    "scores": (12.583, 8.389),  # 8 x 4 x 8 CTAs of (64 + 128) rows of 64 x 4 bytes; 2 n
    "softmax": (8.389, 8.389),  # 2 n, 2 n
    "is_masked": (8.389, 2.097),  # 2 n; a byte an element
    "all_masked": (2.097, 0.021),  # flags of a byte a row in packets: up to 4096 / 4 x 32 = 0.033
    "zero": (0.0, 0.0),
    "select": (8.621, 8.389),  # 2 n and, of 32 bytes for each of 8192 CTAs, what L1 does not have
    "cast_P": (8.389, 4.194),  # 2 n, n
    "values": (33.554, 1.049),  # 16 x 2 x 8 CTAs of (32 + 32) rows of 512 x 4 bytes; 2 u
    "cast_O": (1.049, 0.524),
}


def test_math_path_launch_by_launch() -> None:
    by_launch = megabytes(chain("math", problem(8, 512)))
    assert list(by_launch) == list(MATH_512)  # the order of the list
    for name, (read, write) in MATH_512.items():
        slack = {"all_masked": 0.013, "select": 0.031}.get(name, 0.0005)
        assert by_launch[name] == (
            pytest.approx(read, abs=slack),
            pytest.approx(write, abs=slack),
        ), name


@pytest.mark.parametrize(
    ("heads", "seq", "batch", "scores", "values", "measured"),
    [  # CTAs x rows of operands x row bytes; what the profiler measured, of which L1 finds the rest
        (8, 512, 1, 8 * 4 * 8 * (64 + 128) * 256, 16 * 2 * 8 * (32 + 32) * 2048, (12.583, 33.554)),
        (8, 1024, 1, 16 * 16 * 8 * (64 + 64) * 256, 16 * 8 * (64 + 64) * 4096, (66.162, 67.109)),
        (
            8,
            2048,
            1,
            16 * 16 * 8 * (128 + 128) * 256,
            32 * 8 * (64 + 64) * 8192,
            (117.601, 268.435),
        ),
        (
            8,
            4096,
            1,
            32 * 32 * 8 * (128 + 128) * 256,
            32 * 8 * (128 + 64) * 16384,
            (423.743, 805.306),
        ),
        (
            16,
            1024,
            64,
            8 * 8 * 1024 * (128 + 128) * 256,
            8 * 1024 * (128 + 64) * 4096,
            (3834.179, 5736.949),
        ),
    ],
)
def test_products_in_fp32(
    heads: int, seq: int, batch: int, scores: int, values: int, measured: tuple[float, float]
) -> None:
    by_launch = megabytes(chain("math", problem(heads, seq, batch=batch)))
    assert by_launch["scores"][0] * 1e6 == scores
    assert by_launch["values"][0] * 1e6 == values
    for read, seen in zip((by_launch["scores"][0], by_launch["values"][0]), measured, strict=True):
        assert 0.78 <= seen / read < 1.00002


@pytest.mark.parametrize(
    ("seq", "measured"), [(512, 8.621), (1024, 34.286), (2048, 136.153), (4096, 541.170)]
)
def test_flags_are_read_once_an_sm(seq: int, measured: float) -> None:
    read, _ = megabytes(chain("math", problem(8, seq)))["select"]
    tensor = 8 * seq * seq * 4 / 1e6
    # 32 flags a sector; 32 N / 256 CTAs need it, on 132 SMs at most
    assert read - tensor == pytest.approx(8 * seq * min(seq // 8, 132) / 1e6, abs=0.0001)
    assert read == pytest.approx(measured, rel=0.01)


# The eager chain: q scaled first (2 u), S, softmax (2 n), O; read and written bytes of h200_chains.csv.


def eager_reads(u: int, n: int, scores: int, values: int) -> int:
    return u + scores + n + values


@pytest.mark.parametrize(
    ("batch", "heads", "seq", "head_dim", "scores", "values", "measured"),
    [  # scores: CTAs x (rows + columns) x head_dim x 2; values: CTAs x (rows + columns) x N x 2
        # 12 query tiles of 48: 512 rows are 10.67 of them, and they come in clusters of 4
        (1, 8, 512, 64, 4 * 4 * 8 * 256 * 128, 12 * 8 * (48 + 64) * 1024, 19_923_000),
        (1, 8, 1024, 64, 4 * 8 * 8 * 384 * 128, 16 * 8 * (64 + 64) * 2048, 63_964_999),
        (1, 8, 4096, 64, 16 * 32 * 8 * 384 * 128, 16 * 8 * (256 + 64) * 8192, 809_628_000),
        (1, 32, 4096, 128, 16 * 32 * 32 * 384 * 256, 16 * 32 * (256 + 128) * 8192, 4_329_054_000),
        (64, 16, 1024, 64, 4 * 8 * 1024 * 384 * 128, 2 * 1024 * (512 + 64) * 2048, 6_309_339_000),
    ],
)
def test_eager_reads(
    batch: int, heads: int, seq: int, head_dim: int, scores: int, values: int, measured: int
) -> None:
    p = problem(heads, seq, head_dim, batch)
    planned = chain("eager", p)
    u = batch * heads * seq * head_dim * 2
    n = batch * heads * seq * seq * 2
    assert count(planned).total("l2", "read") == eager_reads(u, n, scores, values)
    assert count(planned).total("l2", "read") == pytest.approx(measured, rel=2e-4)
    # a planted bug: the next tile of the table is off by more than ten times that
    rows = planned.launches[-1].domain.block_q
    wrong = plan(
        p,
        resolve("eager", p, H200).with_(
            options=NaiveOptions((rows // 2, 64), passes=(Pass.SCALE_Q,))
        ),
    )
    assert count(wrong).total("l2", "read") != pytest.approx(measured, rel=2e-3)


def test_eager_both_passes() -> None:
    planned = chain("eager", problem(32, 2048, 128, passes="fwd+bwd"))
    names = [
        "scale_q",
        "scores",
        "softmax",
        "values",
        "bwd.dv",
        "bwd.dp",
        "bwd.product",
        "bwd.softmax",
        "bwd.dk",
        "bwd.dq",
        "bwd.scale_q",
    ]
    assert [launch.name for launch in planned.launches] == names
    by_launch = megabytes(planned)
    for name in ("scores", "values", "bwd.dv", "bwd.dp", "bwd.dk", "bwd.dq"):
        assert by_launch[name][0] == pytest.approx(
            402.653, abs=0.001
        )  # 8 x 16 x 32 x 384 x 256, or 8 x 32 x 384 x 4096
    assert (
        by_launch["bwd.product"]
        == by_launch["bwd.softmax"]
        == (pytest.approx(536.871, abs=0.001), pytest.approx(268.435, abs=0.001))
    )
    assert count(planned).total("l2", "read") == pytest.approx(3_791_912_000, rel=2e-4)
    assert count(planned).total("l2", "write") == pytest.approx(1_443_102_000, rel=2e-4)


LISTED_HALF = [  # rows, cols, products, narrow, tile
    (512, 512, 8, False, (128, 128, 1)), (1024, 1024, 8, False, (256, 128, 1)), (4096, 4096, 8, False, (256, 128, 1)),
    (2048, 2048, 32, False, (256, 128, 1)), (512, 64, 8, True, (48, 64, 4)), (1024, 64, 8, True, (64, 64, 1)),
    (4096, 64, 8, True, (256, 64, 1)), (2048, 128, 32, True, (256, 128, 1)), (1024, 64, 1024, True, (512, 64, 1)),
]  # fmt: skip
LISTED_FP32 = [
    (512, 512, 8, False, (64, 128)), (1024, 1024, 8, False, (64, 64)), (2048, 2048, 8, False, (128, 128)),
    (4096, 4096, 8, False, (128, 128)), (1024, 1024, 1024, False, (128, 128)), (512, 64, 8, True, (32, 32)),
    (1024, 64, 8, True, (64, 64)), (2048, 64, 8, True, (64, 64)), (4096, 64, 8, True, (128, 64)),
    (1024, 64, 1024, True, (128, 64)),
]  # fmt: skip


LAYERS = [  # rows, cols, tile of rows x cols: kernels of a GPT-2's and a Llama's step (h200_torch_kernels.csv)
    (8192, 2304, (192, 192)), (8192, 768, (128, 192)), (8192, 3072, (128, 256)), (8192, 50304, (192, 192)),
    (50304, 768, (192, 192)), (768, 3072, (160, 128)), (3072, 768, (160, 128)), (768, 768, (64, 96)),
    (2304, 768, (128, 128)), (8192, 1024, (128, 256)), (8192, 256, (128, 128)), (8192, 2816, (192, 192)),
    (8192, 32000, (128, 320)), (2816, 1024, (192, 128)), (1024, 2816, (128, 192)), (1024, 1024, (128, 64)),
]  # fmt: skip


def test_tiles_that_fill_whole_waves() -> None:
    for rows, cols, tile in LAYERS:
        assert wave_tile(rows, cols, 1, 132)[:2] == tile
    for (
        rows,
        cols,
        products,
        _,
        tile,
    ) in LISTED_HALF:  # of a square result either way is the same work
        assert sorted(wave_tile(rows, cols, products, 132)[:2]) == sorted(tile[:2])


def test_listed_tiles() -> None:
    for rows, cols, products, narrow, tile in LISTED_HALF:
        assert tuple(half_tile(rows, cols, products, 132, narrow=narrow)) == tile
    for rows, cols, products, narrow, pair in LISTED_FP32:
        assert tuple(fp32_tile(rows, cols, products, narrow=narrow)) == (*pair, 1)
    assert tuple(fp32_tile(1536, 1536, 8, narrow=False)) == (
        64,
        64,
        1,
    )  # 1152 tiles of 128x128: between 512 and 2048
    assert half_tile(512, 32, 8, 132, narrow=True).cols == 32


# cuDNN's backward


@pytest.mark.parametrize(
    ("batch", "heads", "seq", "head_dim", "measured"),
    [(1, 32, 2048, 128, 576.836), (64, 16, 1024, 64, 2467.845), (1, 16, 4096, 64, 566.350),
     (4, 32, 2048, 128, 2307.282), (1, 16, 4096, 128, 1119.999)],
)  # fmt: skip
def test_cudnn_backward_writes(
    batch: int, heads: int, seq: int, head_dim: int, measured: float
) -> None:
    planned = chain("cudnn", problem(heads, seq, head_dim, batch, passes="bwd"))
    written = megabytes(planned)["bwd.main"][1]
    bh, tiles = batch * heads, batch * heads * seq // 128
    pairs = tiles * seq // 64
    by_hand = 2 * bh * seq * head_dim * 2  # dK, dV
    by_hand += pairs * 64 * head_dim * 4  # dQ's sums
    by_hand += pairs * 12 * 32 + tiles * 5 * 32 + 132 * 4 * 32  # packets
    by_hand += (tiles + 132) * 32  # the queue
    assert written * 1e6 == by_hand
    assert written == pytest.approx(measured, abs=0.0006)  # the profiler's last digit
    main = next(launch for launch in planned.launches if launch.name == "bwd.main")
    for n, overhead in enumerate(main.overheads):  # a planted bug: any one left out shows
        fewer = replace(main, overheads=main.overheads[:n] + main.overheads[n + 1 :])
        without = megabytes(replace(planned, launches=(fewer,)))["bwd.main"]
        assert (without[1] if overhead.mode.direction == "write" else without[0]) < (
            measured - 0.01
            if overhead.mode.direction == "write"
            else megabytes(planned)["bwd.main"][0]
        )


@pytest.mark.parametrize(
    ("batch", "heads", "seq", "head_dim", "dot", "convert"),
    [(1, 16, 4096, 64, 20.366, 11.680), (64, 16, 1024, 64, 294.094, 214.198)],
)
def test_cudnn_launches_around_it(
    batch: int, heads: int, seq: int, head_dim: int, dot: float, convert: float
) -> None:
    """bf16 calls of h200_library_kernels.csv; the shares of split sectors are medians of other calls."""
    by_launch = megabytes(chain("cudnn", problem(heads, seq, head_dim, batch, passes="bwd")))
    rows = batch * heads * seq
    # D and a zeroed dQ; of each 128 rows of it 13 % of the sectors twice
    assert by_launch["bwd.dot"][1] * 1e6 == rows * (4 + 4 * head_dim) + rows // 128 * (
        128 * 4 * head_dim * 13 // 100
    )
    assert by_launch["bwd.dot"][1] == pytest.approx(dot, rel=0.06)
    assert by_launch["bwd.convert"][1] == pytest.approx(convert, rel=0.08)


# Memory of the tensors in between


def places(planned: Chain) -> dict[str, tuple[int, int]]:
    """Objects of each temporary tensor, as the launches come to own them."""
    lowered = lower(planned, spill_slots=1)
    return {
        lowered.tensors[n]: (r.start, r.stop)
        for launch in lowered.launches
        for r, n in launch.owned
    }


def test_probabilities_to_return_lie_where_the_scores_did() -> None:
    planned = chain("math", problem(8, 1024))
    at, lie = addresses(planned), places(planned)
    assert at["P_out"] == at["S"]
    assert len({at[n] for n in ("S", "is_masked", "P")}) == 3  # all held until the softmax returns
    # S: 8 x 16 x 16 tiles of 64 x 64; P_out, of half the bytes, takes the first half of them
    first, end = lie["S"]
    assert (end - first, lie["P_out"]) == (2048, (first, first + 1024))
    assert lie["O_fp32"] == lie["K_scaled"]  # both of 2 MiB, K_scaled dead after the product


def test_short_chain_has_memory_of_its_own() -> None:
    """8 MiB tensors share segments of 20 MiB: what S leaves has joined its neighbours, and a smaller hole is taken."""
    planned = chain("math", problem(8, 512))
    at = addresses(planned)
    assert at["P_out"] == at["P"] + 8 * MIB
    assert not set(range(*places(planned)["P_out"])) & set(range(*places(planned)["S"]))


def test_choice_in_place_and_lives() -> None:
    planned = chain("math", problem(8, 1024))
    assert planned.life("S") == (
        5,
        10,
    )  # read last by launch 7, held until the safe softmax returns
    select = next(launch for launch in planned.launches if launch.name == "select")
    assert [(a.tensor, a.mode.direction) for a in select.accesses][-2:] == [
        ("P", "read"),
        ("P", "write"),
    ]


def test_gradients_of_scores_have_memory_of_their_own() -> None:
    planned = chain("eager", problem(32, 2048, 128, passes="fwd+bwd"))
    at = addresses(planned)
    assert len({at[n] for n in ("P", "dP", "PdP", "dS")}) == 4
    # a planted bug: without what autograd holds, dS would take the place of dP
    careless = replace(
        planned, tensors={n: replace(t, kept_to="") for n, t in planned.tensors.items()}
    )
    assert addresses(careless)["dS"] == addresses(careless)["dP"]


@pytest.mark.parametrize(
    ("batch", "heads", "seq", "head_dim", "mask", "a_thread", "measured"),
    [(1, 16, 4096, 64, "none", 76, 563.610), (4, 32, 2048, 128, "causal", 12, 1281.360),
     (1, 8, 16384, 128, "causal", 12, 4398.776), (1, 32, 2048, 128, "none", 8, 571.474)],
)  # fmt: skip
def test_flash_backward_spills(
    batch: int, heads: int, seq: int, head_dim: int, mask: str, a_thread: int, measured: float
) -> None:
    """dK and dV, dQ's sums, and so many bytes a thread of 256 and key block; call 150, the second, is not fitted on."""
    planned = chain("fa2", problem(heads, seq, head_dim, batch, passes="bwd", mask=mask))
    moved_bytes = {
        (r.launch, r.tensor): r.bytes for r in count(planned).rows if r.direction == "write"
    }
    assert moved_bytes["bwd.main", "spill"] == batch * heads * seq // 128 * 256 * a_thread
    assert megabytes(planned)["bwd.main"][1] == pytest.approx(measured, abs=0.0006)


@pytest.mark.parametrize("gpu", ["a100", "l4", "rtx-a6000"])
def test_fp32_products_of_ampere_and_ada_multiply_128_columns(gpu: str) -> None:
    """ampere_sgemm_128x128, listed on an A100 and an L4: half of its columns are past a head of 64."""
    p = AttentionProblem(batch=4, heads=8, seq_q=2048, head_dim=64, dtype="fp32")
    planned = plan(p, resolve("eager-einsum", p, load_profile(gpu)))
    values = next(launch for launch in planned.launches if launch.name == "values")
    assert (values.domain.block_q, values.work.product_columns) == (128, 128)
    # FLOPs are those of the result: the idle columns cost time alone.
    assert planned.product_flops == 2 * 2 * 64 * 32 * 2048 * 2048
    on_hopper = plan(p, resolve("eager-einsum", p, H200))
    assert all(launch.work.product_columns == 0 for launch in on_hopper.launches)


def test_idle_columns_cost_time() -> None:
    p = AttentionProblem(batch=4, heads=8, seq_q=2048, head_dim=64, dtype="fp32")
    seconds = {
        d: {
            t.name: t.total_s
            for t in predict(p.with_(head_dim=d, head_dim_v=d), "naive", "a100").time.launches
        }
        for d in (64, 128)
    }
    assert seconds[64]["values"] == pytest.approx(seconds[128]["values"], rel=0.1)
    assert seconds[64]["scores"] < 0.65 * seconds[128]["scores"]


def test_passes_take_what_they_were_counted_with() -> None:
    """Instructions a value of PyTorch's softmax, and the time of its casts and masked passes, on an H200."""
    with open(measurements("h200_passes_issued.csv"), encoding="utf-8", newline="") as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    for kernel_name, row in rows.items():
        per_value = 32 * int(row["warp_instructions"]) / int(row["values"])
        if kernel_name.startswith("softmax torch") and not kernel_name.endswith("16384"):
            counted = softmax_issues(int(kernel_name.split()[-1]))
            assert per_value == pytest.approx(counted, rel=0.12)
    p = AttentionProblem(batch=1, heads=16, seq_q=2048, head_dim=64, dtype="fp16", mask="causal")
    launches = predict(p, "eager-float", H200, l2_start="cold", method="capacity").time.launches
    seconds = {launch.name: launch.total_s for launch in launches}
    for name, kernel_name in (
        ("cast_S", "cast half to float 2^26"),
        ("mask", "masked_fill half 16x2048x2048"),
    ):
        assert seconds[name] == pytest.approx(float(rows[kernel_name]["seconds"]), rel=0.12)


def test_the_casts_of_a_t4_take_as_many_slots() -> None:
    """2.45 ms at 585 MHz (kernels/measurements/published/t4_naive_attention_ncu_akashg71.csv), where HBM needs 1.9."""
    p = AttentionProblem(batch=2, heads=8, seq_q=2048, head_dim=64, dtype="fp16")
    launches = predict(p, "eager-float", "t4", clocks=585e6, method="capacity").time.launches
    (cast,) = (launch.total_s for launch in launches if launch.name == "cast_S")
    assert cast == pytest.approx(2.452e-3, rel=0.05)
