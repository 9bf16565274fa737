"""Tables of others beside predictions: what is read, what is left out and why, and a row a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.commands.cli import main
from iosim.evidence.published.judge import RANGE_HOLDS, OfGpu, _judged, _request, judge
from iosim.evidence.published.tables import _parts, _size, half_digit, is_published, read, shipped
from iosim.evidence.recorded import rows
from iosim.evidence.validate.rows import default_files
from iosim.prediction.replays import Replays

NAMES = {path.name: path for path in shipped()}
COUNTERS = ("a100_attention_ncu_leleucas.csv", "l4_gtx1650ti_attention_ncu_tritonformer.csv")


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_table_has_a_form_and_rows_that_are_compared(name: str) -> None:
    samples, left_out = read(NAMES[name])
    assert is_published(NAMES[name])
    assert samples
    assert all(row.reason for row in left_out)


def test_tables_of_our_own_have_none() -> None:
    assert not any(map(is_published, default_files()))
    with pytest.raises(InputError, match="no published table"):
        read(default_files()[0])


def test_counters_of_an_a100_and_an_l4_are_met() -> None:
    of_gpu = {gpu.gpu: gpu for gpu in judge(NAMES[name] for name in COUNTERS).gpus}
    a100, l4 = of_gpu["a100-sxm-80gb"], of_gpu["l4"]
    assert (a100.rows["bytes"], l4.rows["bytes"]) == (
        21,
        3,
    )  # two of the L4's five rows are fitted on
    assert (a100.median_error["bytes"] or 0) < 0.005
    assert (l4.median_error["bytes"] or 0) < 0.04
    assert l4.inside == 1.0


def test_without_check_bits_an_l4_is_further_off() -> None:
    with_ecc, without = (
        judge([NAMES[COUNTERS[1]]], ecc=state).gpus[0].median_error
        for state in ("delivered", "off")
    )
    assert (without["bytes"] or 0) > 4 * (with_ecc["bytes"] or 0)


def test_one_command_takes_a_table_as_its_author_wrote_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = str(NAMES["t4_attention_times.csv"])
    assert main(["validate", "--measurements", table, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (t4,) = data["gpus"]
    assert (t4["gpu"], t4["backed_by"], t4["times_rows"]) == ("t4", "public times", 3)
    assert t4["times_median"] < 0.15
    assert "times: 3 rows within" in data["answer"]
    assert any("is no number" in row["reason"] for row in data["skipped"])
    assert main(["validate", "--measurements", table]) == 0
    assert "backed by" in capsys.readouterr().out


def test_what_contradicts_it_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["validate", "--published", "--times"]) == 2
    assert main(["validate", "--published", "--format", "md"]) == 2
    (tmp_path / "none.csv").write_text("impl,pass,time_ms,note\nmagic,fwd,1,\n", encoding="utf-8")
    assert main(["validate", "--measurements", str(tmp_path / "none.csv")]) == 2
    assert "no kernel of the catalog is 'magic'" in capsys.readouterr().err


def test_rows_that_do_not_tell_what_ran_are_left_out_with_their_note() -> None:
    samples, left_out = read(NAMES["threads_decode.csv"])
    assert [row.reason for row in left_out if "window not" in row.reason]
    assert not any(sample.problem.window for sample in samples if sample.profile.name == "l40s")
    samples, left_out = read(NAMES["threads_prefill.csv"])
    assert any("hold the same time as flash" in row.reason for row in left_out)


def test_clocks_are_those_of_the_source() -> None:
    clocks = {
        sample.profile.name: sample.clocks for sample in read(NAMES["threads_prefill.csv"])[0]
    }
    assert (clocks["l4"], clocks["rtx-5090"]) == ("boost", "sustained")


def lines_of(name: str) -> dict[str, dict[str, object]]:
    verdict = judge([NAMES[name]]).to_dict()
    return {gpu["gpu"]: gpu for gpu in verdict["gpus"]}


def test_a_speed_over_another_kernels_is_two_predictions() -> None:
    """flash-attention-turing's README: 1.95 to 2.07 times PyTorch's kernel on a T4."""
    t4 = lines_of("threads_t4_flash_over_memory_efficient.csv")["t4"]
    assert (t4["speedups_rows"], t4["inside"]) == (3, None)
    assert t4["speedups_median"] < 0.08
    assert "speed-ups: 3 rows within" in t4["line"]
    samples, _ = read(NAMES["threads_sm120_fa4_over_fa2.csv"])
    assert {(s.kernel, s.over, s.problem.heads, s.problem.mask) for s in samples} == {
        ("fa4-sm120", "flash-attn", 32, "causal")
    }


def test_a_text_holds_columns_of_its_own() -> None:
    """`8 x H800` names a board, and `FA1 backward head_dim 128` a pass and a width."""
    samples, left_out = read(NAMES["threads_ring.csv"])
    assert [(s.profile.name, s.problem.passes) for s in samples] == [
        ("h800-sxm", "fwd"),
        ("a800", "fwd+bwd"),
    ]
    assert {row.reason for row in left_out} == {"no kernel of the catalog is 'ring'"}
    samples, left_out = read(NAMES["threads_resources.csv"])
    wide, fa1 = samples
    assert (wide.problem.head_dim, wide.quantity, wide.measured) == (512, "shared_memory", 98304)
    assert (fa1.problem.passes, fa1.problem.head_dim) == ("bwd", 128)
    assert "quantity 'registers' is not compared" in [row.reason for row in left_out]


def test_what_a_cta_takes_is_compared(tmp_path: Path) -> None:
    table = tmp_path / "resources.csv"
    table.write_text(
        "source,gpu,kernel,quantity,reported,note\n"
        'x,sm_80,FA1 backward head_dim 128,"shared memory, bytes",155648,\n'
        'x,sm_80,FA2 fwd d128,"shared memory, bytes",many,\n',
        encoding="utf-8",
    )
    verdict = judge([table])
    (a100,) = verdict.gpus
    assert (a100.rows["shared"], a100.median_error["shared"]) == (1, 0.0)
    assert [row.reason for row in verdict.left_out] == ["'many' is no number"]


def test_each_row_may_have_its_clock_and_each_column_its_kernel(tmp_path: Path) -> None:
    samples, left_out = read(NAMES["l4_gtx1650ti_attention_times_tritonformer.csv"])
    assert {sample.clocks for sample in samples} == {"2040"}
    assert any("sm_clock_mhz '1380'" in row.reason for row in left_out)
    table = tmp_path / "two.csv"
    table.write_text(
        "gpu,phase,batch,heads,kv_heads,head_dim,causal,seq,hipkittens_ms,aiter_ms\n"
        "MI355X,fwd,16,64,8,128,1,4096,1.0,2.0\n",
        encoding="utf-8",
    )
    samples, _ = read(table)
    assert [(s.kernel, s.measured) for s in samples] == [("hipkittens", 1e-3), ("aiter", 2e-3)]


@pytest.mark.parametrize(
    ("text", "half"), [("33.6", 0.05), ("815.488", 0.0005), ("721", 0.5), ("1.2e3", 50.0)]
)
def test_a_value_is_as_exact_as_its_digits(text: str, half: float) -> None:
    assert half_digit(text) == pytest.approx(half)


def test_decoding_on_a_card_without_curves_of_its_l2() -> None:
    """Another board's L2 rate and its SM's share of HBM, by the architecture: nothing here was fitted on these rows."""
    (card,) = judge([NAMES["rtx5060ti_decode_counters_stevenwang.csv"]]).gpus
    assert card.rows["times"] == 12
    assert (card.median_error["times"] or 0) < 0.10
    assert (card.inside or 0) > 0.9


def test_plain_attention_of_others_is_as_its_ranges_say() -> None:
    """An A100's products in fp32 multiply columns past the head's; an RTX 3090's and an RTX A6000's as well."""
    of_gpu = {
        gpu.gpu: gpu
        for gpu in judge(
            NAMES[name] for name in ("threads_plain_attention.csv", "threads_decode.csv")
        ).gpus
    }
    for gpu, tolerance in (("a100-sxm-40gb", 0.06), ("rtx-3090", 0.06), ("rtx-a6000", 0.26)):
        assert (of_gpu[gpu].median_error["plain"] or 1) < tolerance
        assert of_gpu[gpu].as_its_range_says


def test_small_launches_hold_the_call_where_the_source_says_so() -> None:
    (a100,) = judge([NAMES["a100_flashinfer_053_times.csv"]]).gpus
    assert (a100.median_error["times"] or 1) < 0.03
    assert a100.as_its_range_says


def test_a_gpu_is_further_off_than_its_range_says() -> None:
    rows = judge([NAMES["a100_flashinfer_053_times.csv"]])
    wrong = replace(rows, judged=tuple(replace(row, inside=False) for row in rows.judged))
    assert wrong.gpus[0].as_its_range_says is False
    assert "further off than it says" in wrong.gpus[0].line
    assert wrong.gpus[0].to_dict()["as_its_range_says"] is False
    assert "further off" in str(wrong.table())


@pytest.mark.slow
def test_times_of_others_lie_in_the_ranges_of_their_gpus() -> None:
    """Nine in ten of all; of each GPU with ten and more as many, but for what a handful of rows may miss."""
    times: dict[str, list[bool]] = {}
    for row in judge(shipped()).judged:
        if row.sample.quantity == "time" and row.inside is not None and not row.sample.fitted:
            times.setdefault(row.sample.profile.name, []).append(row.inside)
    shares = {gpu: sum(inside) / len(inside) for gpu, inside in times.items() if len(inside) >= 10}
    assert {"h100-sxm", "t4", "rtx-4090", "a100-pcie-80gb", "b200"} <= set(shares)
    assert min(shares.values()) >= 0.85, shares
    everywhere = [inside for rows in times.values() for inside in rows]
    assert sum(everywhere) >= 0.93 * len(everywhere) > 200


STACKS = (
    "gpu,framework,version,kernel,attn_dtype,kv_cache_dtype,batch,new_tokens_per_seq,cached_tokens,heads,kv_heads,"
    "head_dim,window_size,latency_ms\n"
)
LAUNCHES = (
    "gpu,framework,kernel,kv_cache_dtype,num_heads,batch_size,new_tokens_per_seq,cached_tokens"
)


def of_text(folder: Path, text: str) -> Path:
    table = folder / "table.csv"
    table.write_text(text, encoding="utf-8")
    return table


def test_a_call_of_a_stack_is_described_case_by_case(tmp_path: Path) -> None:
    """Pages, types, windows and what stands beside the kernel, of vLLM's, SGLang's and TensorRT-LLM's calls."""
    table = of_text(
        tmp_path,
        STACKS + "h100_sxm,vllm,1,vllm_flash_attn_fa3,bfloat16,fp8,2,512,0,32,8,128,1024,9.1\n"
        "h100_sxm,sglang,1,flashinfer,bfloat16,bfloat16,2,512,0,32,8,128,0,9.2\n"
        "h100_sxm,sglang,1,flashinfer,bfloat16,bfloat16,4,1,511,16,8,128,0,9.3\n"
        "h200_sxm,trtllm,1,torch_flow,bfloat16,fp8,4,1,511,32,8,128,0,9.4\n"
        "h100_sxm,sglang,1,fa3,fp8,fp8,4,64,0,32,8,128,0,9.5\n"
        "h100_sxm,trtllm,1,torch_flow,bfloat16,fp8,4,1,511,8,8,128,0,9.6\n"
        "b200_sxm,sglang,1,flashinfer,bfloat16,fp8,4,64,0,32,8,128,0,9.7\n"
        "gb200,sglang,1,trtllm_mha,bfloat16,fp8,4,64,0,32,8,128,0,9.8\n",
    )
    samples, left_out = read(table)
    vllm, prefill, decode, xqa, narrow = samples
    assert (vllm.kernel, vllm.stack, vllm.calls, vllm.fitted) == ("vllm-fa3", "vllm", 9, False)
    p = vllm.problem
    assert (p.mask, p.window, p.page_size, p.dtype, p.cache_dtype) == (
        "window",
        1023,  # a window of 1,024 tokens has the query's own among them
        64,
        "fp8",
        None,
    )
    assert (prefill.kernel, prefill.stack, prefill.calls) == ("flashinfer", "sglang-flashinfer", 23)
    assert (prefill.problem.page_size, prefill.problem.mask) == (None, "causal")
    assert (decode.kernel, decode.problem.page_size, decode.problem.seq_k) == (
        "flashinfer-decode",
        1,
        512,
    )
    assert (xqa.kernel, xqa.profile.name, xqa.appends) == ("xqa-sm90", "h200-sxm", False)
    assert narrow.without == ("cast of K", "cast of V", "cast of Q")
    assert [row.gpu for row in left_out] == ["h100-sxm", "b200", "gb200"]
    assert [row.reason.split(" ")[0] for row in left_out] == ["TensorRT-LLM", "SGLang", "no"]


def test_rows_left_out_are_counted_and_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = of_text(
        tmp_path,
        STACKS + "a100_sxm,vllm,1,vllm_flash_attn,bfloat16,bfloat16,2,512,0,32,8,128,0,0.9\n"
        "a100_sxm,trtllm,1,torch_flow_flashinfer,bfloat16,bfloat16,2,512,0,32,8,128,0,0.9\n"
        "a100_sxm,trtllm,1,torch_flow_flashinfer,bfloat16,bfloat16,4,512,0,32,8,128,0,0.9\n",
    )
    assert main(["validate", "--measurements", str(table)]) == 0
    line = (
        "2 of 3 rows are left out (2: no kernel of the catalog is 'trtllm torch_flow_flashinfer')"
    )
    assert line in capsys.readouterr().out
    latent = of_text(
        tmp_path,
        "gpu,framework,version,kernel,phase,mla_dtype,kv_cache_dtype,num_heads,batch_size,isl,step,latency_ms\n"
        "h100_sxm,vllm,1,vllm_flashmla,generation,bfloat16,fp8,16,4,1,511,0.03\n"
        "h100_sxm,sglang,1,triton,context,bfloat16,bfloat16,16,4,512,0,0.3\n",
    )
    assert main(["validate", "--measurements", str(latent)]) == 2
    message = capsys.readouterr().err
    assert "nothing was checked; 2 of 2 rows are left out" in message
    assert "FlashMLA's dense decode from a cache in fp8 is not described" in message


def test_what_a_stack_launches_beside_and_a_lower_clock_are_in_the_time(tmp_path: Path) -> None:
    row = "h100_sxm,vllm,1,vllm_flash_attn_fa3,bfloat16,bfloat16,8,8192,0,32,8,128,0,9.9\n"
    (stacked,) = read(of_text(tmp_path, STACKS + row))[0]
    alone, once = replace(stacked, stack=""), replace(stacked, calls=1)
    many = {
        name: _judged(sample, _request(sample, "delivered").predict(Replays())).predicted
        for name, sample in (("all", stacked), ("alone", alone), ("once", once))
    }
    assert many["once"] > many["alone"] * 0.9
    assert many["all"] > many["once"]  # nine calls of some milliseconds outlast the boost clock
    short = replace(stacked, problem=stacked.problem.with_(batch=1, seq_q=512, seq_k=512))
    p = _request(short, "delivered").predict(Replays())
    append = p.time_s - _request(replace(short, stack=""), "delivered").predict(Replays()).time_s
    assert append > 0
    assert _judged(short, p).predicted > p.time_s + 1e-6  # the gap between calls


def test_launches_of_sparse_and_linear_attention_are_described(tmp_path: Path) -> None:
    top_k = of_text(
        tmp_path,
        f"{LAUNCHES},score_mode,latency_ms\n"
        "b200_sxm,sglang,fast_topk_transform_fused,fp8_e4m3,64,2,8,4096,top_last,0.09\n"
        "b200_sxm,sglang,fast_topk_transform_fused,fp8_e4m3,64,2,8,4096,flat,0.09\n"
        "b200_sxm,sglang,fast_topk_transform_fused,fp8_e4m3,64,2,8,0,top_last,0.0\n",
    )
    verdict = judge([top_k])
    (row,) = verdict.judged
    assert (row.sample.kernel, row.sample.launch, row.sample.problem.seq_k) == (
        "dsa",
        "top_k",
        4104,
    )
    assert "longest way" in verdict.left_out[0].reason + verdict.left_out[1].reason
    main_launch = of_text(
        tmp_path,
        f"{LAUNCHES},latency_ms\nh200_sxm,sglang,flash_mla_sparse_fwd,fp8_e4m3,64,2,8,4096,0.09\n",
    )
    (row,) = judge([main_launch]).judged
    assert (row.sample.launch, row.sample.problem.seq_k) == ("main", 2048)  # the first keys alone
    compressed = of_text(
        tmp_path,
        "gpu,framework,version,kernel,kv_cache_dtype,num_heads,compress_ratio,batch_size,new_tokens_per_seq,"
        "cached_tokens,latency_ms\n"
        "h200_sxm,sglang,1,flash_mla_with_kvcache,fp8_e4m3,64,128,4,2,8192,0.09\n"
        "h200_sxm,vllm,1,FLASHMLA_SPARSE_DSV4,fp8,64,128,4,2,8192,0.09\n"
        "h200_sxm,sglang,1,deep_gemm.fp8_paged_mqa_logits,fp8_e4m3,64,4,4,2,8192,0.09\n",
    )
    verdict = judge([compressed])
    whole, logits = (row.sample for row in verdict.judged)
    assert (whole.problem.seq_k, whole.problem.top_k) == (8192 + 4 * 2, None)
    assert (logits.problem.seq_k, logits.problem.top_k, logits.launch) == (8194, 512, "logits")
    assert [row.row for row in verdict.left_out] == [3]


def test_a_prefill_of_a_state_runs_the_kernel_of_chunks(tmp_path: Path) -> None:
    table = of_text(
        tmp_path,
        "gpu,framework,version,kernel,phase,batch_size,seq_len,num_k_heads,num_v_heads,latency_ms\n"
        "l40s,sglang,1,chunk_gated_delta_rule,context,4,4,8,16,0.9\n"
        "l40s,sglang,1,fused_recurrent_kda_packed_decode,generation,4,1,12,12,0.9\n"
        "l40s,vllm,1,flashkda_fwd,context,4,64,12,12,0.9\n",
    )
    chunks, step = judge([table]).judged
    assert (chunks.sample.kernel, chunks.sample.options) == ("gdn", {"step_tokens": 0})
    assert (step.sample.kernel, step.sample.options) == ("kda", None)
    stepped = _request(replace(chunks.sample, options=None), "delivered").predict(Replays())
    assert chunks.predicted > 2 * stepped.time_s  # several launches in place of one


def test_encoders_append_nothing(tmp_path: Path) -> None:
    table = of_text(
        tmp_path,
        "gpu,framework,version,kernel,batch_size,seq_len,num_heads,head_dim,attn_dtype,latency_ms\n"
        "l40s,vllm,1,vllm_vit_flash_attn_fa2,4,1024,16,80,bfloat16,0.9\n"
        "b200_sxm,sglang,1,flash_attention_v4,4,1024,16,80,bfloat16,0.9\n",
    )
    fa2, fa4 = read(table)[0]
    assert (fa2.stack, fa2.appends, fa2.problem.mask, fa2.calls) == ("vllm", False, "none", 9)
    assert (fa4.kernel, fa4.stack, fa4.calls) == ("fa4-varlen", "", 23)


def test_rows_that_constants_were_fitted_on_are_left_out_of_the_sums(tmp_path: Path) -> None:
    recorded = rows("published_stacks.csv")[0]
    names = STACKS.strip().split(",")
    cells = ",".join(recorded[name] for name in names)
    other = ",".join({**recorded, "latency_ms": "1.234567"}[name] for name in names)
    samples, _ = read(of_text(tmp_path, f"{STACKS}{cells}\n{other}\n"))
    assert [sample.fitted for sample in samples] == [True, False]
    seen = replace(judge([NAMES["a100_flashinfer_053_times.csv"]]), left_out=())
    assert "are left out" in seen.left_out_line
    assert "(" not in seen.left_out_line
    fitted = [replace(row, sample=replace(row.sample, fitted=True)) for row in seen.judged]
    assert "constants were fitted on them" in replace(seen, judged=tuple(fitted)).left_out_line


@pytest.mark.parametrize(
    ("header", "holds"),
    [
        ("bytes_in,inplace,rows,dram_bytes,lts_bytes", "an elementwise launch"),
        ("mode_name,sharing_group,tma_ld_bytes,lrc_ilc_input_sectors", "TMA loads"),
        ("gpu,benchmark,footprint_kB,spread_pct,GBps", "rates of an L2 by footprint"),
        ("gpu,block_m,block_n,num_warps,num_stages,best_ms", "the fastest tile"),
    ],
)
def test_a_table_without_attention_says_what_it_is_and_what_uses_it(
    header: str, holds: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = of_text(tmp_path, f"{header}\n{','.join('1' for _ in header.split(','))}\n")
    assert main(["validate", "--measurements", str(table)]) == 2
    message = capsys.readouterr().err
    assert holds in message
    assert "no attention; accepted: " in message
    assert message.count("\n") == 1
    for script in re.findall(r"benchmarks/\w+\.py", message):
        assert (Path(__file__).parents[3] / script).is_file()


def test_sizes_of_several_columns() -> None:
    row = {"batch": "4", "new": "2", "cached": "128.0", "none": ""}
    assert _size("batch * new + cached", row) == 136
    assert _size("cached - 1", row) == 127
    assert _size("new + none", row) is None


@pytest.mark.parametrize(
    ("inside", "holds"),
    [(None, None), (RANGE_HOLDS - 0.01, False), (RANGE_HOLDS, True), (1.0, True)],
)
def test_ranges_hold_the_rows_that_they_should(inside: float | None, holds: bool | None) -> None:
    assert OfGpu("l4", "", {}, {}, inside, 0).as_its_range_says is holds


@pytest.mark.parametrize(
    ("over", "under", "wanted"),
    [("32", "8", "4"), ("33", "8", "4"), ("32", "0", None), ("", "8", None), ("32", "", None)],
)
def test_a_column_that_is_the_ratio_of_two(over: str, under: str, wanted: str | None) -> None:
    form = {"ratios": {"group": ("heads", "kv_heads")}}
    assert _parts(form, {"heads": over, "kv_heads": under}).get("group") == wanted
