"""Counters of the kernels of examples/kernels on a GPU, and what PyTorch's attention kernels are compiled to.

    python experiments/user_kernels.py --out h100_examples.csv --loops pytorch_loops.csv --seconds 330

On a GPU with PyTorch, Triton, CuPy (which compiles the CUDA kernels, where there is no nvcc) and ncu; NVIDIA's
nvdisasm and cuobjdump are Triton's where CUDA has none. A row of --out is one launch from a flushed L2: bytes, seconds,
wavefronts of shared memory, sectors of global and local memory, instructions; `event_ms` is the median time of the
launch behind itself without the profiler. A row of --loops is the loop over keys of one of the attention kernels in
libtorch_cuda.so, for the compute capabilities of --cc, as `iosim.code` counts it. Each part ends in time: what did not
fit into --seconds is named in the last line, and in no row.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iosim import InputError
from iosim.code.counts import Counts, count, key_loop, turn_of
from iosim.code.cubin import is_cubin, read_cubin
from iosim.code.loops import Flow, Loop
from iosim.code.module import Function, read_module
from iosim.code.runs import runs_of_trips
from iosim.code.tools import find_tool, run_tool
from iosim.evidence.cuda.ncu import find_ncu, raw_page, unit_scale

CASES = Path(__file__).resolve().parent.parent / "examples" / "kernels" / "cases.toml"
RANGE = "counted"
NCU = (
    "--clock-control",
    "none",
    "--cache-control",
    "all",
    "--csv",
    "--page",
    "raw",
    "--print-units",
    "base",
)
METRICS = {
    "hbm_read": "dram__bytes_read.sum",
    "hbm_write": "dram__bytes_write.sum",
    "l2_read": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l2_write": "l1tex__m_l1tex2xbar_write_bytes.sum",
    "seconds": "gpu__time_duration.sum",
    "registers": "launch__registers_per_thread",
    "shared_memory_bytes": "launch__shared_mem_per_block",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "local_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_load_sectors_hit_l1": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld_lookup_hit.sum",
    "local_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors_hit_l1": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "instructions": "smsp__inst_executed.sum",
    "xu_instructions": "smsp__inst_executed_pipe_xu.sum",
    "cycles": "sm__cycles_elapsed.max",
    "sm_hz": "sm__cycles_elapsed.avg.per_second",
}
ATTENTION = re.compile(r"fmha_cutlass[FB]|flash_(fwd|bwd)\w*kernel")
LOOPS = (
    "cc",
    "kernel",
    "registers",
    "frame",
    "shared",
    "instructions",
    "loop",
    "turn",
    "products",
    "flops",
    "ex2",
    "other_special",
    "fp32",
    "integer",
    "conversions",
    "barriers",
    "local_load_bytes",
    "local_store_bytes",
    "shared_loads",
    "shared_stores",
    "global_synchronous",
    "global_asynchronous",
    "groups_ahead",
    "cycles_ahead",
    "local_stores_beside",
    "local_loads_beside",
    "not_read",
)
REPEATS = 7


def cases(path: Path) -> list[dict[str, Any]]:
    """The launches of a file such as examples/kernels/cases.toml."""
    launches: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["case"]
    return launches


def tensor(text: str) -> Any:
    """A tensor of "type shape" with random values."""
    import torch

    kind, _, shape = text.partition(" ")
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]
    return torch.randn([int(n) for n in shape.split("x")], device="cuda", dtype=torch.float32).to(
        dtype
    )


class Launcher:
    """Launches cases, whose sources lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: dict[str, Any] = {}

    def ready(self, case: Mapping[str, Any]) -> Any:
        """A function that launches a case, compiled, with its tensors made."""
        arguments = {
            n: tensor(v) if isinstance(v, str) else v for n, v in case["arguments"].items()
        }
        if case["file"].endswith(".py"):
            return self._triton(case, arguments)
        return self._cuda(case, arguments)

    def _triton(self, case: Mapping[str, Any], arguments: dict[str, Any]) -> Any:
        if case["file"] not in self.modules:
            spec = importlib.util.spec_from_file_location(
                "plain_kernels", self.folder / case["file"]
            )
            if spec is None or spec.loader is None:
                raise InputError(f"{case['file']} cannot be imported")
            self.modules[case["file"]] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.modules[case["file"]])
        kernel = getattr(self.modules[case["file"]], case["entry"])[tuple(case["grid"])]
        options = {"num_warps": case["warps"], "num_stages": case["stages"]}
        if "registers" in case:
            options["maxnreg"] = case["registers"]
        return lambda: kernel(**arguments, **case["constants"], **options)

    def _cuda(self, case: Mapping[str, Any], arguments: dict[str, Any]) -> Any:
        import cupy
        import numpy as np
        import torch

        if case["file"] not in self.modules:
            module = cupy.cuda.function.Module()
            module.load(cuda_code(self.folder / case["file"]))
            self.modules[case["file"]] = module
        function = self.modules[case["file"]].get_function(case["entry"])
        values: list[Any] = []
        for value in arguments.values():
            if isinstance(value, torch.Tensor):
                values.append(np.uint64(value.data_ptr()))
            else:
                values.append(np.float32(value) if isinstance(value, float) else np.int32(value))
        self.kept = arguments

        def launch(bound: Any = arguments) -> None:
            stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
            function(tuple(case["grid"]), tuple(case["block"]), tuple(values), stream=stream)

        return launch


def cuda_code(source: Path) -> bytes:
    """A source compiled for this GPU: by nvcc where it is there, else by CuPy's NVRTC."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    if shutil.which("nvcc"):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "code.cubin"
            command = [
                "nvcc",
                "-O3",
                "-std=c++17",
                f"-arch=sm_{major}{minor}",
                "-lineinfo",
                "-cubin",
                str(source),
            ]
            subprocess.run([*command, "-o", str(out)], check=True)
            return out.read_bytes()
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source.read_text(encoding="utf-8"), source.name, [], [])
    nvrtc.compileProgram(
        program, [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", "-lineinfo"]
    )
    code: bytes = nvrtc.getCUBIN(program)
    return code


def launch_all(path: Path, names: Sequence[str], timed: bool) -> None:
    """Launches cases: each once for the profiler, or as often as it takes to time them. Prints a line a case."""
    import torch

    launcher = Launcher(path.parent)
    for case in (c for c in cases(path) if c["name"] in names):
        try:
            launch = launcher.ready(case)
            launch()
            torch.cuda.synchronize()
        except (
            Exception
        ) as error:  # a compiler's or the driver's: the case has no row, the others do
            print(f"FAILED {case['name']} {str(error).splitlines()[0][:200]}", flush=True)
            continue
        if not timed:
            print(f"COUNTED {case['name']}", flush=True)
            torch.cuda.nvtx.range_push(RANGE)
            launch()
            torch.cuda.synchronize()
            torch.cuda.nvtx.range_pop()
            continue
        times = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(REPEATS):
                launch()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / REPEATS)
        print(f"TIME {case['name']} {statistics.median(times):.6f}", flush=True)


def count_launches(path: Path, until: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of all cases, and the names of those that took too long or failed."""
    rows, missing = [], []
    script_words = [sys.executable, str(Path(__file__).resolve()), "--cases", str(path)]
    launches = cases(path)
    every = [case["name"] for case in launches]
    times = dict(_times(script_words, every, until))
    for file in dict.fromkeys(case["file"] for case in launches):
        names = [case["name"] for case in launches if case["file"] == file]
        seconds_left = until - time.monotonic()
        if seconds_left < 5:
            missing += names
            continue
        command = [
            str(find_ncu()),
            *NCU,
            "--nvtx",
            "--nvtx-include",
            f"{RANGE}/",
            "--metrics",
            ",".join(METRICS.values()),
            *script_words,
            "--launch",
            *names,
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=seconds_left
            )
            failed = re.findall(r"^FAILED (.*)$", done.stdout, re.M)
            if failed:
                print(*failed, sep="\n", file=sys.stderr, flush=True)
            counted_rows = list(_rows(done.stdout, times, launches))
        except (subprocess.TimeoutExpired, InputError, ValueError) as error:
            missing += [f"{name} ({' '.join(str(error).split())[-160:]})" for name in names]
            continue
        rows += counted_rows
        missing += [name for name in names if name not in {row["case"] for row in counted_rows}]
    return rows, missing


def _times(
    command: Sequence[str], names: Sequence[str], until: float
) -> Iterator[tuple[str, float]]:
    """Milliseconds of each case without the profiler."""
    seconds_left = max(5.0, until - time.monotonic())
    try:
        done = subprocess.run(
            [*command, "--launch", *names, "--timed"],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds_left,
        )
    except subprocess.TimeoutExpired:
        return
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("TIME "):
            _, name, ms = line.split()
            yield name, float(ms)


def _rows(
    printed: str, times: Mapping[str, float], launches: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """A row of each launch that was counted, in the order in which they were launched."""
    launched = re.findall(r"^COUNTED (\S+)$", printed, re.M)
    names, units, rows = raw_page(printed, ("Kernel Name",))
    grids = {case["name"]: "x".join(map(str, case["grid"])) for case in launches}
    rows = [row for row in rows if len(row) == len(names)]
    for name, values in zip(launched, rows, strict=True):
        cells = dict(zip(names, values, strict=True))
        row: dict[str, Any] = {"case": name, "kernel": cells["Kernel Name"], "grid": grids[name]}
        row["event_ms"] = times.get(name, "")
        for column, metric in METRICS.items():
            text = cells.get(metric, "").replace(",", "")
            if text in ("", "n/a"):
                row[column] = ""
                continue
            value = float(text) * unit_scale(units[names.index(metric)])
            row[column] = value if column in ("seconds", "sm_hz") else round(value)
        yield row


# ---- PyTorch's kernels ----


def loop_row(
    function: Function, choose: Callable[[Flow], Loop | None] = key_loop
) -> dict[str, Any]:
    """The loop over keys of a kernel, counted."""
    flow = Flow(function)
    keys = choose(flow)
    start = flow.instructions[flow.blocks[keys.header].first].address if keys else None
    runs = runs_of_trips(flow, {start: 1000.0} if start is not None else {})
    inside = set(flow.numbers(keys)) if keys else set()
    turn = turn_of(flow, keys, runs) if keys else []
    counts: Counts = count(turn, function.cc)
    beside = count(
        [instruction for n, instruction in enumerate(flow.instructions) if n not in inside],
        function.cc,
    )
    special = dict(counts.special)
    tables = {
        "products": counts.products,
        "shared_loads": counts.shared_loads,
        "shared_stores": counts.shared_stores,
    }
    text = {
        name: " ".join(f"{k}:{v:g}" for k, v in counted.items()) for name, counted in tables.items()
    }
    return {
        "cc": function.cc,
        "kernel": function.name,
        "registers": function.registers,
        "frame": function.frame_bytes,
        "shared": function.shared_memory_bytes,
        "instructions": len(flow.instructions),
        "loop": "" if start is None else f"0x{start:x}",
        "turn": counts.instructions,
        "products": text["products"],
        "flops": counts.flops,
        "ex2": special.pop("EX2", 0),
        "other_special": sum(special.values()),
        "fp32": counts.fp32,
        "integer": counts.integer,
        "conversions": counts.conversions,
        "barriers": counts.barriers,
        "local_load_bytes": counts.local_load_bytes,
        "local_store_bytes": counts.local_store_bytes,
        "shared_loads": text["shared_loads"],
        "shared_stores": text["shared_stores"],
        "global_synchronous": counts.global_loads.get("synchronous", 0),
        "global_asynchronous": counts.global_loads.get("asynchronous", 0),
        "groups_ahead": "" if counts.groups_ahead is None else counts.groups_ahead,
        "cycles_ahead": "" if counts.ahead is None else round(counts.ahead),
        "local_stores_beside": beside.local_store_bytes,
        "local_loads_beside": beside.local_load_bytes,
        "not_read": "; ".join(flow.unread),
    }


def file_rows(cubin: str) -> list[dict[str, Any]]:
    """Rows of the attention kernels in one ELF file."""
    module = read_module(Path(cubin))
    return [loop_row(f) for f in module.functions if ATTENTION.search(f.name) and f.instructions]


def holds_attention(file: Path) -> bool:
    data = file.read_bytes()
    try:
        return is_cubin(data) and any(ATTENTION.search(name) for name in read_cubin(data))
    except InputError:
        return False


def library_loops(
    out: Path, cc: Sequence[int], until: float, library: Path | None = None
) -> list[str]:
    """Writes the rows of all attention kernels of libtorch_cuda.so; names of files that took too long."""
    if library is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            raise InputError(
                "PyTorch is not installed; accepted: --library with a path to libtorch_cuda.so"
            )
        library = Path(spec.origin).parent / "lib" / "libtorch_cuda.so"
    find_tool("nvdisasm")
    refused = []
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ThreadPoolExecutor(len(cc)) as threads:
            list(
                threads.map(
                    lambda n: run_tool("cuobjdump", "-xelf", f"sm_{n}", library, folder=folder), cc
                )
            )
        files = [file for file in sorted(folder.iterdir()) if holds_attention(file)]
        print(
            f"{len(files)} files of {library.name} hold attention kernels",
            file=sys.stderr,
            flush=True,
        )
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            waiting = {pool.submit(file_rows, str(file)): file.name for file in files}
            try:
                for done in as_completed(waiting, timeout=max(1.0, until - time.monotonic())):
                    name = waiting.pop(done)
                    try:
                        rows += done.result()
                    except (InputError, ValueError, IndexError, KeyError) as error:
                        refused.append(f"{name} ({error})")
            except TimeoutError:
                refused += waiting.values()
                for process in pool._processes.values():  # no other way ends what is under way
                    process.kill()
    _write(out, LOOPS, sorted(rows, key=lambda row: (row["cc"], row["kernel"])))
    return refused


def _write(out: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def provenance(out: Path, command: str) -> None:
    """A file beside the table that says where it is from."""
    import datetime

    import torch

    def said(*argv: str) -> str:
        try:
            return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            return ""

    query = "--query-gpu=name,driver_version,clocks.max.sm,power.limit"
    facts = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "nvidia_smi": said("nvidia-smi", query, "--format=csv,noheader"),
        "cuda": str(torch.version.cuda),
        "pytorch": torch.__version__,
        "profiler": said("ncu", "--version").splitlines()[-1:] or "",
        "profiler_options": " ".join(NCU),
        "metrics": " ".join(METRICS.values()),
        "date": datetime.date.today().isoformat(),
        "command": command,
    }
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        pass
    lines = [f'{key} = "{str(value).strip("[]").strip(chr(39))}"' for key, value in facts.items()]
    out.with_suffix(".toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the table of counters")
    parser.add_argument("--loops", type=Path, help="the table of PyTorch's loops")
    parser.add_argument(
        "--cc", type=int, nargs="*", default=[75, 80, 90], help="compute capabilities of --loops"
    )
    parser.add_argument(
        "--library", type=Path, help="libtorch_cuda.so, where it is not PyTorch's own"
    )
    parser.add_argument("--seconds", type=float, default=330.0, help="how long all of it may take")
    parser.add_argument("--cases", type=Path, default=CASES, help="the table of launches")
    parser.add_argument("--launch", nargs="*", help="launches these cases and ends")
    parser.add_argument("--timed", action="store_true")
    options = parser.parse_args()
    if options.launch is not None:
        launch_all(options.cases.resolve(), options.launch, options.timed)
        return
    begin, command = (
        time.monotonic(),
        "python experiments/user_kernels.py " + " ".join(sys.argv[1:]),
    )
    share = 0.55 if options.loops and options.out else 1.0
    missing: list[str] = []
    if options.out:
        rows, missing = count_launches(options.cases.resolve(), begin + share * options.seconds)
        _write(options.out, ("case", "kernel", "grid", "event_ms", *METRICS), rows)
        provenance(options.out, command)
    if options.loops:
        missing += library_loops(
            options.loops, options.cc, begin + options.seconds, options.library
        )
        provenance(options.loops, command)
    print(f"missing: {', '.join(missing) or 'nothing'}; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"user_kernels: {error}", file=sys.stderr)
        sys.exit(2)
