"""Rules that turn at a border, on both of its sides: each was once changed without a test that noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, fa2, fa3, resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Domain, Launch, Outer, Role
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.lowering import LoweredLaunch, lower
from iosim.readers.replay.play import Play
from iosim.readers.replay.sampling import sampling_plan
from iosim.readers.replay.templates import Template
from iosim.readers.timing.running import reuses_keys
from iosim.studies.distributed.links import Cluster, Link
from iosim.studies.tiles.pick import pick_tiles
from iosim.studies.training import Decoder, Setup, predict_training
from iosim.studies.training import plan as plan_step
from iosim.studies.training.model import optimizer


def bf16(**values: object) -> AttentionProblem:
    return AttentionProblem(**{"heads": 2, "seq_q": 512, "head_dim": 64, "dtype": "bf16", **values})  # type: ignore[arg-type]


# The replay


def test_alternating_work_tiles_go_down_at_odd_blocks() -> None:
    """Four query blocks of two heads: the first walks its keys up, the second down, and so on in every head."""
    problem = bf16(seq_q=256)
    kernel = resolve(
        "flash", problem, load_profile("a100"), Overrides(tile=(64, 64), direction="alternating")
    )
    assert lower(plan(problem, kernel), 1).launches[0].down.tolist() == [0, 1, 0, 1] * 2


def test_a_warm_l2_holds_what_the_same_call_left() -> None:
    """Q, K, V and O are there, 4 x 2 heads x 512 x 64 x 2 bytes, so that nothing is read; a trace begins after that."""
    problem, profile = bf16(), load_profile("a100")
    kernel = resolve("fa2", problem, profile)
    chain = plan(problem, kernel)
    seen: list[tuple[int, int, int]] = []

    def look(
        launch: Launch, low: LoweredLaunch, lowered: object, l2: object, begin: object
    ) -> None:
        touched = l2._objects["touched"]  # type: ignore[attr-defined]
        inputs = sum(
            int((lowered.owner == n).sum())
            for n, name in enumerate(lowered.tensors[:-1])  # type: ignore[attr-defined]
            if chain.tensors[name].role is Role.INPUT
        )
        seen.append((int(touched.sum()), inputs, l2.dirty_bytes()))  # type: ignore[attr-defined]

    replay = Call.of(problem, kernel, profile, chain).replay(Play(l2_start="warm"), trace=look)  # type: ignore[arg-type]
    assert len(seen) == len(chain.launches)
    assert seen[0][0] > seen[0][1]
    assert seen[0][2] >= 2 * 512 * 64 * 2  # O
    assert replay.traffic.total("hbm", "read") == 0


@pytest.mark.parametrize(
    ("accesses", "windows", "jump"),
    [
        # 100 CTAs of 20,000 steps, two accesses a step: 4 million accesses. A window and what settles before it: 256 steps.
        (4_000_000, None, None),  # all of it may be played
        (
            100_000,
            24,
            20_000 // 24 - 256,
        ),  # 500 steps a CTA are 1 window; 24 at least, 577 steps apart
        (3_000_000, 58, None),  # 15,000 steps a CTA are 58 windows: 344 steps each, too few to skip
    ],
)
def test_windows_and_what_settles_before_them(
    accesses: int, windows: int | None, jump: int | None
) -> None:
    count = np.full(100, 20_000, dtype=np.int32)
    zero = np.zeros(100, dtype=np.int32)
    load = Template("K", 0, zero, coef=1)
    low = LoweredLaunch(
        "main", zero, count, (), (load, load), (), zero.astype(np.uint8), zero, zero
    )
    plan = sampling_plan(low, 100, accesses)
    if jump is None:
        assert plan is None
    else:
        assert plan is not None
        assert (plan.settle, plan.window, plan.windows, plan.jump) == (192, 64, windows, jump)


# Time


@pytest.mark.parametrize(
    ("outer", "rows", "keys", "shares"),
    [
        (Outer.QUERY, 64, 512, False),
        (Outer.QUERY, 65, 512, True),  # a second query block of 64 rows reads the keys again
        (Outer.KEY, 512, 64, False),
        (Outer.KEY, 512, 65, True),
        (Outer.KEY, 64, 512, True),
        (Outer.QUERY, 512, 64, True),
        (Outer.SPLIT, 512, 512, False),
    ],
)
def test_two_blocks_share_what_they_stream(
    outer: Outer, rows: int, keys: int, shares: bool
) -> None:
    assert reuses_keys(Launch("main", Domain(1, 1, rows, keys, 64, 64), outer, ())) is shares


# The catalog


def test_algorithm_1_rounds_its_key_block_up() -> None:
    """V100: 96 KiB are 49,152 fp16 elements. 4 x 80 columns: 49,152 / 320 = 153.6, so 154 keys; 80 query rows."""
    tile = resolve("flash1", bf16(head_dim=80, dtype="fp16"), load_profile("v100")).tile
    assert (tile.block_q, tile.block_k) == (80, 154)


@pytest.mark.parametrize(
    ("tiles", "key_blocks", "splits"),
    [
        (1, 3, 3),  # as many as key blocks, though the machine has room for 216
        (1, 1, 1),
        (60, 4, 2),  # 3 would leave some of them two key blocks as 2 does; 4 take two waves for 1.1
        (172, 100, 5),  # just under 80 % of 216: 5 x 172 of 4 waves of 216 are 0.995
        (173, 100, 1),  # 80 % and more
    ],
)
def test_fa2_splits_no_further_than_its_key_blocks(
    tiles: int, key_blocks: int, splits: int
) -> None:
    assert fa2.fa2_splits(tiles, key_blocks, 216) == splits


def test_a_paged_cache_has_the_split_kernels_tile_with_one_split_too() -> None:
    """64 sequences of 8 heads fill an A100, so that nothing is split; at head_dim 128 the split kernel has 64x128."""
    problem = bf16(batch=64, heads=8, seq_q=1, seq_k=4096, head_dim=128)
    plain, paged = (
        resolve("fa2", p, load_profile("a100")) for p in (problem, problem.with_(page_size=256))
    )
    assert plain.splits == paged.splits == 1
    assert (plain.tile.block_q, plain.tile.block_k) == (128, 64)
    assert (paged.tile.block_q, paged.tile.block_k) == (64, 128)


# Training


@pytest.mark.parametrize(
    ("name", "step", "passes"),
    [
        ("sgd", "foreach", 3),  # parameter in and out, gradient in
        ("momentum", "fused", 5),  # and the moment in and out
        ("adam", "fused", 7),
        ("adamw", "fused", 7),  # and a second one
        ("adam", "foreach", 18),
        ("adamw", "foreach", 20),
    ],
)
def test_tensors_that_a_step_reads_and_writes(name: str, step: str, passes: int) -> None:
    parameters = plan_step(
        Decoder(layers=1, width=64, heads=1, vocabulary=0), Setup(seq_len=1)
    ).parameters
    elements = sum(p.elements for p in parameters)
    assert optimizer(name, step).moved_bytes(parameters, 4) == passes * 4 * elements


def test_adam_keeps_two_moments() -> None:
    parameters = plan_step(
        Decoder(layers=1, width=64, heads=1, vocabulary=0), Setup(seq_len=1)
    ).parameters
    elements = sum(p.elements for p in parameters)
    assert optimizer("adam").state_bytes(parameters, 4) == 2 * 4 * elements
    state_bytes = optimizer("adam8bit").state_bytes(parameters, 4)
    assert optimizer("adam8bit").moved_bytes(parameters, 4) == 3 * 4 * elements + 2 * state_bytes


def test_a_products_backward_is_a_product_per_gradient() -> None:
    """Long products of an fp32 stack on a T4 are bound by their operations. The backward has as many for each gradient,
    the weight's and the input's; the first product's input, the hidden states that the stack is handed, wants none."""
    model = Decoder(layers=2, width=1024, heads=8, vocabulary=0, norm="none", bias=False)
    training = predict_training(model, Setup(seq_len=4096, precision="fp32"), "t4")
    assert training.time is not None
    seconds = {(phase, training.graph.nodes[n].name): s for phase, n, s in training.time.nodes}
    products = {"layer0.qkv": 1, "layer0.up": 2, "layer0.down": 2, "layer1.qkv": 2}
    for name, gradients in products.items():
        forward = seconds["forward", name]
        assert seconds["backward", name] == pytest.approx(gradients * forward, rel=0.01)


def test_the_fused_backward_pads_rows_to_128_and_columns_to_32() -> None:
    """Head dimension 40 and 130 tokens, 3 sequences, 2 heads: dQ of 256 x 64 and a row sum in fp32."""
    model = Decoder(layers=1, width=80, heads=2, vocabulary=0)
    nodes = {
        node.name: node
        for node in plan_step(model, Setup(batch=3, seq_len=130, precision="bf16")).nodes
    }
    assert nodes["layer0.attention"].backward_scratch == 3 * 2 * 256 * (64 + 1) * 4


# Several GPUs


@pytest.mark.parametrize(
    ("link", "ports", "gpus", "bandwidth"),
    [
        (10, 1, 4, 10),  # inside a node the link alone counts
        (10, 1, 8, 4),  # four ports of 1 together
        (10, 3, 8, 10),  # of 12 together: the link is slower
    ],
)
def test_a_ring_runs_at_the_slower_of_link_and_network(
    link: float, ports: float, gpus: int, bandwidth: float
) -> None:
    nodes = Cluster(Link("link", link, 0.0, ""), Link("port", ports, 0.0, ""), 4)
    assert nodes.ring(gpus).bandwidth_bytes_per_s == bandwidth
    shared = replace(nodes, shared_network=True)
    assert shared.ring(8).bandwidth_bytes_per_s == min(link, ports)


# Tiles


def test_of_equally_fast_tiles_the_one_with_fewest_bytes_comes_first() -> None:
    """One token against 4,096: all tiles are bound by HBM alike, and differ in what they move and take."""
    problem = AttentionProblem(batch=8, heads=32, seq_k=4096, head_dim=128, dtype="fp16")
    candidates = pick_tiles(problem, "a100").candidates
    keys = [
        (c.time_s, c.l2_read_bytes + c.l2_write_bytes, c.shared_memory_bytes or 0)
        for c in candidates
    ]
    assert keys == sorted(keys)
    assert len({time for time, _, _ in keys}) < len(keys)  # some are equally fast


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "splits"),
    [
        (
            33_792,
            102_400,
            1,
        ),  # K and V of a head are 102,400 x 256 x 2 = 50 MiB: they do not outgrow it
        (
            33_792,
            102_401,
            2,
        ),  # one key more, and 33,792 / 128 = 264 = 2 x 132 query blocks go over them
        (33_664, 102_401, 1),  # 263 blocks are no two rounds
        (33_792, 204_801, 3),  # past 100 MiB
    ],
)
def test_fa3_splits_a_full_machine_by_50_mib(seq_q: int, seq_k: int, splits: int) -> None:
    problem = AttentionProblem(heads=1, seq_q=seq_q, seq_k=seq_k, head_dim=128, dtype="bf16")
    assert fa3.fa3_splits(problem, sms=132, block_q=128, block_k=128) == splits
