"""One profiled launch beside its prediction: bytes by quantity and tensor, where a difference lies, what would help.

Counters say nothing of tensors. A difference at HBM is laid where there is room for it: where more was read than
predicted, with the tensors whose loads the L2 was predicted to serve; where less, with those predicted to be read more
than once. What is written less than predicted lay in the L2 when the launch ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain
from iosim.base.units import bytes_text, seconds_text
from iosim.catalog.algorithms import plan
from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import Profiled
from iosim.evidence.validate.match import Case, NoModel, match
from iosim.evidence.validate.profile_rows import Told, row_of, said_of
from iosim.evidence.validate.recognise import Given, Unknown, recognise, whole_call
from iosim.evidence.validate.residuals import values_of
from iosim.evidence.validate.rows import COLUMN, UNIT, Row
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import Chain, is_attention_loop
from iosim.prediction.predictor import Request
from iosim.prediction.replays import Replays
from iosim.prediction.result import Prediction
from iosim.studies.explain import HELPS, Explanation, explain, sources

WORDS = {
    "hbm_read": "read from HBM",
    "hbm_write": "written to HBM",
    "l2_read": "L2 to SMs",
    "l2_write": "SMs to L2",
    "smem": "shared memory",
    "time": "time",
}
ALLOWED = {
    "hbm_read": 0.05,
    "hbm_write": 0.25,
    "l2_read": 0.01,
    "l2_write": 0.05,
    "smem": 0.1,
    "time": 0.25,
}
"""Differences, as shares of what was counted, up to which a launch is as predicted."""
MOVED = {"read": "read", "write": "written"}
SMALL = 2_000_000
"""Bytes up to which a difference is none."""
BUDGET = 40_000_000
"""Accesses that trying changes may replay: some five seconds."""


@dataclass(frozen=True)
class Part:
    """A tensor in one direction at HBM. `once` is compulsory; `laid` is the part of the difference that it has room
    for."""

    tensor: str
    direction: str
    predicted: int
    once: int
    l2: int
    laid: int


@dataclass(frozen=True)
class LaunchAnswer:
    """What is said of a launch. Where `status` is `unknown` there is a `reason` and nothing else."""

    kernel: str
    reason: str = ""
    row: Row | None = None
    prediction: Prediction | None = None
    parts: tuple[Part, ...] = ()
    explanation: Explanation | None = None
    untried: str = ""

    @property
    def status(self) -> str:
        if self.reason:
            return "unknown"
        return "differs" if any(q["differs"] for q in self.quantities()) else "as_predicted"

    def quantities(self) -> list[dict[str, Any]]:
        if self.prediction is None or self.row is None:
            return []
        p, rows = self.prediction, []
        for name, predicted in values_of(p.chain, p, p.time.total_s).items():
            counted = self.row.measured.get(name)
            if counted is None:
                continue
            off = abs(counted - predicted)
            # a difference counts where it is large as a share and in bytes
            differs = off > ALLOWED[name] * counted and (name == "time" or off > SMALL)
            rows.append(
                {
                    "quantity": name,
                    "predicted": predicted,
                    "counted": counted,
                    "unpredicted": counted - predicted,
                    "differs": differs,
                }
            )
        return rows

    def answer(self) -> str:
        if self.prediction is None:
            return f"No prediction: {self.reason}."
        p = self.prediction
        sentences = [f"{p.kernel.name} on {p.profile.name}, {_problem(p)}"]
        sentences += [_sentence(q) for q in self.quantities()]
        sentences += [f"HBM by tensor: {self._by_tensor()}", _check_bits(p)]
        sentences += [self._where(direction) for direction in ("read", "write")]
        if self.explanation is not None and self.explanation.launches:
            sentences += list(self.explanation.launches[0].reasons[:1])
        return ". ".join(s for s in sentences if s) + "."

    def _by_tensor(self) -> str:
        """Predicted bytes at HBM of each tensor, small ones left out: the profiler prints no tables on a terminal."""
        large = [x for x in self.parts if x.predicted >= SMALL] or self.parts[:1]
        words = ((x, f"{bytes_text(x.predicted)} {MOVED[x.direction]}") for x in large)
        return ", ".join(
            f"{x.tensor} {text} ({bytes_text(x.once)} compulsory)" for x, text in words
        )

    def _where(self, direction: str) -> str:
        quantity = next((q for q in self.quantities() if q["quantity"] == f"hbm_{direction}"), None)
        if quantity is None or not quantity["differs"]:
            return ""
        parts = sorted(
            (x for x in self.parts if x.direction == direction and x.laid),
            key=lambda x: -abs(x.laid),
        )
        names = ", ".join(f"{x.tensor} ({_signed(x.laid)})" for x in parts)
        # what no tensor has room for is traffic that the description lacks
        rest = int(quantity["unpredicted"]) - sum(x.laid for x in parts)
        clauses = [f"as far as its tensors have room for it: {names}"] if names else []
        if abs(rest) > SMALL:
            clauses.append(f"{_signed(rest)} belong to no tensor of the kernel as it is described")
        return f"Of the {_signed(int(quantity['unpredicted']))} {MOVED[direction]}, {'; '.join(clauses)}"

    @property
    def advice(self) -> str:
        return self.untried if self.explanation is None else self.explanation.advice

    @property
    def speedup_percent(self) -> float:
        """Time that the change which lowers HBM bytes most would save, in percent; 0 where that is hardly any."""
        e = self.explanation
        if e is None or not e.tried.trials or e.prediction.time.total_s <= 0:
            return 0.0
        # trials are sorted by HBM bytes: the first is the best
        saved = 1 - e.tried.trials[0].time_s / e.prediction.time.total_s
        return 100 * saved if saved >= HELPS else 0.0

    def to_dict(self) -> dict[str, Any]:
        quantities = self.quantities()
        metrics = []
        for q in (q for q in quantities if q["quantity"] != "time"):
            name, words = q["quantity"], f"predicted: {_text(q['quantity'], q['predicted'])}"
            both = {side: q[side] // UNIT.get(name, 1) for side in ("predicted", "counted")}
            metrics.append(
                {"name": METRICS[COLUMN[name]][0], **both, "differs": q["differs"], "words": words}
            )
        p, row = self.prediction, self.row
        return plain(kernel=self.kernel, status=self.status, reason=self.reason) | {
            "problem": None if p is None else p.problem.to_dict(),
            "implementation": None if row is None else row.implementation,
            "profile": None if p is None else p.profile.name,
            "quantities": quantities,
            "tensors": [vars(x) for x in self.parts],
            "advice": self.advice,
            "speedup_percent": self.speedup_percent,
            "metrics": metrics,
            "tables": self.tables(),
        }

    def tables(self) -> list[dict[str, Any]]:
        counted = [
            [
                WORDS[q["quantity"]],
                _text(q["quantity"], q["predicted"]),
                _text(q["quantity"], q["counted"]),
                _text(q["quantity"], q["unpredicted"], signed=True),
                _share(q["unpredicted"], q["counted"]),
            ]
            for q in self.quantities()
        ]
        tensors = [
            [
                x.tensor,
                x.direction,
                bytes_text(x.predicted),
                bytes_text(x.once),
                bytes_text(x.l2),
                _signed(x.laid) if x.laid else "-",
            ]
            for x in self.parts
        ]
        return [
            {
                "title": "Predicted and Counted",
                "description": "By level; the difference is counted less predicted.",
                "header": ["", "predicted", "counted", "difference", "of counted"],
                "rows": counted,
            },
            {
                "title": "HBM by Tensor",
                "description": "Predicted bytes, the compulsory ones among them, bytes "
                "between L2 and SMs, and what of the difference the tensor has room for.",
                "header": ["tensor", "direction", "HBM", "compulsory", "L2", "of the difference"],
                "rows": tensors,
            },
        ]


def _problem(p: Prediction) -> str:
    q = p.problem
    kv = "" if q.group == 1 else f" ({q.kv_heads} key/value)"
    rest = f"head_dim {q.head_dim}, {q.dtype}, mask {q.mask_text}"
    return f"batch {q.batch}, {q.heads} heads{kv}, {q.seq_q} x {q.seq_k} tokens, {rest}"


def _check_bits(p: Prediction) -> str:
    if not p.check_bits.total:
        return ""
    read, written = bytes_text(p.check_bits.read), bytes_text(p.check_bits.write)
    return f"Check bits of ECC in the same memory: {read} read and {written} written of those predicted"


def _text(quantity: str, value: float, signed: bool = False) -> str:
    text = seconds_text(abs(value)) if quantity == "time" else bytes_text(abs(value))
    return f"{'-' if value < 0 else '+'}{text}" if signed else text


def _signed(value: int) -> str:
    return _text("", value, signed=True)


def _share(difference: float, counted: float) -> str:
    return f"{100 * difference / counted:+.1f} %" if counted else "-"


def _sentence(q: Mapping[str, Any]) -> str:
    name = q["quantity"]
    rest = f"{_text(name, q['counted'])} counted ({_share(q['unpredicted'], q['counted'])})"
    return f"{WORDS[name]}: {_text(name, q['predicted'])} predicted, {rest}"


def answer_launch(
    launch: Profiled, stated: Given, profile: HardwareProfile, read_range: Told
) -> LaunchAnswer:
    try:
        # facts from the ranges and options, then the row, the case and its one chain; any of these may refuse
        stated_facts = said_of(launch, stated, read_range)
        recognised = whole_call(recognise(launch.kernel, launch.grid, stated_facts), stated_facts)
        row = row_of(launch, recognised, recognised.facts, "the profile")
        if not row.measured:
            raise Unknown("the profile has none of the counters that are compared")
        case = match([row], profile)
        (chain,) = case.chains
        prediction = Request(case.problem, case.kernel, profile, chain=chain).predict(Replays())
        parts = _parts(prediction, row)
        explanation, untried = _explained(case, chain, prediction)
    except (Unknown, NoModel, InputError) as reason:
        return LaunchAnswer(launch.kernel, str(reason))
    return LaunchAnswer(launch.kernel, "", row, prediction, parts, explanation, untried)


def _explained(case: Case, chain: Chain, prediction: Prediction) -> tuple[Explanation | None, str]:
    if not is_attention_loop(chain.launches[0]):
        return None, ""
    # advice is for the whole call: a change of the tile moves its other launches, too
    whole = plan(case.problem, case.kernel)
    if len(whole.launches) > 1:
        prediction = Request(case.problem, case.kernel, prediction.profile).predict(Replays())
    if prediction.replay is None or prediction.method != "replay":
        return None, "No change was tried: the launch is too long; iosim explain tries them."
    return explain(prediction, budget=BUDGET), ""


def _parts(p: Prediction, row: Row) -> tuple[Part, ...]:
    parts_found: list[Part] = []
    for direction in ("read", "write"):
        mine = [s for s in sources(p) if s.direction == direction]
        loads = p.traffic.tensors("l2")
        l2 = [int(loads.get((s.tensor, direction), 0)) for s in mine]
        counted = row.measured.get(f"hbm_{direction}")
        off = 0 if counted is None else int(counted) - sum(s.hbm_bytes for s in mine)
        # the room of each tensor by the sign of the difference, as the module's text says
        if off >= 0:
            rooms = [max(0, n - s.hbm_bytes) for n, s in zip(l2, mine, strict=True)]
        elif direction == "read":
            rooms = [max(0, s.hbm_bytes - s.once_bytes) for s in mine]
        else:
            rooms = [s.hbm_bytes for s in mine]
        laid = _laid(off, rooms)
        parts = zip(mine, l2, laid, strict=True)
        parts_found += [
            Part(s.tensor, direction, s.hbm_bytes, s.once_bytes, n, part) for s, n, part in parts
        ]
    return tuple(sorted(parts_found, key=lambda x: -x.predicted))


def _laid(off: int, rooms: Sequence[int]) -> list[int]:
    room = sum(rooms)
    # in proportion to the rooms, and never more than they hold
    share = min(1.0, abs(off) / room) if room else 0.0
    return [(1 if off > 0 else -1) * round(share * part_room) for part_room in rooms]
