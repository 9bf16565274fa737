"""Serving stacks: rule books by hand-worked cases, latencies part by part, and constants fitted to a user's times."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stack_calls import decoding, kernel, prompt

import iosim
from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.libraries import entry, resolve
from iosim.catalog.libraries.flashinfer import chunk_tokens, key_rows
from iosim.catalog.serving import read_stack, stack_names
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.readers.timing.rates import Rates
from iosim.studies.latency.latency import REORDER_WAITS

H100, A100 = load_profile("h100"), load_profile("a100-sxm-80gb")


@pytest.mark.parametrize(
    ("stack", "values", "waits", "operations"),
    [
        ("sglang", {"seq_q": 512}, 10, 0.0),
        ("sglang", {"seq_q": 512, "dtype": "fp8"}, 10, 5.0),
        ("sglang", {"dtype": "fp8"}, 4, 20.0),  # one warpgroup
        (
            "vllm",
            {"seq_q": 512, "dtype": "fp8"},
            10,
            6.3,
        ),  # two-level accumulation, counted in its code
        ("vllm", {"seq_q": 512, "dtype": "fp8", "head_dim": 256}, 10, 50.0),
        ("vllm", {}, 4, 0.0),
    ],
)
def test_what_tiles_of_flashattention_3_wait_for(
    stack: str, values: dict[str, Any], waits: int, operations: float
) -> None:
    chosen_kernel = kernel(stack, replace(decoding(8192, batch=4), **values), "h100")
    assert options_of(chosen_kernel, FlashOptions).tile_waits == waits
    assert chosen_kernel.loop.score_operations == operations


def test_flashinfer_divides_tokens_and_shared_memory() -> None:
    short = replace(decoding(100), page_size=16)
    assert chunk_tokens(short, 132, 16) == 128  # the least: its 7 pages are one chunk
    assert chunk_tokens(replace(short, seq_k=64000), 132, 16) == 1952  # 4,000 pages over 33 CTAs
    assert chunk_tokens(replace(short, seq_k=64000, mask="window", window=127), 132, 16) == 128
    seen = [
        resolve(
            "flashinfer",
            replace(short, seq_k=keys, mask="window", window=1023),
            load_profile("l40s"),
        ).splits
        for keys in (2000, 64000)
    ]
    assert seen[0] == seen[1] <= 9  # for 1,040 keys, whatever lies before them
    tiles = ((64, 16), (128, 16), (128, 128))
    rows = {
        name: [key_rows(decoding(1, head_dim=d), load_profile(name), q) for d, q in tiles]
        for name in ("a100", "l40s", "h100")
    }
    assert rows == {"a100": [256, 128, 64], "l40s": [128, 64, 32], "h100": [256, 128, 64]}


def test_a_file_that_is_like_another_has_its_rows_and_its_own_before_them() -> None:
    base, own_entry = entry("fa3"), entry("vllm-fa3")
    added = len(own_entry["tile"]) - len(base["tile"])
    assert added == 8
    assert own_entry["tile"][added:] == base["tile"]
    takes = [*base["requires"]["takes"], "sinks"]
    assert own_entry["requires"] == {**base["requires"], "passes": ["fwd"], "takes": takes}
    assert not set(own_entry.get("aliases", ())) & set(base["aliases"])


def test_a_kernel_file_of_ones_own_may_be_like_the_catalogs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    tile = "[[tile]]\nhead_dim = 128\nblock_q = 64\nblock_k = 64\nwarps = 4\n"
    path.write_text(
        f'schema = 1\nname = "mine"\ntitle = "Mine"\nlike = "fa2"\nsource = "mine"\n{tile}',
        encoding="utf-8",
    )
    assert str(resolve(str(path), prompt(1024).with_(page_size=None), A100).tile) == "64x64"


def test_the_parts_of_a_call_are_its_time_and_its_launches() -> None:
    (latency,) = iosim.latency(
        stack="vllm", gpu="a100", batch=16, kv_heads=8, seq_len=1, seq_len_k="8k"
    )
    assert [part.kind for part in latency.parts] == [
        "write",
        "attention",
        "combine",
        "extra",
        "extra",
        "gap",
    ]
    launched = {launch.name: launch.total_s for launch in latency.prediction.time.launches}
    assert [part.seconds for part in latency.parts[:2]] == [launched["append"], launched["main"]]
    assert latency.total_s == pytest.approx(sum(part.seconds for part in latency.parts))
    assert latency.launches == 5
    assert latency.prediction.problem.page_size == 64
    (alone,) = iosim.latency(
        stack="vllm",
        gpu="a100",
        batch=16,
        kv_heads=8,
        seq_len=1,
        seq_len_k="8k",
        cache_write=False,
        launched="alone",
    )
    assert [part.kind for part in alone.parts] == ["attention", "combine", "extra", "extra"]


@pytest.mark.parametrize(
    ("batch", "kv_heads", "copies"), [(16, 8, 2), (1, 8, 1), (16, 1, 1), (16, 32, 0)]
)
def test_flash_attention_2_copies_where_groups_change_places(
    batch: int, kv_heads: int, copies: int
) -> None:
    """Q only where its rows leave their order, and O to where the caller wants it; both then take longer."""
    (latency,) = iosim.latency(
        stack="vllm", gpu="a100", batch=batch, kv_heads=kv_heads, seq_len=1, seq_len_k="8k"
    )
    seconds = {part.name: part.seconds for part in latency.parts if part.kind == "extra"}
    assert list(seconds) == ["copy of Q", "copy of O"][2 - copies :]
    load = Rates(load_profile("a100"), measured=True).load_latency_s(from_dram=False)
    assert all((part > REORDER_WAITS * load) == (copies == 2) for part in seconds.values())


def test_a_batch_of_contexts_is_one_launch_with_the_work_of_all() -> None:
    contexts = [1024, 4096, 65536]
    (together,) = iosim.latency(stack="vllm", gpu="h100", batch_contexts=contexts, kv_heads=8)
    main_bytes = together.prediction.traffic.total("l2", "read", launch="main")
    apart = [
        iosim.latency(stack="vllm", gpu="h100", batch_contexts=[n], kv_heads=8).points[0]
        for n in contexts
    ]
    kv = sum(2 * n * 8 * 128 * 2 for n in contexts)
    assert kv <= main_bytes < 1.01 * kv
    attention = [
        sum(p.seconds for p in latency.parts if p.kind == "attention")
        for latency in (together, *apart)
    ]
    assert max(attention[1:]) < attention[0] < sum(attention[1:])
    assert any("different lengths" in sentence for sentence in together.assumes)


NEW = "--seq-len-k {} leaves open how many tokens are new; accepted with it: --seq-len 1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("latency --stack vlm", "--stack 'vlm' is not known; did you mean vllm"),
        (
            "latency --gpu t4",
            "--stack vllm: no kernel of it is known on t4, cc 7.5; accepted: GPUs of cc 8.0",
        ),
        ("latency --batch-contexts 1k --batch 3", "--batch 3 contradicts --batch-contexts"),
        ("latency --batch-contexts 1k,0", "--batch-contexts 0 is out of range"),
        ("latency --seq-len-k 8k", NEW.format("8192")),
        ("predict --seq-len-k 8k", NEW.format("8192")),
        ("predict --seq-len-k 8k --model llama-3-8b", NEW.format("8192")),
        ("sweep --seq-len-k 4k,8k", NEW.format("4096,8192")),
        ("latency --batch-contexts none.txt", "--batch-contexts 'none.txt' cannot be read"),
        ("latency --pass bwd", "--pass bwd: a serving stack runs no backward; accepted: fwd"),
        (
            "latency --gpu h100,a100 --calibration x.toml",
            "--calibration is of one stack on one GPU",
        ),
        ("calibrate --stack vllm", "--stack 'vllm' goes with --times"),
        ("calibrate --times none.csv", "--times 'none.csv' cannot be read"),
        ("calibrate --times none.csv --raw x", "--raw contradicts --times"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_split_rules_stand_side_by_side() -> None:
    rules = ["fa2", "vllm", "sglang", "flashinfer"]
    points = iosim.decode("a100", split_rule=rules, page_size=256, context="8k", batch=4, layers=1)
    assert [p.kernel_name for p in points] == ["fa2", "vllm-fa2", "fa3-sm80", "flashinfer"]
    assert [p.prediction.kernel.splits for p in points] == [6, 6, 3, 6]
    (named,) = iosim.decode("a100", "fa2", page_size=256, context="8k", batch=4, layers=1)
    assert points.points[0].step_s == named.step_s
    (paged,) = iosim.decode("a100", split_rule="vllm", context="8k", layers=1)
    assert paged.prediction.problem.page_size == read_stack("vllm").page_size


def test_a_batch_is_one_launch_with_splits_by_sequence() -> None:
    contexts = [1024, 1024, 4096, 61440]
    queue, alike = (
        iosim.decode("h100", split_rule=rule, batch_contexts=contexts, layers=2).points[0]
        for rule in ("vllm", "fa2")
    )
    work = queue.to_dict()["sequences"]
    assert [(w["context"], w["sequences"], w["splits"], w["work_tiles"]) for w in work] == [
        (1024, 2, 1, 16),
        (4096, 1, 1, 8),
        (61440, 1, 14, 112),
    ]
    assert (queue.batch, queue.tokens, queue.context) == (4, 4, 61440)
    paged = 2 * sum(contexts) * 2 * 8 * 128 * 2
    assert queue.cache_bytes == paged
    assert queue.per_token("l2", "read") == pytest.approx(queue.cache_bytes / 4, rel=0.01)
    assert all(
        w["splits"] == 1 for w in alike.to_dict()["sequences"]
    )  # mha_varlen_fwd splits none without pages
    (flashinfer,) = iosim.decode("h100", split_rule="flashinfer", batch_contexts=contexts, layers=2)
    assert (
        len({w["keys_per_split"] for w in flashinfer.to_dict()["sequences"] if w["splits"] > 1})
        == 1
    )


def test_a_batch_of_one_length_is_the_same_step() -> None:
    (point,) = iosim.decode("h100", "flashinfer", batch_contexts=[8192] * 4, layers=1, page_size=16)
    (same,) = iosim.decode("h100", "flashinfer", context=8192, batch=4, layers=1, page_size=16)
    assert point.prediction.kernel.splits == same.prediction.kernel.splits
    assert point.step_s == pytest.approx(same.step_s, rel=0.02)
    assert point.cache_bytes == same.cache_bytes


def test_a_graph_shortens_the_start() -> None:
    alone, graph = (
        iosim.decode("h200", "vllm-fa2", context="1k", layers=1, page_size=16, launched=how)
        .points[0]
        .step_s
        for how in ("alone", "graph")
    )
    profile = load_profile("h200")
    by_graph = profile.need("graph_call_latency_s") + profile.need("graph_launch_latency_s")
    assert alone - graph == pytest.approx(
        2 * profile.need("launch_latency_s") - by_graph, abs=0.3e-6
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"batch": 4, "context": 8192, "layers": 1},
        {"model": "llama-3-8b", "context": 8192},
        {"batch_contexts": "1k,8k", "layers": 1},
    ],
)
def test_a_cache_in_fp8_is_half_as_much_to_keep_and_to_read(sizes: dict[str, Any]) -> None:
    wide, narrow = (
        iosim.decode("l40s", "flashinfer", cache_dtype=cache, **sizes).points[0]
        for cache in (None, "fp8")
    )
    assert wide.cache_bytes == 2 * narrow.cache_bytes
    assert narrow.bound_tokens_per_s == pytest.approx(2 * (wide.bound_tokens_per_s or 0))
    assert 1.7 < wide.step_s / narrow.step_s < 2


def test_states_are_kept_as_ever_beside_a_cache_in_fp8() -> None:
    (point,) = iosim.decode(
        "l40s", "flashinfer", model="qwen3-next-80b-a3b", context=8192, cache_dtype="fp8"
    )
    # 12 layers of 8,192 x 2 x (256 + 256) bytes; 36 of 32 states of 128 x 128 in fp32
    assert point.cache_bytes == 12 * 8192 * 1024 + 36 * 32 * 128 * 128 * 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--cache-dtype fp8 --kernel fa3 --gpu h100",
            "--cache-dtype fp8: kernel fa3 does not take it",
        ),
        ("--split-rule fa9", "--split-rule 'fa9' is not known; did you mean fa"),
        ("--split-rule fa2 --kernel fa3", "--split-rule fa2 contradicts --kernel fa3"),
        ("--split-rule fa3 --gpu a100", "--kernel fa3: FlashAttention-3 needs cc 9.0"),
        ("--batch-contexts 1k --batch 2", "--batch 2 contradicts --batch-contexts"),
        ("--batch-contexts 1k --context 2k", "--context 2k contradicts --batch-contexts"),
        ("--batch-contexts 1k,2 --new-tokens 4", "--batch-contexts 2 is less than --new-tokens 4"),
        ("--batch-contexts 1k --append-kv", "--append-kv contradicts --batch-contexts"),
        ("--batch-contexts 1k --model llama-3-8b", "--batch-contexts contradicts --model"),
    ],
)
def test_bad_input_of_decoding_is_one_line(
    capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert main(["decode", *line.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("gpu", ["h100", "a100", "l40s", "rtx-3090"])
@pytest.mark.parametrize("stack", stack_names())
def test_no_more_splits_run_than_are_said_to_be_the_most(stack: str, gpu: str) -> None:
    """vLLM bounds FlashAttention-3's splits; FlashAttention-2's, which a page each may be, it does not."""
    try:
        (latency,) = iosim.latency(
            stack=stack,
            gpu=gpu,
            heads=16,
            kv_heads=2,
            head_dim=256,
            batch=2,
            seq_len=1,
            seq_len_k=4096,
        )
    except InputError:  # no kernel there
        return
    said = re.search(r"at most (\d+) splits", "; ".join(latency.assumes))
    ran = re.search(r"combine of (\d+) splits", "; ".join(part.name for part in latency.parts))
    assert said is None or ran is None or int(ran[1]) <= int(said[1])


@pytest.mark.parametrize("stack", stack_names())
@pytest.mark.parametrize("new_tokens", [1, 512])
def test_what_is_in_the_time_is_not_said_to_be_outside_it(stack: str, new_tokens: int) -> None:
    """vLLM's prefill plans its splits within the call, and decoding ahead of it."""
    ran: list[str] = []
    for gpu in ("h100", "a100"):
        try:
            (latency,) = iosim.latency(
                stack=stack, gpu=gpu, seq_len=new_tokens, seq_len_k=4096, kv_heads=8
            )
        except InputError:  # no kernel there, or none that takes several query tokens
            continue
        ran.append(gpu)
        planned = any("plan" in part.name for part in latency.parts)
        outside = [sentence for sentence in latency.assumes if "outside the time" in sentence]
        assert not (planned and outside)
        if stack == "vllm":
            assert (planned, bool(outside)) == (
                gpu == "h100" and new_tokens > 1,
                gpu == "h100" and new_tokens == 1,
            )
    assert ran or (stack, new_tokens) == ("trtllm", 512)
