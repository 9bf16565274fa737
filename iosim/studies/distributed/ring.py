"""ring(): the methods of spreading one attention over several GPUs, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iosim.base.progress import Progress, silent
from iosim.base.words import DEFAULT
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries import resolve
from iosim.kernel.libraries.default import told
from iosim.problem.attention import AttentionProblem
from iosim.show.shown import Shown
from iosim.show.tables import Table
from iosim.studies.distributed.links import Cluster, cluster
from iosim.studies.distributed.study import Result, study

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Ring(Shown):
    """One attention over several GPUs, by every method asked for."""

    FACE = "iosim.studies.distributed.face"

    problem: AttentionProblem
    """What all GPUs compute together."""
    num_gpus: int
    """Number of GPUs."""
    profile: HardwareProfile
    """The kind of GPU."""
    links: Cluster
    """The links between them."""
    kernel: str | Kernel
    """The kernel of a pair of chunks; a GPU's own by the name that it has for the whole problem."""
    overlap: bool
    """Whether messages run beside the computations of their step."""
    results: tuple[Result, ...]
    """A result a method."""
    by_default: str = ""
    """That nobody named the kernel; empty where it was named."""

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def to_dict(self, *, steps: bool = False) -> dict[str, Any]:
        """The command line's JSON; with `steps`, the chunk schedules, too."""
        ports = {"link": self.links.link, "network": self.links.network}
        return {
            "schema": 1, "problem": self.problem.to_dict(), "gpus": self.num_gpus, "profile": self.profile.name,
            "kernel": self.kernel_name,
            **{name: None if p is None else {"name": p.name, "bandwidth_bytes_per_s": p.bandwidth_bytes_per_s,
                                             "latency_s": p.latency_s, "source": p.source}
               for name, p in ports.items()},
            "gpus_per_node": self.links.gpus_per_node, "shared_network": self.links.shared_network,
            "overlap": self.overlap,
            "results": [r.to_dict() | {"schedules": [s.to_dict() for s in r.schedules] if steps else None}
                        for r in self.results],
        }  # fmt: skip

    @property
    def kernel_name(self) -> str:
        """The kernel's name."""
        return self.kernel if isinstance(self.kernel, str) else self.kernel.name

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row a method: bytes, seconds, idle fractions."""
        return Table.of(map(flat, self.results)).to_pandas()


def flat(r: Result) -> dict[str, Any]:
    """One row of the CSV."""
    d = r.to_dict()
    idle = d.pop("idle") or {"slots": None, "of_unbalanced": None, "work": None}
    return {**{k: v for k, v in d.items() if k != "title"}, **{f"idle_{k}": v for k, v in idle.items()}}


def ring(
    problem: AttentionProblem,
    num_gpus: int,
    gpu: str | HardwareProfile,
    *,
    link: str | float = "nvlink",
    network: str | float | None = None,
    gpus_per_node: int | None = None,
    shared_network: bool = False,
    kernel: str | Kernel = DEFAULT,
    schedules: Iterable[str] | None = None,
    overlap: bool = True,
    layers: int = 1,
    progress: Progress = silent,
) -> Ring:
    """The methods on one problem over GPUs of one kind; the arguments are those of `cluster` and of `study`.

    Raises:
        InputError: an unknown link or method, or a problem, kernel or number of GPUs that does not go with it.
    """
    profile = load_profile(gpu) if isinstance(gpu, str) else gpu
    links = cluster(profile, link, network, gpus_per_node, shared_network=shared_network)
    by_default = ""
    if kernel == DEFAULT:
        chosen = resolve(kernel, problem, profile)
        kernel, by_default = chosen.name, told([(chosen, profile)])
    results = study(
        problem, num_gpus, profile, links, kernel=kernel, names=schedules, overlap=overlap, layers=layers,
        progress=progress,
    )  # fmt: skip
    return Ring(problem, num_gpus, profile, links, kernel, overlap, tuple(results), by_default)
