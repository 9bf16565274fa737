"""How rows of the project's own kernels are described: the deterministic backward, grouped heads, one split.

Arithmetic of the CUDA sources stands beside the counted bytes; both must agree with the model.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import measurements

from iosim.evidence.validate import Residual, Row, compare, read
from iosim.evidence.validate import match as matching
from iosim.evidence.validate.match import NoModel, match
from iosim.evidence.validate.residuals import calls
from iosim.hardware.profile import load_profile
from iosim.problem.masks.mask import IntervalMask
from iosim.problem.masks.packed import HeadsInTurn
from iosim.readers.timing.running import executed_pairs

PROFILE = load_profile("h200")
OWN = measurements("h200_iosim_kernels.csv")


def members_of(*numbers: int) -> list[Row]:
    return [row for row in read(OWN) if row.call in numbers]


def changed(path: Path, call: int, **facts: str) -> list[Row]:
    """The rows of a call with other facts."""
    with OWN.open(newline="") as file:
        rows = [row | facts for row in csv.DictReader(file) if row["call"] == str(call)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (members,) = calls(read(path))
    return members


def found(rows: list[Row]) -> dict[tuple[int, str, str], Residual]:
    """By call, launch and quantity."""
    comparison = compare(rows, PROFILE)
    assert not comparison.skipped
    return {(r.row.call, r.launch, r.quantity): r for r in comparison.residuals}


@pytest.mark.slow
def test_every_row_of_the_own_kernels_has_a_model() -> None:
    for members in calls(read(OWN)):
        case = match(members, PROFILE)
        assert len(case.chains) == len(members)
        for chain in case.chains:
            assert len(chain.launches) == 1


def test_a_call_of_too_many_tiles_has_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 tokens, 32 heads, 8 query by 8 key blocks of 128: 2,048 pairs of tiles in the main launch."""
    rows = members_of(580)
    facts = rows[0].facts
    assert (facts["block_q"], facts["block_k"]) == ("128", "128")
    monkeypatch.setattr(matching, "MAX_PAIRS", 2048)
    match(rows, PROFILE)
    monkeypatch.setattr(matching, "MAX_PAIRS", 2047)
    with pytest.raises(NoModel, match="visits 2048 pairs of tiles; up to 2047 are replayed here"):
        match(rows, PROFILE)


def visits(seq: int, block_q: int, block_k: int, causal: bool) -> int:
    """(key block, query block) pairs of one head with a kept pair."""
    pairs = ((j, i) for j in range(seq // block_k) for i in range(seq // block_q))
    return sum(not causal or (i + 1) * block_q - 1 >= j * block_k for j, i in pairs)


@pytest.mark.parametrize(("call", "causal"), [(580, False), (582, True), (584, False), (586, True)])
def test_deterministic_backward_between_sms_and_l2(call: int, causal: bool) -> None:
    """1,024 tokens, 32 heads: dK and dV without dQ; then dQ anew, whose CTAs own queries."""
    rows = members_of(call)
    at = found(rows)
    f = rows[0].facts
    d, seq, heads, q, k = int(f["head_dim"]), 1024, 32, int(f["block_q"]), int(f["block_k"])
    row = 2 * d
    pair = visits(seq, q, k, causal)
    # K and V of each key block; Q, dO and 8 bytes of row statistics for each query block that it visits
    keys = heads * (2 * seq * row + pair * q * (2 * row + 8))
    assert at[call, "bwd.main", "l2_read"].predicted == keys
    assert at[call, "bwd.main", "l2_write"].predicted == heads * 2 * seq * row
    # Q, dO and the statistics of each query once; K and V in blocks of q keys for each block of k queries
    turned = sum(min(seq // q, (i + 1) * k // q) if causal else seq // q for i in range(seq // k))
    queries = heads * (seq * (2 * row + 8) + turned * q * 2 * row)
    assert at[call, "bwd.dq", "l2_read"].predicted == queries
    assert at[call, "bwd.dq", "l2_write"].predicted == heads * seq * row
    for stage in ("bwd.main", "bwd.dq"):
        for quantity in ("l2_read", "l2_write"):
            assert abs(at[call, stage, quantity].difference) <= 1000
        assert (
            abs(at[call, stage, "hbm_read"].difference)
            <= 0.01 * at[call, stage, "hbm_read"].measured
        )


@pytest.mark.parametrize("call", [607, 609])
def test_grouped_backward_between_sms_and_l2(call: int) -> None:
    """16 heads on 4 of keys, 4,096 tokens, causal: dK and dV are written once for a group, and nothing is summed."""
    rows = members_of(call)
    at = found(rows)
    f = rows[0].facts
    d = int(f["head_dim"])
    q = int(f["block_q"])
    k = int(f["block_k"])
    row = 2 * d
    pair = 16 * visits(4096, q, k, True)
    # K and V once for each of 4 heads; Q, dO and statistics a visit; fp32 atomics of dQ a visit
    assert at[call, "bwd.main", "l2_read"].predicted == 4 * 2 * 4096 * row + pair * q * (
        2 * row + 8
    )
    assert at[call, "bwd.main", "l2_write"].predicted == 4 * 2 * 4096 * row + pair * q * 4 * d
    for quantity in ("l2_read", "l2_write"):
        assert at[call, "bwd.main", quantity].difference == 0
    # the heads of a group pass one after the other, so a quarter of Q, dO and dQ is in use at a time
    read_error = at[call, "bwd.main", "hbm_read"].error
    assert read_error is not None
    assert read_error < 0.25


def test_one_split_passes_through_memory() -> None:
    """8 heads, 4 query rows on 4,096 keys, head_dim 64, bf16, built for splits and run with one."""
    at = found(members_of(114))
    # Q, K, V in; O in fp32 and a log-sum-exp, a sector for 4 rows, out
    assert (
        at[114, "main", "l2_read"].predicted
        == at[114, "main", "l2_read"].measured
        == 8 * (4 + 2 * 4096) * 128
    )
    assert (
        at[114, "main", "l2_write"].predicted
        == at[114, "main", "l2_write"].measured
        == 8 * (4 * 256 + 32)
    )
    assert (
        at[114, "combine", "l2_read"].predicted
        == at[114, "combine", "l2_read"].measured
        == 8 * (4 * 256 + 32)
    )


def test_a_ragged_grouped_backward_has_no_model(tmp_path: Path) -> None:
    members = changed(tmp_path / "rows.csv", 607, seq_q="4097", seq_k="4097")
    with pytest.raises(NoModel, match="4097 queries are no whole blocks of 128"):
        match(members, PROFILE)


def test_notes_of_builds_are_of_their_kernel(tmp_path: Path) -> None:
    for call, note in ((236, "bypass L1"), (236, "deterministic"), (607, "bypass L1")):
        members = changed(tmp_path / "rows.csv", call, note=note)
        if (call, note) == (236, "bypass L1"):
            assert len(match(members, PROFILE).chains) == 3
        else:
            with pytest.raises(NoModel, match=f"the note '{note}'"):
                match(members, PROFILE)


@given(
    blocks=st.integers(1, 4),
    heads=st.integers(1, 3),
    keys=st.integers(1, 40),
    block_q=st.integers(1, 5),
    block_k=st.integers(1, 9),
    window=st.none() | st.integers(0, 12),
    right=st.none() | st.integers(0, 6),
)
def test_heads_pass_one_after_the_other(
    blocks: int,
    heads: int,
    keys: int,
    block_q: int,
    block_k: int,
    window: int | None,
    right: int | None,
) -> None:
    """Against brute force over pairs: which query blocks each key block visits, head by head."""
    seq = blocks * block_q
    head = IntervalMask(window, right, keys - seq)
    mask = HeadsInTurn(head, seq)
    kept_pairs = mask.keeps(np.arange(heads * seq)[:, None], np.arange(keys)[None, :])
    assert mask.kept_pairs(heads * seq, keys) == kept_pairs.sum()
    total = -(-keys // block_k)
    steps = mask.key_blocks(heads * seq, keys, block_q, block_k, heads).by_key(total)
    assert steps.indices is not None
    for j in range(total):
        want = [
            n
            for n in range(heads * blocks)
            if kept_pairs[n * block_q : (n + 1) * block_q, j * block_k : (j + 1) * block_k].any()
        ]
        first = steps.first[j]
        count = steps.count[j]
        assert list(steps.indices[first : first + count]) == want


# Times


def test_time_of_the_backward_with_its_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out calls, both head dimensions, with and without a mask; without the packets' cycles they are far off."""
    rows = members_of(576, 578, 588, 590, 600, 602)

    def errors() -> list[float]:
        return [
            r.error or 0.0
            for (_, launch, q), r in found(rows).items()
            if (launch, q) == ("bwd.main", "time")
        ]

    assert len(errors()) == 6
    assert max(errors()) < 0.055
    monkeypatch.setitem(globals(), "PROFILE", replace(PROFILE, add_packet_cycles=0.0))
    assert min(errors()) > 0.15


@pytest.mark.parametrize("call", [236, 238, 239, 240])
def test_products_of_naive_go_through_shared_memory(call: int) -> None:
    """Wavefronts as stated, against the counter; at one a cycle they take longer than the multiply-adds, and no less
    time is measured."""
    rows = members_of(call)
    with OWN.open(newline="") as file:
        counted = {
            r["launch"]: int(r["smem_wavefronts"])
            for r in csv.DictReader(file)
            if r["call"] == str(call)
        }
    at = found(rows)
    for row, chain in zip(rows, match(rows, PROFILE).chains, strict=True):
        (launch,) = chain.launches
        assert not launch.work.tensor_cores
        if launch.name == "softmax":
            assert launch.work.shared_bytes_per_pair == 0
            continue
        wavefronts = executed_pairs(launch) * launch.work.shared_bytes_per_pair / 128
        assert wavefronts == pytest.approx(counted[str(row.launch)], rel=0.01)
        time = at[call, launch.name, "time"]
        cycles = PROFILE.sm_count * (PROFILE.boost_clock_hz or 0)  # no tensor core slows it
        assert wavefronts / cycles < min(time.predicted, time.measured)
