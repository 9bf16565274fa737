"""The report: every figure with its table and data, every number from a printed command line, files whole or absent."""

from __future__ import annotations

import copy
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from iosim.base.errors import InputError
from iosim.commands import common
from iosim.commands.cli import build_parser, main
from iosim.hardware.profile import load_profile
from iosim.hardware.roofs import bandwidth
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import length_options, problem_options
from iosim.show import axes
from iosim.show.html import unpacked
from iosim.studies.report import CaseGrid, Report, build, render

pytestmark = pytest.mark.usefixtures("replays_once")

FIGURES = [
    "overview",
    "traffic-l2",
    "traffic-hbm",
    "ratio-l2",
    "ratio-hbm",
    "tiles",
    "roofline-l2",
    "roofline-hbm",
    "memory",
    "time",
]


def problems(*lengths: int, **values: object) -> tuple[AttentionProblem, ...]:
    return tuple(AttentionProblem(heads=8, head_dim=64, seq_q=n, **values) for n in lengths)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report() -> Report:
    request = CaseGrid.of(("t4", "a100"), ("naive", "cutlass", "fa2"), problems(512, 2048, 8192))
    return build(request)


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render(report, "html")


@pytest.fixture(scope="module")
def embedded(page: str) -> dict:
    return unpacked(page)


def run_json(line: str, capsys: pytest.CaptureFixture[str]) -> dict:
    words = shlex.split(line)
    assert words[0] == "iosim"
    capsys.readouterr()
    assert main(words[1:]) == 0
    return json.loads(capsys.readouterr().out)


# What is in it


def test_all_figures_are_there_in_order(report: Report) -> None:
    assert [f.id for f in report.figures] == FIGURES


def test_every_figure_has_panels_a_table_its_data_and_a_download(
    report: Report, page: str, embedded: dict
) -> None:
    for figure in report.figures:
        section = page[page.index(f'<section id="{figure.id}"') :]
        section = section[: section.index("</section>")]
        assert figure.panels
        assert figure.table.rows
        assert (
            section.count("<tr>") == len(figure.table.rows) + 1
        )  # and the head; groups have heads of their own
        assert f'data-table="{figure.id}"' in section
        assert len(embedded["tables"][figure.id]["rows"]) == len(figure.table.rows)
        for panel in figure.panels:
            assert f'id="{panel.id}"' in section
            assert embedded["panels"][panel.id]["data"]
            assert len(panel.alt) > 40  # a sentence, with numbers
            assert re.search(r"\d", panel.alt)


def test_the_sentence_of_a_panel_has_a_reading_of_each_of_its_lines(report: Report) -> None:
    """Who does not see a plot is told of every line in it, with a number."""
    lines = 0
    for figure in report.figures:
        for panel in figure.panels:
            names = {t.get("name") for t in panel.data if t.get("type") == "scatter"}
            for name in names & {*report.request.kernels, *(g.label for g in report.request.gpus)}:
                lines += 1
                assert re.search(rf"\b{re.escape(name)}\b[^;]*\d", panel.alt), (panel.id, name)
    assert lines > 10


def test_panels_are_valid_plotly(report: Report) -> None:
    import plotly.graph_objects as go

    for figure in report.figures:
        for panel in figure.panels:
            drawn = {"data": list(panel.data), "layout": dict(panel.layout)}
            go.Figure(
                copy.deepcopy(drawn)
            )  # refuses names it does not know, and changes what it is given


def test_every_drawn_number_is_in_the_figures_table(report: Report) -> None:
    for figure in report.figures:
        cells = {v for row in figure.table.rows for v in row if isinstance(v, int | float)}
        for panel in figure.panels:
            for trace in panel.data:
                if "marker" in trace and figure.id != "tiles":
                    assert set(trace["y"]) <= cells, (panel.id, trace["name"])
                if trace["type"] == "heatmap":
                    assert {v for row in trace["z"] for v in row if v is not None} <= cells, (
                        panel.id
                    )


def test_levels_are_never_drawn_together(report: Report) -> None:
    for figure in report.figures:
        keys = {c.key for c in figure.table.columns}
        if figure.id not in ("tiles", "overview"):
            assert not ({"l2_bytes"} & keys and {"hbm_bytes"} & keys), figure.id


def test_the_overview_tells_the_levels_apart_and_has_the_compulsory_bytes(report: Report) -> None:
    figure = report.figure("overview")
    assert [p.title for p in figure.panels] == ["t4", "a100-sxm-80gb"]
    for panel in figure.panels:
        kernels = dict.fromkeys(row[1] for row in figure.table.rows if row[0] == panel.title)
        assert next(iter(kernels)) == "naive"
        assert set(kernels) <= {"naive", "cutlass", "fa2"}  # all that run there
        assert len(kernels) == len({p.kernel for p in report.points if p.gpu.label == panel.title})
        named = {trace["name"]: trace for trace in panel.data}
        assert set(named) == {
            "compulsory",
            *(f"{k} {level}" for k in kernels for level in ("SM<->L2", "HBM")),
        }
        assert {t["line"]["dash"] for name, t in named.items() if name.endswith("HBM")} == {"solid"}
        assert {t["line"]["dash"] for name, t in named.items() if name.endswith("L2")} == {"dash"}
        at = [c.key for c in figure.table.columns].index("compulsory_bytes")
        least = [
            row[at] for row in figure.table.rows if row[0] == panel.title and row[1] == "naive"
        ]
        assert named["compulsory"]["y"] == least
        words = [a["text"].split("> ", 1)[1] for a in panel.layout["annotations"]]
        assert sorted(words) == sorted(named)


@pytest.mark.slow
def test_estimates_have_hollow_marks_and_one_line_says_so() -> None:
    for method, hollow in (("capacity", True), ("replay", False)):
        for lengths in ((512,), (512, 1024)):
            report = build(
                CaseGrid.of(("a100",), ("naive", "fa2"), problems(*lengths), method=method)
            )
            for name in ("overview", "traffic-hbm"):
                figure = report.figure(name)
                assert figure.caption.endswith("Hollow marks are estimates.") is hollow
                for trace in figure.panels[0].data:
                    open_ones = "-open" in str(trace.get("marker", {}).get("symbol"))
                    assert open_ones is (
                        hollow and "marker" in trace and "SM<->L2" not in trace["name"]
                    ), trace["name"]
            if len(lengths) > 1:
                cells = {row[1]: row[2:] for row in report.figure("overview").brief.cells()}
                assert all(cell.endswith("*") is hollow for cell in cells["naive HBM"])
                assert not any(cell.endswith("*") for cell in cells["naive SM<->L2"])
            assert not any(
                "-open" in str(t["marker"]["symbol"])
                for t in report.figure("traffic-l2").panels[0].data
            )


def test_at_one_length_the_overview_has_a_row_a_kernel() -> None:
    report = build(CaseGrid.of(("a100",), ("naive", "fa2", "flash"), problems(1024)))
    (panel,) = report.figure("overview").panels
    marks = {t["name"]: t for t in panel.data if "markers" in t["mode"]}
    assert marks["HBM"]["y"] == marks["SM<->L2"]["y"] == ["naive", "fa2", "flash"]
    assert marks["HBM"]["x"] == [p.hbm for p in report.points]
    assert "compulsory" in panel.layout["annotations"][0]["text"]


def test_axes_are_logarithmic_and_shared(report: Report) -> None:
    for figure in report.figures:
        if figure.id == "tiles":
            continue
        assert figure.panels
        for panel in figure.panels:
            assert panel.layout["xaxis"]["type"] == panel.layout["yaxis"]["type"] == "log"
            assert panel.layout["yaxis"]["range"] == figure.panels[0].layout["yaxis"]["range"]


def test_what_cannot_run_is_stated(report: Report, page: str) -> None:
    assert [(o.gpu, o.kernel, o.lengths) for o in report.omissions] == [
        ("t4", "fa2", (512, 2048, 8192))
    ]
    for text in (page, render(report, "md")):
        assert "fa2 on t4: " in text  # at no length
        assert "needs cc 8.0" in text
    assert not any(p.gpu.label == "t4" and p.kernel == "fa2" for p in report.points)


def test_the_summary_has_the_longest_sequence_of_every_series(report: Report) -> None:
    assert [row[:3] for row in report.summary.rows] == [
        ("t4", "naive", 8192),
        ("t4", "cutlass", 8192),
        ("a100-sxm-80gb", "naive", 8192),
        ("a100-sxm-80gb", "cutlass", 8192),
        ("a100-sxm-80gb", "fa2", 8192),
    ]


# Every number from a command line


def test_every_row_names_command_lines_that_are_listed(report: Report, page: str) -> None:
    markdown = render(report, "md")
    for table in (report.summary, *(f.table for f in report.figures)):
        at = table.index("commands")
        for row in table.rows:
            assert str(row[at]).split()
            assert set(str(row[at]).split()) <= set(report.commands)
    for name in report.commands:
        assert f'<li id="{name}">' in page
    at = report.summary.index("commands")
    for name in {name for row in report.summary.rows for name in str(row[at]).split()}:
        assert f"{name}  {report.commands[name]}" in markdown


def test_every_predict_line_gives_its_numbers(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions_of = {}
    for name, line in report.commands.items():
        if name.startswith("P"):
            predictions = run_json(line, capsys)["predictions"]
            assert len(predictions) == 1
            predictions_of[name] = predictions[0]
    checked = 0
    for figure_id, numbers in {
        "traffic-l2": lambda d: {
            "l2_read_bytes": d["totals"]["l2"]["read"],
            "l2_write_bytes": d["totals"]["l2"]["write"],
            "l2_bytes": sum(d["totals"]["l2"].values()),
        },
        "traffic-hbm": lambda d: {
            "hbm_read_bytes": d["totals"]["hbm"]["read"],
            "hbm_bytes": sum(d["totals"]["hbm"].values()),
            "compulsory_bytes": sum(d["hbm_bounds"]["compulsory"].values()),
            "no_l2_bytes": sum(d["hbm_bounds"]["no_l2"].values()),
        },
        "roofline-l2": lambda d: {
            "flops": d["flops"],
            "flops_per_s": d["flops"] / d["time_s"],
            "flops_per_byte": d["flops"] / sum(d["totals"]["l2"].values()),
        },
        "roofline-hbm": lambda d: {
            "hbm_bytes": sum(d["totals"]["hbm"].values()),
            "flops_per_byte": d["flops"]
            / (sum(d["totals"]["hbm"].values()) - sum(d["check_bits"].values())),
        },
        "memory": lambda d: {
            "peak_bytes": d["memory_bytes"]["peak"],
            "workspace_bytes": d["memory_bytes"]["workspace"],
        },
        "time": lambda d: {
            "time_s": d["time_s"],
            "bound_by": d["bound_by"],
            "time_specification_s": d["time"][1]["time_s"],
        },
    }.items():
        table = report.figure(figure_id).table
        for row in table.rows:
            data = predictions_of[str(row[table.index("commands")]).split()[0]]
            assert row[0] == data["profile"]
            assert row[1] == data["kernel"]["name"]
            assert row[2] == data["problem"]["seq_q"]
            for key, expected in numbers(data).items():
                assert row[table.index(key)] == expected, (figure_id, key, row)
                checked += 1
    assert checked > 15 * 12


def test_tiles_are_those_that_the_tiles_line_prints(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    table = report.figure("tiles").table
    printed = {
        name: tiles_in(run_json(line, capsys))
        for name, line in report.commands.items()
        if name[0] == "T"
    }
    assert len(printed) == 2
    keys = ("kernel", "block_q", "block_k", "warps", "stages")
    for row in table.rows:
        cells = dict(zip((c.key for c in table.columns), row, strict=True))
        if cells["time_s"] is None:
            assert cells["rejected"]
            continue
        tile_row = printed[cells["commands"]][tuple(cells[k] for k in keys)]
        assert tile_row["time_s"] == cells["time_s"]
        assert tile_row["l2_read_bytes"] + tile_row["l2_write_bytes"] == cells["l2_bytes"]
        assert cells["times_fastest"] == tile_row["time_s"] / min(
            t["time_s"] for k, t in printed[cells["commands"]].items() if k[0] == "flash"
        )


def tiles_in(value: object) -> dict[tuple, dict]:
    """Every timed tile that a JSON holds, by kernel, tile, warps and stages."""
    tiles_by_key: dict[tuple, dict] = {}
    if isinstance(value, dict):
        if "time_s" in value and "block_q" in value:
            tiles_by_key[
                tuple(value[k] for k in ("kernel", "block_q", "block_k", "warps", "stages"))
            ] = value
        for part in value.values():
            tiles_by_key |= tiles_in(part)
    elif isinstance(value, list):
        for part in value:
            tiles_by_key |= tiles_in(part)
    return tiles_by_key


def test_the_tile_map_has_every_size_and_marks_the_fastest(report: Report) -> None:
    figure = report.figure("tiles")
    for panel in figure.panels:
        heat, *_, best = panel.data
        rows = [r for r in figure.table.rows if r[0] == panel.title and r[1] == "flash"]
        assert len(rows) == len(heat["x"]) * len(heat["y"])
        row = heat["y"].index(best["y"][0])
        column = heat["x"].index(best["x"][0])
        assert (
            heat["z"][row][column]
            == 1.0
            == min(v for line in heat["z"] for v in line if v is not None)
        )
        assert any(v is None for line in heat["z"] for v in line)  # some are rejected everywhere


def test_ratios_are_those_of_the_lines_they_name(report: Report) -> None:
    points = {p.id: p for p in report.points}
    for level in ("l2", "hbm"):
        table = report.figure(f"ratio-{level}").table
        assert len(table.rows) == 9  # cutlass on both GPUs, fa2 on the A100; 3 lengths
        for row in table.rows:
            own_point, base = (points[name] for name in str(row[table.index("commands")]).split())
            assert base.kernel == "naive"
            above, below = (base.l2, own_point.l2) if level == "l2" else (base.hbm, own_point.hbm)
            assert row[table.index("ratio")] == above / below


def test_roofs_are_those_of_the_profile(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    table = report.figure("roofline-hbm").table
    for row in table.rows:
        line = report.commands[str(row[table.index("commands")]).split()[1]]
        profile = run_json(line, capsys)["profile"]
        wide = profile.get(
            "dram_bandwidth_measured_bytes_per_s", profile["dram_bandwidth_bytes_per_s"]
        )["value"]
        rates = {**profile["tensor_flops_per_s"], **profile.get("tensor_flops_achieved_per_s", {})}
        roof = min(wide * row[table.index("flops_per_byte")], rates["fp16"]["value"])
        assert row[table.index("roof_flops_per_s")] == pytest.approx(roof)
        assert (
            row[table.index("share_of_roof")] <= 1.05
        )  # large products, which draw more power, are what was measured


@pytest.mark.slow
def test_the_reports_own_line_makes_it_again(report: Report, tmp_path: Path) -> None:
    words = shlex.split(report.request.report_line())
    assert main([*words[1:], "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == render(report, "html")
    assert (tmp_path / "report.md").read_text() == render(report, "md")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"mask": "causal"},
        {"mask": "window", "window": 0},
        {"mask": "window", "window": 300, "offset": -7},
        {"mask": "causal", "offset": 0},
        {"seq_k": 777},
        {"kv_heads": 2},
        {"head_dim_v": 96},
        {"batch": 3},
        {"dtype": "bf16", "output": "fp32"},
        {"dtype": "fp8"},
        {"accumulate": "fp16"},
        {"dropout": 0.125},
        {"passes": "fwd+bwd"},
        {"layout": "bshd"},
        {"dtype": "fp8", "output": "fp16", "passes": "bwd"},
    ],
)
def test_problem_options_give_the_problem_back(values: dict) -> None:
    (problem,) = problems(1000, **values)
    args = build_parser().parse_args(
        ["predict", *length_options(problem), *problem_options(problem)]
    )
    assert common.problems(args) == [problem]


@pytest.mark.slow
def test_a_profile_of_ones_own_is_named_by_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from iosim.base.data import data_dir

    text = (data_dir("hardware_profiles") / "a100-sxm-80gb.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(re.sub(r"(?m)^(sm_count = .*?)108", r"\g<1>54", text, count=1))
    request = CaseGrid.of(("a100", str(mine)), ("fa2",), problems(512))
    assert [g.label for g in request.gpus] == ["a100-sxm-80gb", str(mine)]
    report = build(request)
    assert len(report.points) == 2
    for point in report.points:
        data = run_json(report.commands[point.id], capsys)["predictions"][0]
        assert data["time_s"] == point.time_s


# Cases at the edges


def test_with_bounds_alone_the_interval_is_drawn_and_nothing_is_estimated() -> None:
    report = build(CaseGrid.of(("a100",), ("naive", "fa2"), problems(512, 1024), method="bounds"))
    assert {"ratio-hbm", "roofline-hbm"}.isdisjoint(f.id for f in report.figures)
    figure = report.figure("traffic-hbm")
    assert [t["name"] for t in figure.panels[0].data] == ["compulsory", "with no L2", "with no L2"]
    assert all(row[figure.table.index("hbm_bytes")] is None for row in figure.table.rows)
    assert (
        "| - |"
        not in render(report, "md").split("## Traffic between L2 and HBM")[1].split("## ")[0]
    )


def test_command_lines_carry_the_method_and_l2s_start(capsys: pytest.CaptureFixture[str]) -> None:
    request = CaseGrid.of(("a100",), ("fa2",), problems(512), method="bounds", l2_start="warm")
    data = run_json(build(request).commands["P001"], capsys)["predictions"][0]
    assert (data["method"], data["l2_start"]) == ("bounds", "warm")
    assert "--l2 warm --method bounds" in request.report_line()


@pytest.mark.parametrize(
    ("kernels", "title"),
    [
        (("naive", "fa2"), "How many bytes does tiled attention save?"),
        (("naive",), "How many bytes does naive move?"),
        (("fa2",), "How many bytes does fa2 move?"),
        (("fa2", "flash"), "How many bytes does fa2 or flash move?"),
    ],
)
def test_the_title_asks_what_is_compared(kernels: tuple[str, ...], title: str) -> None:
    assert build(CaseGrid.of(("a100",), kernels, problems(512))).title == title


def test_without_a_naive_kernel_there_is_no_ratio() -> None:
    report = build(CaseGrid.of(("a100",), ("fa2",), problems(512)))
    assert not [f.id for f in report.figures if f.id.startswith("ratio")]


def test_both_passes_show_the_forward_passs_tiles_and_no_tile_is_stated() -> None:
    both = build(CaseGrid.of(("a100",), ("fa2",), problems(512, passes="fwd+bwd")))
    assert "forward pass" in both.figure("tiles").caption
    wide = build(CaseGrid.of(("t4",), ("naive",), (AttentionProblem(seq_q=64, head_dim=4096),)))
    figure = wide.figure("tiles")
    assert not figure.panels
    assert "the tiles of t4: no tile fits" in figure.left_out[0]
    assert figure.left_out[0] in render(wide, "html")
    assert figure.left_out[0] in render(wide, "md")


def test_one_number_of_keys_for_all_lengths_is_kept_in_the_reports_line() -> None:
    request = CaseGrid.of(("a100",), ("fa2",), problems(1024, 4096, seq_k=1024))
    assert "--seq-len-k 1024" in request.report_line()
    assert request.other_keys == 1024
    with pytest.raises(InputError, match="length alone"):
        CaseGrid.of(("a100",), ("fa2",), (*problems(512), *problems(1024, mask="causal")))


def test_doubles_are_dropped_and_lengths_sorted() -> None:
    request = CaseGrid.of(
        ("a100", "A100 SXM 80GB", "a100-sxm-80gb"), ("fa2", "FA2"), problems(2048, 512, 2048)
    )
    assert [g.label for g in request.gpus] == ["a100-sxm-80gb"]
    assert request.kernels == ("fa2",)
    assert request.lengths == (512, 2048)


def test_sdpa_is_a_kernel_of_a_report() -> None:
    report = build(CaseGrid.of(("t4", "a100"), ("sdpa",), problems(512)))
    assert [p.prediction.kernel.name for p in report.points] == ["cutlass", "fa2"]
    assert {p.kernel for p in report.points} == {"sdpa"}


def test_frames_hold_the_table(report: Report) -> None:
    table = report.figure("time").table
    frame = table.to_pandas()
    assert list(frame.columns) == [c.key for c in table.columns]
    assert frame["time_s"].tolist() == [row[table.index("time_s")] for row in table.rows]


def test_ticks_are_few_round_and_inside() -> None:
    for values in ([1e3], [1e3, 1.2e3], [5, 60], [1e3, 1e9], [1e-9, 1e12], [0.3, 0.31]):
        axis = axes.log_axis(values, "x", str)
        low, high = axis["range"]
        assert low < axes.math.log10(min(values))
        assert high > axes.math.log10(max(values))
        assert 1 <= len(axis["tickvals"]) <= axes.MOST_TICKS
        assert all(low <= axes.math.log10(t) <= high for t in axis["tickvals"])
    assert axes.length_axis([1 << n for n in range(9, 19)])["ticktext"] == [
        "512",
        "4k",
        "32k",
        "256k",
    ]


def test_a_measured_roof_is_what_was_measured() -> None:
    """Of a curve by footprint the best, else the one number; the specification's where that is asked for."""
    h200 = load_profile("h200")
    curve = {"l2_read_bandwidth_by_footprint_bytes_per_s": ((1e6, 3e12), (1e7, 4e12), (1e8, 2e12))}
    gpu = replace(
        h200,
        l2_read_bandwidth_bytes_per_s=5e12,
        l2_read_bandwidth_measured_bytes_per_s=1e12,
        **curve,
    )  # type: ignore[arg-type]
    assert (bandwidth(gpu, "l2", True), bandwidth(gpu, "l2", False)) == (4e12, 5e12)
    assert (
        bandwidth(replace(gpu, l2_read_bandwidth_by_footprint_bytes_per_s=()), "l2", True) == 1e12
    )
    assert bandwidth(gpu, "hbm", True) == h200.dram_bandwidth_measured_bytes_per_s
    assert bandwidth(gpu, "hbm", False) == h200.dram_bandwidth_bytes_per_s
