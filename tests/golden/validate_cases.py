"""How measured rows are read, what a launch's name and grid tell, and which kernel stands for a call of rows: the
outcome, or why there is none, of small cases of which each changes one value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launch_cases import digits

from iosim.base.errors import InputError
from iosim.evidence.cuda.ncu import Profiled
from iosim.evidence.validate.match import LAUNCH_COLUMNS, Case, NoModel, match
from iosim.evidence.validate.profile_rows import matched
from iosim.evidence.validate.recognise import Given, Unknown, recognise
from iosim.evidence.validate.rows import NEEDED, Row, read
from iosim.hardware.profile import load_profile

Facts = dict[str, str]
COUNTED = {"hbm_read": 1000, "hbm_write": 100, "l2_read": 9000, "l2_write": 90, "time": 1e-5}

# --- which kernel stands for rows ---

PROBLEM: Facts = {
    "batch": "2",
    "heads": "8",
    "kv_heads": "8",
    "seq_q": "512",
    "seq_k": "512",
    "head_dim": "64",
    "causal": "0",
    "dtype": "bfloat16",
    "note": "",
}
OWN_TILE: Facts = {
    "block_q": "128",
    "block_k": "128",
    "warps": "4",
    "stages": "2",
    "kernel": "flash_fwd",
    "grid": "(64, 1, 1)",
    "block": "(128, 1, 1)",
    "registers": "253",
    "smem_bytes": "83072",
    "order": "query",
    "heavy_first": "0",
    "section": "0",
    "direction": "ascending",
    "persistent": "0",
    "splits": "1",
    "spill_store_bytes": "0",
}
SM90_TILE: Facts = {
    "block_q": "128",
    "block_k": "128",
    "stages": "2",
    "grid": "(64, 1, 1)",
    "block": "(384, 1, 1)",
    "registers": "168",
    "smem_bytes": "197756",
    "order": "query",
    "direction": "ascending",
    "consumers": "2",
    "q_stages": "2",
    "schedule": "one_tile",
    "cluster": "1",
    "blocks": "light_first",
    "section_heads": "0",
}
BACKWARD_KERNELS = ("dot", "main", "convert")
CALLS: Mapping[str, Sequence[Facts]] = {
    "flash_fwd": [PROBLEM | OWN_TILE],
    "flash_bwd": [
        PROBLEM | OWN_TILE | {"kernel": f"flash_bwd_{name}"} for name in BACKWARD_KERNELS
    ],
    "flash_fwd_sm90": [PROBLEM | SM90_TILE],
    "flash_bwd_sm90": [
        PROBLEM | SM90_TILE | {"kernel": name, "sums": "copied"} for name in BACKWARD_KERNELS
    ],
    "naive": [PROBLEM | {"kernel": f"naive_{name}"} for name in ("scores", "softmax", "values")],
    "pytorch_flash": [PROBLEM | {"kernel": "flash_fwd_kernel", "grid": "(4, 2, 8)"}],
    "pytorch_flash_backward": [PROBLEM | {"kernel": f"flash_{name}"} for name in BACKWARD_KERNELS],
    "pytorch_mem_efficient_backward": [PROBLEM | {"kernel": "fmha_cutlassB_bf16"}],
    "pytorch_flex": [PROBLEM | {"causal": "", "kernel": "triton_tem_fused_flex_attention_0"}],
    "triton_plain": [PROBLEM | {"block_q": "64", "block_k": "32", "warps": "8", "stages": "3"}],
    "cudnn": [PROBLEM],
    "strange": [PROBLEM],
}
"""Implementation -> the facts of its rows in a call."""
VALUES: Mapping[str, Sequence[str]] = {
    "batch": ("", "1", "0"),
    "heads": ("", "4", "6"),
    "kv_heads": ("", "2", "3", "1"),
    "seq_q": ("", "1", "500", "4"),
    "seq_k": ("", "1", "700"),
    "head_dim": ("", "128", "72", "1000"),
    "causal": ("", "1"),
    "window": ("", "0", "100"),
    "seq_lens": ("", "100 400", "100"),
    "dtype": ("", "fp16", "fp32", "x"),
    "note": (
        "repeat",
        "repeat 3",
        "sweep",
        "strange",
        "deterministic",
        "bypass L1",
        "packed, 32 query heads",
        "sliding window, 100 keys back, causal",
        "mask window+global, window 100, global_tokens 16",
        "mask x",
    ),
    "left_out": ("", "no such size"),
    "block_q": ("", "64", "0"),
    "block_k": ("", "64", "0"),
    "warps": ("", "8"),
    "stages": ("", "1", "3"),
    "order": ("", "head"),
    "section": ("", "4"),
    "section_heads": ("", "4"),
    "heavy_first": ("", "1"),
    "blocks": ("", "heavy_first", "fold", "light_first", "x"),
    "direction": ("", "alternating", "descending"),
    "persistent": ("", "1"),
    "schedule": ("", "static", "dynamic", "one_tile", "x"),
    "cluster": ("", "2"),
    "splits": ("", "2"),
    "sums": ("", "ordered"),
    "spill_store_bytes": ("", "64", "524288", "524289"),
    "registers": ("", "0", "255", "256"),
    "smem_bytes": ("", "0", "1024", "1025"),
    "block": ("", "(1024, 1, 1)", "(1025, 1, 1)", "(0, 1, 1)", "128"),
    "grid": ("", "(0, 1, 1)", "132", "(3, 2, 1)"),
    "stage": ("main", "bwd.main", "scores"),
    "kernel": ("", "other", "flash_bwd_dq_dk_dv"),
}
"""What each fact of a row is changed to."""
SIZED = ("flash_fwd", "pytorch_flex")
"""Implementations whose problem is changed."""
BUILT = ("flash_fwd", "flash_bwd", "flash_fwd_sm90", "flash_bwd_sm90", "triton_plain")
"""Implementations that say how they are built, whose settings are changed."""
OF_ALL = ("note", "left_out", "stage", "kernel")
TOGETHER: Sequence[Facts] = (
    {"order": "head", "section": "4", "section_heads": "4"},
    {"order": "head", "blocks": "light_first", "direction": "descending", "section_heads": "2"},
    {"persistent": "1", "spill_store_bytes": "8"},
    {"persistent": "1", "grid": "x"},
    {"heavy_first": "1", "blocks": "light_first", "causal": "1"},
    {"causal": "1", "window": "100"},
    {"causal": "", "window": "100"},
    {"block_q": "", "block_k": ""},
    {"registers": "", "block": ""},
    {"seq_q": "4", "seq_k": "4096", "splits": "4"},
    {"batch": "1000", "heads": "512", "kv_heads": "512", "seq_q": "60000", "seq_k": "60000"},
)
CHAINS = (
    "naive",
    "math",
    "flash",
    "cudnn",
    "flash_fwdbwd",
    "naive_fwdbwd",
    "strange",
    "strange_fwdbwd",
)
CHAIN_VALUES: Mapping[str, Sequence[str]] = {
    "seq": ("", "64"),
    "batch": ("", "3"),
    "heads": ("",),
    "dtype": ("", "fp16"),
    "head_dim": ("", "128"),
}


def rows_of(implementation: str, facts: Sequence[Facts], first: int = 1) -> list[Row]:
    names = {"call": "7", "launch": "1", "implementation": implementation}
    return [
        Row("table.csv", 7, first + n, False, implementation, names | row_facts, dict(COUNTED))
        for n, row_facts in enumerate(facts)
    ]


def matched_text(rows: Sequence[Row]) -> Any:
    try:
        case: Case = match(rows, load_profile("h200"))
    except NoModel as reason:
        return f"no model: {reason}"
    except InputError as error:
        return f"refused: {error}"
    chains = [
        f"{' '.join(launch.name for launch in chain.launches)} {digits(chain)}"
        for chain in case.chains
    ]
    measured = [" ".join(f"{q}={value}" for q, value in row.measured.items()) for row in case.rows]
    return [
        f"problem {digits(case.problem)}",
        f"kernel {digits(case.kernel)}",
        case.variant,
        *chains,
        *measured,
    ]


def calls() -> Iterator[tuple[str, list[Row]]]:
    for name, facts in CALLS.items():
        yield name, rows_of(name, facts)
        columns = [
            column
            for column in VALUES
            if (name in SIZED if column in PROBLEM else name in BUILT or column in OF_ALL)
        ]
        changes = [{column: text} for column in columns for text in VALUES[column]]
        for change in (*changes, *(TOGETHER if name in BUILT else ())):
            if any(facts[0].get(column, "") != text for column, text in change.items()):
                yield f"{name} {change}", rows_of(name, [row_facts | change for row_facts in facts])
        for change in (
            {"batch": "3"},
            {"warps": "2"},
            {"persistent": "1"},
            {"splits": "3"},
            {"note": "sweep"},
        ):
            last = [*facts[:-1], facts[-1] | change]
            yield f"{name} {change} in its last row alone", rows_of(name, last)
        for n in range(1, len(facts)):
            yield f"{name} first {n}", rows_of(name, facts[:n])
        for length in (2, 3, 4, 6, 7):
            if length > len(facts):
                pieces = [facts[n * len(facts) // length] for n in range(length)]
                yield f"{name} in {length} rows", rows_of(name, pieces)
        yield f"{name} from its second launch", rows_of(name, facts, 2)
    pieces = rows_of("naive", [row_facts for row_facts in CALLS["naive"] for _ in range(2)])
    del pieces[1].measured["l2_read"]
    yield "naive in pieces, one of which lacks a quantity", pieces
    for name in CHAINS:
        facts = {
            "implementation": name,
            "batch": "1",
            "heads": "8",
            "seq": "512",
            "head_dim": "64",
            "dtype": "float16",
        }
        changes = [
            {},
            *({column: text} for column, texts in CHAIN_VALUES.items() for text in texts),
        ]
        for change in changes:
            yield (
                f"chain {name} {change}",
                [Row("t.csv", 1, 0, True, name, facts | change, dict(COUNTED))],
            )


# --- what names and grids tell ---

FORWARD = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, (int)64, (int)4, (bool)0, (bool)0, "
    "cutlass::bfloat16_t>, {}>(Params)"
)
SPLIT = (
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, "
    "cutlass::half_t>, {}>(Params)"
)
DOT = (
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, "
    "cutlass::bfloat16_t>>(Params)"
)
ALL = Given(2, 8, None, (512,), None, (64,), "bf16", False)
TILE = {"block_q": "128", "block_k": "64"}
GIVEN: Mapping[str, Given] = {
    "all": ALL,
    "nothing": Given(),
    "no batch": Given(None, 8, None, (512,), None, (64,), "bf16", False),
    "no heads": Given(2, None, None, (512,), None, (64,), "bf16", False),
    "no batch and heads": Given(None, None, None, (512,), None, (64,), "bf16", False),
    "no type": Given(2, 8, None, (512,), None, (64,), None, False),
    "no mask": Given(2, 8, None, (512,), None, (64,), "bf16", None),
    "no width": Given(2, 8, None, (512,), None, (), "bf16", False),
    "no lengths": Given(2, 8, None, (), None, (64,), "bf16", False),
    "groups": Given(2, 8, 2, (512,), 700, (64,), "bf16", True),
    "groups that do not divide": Given(2, 8, 3, (512,), None, (64,), "bf16", True),
    "lengths": Given(2, 8, None, (500, 512, 1024), None, (64,), "bf16", False),
    "other lengths": Given(2, 8, None, (100, 200), None, (64,), "bf16", False),
    "a short one": Given(2, 8, None, (1,), 700, (128,), "bf16", False),
    "a short one of groups": Given(2, 8, 2, (1,), 700, (128,), "bf16", False),
    "widths": Given(2, 8, None, (512,), None, (64, 65, 128), "bf16", False),
    "narrow": Given(2, 8, None, (512,), None, (40,), "bf16", False),
    "wide": Given(2, 8, None, (512,), None, (200,), "bf16", False),
    "a window": Given(2, 8, None, (512,), None, (64,), "bf16", False, 100),
    "another batch": Given(3, 8, None, (512,), None, (64,), "bf16", False),
    "a tile": ALL.under(Given(settings=TILE)),
    "a tile of 96 rows": ALL.under(Given(settings=TILE | {"block_q": "96"})),
    "splits": ALL.under(Given(settings=TILE | {"splits": "2"})),
    "persistent": ALL.under(Given(settings=TILE | {"persistent": "1", "scheduler": "persistent"})),
    "static": ALL.under(Given(settings=TILE | {"scheduler": "static"})),
    "dynamic": ALL.under(
        Given(settings=TILE | {"scheduler": "dynamic", "fold": "1", "section": "4"})
    ),
    "static clusters": ALL.under(Given(settings=TILE | {"scheduler": "static", "cluster": "3"})),
    "ragged": Given(2, 8, None, (500,), None, (64,), "bf16", False, settings=TILE),
    "heavy first": ALL.under(Given(settings=TILE | {"heavy_first": "1", "order": "head"})),
}
FLAGS = (
    "false, true, false, false, true, true, false, false",
    "false, false, true, false, true, false, false",
    "0, 0, 0, 0, 0, 1, 0",
    "false, false, false, false, true, true",
    "false, false, false, false, true, true, true, false",
)
NAMES = (
    *(FORWARD.format(flags) for flags in FLAGS),
    *(SPLIT.format(flags) for flags in FLAGS),
    FORWARD.format(FLAGS[0])[:-11],
    FORWARD.format(FLAGS[0]).partition(", true")[0],
    "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, false, false, float>, true, true, true, true, true, true, true>",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, false, false>, true, true, true, true, true, true, true>",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, x, 4, false, false, half_t>, true, true, true, true, true, true, true>",
    DOT,
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>",
    "flash_bwd_convert_dq_kernel",
    "flash_fwd_splitkv_combine_kernel",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80",
    "fmha_cutlassF_f32_aligned_32x128_gmem_sm80",
    "fmha_cutlassF_bf16_aligned_64x64_k64_sm80",
    "fmha_cutlassB_bf16_aligned_64x64_k64_sm80",
    "fmha_cutlassB_bf16_aligned_64x64_rf_sm80",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
    "FlashAttnFwdSm90",
    "triton_tem_fused_flex_attention_0",
    "triton_tem_fused_flex_attention_0d",
    "flash_fwd",
    "flash_fwd_sm90",
    "flash_combine",
    "naive_scores",
    "naive_softmax",
    "minimal_fwd",
    "gemm",
)
GRIDS = (
    None,
    (4, 2, 8),
    (8, 2, 16),
    (64, 1, 1),
    (66, 1, 1),
    (128, 1, 1),
    (8, 8, 2),
    (132, 1, 1),
    (1, 2, 4),
    (2, 2, 8),
)


def recognised_text(name: str, grid: Any, stated: Given) -> str:
    try:
        call = recognise(name, grid, stated)
    except Unknown as reason:
        return f"unknown: {reason}"
    facts = " ".join(f"{key}={value}" for key, value in call.facts.items() if value != "")
    return f"{call.implementation} {call.part} {list(call.follows)} {facts}"


def names_and_grids() -> Iterator[tuple[str, Any]]:
    """By name: what is told, and with what is given and which grids it is."""
    for name in NAMES:
        by_text: dict[str, dict[str, list[str]]] = {}
        for words, stated in GIVEN.items():
            for grid in GRIDS:
                text = recognised_text(name, grid, stated)
                by_text.setdefault(text, {}).setdefault(words, []).append(str(grid))
        yield (
            f"name {name}",
            {
                text: [
                    words if len(grids) == len(GRIDS) else f"{words}: {' '.join(grids)}"
                    for words, grids in by_words.items()
                ]
                for text, by_words in by_text.items()
            },
        )


# --- profiles as rows ---


def launch(
    kernel: str,
    grid: Any = (64, 1, 1),
    block: Any = (128, 1, 1),
    *,
    counted: bool = True,
    **more: float,
) -> Profiled:
    metrics = (
        {"dram__bytes_read.sum": 1000.0, "launch__registers_per_thread": 99.0} if counted else {}
    )
    return Profiled(kernel, grid, block, metrics | more, ())


COMBINE, COPY = "flash_fwd_splitkv_combine_kernel", "elementwise_kernel<128>"
PROFILES: Mapping[str, tuple[Sequence[Profiled], Given]] = {
    "one": ([launch("flash_fwd")], GIVEN["a tile"]),
    "one with warps": (
        [launch("flash_fwd")],
        GIVEN["a tile"].under(Given(settings={"warps": "8"})),
    ),
    "one without a block": ([launch("flash_fwd", block=None)], GIVEN["a tile"]),
    "one without a grid": ([launch("flash_fwd", grid=None)], GIVEN["a tile"]),
    "without counters": (
        [launch("flash_fwd", counted=False), launch("flash_fwd")],
        GIVEN["a tile"],
    ),
    "a call of three": ([launch(f"naive_{n}") for n in ("scores", "softmax", "values")], ALL),
    "two calls": ([launch(f"naive_{n}") for n in ("scores", "softmax", "values")] * 2, ALL),
    "a call cut": ([launch(f"naive_{n}") for n in ("scores", "values", "softmax")], ALL),
    "a part alone": ([launch("naive_softmax")], ALL),
    "with a copy between": ([launch("naive_scores"), launch(COPY), launch("naive_softmax")], ALL),
    "with a fill between": (
        [launch("naive_scores"), launch("Memset"), launch("naive_softmax")],
        ALL,
    ),
    "with another between": (
        [launch("naive_scores"), launch("gemm"), launch("naive_softmax")],
        ALL,
    ),
    "with another library's": ([launch("naive_scores"), launch(COMBINE)], ALL),
    "with a long name": ([launch("g" * 300)], ALL),
    "in wavefronts": (
        [
            launch(
                "flash_fwd",
                **{
                    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 5.6,
                    "gpu__time_duration.sum": 1e-5,
                },
            )
        ],
        GIVEN["a tile"],
    ),
}


def row_text(row: Row) -> list[str]:
    facts = " ".join(f"{key}={value}" for key, value in row.facts.items() if value != "")
    measured = " ".join(f"{q}={value}" for q, value in row.measured.items())
    return [
        f"{row.source} {row.call} {row.launch} {row.chain} {row.implementation}",
        facts,
        measured,
    ]


def profiles() -> Iterator[tuple[str, Any]]:
    for name, (launches, stated) in PROFILES.items():
        profile = matched(launches, stated, "profile.csv")
        yield (
            f"profile {name}",
            {
                "rows": [row_text(row) for row in profile.rows],
                "unmatched": [
                    [*row_text(skipped.row), skipped.reason] for skipped in profile.unmatched
                ],
            },
        )


# --- tables as rows ---

HEADER = (*LAUNCH_COLUMNS, *NEEDED, "smem_wavefronts", "seconds", "grid", "note")
VALID: Facts = PROBLEM | {
    "call": "1",
    "launch": "1",
    "implementation": "cudnn",
    "hbm_read": "1000",
    "hbm_write": "100",
    "l2_read": "9000",
    "l2_write": "90",
    "smem_wavefronts": "5",
    "seconds": "1e-5",
    "grid": "(4, 2, 8)",
}
CELLS: Sequence[tuple[str, str]] = (
    *(("hbm_read", text) for text in ("", "0", "-1", "1.5", " 7 ", "9" * 18, "9" * 19, "x" * 50)),
    *(("seconds", text) for text in ("", "0", "-1e-9", "inf", "nan", "1e-3", "x")),
    *(("smem_wavefronts", text) for text in ("", "0", "3")),
    *(("batch", text) for text in ("", "0", "x", "9" * 19, " 3 ")),
    *(("causal", text) for text in ("", "1", "2")),
    *((name, "") for name in ("call", "launch", "implementation", "dtype")),
)
CHAIN_HEADER = ("implementation", "batch", "heads", "seq", "head_dim", "dtype", *NEEDED)


def tables() -> Iterator[tuple[str, str]]:
    def text(header: Sequence[str], *rows: Facts) -> str:
        lines = [header, *([row.get(name, "") for name in header] for row in rows)]
        return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines) + "\n"

    yield "valid", text(HEADER, VALID)
    for name, cell in CELLS:
        yield f"{name} '{cell}'", text(HEADER, VALID | {name: cell})
    for name in HEADER:
        yield f"without {name}", text([column for column in HEADER if column != name], VALID)
    without = [column for column in HEADER if column not in ("call", "launch")]
    yield "without calls and launches", text(without, VALID, VALID)
    yield "twice the same", text(HEADER, VALID, VALID)
    yield "two launches", text(HEADER, VALID, VALID | {"launch": "2"})
    yield "a column twice", text([*HEADER, "dtype", "note"], VALID)
    yield "chains", text(CHAIN_HEADER, VALID | {"seq": "512"}, VALID | {"seq": "64"})
    yield "lengths beside calls", text([*HEADER, "seq"], VALID | {"seq": "512"})
    for name in CHAIN_HEADER:
        yield (
            f"chains without {name}",
            text([column for column in CHAIN_HEADER if column != name], VALID),
        )
    yield "nothing", ""
    yield "a header alone", text(HEADER)
    yield "an empty line", text(HEADER) + "\n" + text(HEADER, VALID).split("\n", 1)[1]
    yield "a short row", text(HEADER) + "1,1\n"
    yield "a long row", text(HEADER) + text([*HEADER, "more"], VALID).split("\n", 1)[1]
    yield "an open quote", text(HEADER) + '"1,1\n'
    yield "a null byte", "\0"


def read_tables() -> Iterator[tuple[str, Any]]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        for name, text in tables():
            path.write_text(text, encoding="utf-8")
            try:
                outcome: Any = [row_text(row) for row in read(path)]
            except InputError as error:
                outcome = str(error).replace(folder, "FOLDER").partition("; accepted")[0]
            yield f"table: {name}", outcome


def cases() -> Iterator[tuple[str, Any]]:
    yield from read_tables()
    yield from names_and_grids()
    yield from profiles()
    bases: dict[str, Any] = {}
    for name, rows in calls():
        outcome = matched_text(rows)
        base = bases.setdefault(rows[0].implementation + str(rows[0].chain), outcome)
        yield f"call: {name}", "as the first" if outcome == base and name not in CALLS else outcome
