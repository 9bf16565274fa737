"""Rankings of Triton configurations as Python source, and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass
from iosim.base.units import some

if TYPE_CHECKING:
    from iosim.hardware.profile import HardwareProfile
    from iosim.integrations.triton.kernel import Config, TimedConfig
    from iosim.kernel.resource_table import BuildReport
    from iosim.problem.attention import AttentionProblem

MS_PER_S = 1e3
CHOICES = ("all", "tutorial")


@dataclass(frozen=True)
class TritonList:
    """The best configurations for one problem on one GPU, fastest first."""

    profile: str
    problem: AttentionProblem
    configs: tuple[TimedConfig, ...]

    @property
    def answer(self) -> str:
        best, p = self.configs[0], self.problem
        how = "by the compiler's report" if best.compiled else "estimated"
        spilled = f", {best.spilled_bytes} bytes of a thread's registers spilled" if best.spilled_bytes else ""
        return (
            f"On {self.profile} at {some(p.seq_q, 'token')} and head_dim {p.head_dim} the fastest Triton "
            "configuration is "
            f"{best.config.block_m}x{best.config.block_n} with {some(best.config.num_warps, 'warp')} and "
            f"{some(best.config.num_stages, 'stage')}: {best.time_s * MS_PER_S:.4g} ms, bound by {best.bound_by}, "
            f"{best.registers} registers a thread, {how}{spilled}."
        )

    @property
    def heading(self) -> str:
        return f"{self.profile}: {self.problem.line}"

    def rows(self) -> list[dict[str, Any]]:
        """Plain types, one a configuration."""
        p = self.problem
        return [
            {
                "profile": self.profile, "seq_q": p.seq_q, "seq_k": p.seq_k, "BLOCK_M": t.config.block_m,
                "BLOCK_N": t.config.block_n, "num_warps": t.config.num_warps, "num_stages": t.config.num_stages,
                "time_ms": t.time_s * MS_PER_S, "bound_by": t.bound_by, "ctas_per_sm": t.ctas_per_sm,
                "registers": t.registers, "registers_source": "compiled" if t.compiled else "estimated",
                "spilled_bytes": t.spilled_bytes, "shared_memory_bytes": t.shared_memory_bytes,
            }
            for t in self.configs
        ]  # fmt: skip


def ranked(
    gpus: Sequence[str], problems: Iterable[AttentionProblem], top: int, choice: str, compiled: int | None = None,
    progress: Progress = silent,
) -> list[TritonList]:  # fmt: skip
    """The `top` best configurations of every problem on every GPU, out of all or of the tutorial's; the first
    `compiled` of them are ranked with what Triton's compiler says. Raises InputError: an unknown choice, nothing fits,
    or Triton's kernel cannot run a problem there."""
    from iosim.base.errors import InputError
    from iosim.hardware.profile import load_profile
    from iosim.integrations.triton.compiled import compiled_configs
    from iosim.integrations.triton.kernel import rank, space, tutorial_configs

    if choice not in CHOICES:
        raise InputError(f"--triton '{choice}' is not known; accepted: {', '.join(CHOICES)}")
    configs = tutorial_configs() if choice == "tutorial" else list(space())
    asked = list(problems)
    profiles = [load_profile(name) for name in gpus]
    reports: dict[tuple[str, AttentionProblem], dict[Config, BuildReport]] = {}
    for gpu, p in product(profiles, asked) if compiled is not None else ():
        reports[gpu.name, p] = compiled_configs(_likely(p, gpu, configs), p, gpu, compiled or 0, progress)
    return [
        TritonList(gpu.name, p, tuple(rank(p, gpu, configs, reports=reports.get((gpu.name, p)))[:top]))
        for gpu in profiles for p in asked
    ]  # fmt: skip


def _likely(problem: AttentionProblem, gpu: HardwareProfile, configs: Sequence[Config]) -> list[Config]:
    """The configurations as fast as they could be first: those that fit by estimate, and those that are thought to
    spill, as if they did not."""
    from iosim.integrations.triton.kernel import rank, unspilled

    return [t.config for t in rank(problem, gpu, configs, reports=unspilled(configs, problem, gpu))]


def source(lists: Sequence[TritonList]) -> str:
    """Python that defines `configs`; with several lists `configs_1`, `configs_2` and so on."""
    parts = ["import triton\n"]
    for number, one_list in enumerate(lists, 1):
        name = "configs" if len(lists) == 1 else f"configs_{number}"
        entries = "".join(
            f"    {t.config.text()},  # {t.time_s * MS_PER_S:.4g} ms predicted{_report(t)}\n" for t in one_list.configs
        )
        parts.append(f"# {one_list.heading}\n{name} = [\n{entries}]\n")
    return "\n".join(parts)


def _report(timed: TimedConfig) -> str:
    if not timed.compiled:
        return ""
    spilled = f", {timed.spilled_bytes} bytes spilled" if timed.spilled_bytes else ""
    return f", {timed.registers} registers{spilled}"
