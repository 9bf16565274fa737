"""Timed calls of recorded tables, as problems and kernels of the catalog; `groups` says what is held against them.

Bytes of HBM are by the capacity rule where calls are launches under the profiler, by replay where they are short and
warm. No time reaches a prediction. Of calls that others timed a file's sources say which library ran; where its times
show that another build of it did, the rule stands here with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.base.words import Method
from iosim.catalog.algorithms.cuda_sources import CudaOptions
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.serving import read_stack
from iosim.evidence.published.tables import read, shipped
from iosim.evidence.recorded import rows
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.traffic import Traffic
from iosim.kernel.unit import MMA_ROWS
from iosim.prediction.call import Call
from iosim.prediction.predictor import Request, default_method, hbm_traffic
from iosim.prediction.replays import Replays
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.chain_time import HOST_LAUNCH_S
from iosim.show.tables import grouped
from iosim.studies.latency.latency import latency_of

SHORT_S = 30e-6
"""Launches shorter than this are a regime of their own: latency and first loads decide them."""


@dataclass(frozen=True)
class Timed:
    launch: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


SHORT_PREFILL_S = 2e-4
"""Below it the host's work between launches shows in a serving stack."""
IDLE_W = 200.0
"""Rows of the tables of clocks below it were read before the load."""
PLAYED = 2.0
"""Warm starts are replayed where tensors are up to so many times the L2; others find nothing of use there."""
ALONE, SUSTAINED = Conditions(), Conditions(l2_start="warm", clocks="sustained")
WARM, GRAPH = Conditions(l2_start="warm"), Conditions(l2_start="warm", launched="graph")


@dataclass(frozen=True)
class Case:
    """One call of a table, numbered as it stands there.

    Attributes:
        name: the kernel, as tables show it.
        regime: what sets its rows apart.
        seconds: of the whole chain; of each launch where not `whole`.
        fits: constants of a step were fitted on it, where its number is odd.
        extra_s: seconds beside the launches, of a serving stack between calls.
    """

    name: str
    regime: str
    number: int
    call: Call
    traffic: Traffic
    seconds: tuple[float, ...]
    conditions: Conditions = ALONE
    whole: bool = True
    fits: bool = False
    extra_s: float = 0.0

    def times(self, call: Call | None = None) -> Iterator[Timed]:
        """Predicted and measured times by launch; of `call` in place of its own, where something was changed."""
        chain_time = (call or self.call).time(self.traffic, self.conditions)
        if self.whole:
            yield Timed("", chain_time.total_s + self.extra_s, self.seconds[0])
            return
        for launch, seconds in zip(chain_time.launches, self.seconds, strict=True):
            yield Timed(launch.name, launch.total_s, seconds)


SIZES = (
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "head_dim_v",
    "window",
    "window_right",
    "page_size",
)
SERVING_GPUS = {
    "a100_sxm": "a100-sxm-80gb",
    "l40s": "l40s",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
}
NVIDIA_GPUS = {
    "NVIDIA H200": ("h200-sxm", "cudnn"),
    "NVIDIA GB200": ("gb200", "fa4"),
    "NVIDIA GB300": ("gb300", "fa4"),
}
"""cuDNN's kernel on Blackwell is not published: its rows are predicted as FlashAttention-4."""


Item = TypeVar("Item")


def some(items: Iterable[Item], every: int) -> list[Item]:
    """All items, or every n-th from the second on: with an even n those of even numbers, the held-out ones."""
    return list(items)[1::every] if every > 1 else list(items)


def numbered(file: str, every: int) -> list[tuple[int, dict[str, str]]]:
    return some(enumerate(rows(file), 1), every)


def moved(call: Call) -> Traffic:
    """Bytes at both levels, those of HBM by the capacity rule."""
    return call.counted + call.capacity()


def flushed(call: Call) -> Traffic:
    """Bytes at both levels where each launch starts from an empty L2, as under the profiler."""
    chains = (replace(call.chain, launches=(launch,)) for launch in call.chain.launches)
    estimates = (
        Call.of(call.problem, call.kernel, call.profile, chain).capacity() for chain in chains
    )
    return sum(estimates, call.counted)


def replayed(call: Call, l2_start: str = "warm") -> Traffic:
    """Bytes at both levels, those of HBM as a prediction finds them by default."""
    return call.counted + hbm_traffic(call, default_method(call.chain)[0], l2_start, Replays())[0]


def asked(r: Mapping[str, str], **more: Any) -> AttentionProblem:
    """The problem of a row; bf16 where its table has no column of types."""
    stated: dict[str, Any] = {name: int(r[name]) for name in SIZES if r.get(name)}
    stated |= {
        "dtype": r.get("dtype", "bf16"),
        "mask": "causal" if r.get("causal") == "1" else "none",
    }
    return AttentionProblem(**{**stated, **more})


def called(
    problem: AttentionProblem, kernel: str, gpu: HardwareProfile, over: Overrides | None = None
) -> Call:
    return Call.of(problem, resolve(kernel, problem, gpu, over), gpu)


def built(r: Mapping[str, str], **more: Any) -> Overrides:
    sizes: dict[str, Any] = {name: int(r[name]) for name in ("warps", "stages", "registers")}
    shared = int(r["smem_bytes"]) - 1024
    return Overrides(
        tile=(int(r["block_q"]), int(r["block_k"])), shared_memory_bytes=shared, **sizes, **more
    )


def short_or_long(seconds: float) -> str:
    return "short" if seconds < SHORT_S else "long"


def under(seconds: float) -> str:
    return ", under 30 us" if seconds < SHORT_S else ""


def library_cases(
    every: int = 1, file: str = "h200_library_kernels.csv", gpu_name: str = "h200-sxm"
) -> Iterator[Case]:
    """The launches of such a table; masks that no interval describes (flex) are left out."""
    gpu, calls = load_profile(gpu_name), grouped(rows(file), lambda row: int(row["call"]))
    for number, launches in some(calls.items(), every):
        r, name = launches[0], launches[0]["implementation"]
        if name == "pytorch_flex":
            continue
        problem = asked(r, passes="bwd" if "backward" in name else "fwd")
        call = called(problem, name, gpu, built(r) if name == "triton_plain" else None)
        seconds = tuple(float(x["seconds"]) for x in launches)
        spills = (
            # builds that keep registers in memory: constants of a step are not fitted on them
            name.startswith("pytorch_flash")
            or (name == "triton_plain" and (r["block_q"], r["warps"]) == ("256", "4"))
            or (
                name == "pytorch_mem_efficient"
                and (r["head_dim"] == "256" or r["dtype"] == "float32")
            )
        )
        kind = "decode" if problem.seq_q == 1 else short_or_long(sum(seconds))
        regime = "backward" if problem.passes == "bwd" else kind
        yield Case(
            name,
            regime + ", spills" * spills,
            number,
            call,
            flushed(call),
            seconds,
            whole=False,
            fits=not spills and regime in ("short", "long"),
        )


def own_cases(every: int = 1) -> Iterator[Case]:
    """The forward launches of iosim's own kernel (h200_iosim_kernels.csv) without splits and windows."""
    gpu = load_profile("h200-sxm")
    for r in some(rows("h200_iosim_kernels.csv"), every):
        if r["kernel"] != "flash_fwd" or r["splits"] != "1" or r["window"]:
            continue
        problem, persistent = asked(r, dtype="bf16"), r["persistent"] == "1"
        kernel = resolve(
            "flash-cu",
            problem,
            gpu,
            built(
                r,
                order=r["order"],
                heavy_first=r["heavy_first"] == "1",
                section_heads=int(r["section"]),
                direction=r["direction"],
                scheduler="persistent" if persistent else "static",
            ),
        )
        if persistent:
            kernel = kernel.with_(persistent_ctas=int(r["grid"].strip("()").split(",")[0]))
        call, seconds, spills = (
            Call.of(problem, kernel, gpu),
            float(r["seconds"]),
            int(r["spill_store_bytes"] or 0) > 0,
        )
        length = "decode" if problem.seq_q < MMA_ROWS else short_or_long(seconds)
        regime = "tile sweep" if length == "long" and r["note"] == "sweep" else length
        yield Case(
            "iosim flash_fwd",
            regime + ", spills" * spills,
            int(r["call"]),
            call,
            moved(call),
            (seconds,),
            whole=False,
            fits=not spills,
        )


def plain_cases(
    every: int = 1, file: str = "h200_iosim_kernels.csv", kernel: str = "naive-cu"
) -> Iterator[Case]:
    """The launches of naive.cu, minimal.cu or flash_bwd.cu under the profiler, without the host's zeroes."""
    gpu, name = (
        load_profile("h200-sxm"),
        {"flash-cu": "flash_bwd"}.get(kernel, kernel.removesuffix("-cu")),
    )
    calls = grouped(
        (r for r in rows(file) if r["implementation"] == name), lambda row: int(row["call"])
    )
    for number, launches in some(calls.items(), every):
        r = launches[0]
        problem = asked(r, passes="bwd" if r["block_q"] else "fwd")
        over = (
            Overrides(tile=(int(r["block_q"]), int(r["block_k"])), warps=int(r["warps"]))
            if r["block_q"]
            else None
        )
        resolved = resolve(kernel, problem, gpu, over)
        if isinstance(resolved.options, CudaOptions):
            resolved = resolved.with_(
                options=replace(resolved.options, deterministic=r["note"] == "deterministic")
            )
        chain = Call.of(problem, resolved, gpu).chain
        call = Call.of(
            problem, resolved, gpu, replace(chain, launches=chain.launches[-len(launches) :])
        )
        seconds = tuple(float(x["seconds"]) for x in launches)
        yield Case(f"iosim {name}", name, number, call, flushed(call), seconds, whole=False)


def call_cases(every: int = 1) -> Iterator[Case]:
    """Calls timed outside the profiler (h200_iosim_times.csv), forward, numbered as they stand: never fitted on."""
    gpu = load_profile("h200-sxm")
    for number, r in numbered("h200_iosim_times.csv", every):
        label = name = r["implementation"]
        if name not in ("flash_fwd", "cudnn", "pytorch_flash", "pytorch_mem_efficient"):
            continue
        problem, over, spills = asked(r), None, ", spills" if name == "pytorch_flash" else ""
        if name == "flash_fwd":
            causal, label = problem.mask == "causal", f"iosim {name}"
            tile, order = (int(r["block_q"]), int(r["block_k"])), "head" if causal else "query"
            taken = Overrides(tile=tile, warps=int(r["warps"]), stages=2, registers=255)
            over = replace(taken, order=order, heavy_first=causal)
        call = called(problem, name, gpu, over)
        yield Case(
            label, f"call, not profiled{spills}", number, call, moved(call), (float(r["ms"]) / 1e3,)
        )


def triton_cases(every: int = 1) -> Iterator[Case]:
    """The tiles of triton_tiles_d64_time.csv, numbered as they stand; inputs are warm in L2, so no HBM bytes."""
    gpu = load_profile("h200-sxm")
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=64, dtype="bf16")
    names = {
        "warps": "warps",
        "stages": "stages",
        "registers": "regs",
        "shared_memory_bytes": "smem",
    }
    for number, r in numbered("triton_tiles_d64_time.csv", every):
        if not r["BM"]:
            continue
        settings: dict[str, Any] = {name: int(float(r[column])) for name, column in names.items()}
        over = Overrides(tile=(int(float(r["BM"])), int(float(r["BN"]))), **settings)
        call, spills = called(problem, "triton", gpu, over), float(r["spills"]) > 0
        yield Case(
            "triton tiles, head_dim 64",
            "warm" + ", spills" * spills,
            number,
            call,
            call.counted,
            (float(r["ms"]) / 1e3,),
            whole=False,
            fits=not spills,
        )


def graph_cases(every: int = 1, gpu_name: str = "h200-sxm") -> Iterator[Case]:
    """Calls replayed in a CUDA graph (h200_graph_latency.csv, h100_graph_latency.csv), numbered as they stand:
    constants were fitted on odd ones."""
    gpu = load_profile(gpu_name)
    for number, r in numbered(f"{gpu_name[:4]}_graph_latency.csv", every):
        problem, seconds, name = asked(r), float(r["graph_ms"]) / 1e3, r["implementation"]
        call, regime = (
            called(problem, name, gpu),
            ("decode" if problem.seq_q == 1 else "prefill") + under(seconds),
        )
        yield Case(f"{name} in a graph", regime, number, call, replayed(call), (seconds,), GRAPH)


def stream_cases(every: int = 1, gpu_name: str = "h200-sxm") -> Iterator[Case]:
    """Calls whose heads have one block of queries each, one behind the other in a CUDA graph (h200_streams.csv,
    h100_streams.csv), but for those whose heads all read the same keys: never fitted on."""
    gpu, replays = load_profile(gpu_name), Replays()
    # calls stand behind one another in the graph: each costs a launch, not a call
    between = gpu.need("graph_launch_latency_s") - gpu.need("graph_call_latency_s")
    for number, r in numbered(f"{gpu_name[:4]}_streams.csv", every):
        if r["keys_lie"] == "shared":
            continue
        name, seconds = r["implementation"], float(r["seconds"])
        call = called(asked(r, batch=1), name, gpu)
        traffic = call.counted + hbm_traffic(call, warm_method(call), "warm", replays)[0]
        yield Case(
            f"{name} of one block",
            "one block of queries" + under(seconds),
            number,
            call,
            traffic,
            (seconds,),
            GRAPH,
            extra_s=between,
        )


def warm_method(call: Call) -> Method:
    """How the bytes at HBM of a call that repeats one before it are found: played where the L2 may hold some of its
    tensors."""
    held = sum(
        tensor.bytes for tensor in call.chain.tensors.values()
    ) <= PLAYED * call.profile.need("l2_bytes")
    return default_method(call.chain)[0] if held else "capacity"


def clock_cases(every: int = 1, gpu_name: str = "h200-sxm") -> Iterator[Case]:
    """Kernels that run for seconds without a pause (h200_clocks.csv, h100_clocks.csv): never fitted on."""
    gpu = load_profile(gpu_name)
    for number, r in numbered(f"{gpu_name[:4]}_clocks.csv", every):
        name = r["implementation"]
        if float(r["power_w"]) < IDLE_W or name in ("matmul", "copy"):
            continue
        call = called(
            asked(r | {"kv_heads": r["heads"], "seq_q": r["seq"], "seq_k": r["seq"]}), name, gpu
        )
        yield Case(
            name, "for seconds", number, call, moved(call), (float(r["ms"]) / 1e3,), SUSTAINED
        )


def nvidia_cases(every: int = 1) -> Iterator[Case]:
    """NVIDIA's own times of cuDNN (published_cudnn_benchmark.csv) in bf16, both passes on an H200 and the forward on
    GB200 and GB300; rows that no kernel of the catalog runs are left out. Their script writes zeros over the L2 before
    each call, and after it sleeps ten times as long as it took (cudnn-frontend @3929da2, benchmark_single_sdpa.py):
    each call is one after a pause."""
    for number, r in numbered("published_cudnn_benchmark.csv", every):
        name, kernel_name = NVIDIA_GPUS[r["gpu"]]
        wanted = r["dtype"] == "bfloat16" and r["deterministic"] == "False"
        if not wanted or (r["pass"] == "bwd" and name != "h200-sxm"):
            continue
        window = int(r["window"]) - 1 if r["window"] else None
        mask = "window" if window is not None else "none" if r["mask"] == "no_mask" else "causal"
        try:
            call = called(
                asked(r, mask=mask, window=window, passes=r["pass"]),
                kernel_name,
                load_profile(name),
            )
        except InputError:
            continue
        label = f"NVIDIA's cuDNN on {r['gpu'].removeprefix('NVIDIA ')}"
        yield Case(label, r["pass"], number, call, moved(call), (float(r["ms"]) / 1e3,))


def serving_cases(every: int = 1) -> Iterator[Case]:
    """Latencies of serving stacks (published_latency.csv) by each stack's rules; gaps between calls were fitted on odd
    rows. Bytes are by replay where tensors are small enough to be warm."""
    replays = Replays()
    for number, r in numbered("published_latency.csv", every):
        gpu, name = load_profile(SERVING_GPUS[r["gpu"]]), r["source"].split("/")[0]
        prefill, seconds, stack = (
            r["phase"] == "prefill",
            float(r["latency"]) / 1e3,
            read_stack(name),
        )
        problem = AttentionProblem(
            batch=int(r["batch_size"]),
            heads=int(r["num_heads"]),
            kv_heads=int(r["num_key_value_heads"]),
            seq_q=int(r["seq"]) if prefill else 1,
            seq_k=int(r["seq"]),
            head_dim=int(r["head_dim"]),
            dtype="bf16",
            mask="causal",
            page_size=stack.page_size,
        )
        call = called(problem, stack.kernel(gpu), gpu, Overrides(append_kv=stack.append_kv))
        how = warm_method(call)
        prediction = Request(
            problem, call.kernel, gpu, l2_start="warm", launched="graph", method=how
        ).predict(replays)
        regime = (
            "decode"
            if not prefill
            else "prefill under 0.2 ms"
            if seconds < SHORT_PREFILL_S
            else "prefill"
        )
        yield Case(
            f"{name} on {gpu.name}",
            regime,
            number,
            call,
            prediction.traffic,
            (seconds,),
            GRAPH,
            extra_s=latency_of(stack, prediction).total_s - prediction.time_s,
        )


# Calls that others timed

WHEEL_A30 = "attention_latency_a30_fa2_nvbench.csv"
"""flash-attn 2.6.3. Its head_dim 160 has a kernel of its own, 128x32 with 4 warps on cc 8.0
(flash_fwd_launch_template.h, run_mha_fwd_hdim160); later versions run that width in the kernel for 192."""
VARLEN = "attention_latency_h100_a6000_llmservingsim.csv"
"""flash_attn_varlen_func of the flash-attn wheel: no splits without pages, and a CTA a query head, since times grow
with batch x heads whatever the number of key heads. On the RTX A6000 a step takes the same time whether a query attends
alone or 32 do, that of the tile without a mask (128x32), and 960 tokens take what all their pairs take: no mask there.
What PyTorch's build for cc 9.0 spills is not known of the wheel's: none."""


def problem_of(row: Mapping[str, str]) -> AttentionProblem:
    latent = {"latent_kv": True} if row["kernel"] == "flashmla" else {}
    mask = "none" if row["file"] == VARLEN and row["gpu"] == "rtx-a6000" else row["mask"]
    return asked(row, mask=mask, passes=row.get("pass") or "fwd", **latent)


def kernel_of(row: Mapping[str, str], problem: AttentionProblem) -> Kernel:
    """The kernel of a row. Raises InputError where the kernel cannot run the problem on the row's GPU."""
    settings: dict[str, Any] = {"splits": int(row["splits"])} if row.get("splits") else {}
    if row["file"] == WHEEL_A30 and row["head_dim"] == "160":
        settings |= {"tile": (128, 32), "warps": 4}
    if row["file"] == VARLEN:
        settings |= {"pack_group": False, "splits": 1}
    kernel = resolve(
        row["kernel"],
        problem,
        load_profile(row["gpu"]),
        Overrides(**settings) if settings else None,
    )
    return kernel.with_(spill=None) if row["file"] == VARLEN else kernel


def flushed_by_writes(gpu: HardwareProfile) -> HardwareProfile:
    """A GPU whose L2 was flushed by writing zeros over it, as nvbench does (nvbench/detail/l2flush.cuh): as many dirty
    lines of others are in it as it keeps."""
    dirty_bytes = gpu.need("l2_bytes") * gpu.need("l2_dirty_fraction")
    return replace(gpu, l2_foreign_dirty_bytes=int(dirty_bytes))


def published_cases(
    every: int = 1, file: str = WHEEL_A30, gpu_name: str = "", launched: str = "alone"
) -> Iterator[Case]:
    """The rows of one file of published_attention_times.csv, cold or warm as they say, of one GPU where it is named;
    equal shapes are played once."""
    played: dict[tuple[str, ...], Case] = {}
    mine = (
        (number, r)
        for number, r in numbered("published_attention_times.csv", 1)
        if r["file"] == file and r["gpu"] == (gpu_name or r["gpu"])
    )
    for number, r in some(mine, every):
        shape, seconds = (
            tuple(v for k, v in r.items() if k not in ("seconds", "source")),
            (float(r["seconds"]),),
        )
        if shape not in played:
            problem, start = problem_of(r), r["l2_start"]
            gpu = load_profile(r["gpu"])
            if file == WHEEL_A30:
                gpu = flushed_by_writes(gpu)
            call = Call.of(problem, kernel_of(r, problem), gpu)
            traffic = replayed(call, start)
            how = WARM if start == "warm" else ALONE
            if launched == "python":
                how = in_a_loop(call, traffic, launched)
            played[shape] = Case(
                f"{r['kernel']} on {r['gpu']}",
                f"{r['phase']}, {start}",
                number,
                call,
                traffic,
                seconds,
                how,
            )
        yield replace(played[shape], number=number, seconds=seconds)


LONG_CALL_S = 1e-3
"""A loop of a hundred calls of as long has left the boost clock, which holds for some 60 ms (docs/timing.md)."""


def in_a_loop(call: Call, traffic: Traffic, launched: str) -> Conditions:
    """How a call in a loop meets its GPU, warm: at the sustained clock where it is predicted to take long."""
    is_long = call.time(traffic, SUSTAINED).total_s > LONG_CALL_S
    return replace(SUSTAINED if is_long else WARM, launched=launched)


def public_cases(every: int = 1, gpu_name: str = "t4") -> Iterator[Case]:
    """Times of one GPU in the tables of others that `iosim validate --published` reads, by kernels on which nothing was
    fitted; cold or warm, at clocks and launched as each table's form says."""
    timed = (s for path in shipped() for s in read(path)[0] if s.quantity == "time")
    mine = (s for s in timed if s.profile.name == gpu_name and not s.fitted)
    for number, sample in some(enumerate(mine, 1), every):
        try:
            whole = called(sample.problem, sample.kernel, sample.profile)
        except InputError:  # the kernel cannot run it: `--published` says why
            continue
        call = only(whole, sample.launch) if sample.launch else whole
        yield Case(
            f"{sample.kernel} on {gpu_name}",
            f"{'launches of ' if sample.launch else ''}{sample.source}, row {sample.row}",
            number,
            call,
            moved(call),
            (sample.measured,),
            Conditions(l2_start=sample.l2_start, clocks=sample.clocks, launched=sample.launched),
            extra_s=sample.launches_before * HOST_LAUNCH_S,
        )


def only(call: Call, launch: str) -> Call:
    """A call of one launch of another's chain."""
    chain = replace(
        call.chain, launches=tuple(part for part in call.chain.launches if part.name == launch)
    )
    return Call.of(call.problem, call.kernel, call.profile, chain)
