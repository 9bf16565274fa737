"""predict(): the one verb. Problem x Kernel x Profile -> Prediction."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

from iosim.base.errors import EngineWarning, InputError, TooLargeError
from iosim.base.records import dataclass, replace
from iosim.base.words import DEFAULT, Method
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.occupancy import Occupancy
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Launch, Outer
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call
from iosim.prediction.replays import Replays, head_share_of, play_of, tile_accesses
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory
from iosim.readers.check_bits import check_bits
from iosim.readers.replay.library import why_missing
from iosim.readers.replay.objects import about_bytes
from iosim.readers.replay.replay import Replay

BESIDE = (
    "accumulate",
    "output",
    "bias_dtype",
    "sinks",
    "page_size",
    "shared_prefix",
    "cache_dtype",
    "key_padding",
    "index_heads",
    "index_dim",
    "dropout",
)
"""Fields of a problem that are tried: those beside its sizes, its mask and its passes."""
SAMPLED_STEPS = 16
"""Steps that a work tile has on average where a launch is worth playing in part."""
CAPACITY_NOTES = {
    "cold": "HBM: capacity rule, an estimate; all outputs counted as written back",
    "flushed": "HBM: capacity rule, an estimate; all outputs counted as written back, what the flush left is not",
    "warm": "HBM: capacity rule, an estimate from what the same call before leaves in the L2; outputs that do not stay "
    "there counted as written back",
}
QUICK_ACCESSES = 30_000_000
"""Tile accesses up to which a prediction plays all of them unless another method is asked for: about a second."""
QUICK_BYTES = 500_000_000
"""Memory, about, up to which it does: of score matrices heads that stand for all take less, where there are such."""


def predict(
    problem: AttentionProblem,
    kernel: str | Kernel = DEFAULT,
    profile: str | HardwareProfile = "a100",
    *,
    l2_start: str = "cold",
    method: Method | None = None,
    overrides: Overrides | None = None,
    clocks: str | float = "boost",
    launched: str = "alone",
    ecc: str = "delivered",
) -> Prediction:
    """Bytes by level and tensor, bounds, occupancy, time and memory of one attention call on one GPU.

    Args:
        problem: what is computed.
        kernel: a catalog name (`fa2`, `sdpa`, ...) or a Kernel of your own; by default the GPU's own.
        profile: a GPU's name, a path to a profile file, or a HardwareProfile.
        l2_start, method, clocks, launched, ecc: the `Conditions`. By default a replay, sampled where all of it would
            take seconds or gigabytes (of score matrices some heads stand for all), or the capacity rule where that
            would not help or where there is no engine to replay with; the notes say so.
        overrides: settings over a catalog kernel's own choice.

    Raises:
        InputError: values that make no sense, or a kernel that cannot run the problem on that GPU.
    """
    how: dict[str, Any] = {"method": method, "clocks": clocks, "launched": launched, "ecc": ecc}
    return Request(problem, kernel, profile, overrides, l2_start=l2_start, **how).predict(Replays())


@dataclass(frozen=True)
class Request(Conditions):
    """What is predicted, and under which conditions. `chain` stands in place of the one that the kernel's algorithm
    plans; `accesses` is how many tile accesses a sampled replay plays of a long launch, about, a second's worth by
    default."""

    problem: AttentionProblem
    kernel: str | Kernel = DEFAULT
    profile: str | HardwareProfile = "a100"
    overrides: Overrides | None = None
    chain: Chain | None = None
    accesses: int | None = None

    def predict(self, replays: Replays) -> Prediction:
        """The prediction, its replay shared with others'.

        Raises:
            InputError: as `predict` does.
        """
        gpu = (
            load_profile(self.profile) if isinstance(self.profile, str) else self.profile
        ).with_ecc(self.ecc)
        call = planned(self.problem, self.kernel, gpu, self.overrides, self.chain)
        # A method that was asked for is kept or refused; a default falls back to what memory allows.
        method, why = (self.method, ()) if self.method is not None else _by_default(call)
        try:
            hbm, notes, played = hbm_traffic(call, method, self.l2_start, replays, self.accesses)
        except TooLargeError as error:
            if self.method is not None:
                raise
            method, why, (hbm, notes, played) = _smaller(
                call, method, error, self.l2_start, replays
            )
        # Nothing was left out after all: it is a replay.
        if method == "sampled" and played is not None and played.is_whole:
            method = "replay"
        # Check bits are told of, but take no time: rates of memory count data alone.
        traffic = call.counted + hbm
        idle: tuple[str, ...] = ()
        if self.chain is None and self._is_adorned():
            from iosim.prediction.idle import idle_notes  # most calls ask for nothing of the kind

            idle = idle_notes(call, self.kernel, self.overrides, BESIDE, traffic, self)
        return Prediction(
            call=call,
            traffic=traffic + check_bits(hbm, gpu) + call.staged,
            hbm_bounds=call.bounds,
            l2_start=self.l2_start,
            method=method,
            time=call.time(traffic, self),
            time_specification=call.time(traffic, self, measured=False),
            memory_bytes=memory(call.chain),
            conditions=self,
            replay=played,
            notes=tuple(dict.fromkeys((*call.notes, *idle, *why, *notes))),
        )

    def _is_adorned(self) -> bool:
        """True where something beside sizes, mask and passes is not as it would be."""
        p, usual = self.problem, AttentionProblem()
        others = any(getattr(p, name) != getattr(usual, name) for name in BESIDE)
        return others or self.overrides not in (None, Overrides())

    @property
    def work(self) -> int:
        """Grows with the time that the prediction takes."""
        p = self.problem
        return p.batch * p.heads * p.seq_q * p.seq_k


def planned(
    problem: AttentionProblem,
    kernel: str | Kernel,
    profile: str | HardwareProfile,
    overrides: Overrides | None = None,
    chain: Chain | None = None,
) -> Call:
    """The call with all settings of its kernel, refused where it cannot run; with `chain` in place of its own. Raises
    InputError: as `predict` does."""
    gpu = load_profile(profile) if isinstance(profile, str) else profile
    chosen = resolve(kernel, problem, gpu, overrides) if isinstance(kernel, str) else kernel
    call = Call.of(problem, chosen, gpu, chain)
    check_fits(call, overrides or Overrides())
    return call


def repeats(launch: Launch) -> bool:
    """True where a launch's work tiles loop long enough to be played in part."""
    if launch.touched is not None:
        return int(launch.touched.entries.size) >= SAMPLED_STEPS * launch.work_tiles
    # Work tiles need enough steps for windows or coarse steps to stand for them.
    loops = launch.outer in (Outer.QUERY, Outer.KEY, Outer.SPLIT)
    return loops and launch.visited_pairs >= SAMPLED_STEPS * launch.work_tiles


def default_method(chain: Chain) -> tuple[Method, tuple[str, ...]]:
    """A replay of up to `QUICK_ACCESSES` tile accesses, sampled where there are more; else the capacity rule, why."""
    accesses = tile_accesses(chain)
    if accesses <= QUICK_ACCESSES:
        return "replay", ()
    # Launches that cannot be played in part must be short by themselves.
    stay_whole = (
        replace(chain, launches=(launch,)) for launch in chain.launches if not repeats(launch)
    )
    if sum(map(tile_accesses, stay_whole)) <= QUICK_ACCESSES:
        return "sampled", ()
    return "capacity", (
        f"HBM: a replay of {accesses:,} tile accesses was not begun; method replay does it, at "
        "some 20 million a second",
    )


def _by_default(call: Call) -> tuple[Method, tuple[str, ...]]:
    """The default method and why: sampled where heads stand for all, the capacity rule where there is no engine."""
    method, why = default_method(call.chain)
    dear = method == "capacity" or about_bytes(call.chain) > QUICK_BYTES
    if dear and head_share_of(call) is not None:
        method, why = "sampled", ()
    if method == "capacity":
        return method, why
    reason = why_missing()
    if reason is None:
        return method, why
    warnings.warn(
        f"HBM traffic is estimated by the capacity rule: {reason}", EngineWarning, stacklevel=4
    )
    return "capacity", why


def check_fits(call: Call, overrides: Overrides | None = None) -> None:
    """Refuse a chain with a launch of which no CTA fits on an SM; `overrides` are what was asked of its kernel, None
    where its tile was. Raises InputError: says what the launch needs and what the SM allows."""
    for launch, resident in zip(call.chain.launches, call.residencies, strict=True):
        if resident.occupancy.ctas_per_sm == 0:
            tile = f"{launch.domain.block_q}x{launch.domain.block_k}"
            asked = Overrides(tile=(1, 1)) if overrides is None else overrides
            subject = asked.blamed(tile, f"{call.kernel.name} at head_dim {call.problem.head_dim}")
            threads, fit = launch.resources.threads, resident.occupancy
            raise does_not_fit(subject, threads, fit, call.profile)


def does_not_fit(
    subject: str, threads: int, occupancy: Occupancy, profile: HardwareProfile
) -> InputError:
    return InputError(f"{subject} with {threads} threads: {occupancy.reason} ({profile.name})")


def hbm_traffic(
    call: Call, method: Method, l2_start: str, replays: Replays, accesses: int | None = None
) -> tuple[Traffic, tuple[str, ...], Replay | None]:
    """HBM rows of a call by the chosen method, what a reader should know of them, and the replay behind them."""
    if method == "bounds":
        return Traffic(), ("HBM: only the bounds are given; the truth lies between them",), None
    if method == "capacity":
        return call.capacity(l2_start), (CAPACITY_NOTES[l2_start],), None
    played = replays.of(call, play_of(call, method, l2_start, accesses))
    return played.traffic, played.notes(), played


def _smaller(
    call: Call, method: Method, error: TooLargeError, l2_start: str, replays: Replays
) -> tuple[Method, tuple[str, ...], tuple[Traffic, tuple[str, ...], Replay | None]]:
    """(method, notes, HBM traffic) in place of a replay by `method` that would take too much memory."""
    if method == "replay" and head_share_of(call) is not None:
        with suppress(TooLargeError):
            return "sampled", (), hbm_traffic(call, "sampled", l2_start, replays)
    # Of the refusal its reason, without option and hint.
    reason = str(error).split(": ", 1)[1].split(";")[0]
    return (
        "capacity",
        (f"HBM: no replay: {reason}",),
        hbm_traffic(call, "capacity", l2_start, replays),
    )
