"""Rankings of Triton configurations as Python source, and as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iosim.integrations.triton.kernel import TimedConfig
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
    def heading(self) -> str:
        p = self.problem
        kv = "" if p.group == 1 else f" ({p.kv_heads} key/value)"
        return (
            f"{self.profile}: batch {p.batch}, {p.heads} heads{kv}, {p.seq_q} x {p.seq_k} tokens, head_dim "
            f"{p.head_dim}, {p.dtype}, mask {p.mask_text}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Plain types, one a configuration."""
        p = self.problem
        return [
            {
                "profile": self.profile, "seq_q": p.seq_q, "seq_k": p.seq_k, "BLOCK_M": t.config.block_m,
                "BLOCK_N": t.config.block_n, "num_warps": t.config.num_warps, "num_stages": t.config.num_stages,
                "time_ms": t.time_s * MS_PER_S, "bound_by": t.bound_by, "ctas_per_sm": t.ctas_per_sm,
                "registers_estimated": t.registers, "shared_memory_bytes": t.shared_memory_bytes,
            }
            for t in self.configs
        ]  # fmt: skip


def ranked(gpus: Sequence[str], problems: Iterable[AttentionProblem], top: int, choice: str) -> list[TritonList]:
    """The `top` best configurations of every problem on every GPU, out of all or of the tutorial's.

    Raises:
        InputError: an unknown choice, nothing fits, or Triton's kernel cannot run a problem there.
    """
    from iosim.base.errors import InputError
    from iosim.hardware.profile import load_profile
    from iosim.integrations.triton.kernel import rank, space, tutorial_configs

    if choice not in CHOICES:
        raise InputError(f"--triton '{choice}' is not known; accepted: {', '.join(CHOICES)}")
    configs = tutorial_configs() if choice == "tutorial" else list(space())
    asked = list(problems)
    profiles = [load_profile(name) for name in gpus]
    return [TritonList(gpu.name, p, tuple(rank(p, gpu, configs)[:top])) for gpu in profiles for p in asked]


def source(lists: Sequence[TritonList]) -> str:
    """Python that defines `configs`; with several lists `configs_1`, `configs_2` and so on."""
    parts = ["import triton\n"]
    for number, one_list in enumerate(lists, 1):
        name = "configs" if len(lists) == 1 else f"configs_{number}"
        entries = "".join(
            f"    {t.config.text()},  # {t.time_s * MS_PER_S:.4g} ms predicted\n" for t in one_list.configs
        )
        parts.append(f"# {one_list.heading}\n{name} = [\n{entries}]\n")
    return "\n".join(parts)
