"""Predictions of a kernel from its code: PTX for what it touches, machine code where it is there for what it takes.

No description of the kernel is needed, and no problem: what its arguments are decides what is read and written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass
from iosim.code.addresses import Evaluated, Site, evaluate
from iosim.code.addresses_launch import ALL_SHARED, CodeLaunch, CodeResources, code_launch
from iosim.code.arguments import Argument
from iosim.code.launch_work import LaunchWork, with_work
from iosim.code.module import Function, Module, read_module
from iosim.code.ptx import Entry, entries
from iosim.code.tools import assembled
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import ALONE, Conditions
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call
from iosim.prediction.predictor import default_method
from iosim.prediction.ranges import READ_AGAIN
from iosim.prediction.replays import Replays, play_of
from iosim.prediction.result import Moved
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.frames import frames_fill_l2, resident_frame_bytes
from iosim.readers.replay.replay import Replay
from iosim.readers.timing.chain_time import ChainTime
from iosim.show.shown import Face, Faced

NO_REGISTERS = "registers are not known without machine code: CTAs of an SM are counted by shared memory and threads"
NO_TIME = (
    "time: bytes at HBM and L2 alone, for without machine code nothing is known of what is computed"
)


@dataclass(frozen=True)
class CodeCall:
    """A launch of a kernel that is known by its code: which kernel, how large, with what arguments."""

    entry: Entry
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    block: tuple[int, ...] | None = None
    function: Function | None = None
    """Its machine code, where it is there."""
    shared_memory_bytes: int = 0
    """Shared memory that the launch gives a CTA beside what the code declares."""

    @property
    def resources(self) -> CodeResources:
        if self.function is None:
            return CodeResources(None, self.entry.shared_bytes + self.shared_memory_bytes)
        declared = self.function.shared_memory_bytes
        return CodeResources(
            self.function.registers or None,
            declared + self.shared_memory_bytes,
            ALL_SHARED if self.function.prefers_shared else None,
        )


class CodeFace(Face, Protocol):
    """What `iosim.prediction.code_face` says of a launch beside what every face says."""

    def answer(self, result: CodePrediction, /) -> str: ...
    def body(self, result: CodePrediction, /) -> str: ...
    def as_dict(self, result: CodePrediction, /) -> dict[str, Any]: ...


@dataclass(frozen=True, repr=False)
class CodePrediction(Faced):
    """What one launch of a kernel moves, and how long that takes; `sites` has its loads and stores one by one."""

    _face = "iosim.prediction.code_face"

    @property
    def _shown_by(self) -> CodeFace:
        return cast(CodeFace, super()._shown_by)

    launch: CodeLaunch
    call: Call
    traffic: Traffic
    time: ChainTime
    method: str
    conditions: Conditions
    replay: Replay | None
    notes: tuple[str, ...]
    work: LaunchWork | None = None
    """What its machine code says of it; None where there is none."""

    @property
    def profile(self) -> HardwareProfile:
        """The GPU."""
        return self.call.profile

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.launch.launch.name

    @property
    def evaluated(self) -> Evaluated:
        """Its addresses."""
        return self.launch.evaluated

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """What each load and store touches."""
        return self.evaluated.sites

    @property
    def hbm(self) -> Moved:
        """Bytes between the L2 and memory."""
        return Moved(self.traffic.total("hbm", "read"), self.traffic.total("hbm", "write"))

    @property
    def l2(self) -> Moved:
        """Bytes between SMs and the L2."""
        return Moved(self.traffic.total("l2", "read"), self.traffic.total("l2", "write"))

    @property
    def time_s(self) -> float:
        """Seconds."""
        return self.time.total_s

    @property
    def bound_by(self) -> str:
        """The resource that bounds it."""
        return self.time.bound_by

    @property
    def running_ctas(self) -> int:
        """CTAs that run at once."""
        return min(self.launch.occupancy.ctas_per_sm * self.profile.sm_count, self.evaluated.ctas)

    @cached_property
    def resident_frame_bytes(self) -> int:
        """Bytes of spilled registers' frames of all CTAs that run at once."""
        return resident_frame_bytes(self.launch.launch, self.running_ctas)

    @cached_property
    def hbm_is_uncertain(self) -> bool:
        """True where registers are spilled and CTAs read from HBM what others have read: those of such kernels may part."""
        if not self.resident_frame_bytes:
            return False
        filled = frames_fill_l2(self.launch.launch, self.running_ctas, self.profile)
        return filled or self.hbm.read > READ_AGAIN * self.call.bounds.compulsory_read

    @cached_property
    def most_hbm_read(self) -> int:
        """Bytes that would be read if no CTA found in the L2 what another has read, frames apart."""
        loaded = (self.traffic.total("l2", "read", tensor=name) for name in self.call.chain.tensors)
        return sum(map(int, loaded))

    @property
    def answer(self) -> str:
        """Its bytes and time, and what of its accesses costs more than their bytes, in sentences."""
        return self._shown_by.answer(self)

    @property
    def body(self) -> str:
        """The tables below the answer, as text."""
        return self._shown_by.body(self)

    def records(self) -> list[dict[str, Any]]:
        """A row a load or store."""
        return [dict(site) for site in self.to_dict()["sites"]]

    def to_dict(self) -> dict[str, Any]:
        """The prediction as JSON has it."""
        return self._shown_by.as_dict(self)


def entry_of(module: Module, name: str | None, cc: int) -> tuple[Entry, Function | None]:
    """The kernel of a module: its PTX, and its machine code where that is there. Raises InputError: no such kernel, or
    no PTX of it."""
    # The kernel by its exact name, else by a part of it that one name alone has.
    known: dict[str, Entry] = {}
    text_of: dict[str, str] = {}
    for text in module.ptx:
        known |= entries(text)
        text_of |= dict.fromkeys(entries(text), text)
    function = module.function(name, cc) if module.functions else None
    if function is not None:
        name = function.name
    matching = [e for e in known.values() if name is None or e.name == name]
    matching = matching or [e for e in known.values() if name is not None and name in e.name]
    if len(matching) == 1:
        entry = matching[0]
        # Machine code with lines of its PTX can be joined to it; without, ptxas makes such code anew.
        lined = function is not None and any(
            instruction.ptx_line is not None for instruction in function.instructions
        )
        return entry, function if lined else _assembled(text_of[entry.name], entry, cc) or function
    if not known:
        raise InputError(
            f"`code` {module.source} holds no PTX, from which addresses are read; accepted: nvcc -ptx, Triton's "
            "asm['ptx'], or a cubin with its .ptx beside it"
        )
    option = f"`entry` '{name}'" if name else "`entry` is missing"
    raise InputError(
        f"{option}: {module.source} has {len(matching)} such kernels; accepted: {', '.join(known)}"
    )


def _assembled(text: str, entry: Entry, cc: int) -> Function | None:
    """The machine code that ptxas makes of an entry's PTX, with its lines; None where there is no ptxas, or it refuses:
    the PTX is of another GPU's."""
    try:
        return read_module(assembled(text, cc)).function(entry.name, cc)
    except InputError:
        return None


@dataclass(frozen=True)
class PlannedCode:
    """A launch on a GPU, as a call of its own, its work by machine code, and what was assumed of that."""

    launch: CodeLaunch
    call: Call
    work: LaunchWork | None
    notes: tuple[str, ...]


def planned_code(code: CodeCall, profile: HardwareProfile) -> PlannedCode:
    """A launch on a GPU. Raises InputError: arguments that do not fit the kernel, code that cannot be followed, or a
    CTA that fits on no SM."""
    evaluated = evaluate(code.entry, code.grid, code.arguments, code.block)
    launch = code_launch(evaluated, profile, code.resources)
    if not launch.occupancy.ctas_per_sm:
        raise InputError(f"`code` {code.entry.name}: {launch.occupancy.reason} ({profile.name})")
    work_notes: tuple[str, ...] = ()
    work = None
    if code.function is not None:
        work = with_work(launch, code.function, profile)
        launch, work_notes = work.launch, work.notes
    # Readers ask for a problem and a kernel: stand-ins, whose sizes nothing follows from.
    kernel = Kernel(code.entry.name, "flash", Tile(1, 1))
    return PlannedCode(
        launch, Call.of(_stand_in(), kernel, profile, launch.chain), work, work_notes
    )


def predict_call(
    code: CodeCall, profile: HardwareProfile, conditions: Conditions = ALONE
) -> CodePrediction:
    """Bytes, time and accesses of a launch. Raises InputError: as `planned_code`."""
    planned = planned_code(code, profile)
    launch, call, work, work_notes = planned.launch, planned.call, planned.work, planned.notes
    method = conditions.method or default_method(launch.chain)[0]
    replay = None
    hbm = Traffic()
    notes: tuple[str, ...] = ("HBM: only what passes between SMs and L2 is counted",)
    if method in ("replay", "sampled"):
        replay = Replays().of(call, play_of(call, method, conditions.l2_start))
        hbm, notes = replay.traffic, replay.notes()
    traffic = call.counted + hbm
    lacking = () if code.function is not None else (NO_REGISTERS, NO_TIME)
    return CodePrediction(
        launch,
        call,
        traffic,
        call.time(traffic, conditions),
        method,
        conditions,
        replay,
        tuple(dict.fromkeys((*launch.chain.notes, *work_notes, *lacking, *notes))),
        work,
    )


def _stand_in() -> AttentionProblem:
    """A problem for readers that ask for one: a launch that is known by its code has none."""
    return AttentionProblem(heads=1, seq_q=1, head_dim=64)
