"""Prediction: the result of predict(), as data, JSON and text that shows where its numbers come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.units import bytes_text, seconds_text
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import Evidence, evidence
from iosim.kernel.algorithms.registry import operations
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.kernel.traffic import DIRECTIONS, Traffic
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import HbmBounds
from iosim.readers.timing.chain_time import ChainTime
from iosim.show.tables import Cell, Column, Table

if TYPE_CHECKING:
    import pandas

    from iosim.readers.replay.replay import Replay


@dataclass(frozen=True)
class Prediction:
    """Bytes by level, launch, tensor and direction; bounds; time; memory; and notes on how they were found.

    `traffic` has rows at level "l2" (SM<->L2, exact) and, unless the method is "bounds", at "hbm".
    """

    call: Call
    traffic: Traffic
    hbm_bounds: HbmBounds
    l2_start: str
    method: str
    time: ChainTime
    time_specification: ChainTime
    memory_bytes: dict[str, int]
    notes: tuple[str, ...] = ()
    replay: Replay | None = field(default=None, repr=False)

    @property
    def problem(self) -> AttentionProblem:
        """What is computed."""
        return self.call.problem

    @property
    def kernel(self) -> Kernel:
        """How it is computed: its tile and settings as resolved for the problem and the GPU."""
        return self.call.kernel

    @property
    def profile(self) -> HardwareProfile:
        """The GPU."""
        return self.call.profile

    @property
    def chain(self) -> Chain:
        """The launches of the call, in order, with their tensors."""
        return self.call.chain

    def total(self, level: str, direction: str | None = None) -> int:
        """Bytes at "l2" or "hbm", read, written or both.

        Raises:
            InputError: another level or direction, or "hbm" of a prediction that knows its bounds alone.
        """
        if level == "hbm" and not self.hbm_known:
            raise InputError("`level` 'hbm' is not known with `method` bounds; accepted: l2, or the bounds themselves")
        return int(self.traffic.total(level, direction))

    @property
    def flops(self) -> int:
        """Operations of the matrix products, of softmax attention those over kept pairs, as the kernel reads the
        problem."""
        return operations(self.problem, self.kernel, self.chain)[0]

    @property
    def evidence(self) -> Evidence:
        """How far the bytes at HBM and the times can be trusted: what the models of this GPU rest on."""
        return evidence(self.profile)

    @property
    def hbm_known(self) -> bool:
        return self.method != "bounds"

    def _totals(self, launch: str | None = None) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for level in ("hbm", "l2"):
            known = level == "l2" or self.hbm_known
            out[level] = {d: int(self.traffic.total(level, d, launch=launch)) for d in DIRECTIONS} if known else None
        return out

    def to_dict(self) -> dict[str, Any]:
        """One entry of `predictions` in the command line's JSON; bytes are integers."""
        return {
            "problem": self.problem.to_dict(),
            "kernel": self.kernel.to_dict(),
            "profile": self.profile.name,
            "l2_start": self.l2_start,
            "l2_end_dirty_bytes": self.replay.dirty_bytes if self.replay else None,
            "method": self.method,
            "totals": {**self._totals(), "smem": None},
            "launches": [{"name": n.name, "totals": self._totals(n.name)} for n in self.chain.launches],
            "traffic": [row.to_dict() for row in self.traffic],
            "hbm_bounds": self.hbm_bounds.to_dict(),
            "flops": self.flops,
            "exps": operations(self.problem, self.kernel, self.chain)[1],
            "time_s": self.time.total_s,
            "bound_by": self.time.bound_by,
            "time": [self.time.to_dict(), self.time_specification.to_dict()],
            "memory_bytes": dict(self.memory_bytes),
            "evidence": self.evidence.to_dict(),
            "notes": list(self.notes) + list(self.time.missing),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """The traffic as a DataFrame, a row a launch, level, tensor and direction."""
        return Table.of(row.to_dict() for row in self.traffic).to_pandas()

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """A table a person can read, with the argument behind the totals."""
        p, k = self.problem, self.kernel
        kv = "" if p.group == 1 else f" ({p.kv_heads} key/value)"
        width = str(p.head_dim) if p.head_dim == p.head_dim_v else f"{p.head_dim}/{p.head_dim_v}"
        seq = str(p.seq_q) if p.seq_q == p.seq_k else f"{p.seq_q} x {p.seq_k}"
        lines = [
            f"{k.name} on {self.profile.name}: batch {p.batch}, {p.heads} heads{kv}, {seq} tokens, head_dim {width}, "
            f"{p.dtype}, mask {p.mask_text}, {p.passes}",
            f"  tile {k.tile}, {k.tile.warps} warps, {k.tile.stages} stage(s), order {k.schedule.order}, keys "
            f"{k.schedule.direction}, {k.schedule.scheduler}" + (f", {k.splits} splits" if k.splits > 1 else ""),
            "",
            *_indented(self._level_table()),
            "",
            *_indented(self._tensor_table()),
            "",
        ]
        lines.append(
            f"  time {seconds_text(self.time.total_s)}, bound by {self.time.bound_by} (specification's ceilings: "
            f"{seconds_text(self.time_specification.total_s)}); {self.flops / 1e9:,.1f} GFLOP; memory "
            f"{bytes_text(self.memory_bytes['peak'])}, of it workspace {bytes_text(self.memory_bytes['workspace'])}"
        )
        lines.append(f"  evidence: {self.evidence}")
        lines += [f"  note: {n}" for n in (*self.notes, *self.time.missing)]
        return "\n".join(lines)

    def _level_table(self) -> Table:
        """Bytes by level, and the bounds of HBM's."""
        bounds = self.hbm_bounds
        rows: list[tuple[Cell, ...]] = [("SM <-> L2 (exact)", self.total("l2", "read"), self.total("l2", "write"))]
        if self.hbm_known:
            rows.append((f"L2 <-> HBM ({self.method})", self.total("hbm", "read"), self.total("hbm", "write")))
        rows.append(("  compulsory", bounds.compulsory_read, bounds.compulsory_write))
        rows.append(("  with no L2", bounds.no_l2_read, bounds.no_l2_write))
        columns = (
            Column("level", ""),
            Column("read_bytes", "read", "bytes"),
            Column("write_bytes", "written", "bytes"),
        )
        return Table(columns, tuple(rows))

    def _tensor_table(self) -> Table:
        """Bytes by tensor and direction, and by launch where there are several."""
        hbm = {(r.launch, r.tensor, r.direction): r.bytes for r in self.traffic if r.level == "hbm"}
        rows = (
            (r.launch, r.tensor, r.direction, int(r.bytes), hbm.get((r.launch, r.tensor, r.direction)))
            for r in self.traffic
            if r.level == "l2"
        )
        columns = (Column("launch", "launch"), Column("tensor", "tensor"), Column("direction", ""),
                   Column("l2_bytes", "SM<->L2", "bytes"), Column("hbm_bytes", "HBM", "bytes"))  # fmt: skip
        table = Table(columns, tuple(rows))
        return table if len(self.chain.launches) > 1 else table.without("launch")


def _indented(table: Table) -> list[str]:
    return [f"  {line}" for line in table.text().splitlines()]
