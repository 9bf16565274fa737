"""A Triton flash forward under one configuration: what it takes of an SM, how long it runs, and which configurations
make sense.

    best = rank(AttentionProblem(heads=32, seq_q=4096, head_dim=64), "h200")[0]
    best.config.text()         'triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=8, num_stages=3)'

The kernel is the tutorial's (triton-lang/triton, python/tutorials/06-fused-attention.py): a query tile a CTA, keys in
the loop. Triton itself is neither needed nor imported. Registers are estimated, and configurations that would spill
are left out, unless the compiler's reports are given: what spills is then timed with its spills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain, replace
from iosim.base.units import some
from iosim.catalog.algorithms import options_of, plan
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.libraries.triton import shared_bytes, tutorial_tiles, unit_of
from iosim.catalog.resource_table import BuildReport
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain
from iosim.kernel.residency import Residency, estimated_registers, residency
from iosim.kernel.tile_rules import ASYNC_COPY_CC
from iosim.kernel.unit import MMA_ROWS
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem

KERNEL = "triton"
MS_PER_S = 1e3
CHOICES = ("all", "tutorial")
Report = BuildReport | None
BLOCK_M = (16, 32, 64, 128, 256)
BLOCK_N = (16, 32, 64, 128)
NUM_WARPS = (4, 8)
NUM_STAGES = (1, 2, 3, 4)
"""Configurations that are ranked; Triton takes powers of two. The tutorial's own list is part of it."""


@dataclass(frozen=True)
class Config:
    """What a `triton.Config` of a flash forward says: BLOCK_M query rows, BLOCK_N key rows, warps, pipeline stages."""

    block_m: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        Tile(
            self.block_m, self.block_n, self.num_warps, self.num_stages
        )  # refuses what no tile can be
        for name in ("block_m", "block_n", "num_warps"):
            value = getattr(self, name)
            if value & (value - 1):
                raise InputError(f"{name} {value} is no power of two, which Triton needs")

    @property
    def tile(self) -> Tile:
        return Tile(self.block_m, self.block_n, self.num_warps, self.num_stages)

    def text(self, names: tuple[str, str] = ("BLOCK_M", "BLOCK_N")) -> str:
        return (
            f'triton.Config({{"{names[0]}": {self.block_m}, "{names[1]}": {self.block_n}}}, '
            f"num_warps={self.num_warps}, num_stages={self.num_stages})"
        )


@dataclass(frozen=True)
class TimedConfig:
    """A configuration that fits, its predicted seconds and what bounds them."""

    config: Config
    time_s: float
    bound_by: str
    ctas_per_sm: int
    registers: int
    shared_memory_bytes: int
    spilled_bytes: int = 0
    """Bytes of a thread's registers that lie in local memory."""
    compiled: bool = False
    """True where registers, spills and shared memory are the compiler's; else registers are estimated."""

    @property
    def time_ms(self) -> float:
        return self.time_s * MS_PER_S

    @property
    def registers_source(self) -> str:
        return "compiled" if self.compiled else "estimated"


def configured(
    config: Config,
    problem: AttentionProblem,
    profile: HardwareProfile,
    name: str = KERNEL,
    report: Report = None,
) -> Kernel:
    """The catalog's Triton kernel `name` with this configuration, and with what the compiler's report says of it; its
    loop ends at the causal diagonal, as that of the forward that is compiled here does."""
    unit, sides = unit_of(config.tile, problem, profile), (config.block_m, config.block_n)
    # What the compiler reports goes before what a tile needs at least.
    shared = report.shared_memory_bytes if report else shared_bytes(config.tile, problem, unit)
    over = Overrides(
        tile=sides, warps=config.num_warps, stages=config.num_stages, shared_memory_bytes=shared
    )
    kernel = resolve(
        name, problem, profile, replace(over, registers=report.registers) if report else over
    )
    # The catalog's pointer kernel walks masked keys, too, as its source does; this forward does not.
    options = replace(options_of(kernel, FlashOptions), walks_all_keys=False)
    return kernel.with_(
        matrix_unit=unit, spill=report.spill if report else kernel.spill, options=options
    )


def _placed(
    config: Config,
    problem: AttentionProblem,
    profile: HardwareProfile,
    name: str,
    report: Report = None,
) -> tuple[Kernel, Chain, Residency] | str:
    """The kernel, its launches and what fits on an SM; or why a configuration cannot run or wastes its tile, or must be
    thought to spill where no report tells how much."""
    if config.num_stages > 1 and profile.cc < ASYNC_COPY_CC:
        return f"{config.num_stages} stages need asynchronous copies, which {profile.target} does not have"
    if config.block_m < MMA_ROWS or config.block_n < MMA_ROWS:
        return f"tl.dot needs {MMA_ROWS} rows and columns"
    for side, block, rows in (
        ("block_m", config.block_m, problem.seq_q),
        ("block_n", config.block_n, problem.seq_k),
    ):
        # A tile half or more of which is past the end only costs; the smallest tile may be that.
        if block > MMA_ROWS and block >= 2 * rows:
            return f"{side} {block} is twice the problem's {rows} rows or more"
    kernel = configured(config, problem, profile, name, report)
    chain = plan(problem, kernel)
    resident = residency(chain.launches[0], profile)
    return resident.misfit or (kernel, chain, resident)


def misfit(
    config: Config, problem: AttentionProblem, profile: HardwareProfile, name: str = KERNEL
) -> str:
    placed = _placed(config, problem, profile, name)
    return placed if isinstance(placed, str) else ""


def try_config(
    config: Config,
    problem: AttentionProblem,
    profile: HardwareProfile,
    name: str = KERNEL,
    report: Report = None,
) -> TimedConfig | str:
    placed = _placed(config, problem, profile, name, report)
    if isinstance(placed, str):
        return placed
    kernel, chain, resident = placed
    call = Call.of(problem, kernel, profile, chain)
    time = call.time(
        call.counted + call.capacity()
    )  # the quick rule: thousands of configurations may be asked for
    return TimedConfig(
        config,
        time.total_s,
        time.bound_by,
        resident.ctas_per_sm,
        resident.registers,
        int(chain.launches[0].resources.shared_memory_bytes or 0),
        round(kernel.spill.frame) if kernel.spill else 0,
        report is not None,
    )


def unspilled(
    configs: Iterable[Config], problem: AttentionProblem, profile: HardwareProfile
) -> dict[Config, BuildReport]:
    """Reports of the configurations as they would be with all the registers that they want, and no spills."""
    firsts = ((c, plan(problem, configured(c, problem, profile)).launches[0]) for c in configs)
    return {
        c: BuildReport(
            estimated_registers(launch, profile), int(launch.resources.shared_memory_bytes or 0)
        )
        for c, launch in firsts
    }


def space() -> Iterator[Config]:
    return (Config(*sizes) for sizes in product(BLOCK_M, BLOCK_N, NUM_WARPS, NUM_STAGES))


def tutorial_configs() -> list[Config]:
    return [Config(t.block_q, t.block_k, t.warps, t.stages) for t in tutorial_tiles()]


def rank(
    problem: AttentionProblem,
    profile: str | HardwareProfile = "a100",
    configs: Iterable[Config] | None = None,
    name: str = KERNEL,
    reports: Mapping[Config, BuildReport] | None = None,
) -> list[TimedConfig]:
    """The configurations that fit a forward pass, fastest first, of equals the one with the least shared memory, out of
    `configs` or all of `space`; of those without a compiler's report, registers are estimated."""
    gpu = load_profile(profile)
    if problem.passes != "fwd":
        raise InputError(
            f"`passes` {problem.passes}: Triton configurations are ranked for the forward; accepted: fwd"
        )
    tried = list(space() if configs is None else configs)
    known = reports or {}
    results = {c: try_config(c, problem, gpu, name, known.get(c)) for c in tried}
    fitting = [result for result in results.values() if isinstance(result, TimedConfig)]
    if not fitting:
        first = f": {next(iter(results.values()))}" if results else ""
        raise InputError(f"no Triton configuration of {len(tried)} fits on {gpu.name}{first}")
    return sorted(fitting, key=lambda t: (t.time_s, t.shared_memory_bytes))


@dataclass(frozen=True)
class TritonList:
    profile: str
    problem: AttentionProblem
    configs: tuple[TimedConfig, ...]

    @property
    def answer(self) -> str:
        best, p, c = self.configs[0], self.problem, self.configs[0].config
        how = "by the compiler's report" if best.compiled else "estimated"
        spilled = (
            f", {best.spilled_bytes} bytes of a thread's registers spilled"
            if best.spilled_bytes
            else ""
        )
        where = f"On {self.profile} at {some(p.seq_q, 'token')} and head_dim {p.head_dim}"
        config = f"{c.block_m}x{c.block_n} with {some(c.num_warps, 'warp')} and {some(c.num_stages, 'stage')}"
        took = f"{best.time_ms:.4g} ms, bound by {best.bound_by}, {best.registers} registers a thread, {how}"
        return f"{where} the fastest Triton configuration is {config}: {took}{spilled}."

    @property
    def heading(self) -> str:
        return f"{self.profile}: {self.problem.line}"

    def rows(self) -> list[dict[str, Any]]:
        return [
            plain(
                profile=self.profile,
                seq_q=self.problem.seq_q,
                seq_k=self.problem.seq_k,
                BLOCK_M=timed.config.block_m,
                BLOCK_N=timed.config.block_n,
                num_warps=timed.config.num_warps,
                num_stages=timed.config.num_stages,
                time_ms=timed.time_ms,
                bound_by=timed.bound_by,
                ctas_per_sm=timed.ctas_per_sm,
                registers=timed.registers,
                registers_source=timed.registers_source,
                spilled_bytes=timed.spilled_bytes,
                shared_memory_bytes=timed.shared_memory_bytes,
            )
            for timed in self.configs
        ]


Compiles = Callable[[list[Config], AttentionProblem, HardwareProfile], dict[Config, BuildReport]]


def ranked(
    gpus: Sequence[str],
    problems: Iterable[AttentionProblem],
    top: int,
    choice: str,
    compiled: Compiles | None = None,
) -> list[TritonList]:
    """The `top` best configurations of every problem on every GPU, out of all or of the tutorial's; those that
    `compiled` has a report of are ranked with it. Raises InputError: an unknown choice, nothing fits, or Triton's
    kernel cannot run a problem there."""
    if choice not in CHOICES:
        raise InputError(f"`triton` '{choice}' is not known; accepted: {', '.join(CHOICES)}")
    configs = tutorial_configs() if choice == "tutorial" else list(space())
    lists = []
    for gpu, p in product([load_profile(name) for name in gpus], problems):
        reports = None
        if compiled is not None:
            # as fast as they could be first: those that are thought to spill, as if they did not
            likely = [t.config for t in rank(p, gpu, configs, reports=unspilled(configs, p, gpu))]
            reports = compiled(likely, p, gpu)
        lists.append(TritonList(gpu.name, p, tuple(rank(p, gpu, configs, reports=reports)[:top])))
    return lists


def source(lists: Sequence[TritonList]) -> str:
    parts = ["import triton\n"]
    for number, one_list in enumerate(lists, 1):
        name = "configs" if len(lists) == 1 else f"configs_{number}"
        entries = "".join(
            f"    {t.config.text()},  # {t.time_ms:.4g} ms predicted{_report(t)}\n"
            for t in one_list.configs
        )
        parts.append(f"# {one_list.heading}\n{name} = [\n{entries}]\n")
    return "\n".join(parts)


def _report(timed: TimedConfig) -> str:
    if not timed.compiled:
        return ""
    spilled = f", {timed.spilled_bytes} bytes spilled" if timed.spilled_bytes else ""
    return f", {timed.registers} registers{spilled}"
