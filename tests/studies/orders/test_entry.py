"""The ranking that `iosim orders` prints: its JSON, table, frame and page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scripts import ROOT, load_script, measurements

import iosim
from iosim.commands.cli import main
from iosim.studies.orders import OrderRanking
from iosim.studies.orders.code import LANGUAGES

pytestmark = pytest.mark.usefixtures("replays_once")


ASKED = "orders --gpu h200 --heads 4 --seq-len 1k --causal --scheduler static --direction ascending"


def told(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line.split()) == 0
    return capsys.readouterr().out


def test_the_json_is_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(told(f"{ASKED} --format json", capsys))
    first = data["orders"][0]
    keys = (
        "order",
        "section_heads",
        "direction",
        "heavy_first",
        "scheduler",
        "block_q",
        "block_k",
        "hbm_read_bytes",
        "hbm_write_bytes",
        "time_s",
    )
    assert data["schema"] == 1
    assert all(key in first for key in keys)
    ranking = iosim.orders(
        gpu="h200", heads=4, seq_len="1k", causal=True, scheduler="static", direction="ascending"
    )
    plain = json.loads(json.dumps([entry.to_dict() for entry in ranking.orders]))
    assert data["orders"] == [{"profile": "h200-sxm"} | entry for entry in plain]
    assert len(json.loads(told(f"{ASKED} --top 2 --format json", capsys))["orders"]) == 2


def test_a_table_names_the_kernels_own_order(capsys: pytest.CaptureFixture[str]) -> None:
    text = told("orders --gpu h200 --heads 4 --seq-len 1k --causal --kernel fa2 --top 1", capsys)
    assert text.count("its own") >= 1
    assert text.startswith("fa2 on h200-sxm in fp16 does best with ")
    assert "On h200-sxm at 1,024 tokens and 4 heads of 128 columns, causal: " in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--check-constant 50MiB", "--check-constant '50MiB' is not known; accepted: section=SIZE"),
        ("--check-constant section=much", "accepted: section=SIZE, such as section=50MiB"),
        ("--weights 1,2", "--weights are 2; accepted: 1, one for each problem"),
        ("--weights none", "--weights none: no numbers"),
        ("--weights 0", "--weights 0.0 is out of range"),
        ("--kernel naive", "--kernel naive: no launch loops over keys"),
        ("--pass fwd+bwd", "--pass fwd+bwd: orders are searched for one pass at a time"),
        ("--fold --heavy-first", "--fold contradicts --heavy-first"),
        ("--cluster 2", "--cluster 2: a100-sxm-80gb has no clusters of CTAs"),
        ("--top 0", "--top 0 is out of range"),
    ],
)
def test_bad_input(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["orders", "--heads", "2", "--seq-len", "256", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.count("\n") == 1


def test_to_pandas_and_figure(ranking: OrderRanking, tmp_path: Path) -> None:
    frame = ranking.to_pandas()
    assert len(frame) == len(ranking.orders)
    assert np.isclose(frame["time_s"][0], ranking.best.time_s)
    assert ranking.figures == ("orders",)


def test_the_page_has_the_summary_of_the_record() -> None:
    script = load_script("experiments/orders_proof.py")
    table = load_script("experiments/orders_table.py")
    predicted, measured = (
        script.rows_of(measurements(f"{name}.csv")) for name in ("orders_predicted", "h200_orders")
    )
    page = (ROOT / "docs" / "orders.md").read_text(encoding="utf-8").splitlines()
    grouped = table.joined(predicted, measured)
    assert not [line for line in table.summary(grouped) if line not in page]
    assert len(grouped) == 23
    within = [
        sum(table.time_ratio(pairs) <= limit for pairs in grouped.values())
        for limit in (1.02, 1.05)
    ]
    assert within == [17, 22]  # as the README says
    assert all(
        table.byte_ratio(pairs) <= 1.05
        for (kernel, *_), pairs in grouped.items()
        if kernel == table.OWN
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_of_the_best_order(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(f"{ASKED} --order head --section-heads 2 --code {language}", capsys)
    comment, _, rest = text.partition("\n")
    assert "sections of 2 heads" in comment
    assert rest == iosim.orders(
        gpu="h200",
        heads=4,
        seq_len="1k",
        causal=True,
        scheduler="static",
        direction="ascending",
        section_heads=2,
    ).code(language)
