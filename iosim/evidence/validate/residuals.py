"""Predicts measured rows and sets the two side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, plain, replace
from iosim.base.words import WAYS
from iosim.evidence.validate.match import Case, NoModel, match
from iosim.evidence.validate.rows import COUNTED, Row
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import SPILL, Chain, LaunchRole, Mode, Outer
from iosim.kernel.residency import needed_registers
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.check_bits import check_bits
from iosim.readers.staged import wavefront_bytes
from iosim.show.tables import grouped

SMALL_BYTES = 2_000_000
"""Below this no relative error is formed: the difference in bytes stands instead."""
REGIMES = ("chain", "spill", "stream", "decode", "compulsory", "wave-bound", "thrashing")
COMPULSORY_MARGIN = 0.01
COMPULSORY_FLOOR_BYTES = 65536
"""What a launch reads beside its tensors."""
THRASHING_SHARE = 0.05
SPILL_SHARE = 0.02
"""Share of what a launch writes to L2 below which spilled registers change nothing that is compared here."""


@dataclass(frozen=True)
class Residual:
    """One quantity of one row. `error` is |predicted - measured| / measured, None where measured is small; then
    `difference`, predicted - measured, counts. `spills`: the kernel keeps registers in memory. `check_bits`: bytes of
    those predicted that are check bits of ECC in the same memory."""

    row: Row
    problem: AttentionProblem
    launch: str
    variant: str
    quantity: str
    measured: int | float
    predicted: int | float
    regime: str
    spills: bool
    check_bits: int = 0

    @property
    def difference(self) -> int | float:
        return self.predicted - self.measured

    @property
    def error(self) -> float | None:
        if self.quantity == "time":
            return abs(self.difference) / self.measured if self.measured > 0 else None
        return abs(self.difference) / self.measured if self.measured >= SMALL_BYTES else None

    def to_dict(self) -> dict[str, Any]:
        record = plain(
            problem=self.problem,
            quantity=self.quantity,
            measured=self.measured,
            predicted=self.predicted,
            check_bits=self.check_bits,
            error=self.error,
            difference=self.difference,
            regime=self.regime,
            spills=self.spills,
        )
        note = self.row.facts.get("note", "")
        return {
            **_place(self.row),
            "stage": self.launch,
            "variant": self.variant,
            "note": note,
            **record,
        }


def _place(row: Row) -> dict[str, Any]:
    return {
        "source": row.source,
        "call": row.call,
        "launch": None if row.chain else row.launch,
        "chain": row.chain,
        "implementation": row.implementation,
    }


@dataclass(frozen=True)
class Skipped:
    row: Row
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {**_place(self.row), "reason": self.reason}


@dataclass(frozen=True)
class Comparison:
    residuals: tuple[Residual, ...]
    skipped: tuple[Skipped, ...]

    def records(self) -> Iterator[dict[str, Any]]:
        for row in (r.to_dict() for r in self.residuals):
            yield {**{k: v for k, v in row.items() if k != "problem"}, **row["problem"]}


def calls(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that belong together: those of one call in order of their launches, a chain by itself."""
    by_call = grouped(rows, lambda row: (row.source, row.chain, row.call)).values()
    return [sorted(members, key=lambda row: row.launch) for members in by_call]


def compare(
    rows: Iterable[Row], profile: HardwareProfile, progress: Progress = silent
) -> Comparison:
    """Every row beside its prediction. Raises InputError where a row's sizes make no sense, or the profile lacks
    what a replay needs."""
    residuals: list[Residual] = []
    skipped: list[Skipped] = []
    # the profiler's flush before a launch leaves dirty lines of its own (docs/replay.md)
    flushed = replace(
        profile, l2_foreign_dirty_bytes=0
    )  # a range's flush leaves none: a sum's writes, h200_passes.csv
    for members in progress(calls(rows)):
        try:
            # rows are matched first: a call that no model covers costs no replay
            case = match(members, profile)
        except NoModel as reason:
            skipped += [Skipped(row, str(reason)) for row in members]
            continue
        for row, chain in zip(case.rows, case.chains, strict=True):
            try:
                call = Call.of(case.problem, case.kernel, flushed if row.chain else profile, chain)
                residuals += _residuals(row, case, call)
            except InputError as error:
                skipped.append(Skipped(row, str(error)))
    return Comparison(tuple(residuals), tuple(skipped))


def values_of(
    chain: Chain, traffic: Traffic | Prediction, seconds: float
) -> dict[str, int | float]:
    """Values by quantity, in order of QUANTITIES; those that are not known are left out."""
    counts = {q: int(traffic.total(*level_and_way)) for q, level_and_way in COUNTED.items()}
    smem = wavefront_bytes(chain)
    return {**counts, **({} if smem is None else {"smem": smem}), "time": seconds}


def _compulsory_read(problem: AttentionProblem, chain: Chain) -> int:
    total = 0
    for name in {a.tensor for n in chain.launches for a in n.accesses if a.mode is Mode.LOAD}:
        tensor = chain.tensors[name]
        # of keys and values only those that some query keeps must be read
        rows = (
            problem.pair_mask.kept_keys(problem.seq_q, problem.seq_k)
            if name in ("K", "V")
            else tensor.rows
        )
        total += tensor.bytes // max(1, tensor.rows) * rows
    return total


def _residuals(row: Row, case: Case, call: Call) -> list[Residual]:
    traffic = call.counted + call.replay().traffic
    checks = check_bits(traffic, call.profile)
    values = values_of(call.chain, traffic + checks, call.time(traffic).total_s)
    launches = call.chain.launches
    register_limit = call.profile.need_int("max_registers_per_thread")
    spilled = int(call.counted.total("l2", "write", tensor=SPILL))
    # a kernel spills where its live values exceed the registers, or where the compiler's report says so
    wanting = any(
        launch.work.exps_per_pair and needed_registers(launch) > register_limit
        for launch in launches
    )
    spills = wanting or spilled >= SPILL_SHARE * max(1, values["l2_write"])
    # counters see check bits; what decides the regime is the data without them
    of_checks = {f"hbm_{way}": int(checks.total("hbm", way)) for way in WAYS}
    of_data = {q: value - of_checks.get(q, 0) for q, value in values.items()}
    regime, stage = _regime(row, call, of_data, spills), "" if row.chain else launches[0].name
    return [
        Residual(
            row,
            case.problem,
            stage,
            case.variant,
            q,
            row.measured[q],
            value,
            regime,
            spills,
            of_checks.get(q, 0),
        )
        for q, value in values.items()
        if q in row.measured
    ]


def _regime(row: Row, call: Call, values: Mapping[str, int | float], spills: bool) -> str:
    """What decides the HBM reads, from the prediction alone: one of REGIMES. chain: several launches share the L2.
    spill: registers in memory. stream: no tile is read twice (elementwise passes, combining splits). decode: keys are
    split among CTAs, or all queries fit one query block. compulsory: within 1 % of reading every tensor once. Else
    wave-bound, or thrashing where more than 5 % of what the SMs read comes from HBM."""
    if row.chain:
        return "chain"
    if spills:
        return "spill"
    launch = call.chain.launches[0]
    # each test holds only where those above it do not: the order is part of the definition
    if launch.outer is Outer.FLAT or launch.role is LaunchRole.COMBINE:
        return "stream"
    if launch.outer is Outer.SPLIT or launch.domain.query_blocks == 1:
        return "decode"
    read, once = values["hbm_read"], _compulsory_read(call.problem, call.chain)
    if read <= max(once * (1 + COMPULSORY_MARGIN), once + COMPULSORY_FLOOR_BYTES):
        return "compulsory"
    return "thrashing" if read > THRASHING_SHARE * values["l2_read"] else "wave-bound"
