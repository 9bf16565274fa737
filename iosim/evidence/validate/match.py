"""From a measured row to the problem, the kernel and the launches that stand for it. Uses a row's facts only.

Implementations are catalog names or aliases (`pytorch_flash`, `cudnn_backward`, ...), or the kernels in `kernels/`:

    flash_fwd   catalog `flash` with the row's tile, warps, stages, order, direction, schedule and splits
    flash_bwd   its backward
    naive       catalog `naive` with 64x64 tiles, its mask inside the product
    minimal     catalog `minimal`, whose fill is no launch of its own there
    flash_fwd_sm90   the algorithm of `flash` with the row's knobs (`own_sm90`)
    flash_bwd_sm90   the backward of catalog `flash-sm90` with the row's knobs (`own_sm90_bwd`)

each with what its source does otherwise (`own_launches`).

In a table of chains `naive` is the catalog's `eager`, `flash` its `fa2`, and `iosim_naive` is `kernels/naive.cu`;
`_fwdbwd` after a name is both passes. What a note says of a build (`bypass L1`) changes no count: reads are arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iosim.base.errors import InputError
from iosim.evidence.validate import own_launches, own_sm90, own_sm90_bwd
from iosim.evidence.validate.rows import CHAIN_COLUMNS, LAUNCH_COLUMNS, OPTION, Row
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.algorithms import options_of, plan
from iosim.kernel.algorithms.flash import FlashOptions
from iosim.kernel.kernel import Kernel, Spill
from iosim.kernel.launch import Chain, Launch, Mode, Overhead, Resources
from iosim.kernel.libraries import Overrides, resolve
from iosim.kernel.libraries.loader import entry_name
from iosim.kernel.schedule import Scheduler
from iosim.problem.attention import AttentionProblem

CHAIN_NAMES = {"naive": "eager", "flash": "fa2", "iosim_naive": "naive"}
OWN = {"flash_fwd": "flash", "flash_bwd": "flash", "naive": "naive", "minimal": "minimal", own_sm90.NAME: "flash",
       own_sm90_bwd.NAME: own_sm90_bwd.CATALOG}  # fmt: skip
BOTH = "_fwdbwd"
WINDOW = re.compile(r"sliding window, (\d{1,9}) keys back, causal")
"""A note that names the window of a flex row, whose `causal` is empty."""
COMBINE_ROWS = 4
"""Query rows of a CTA of `flash_combine`, a warp each."""
MASK_WORDS = ("window", "global_tokens", "mask_block", "mask_stride")
BLOCKS = re.compile(r"mask ([a-z+]{1,20})((?:, [a-z_]{1,20} \d{1,9})*)")
"""A note that names a flex row's mask in a problem's words: mask window+global, window 1024, global_tokens 256."""
NOTES = re.compile(rf"(repeat( \d+)?|sweep|packed, \d+ query heads|{WINDOW.pattern}|{BLOCKS.pattern})?")
MAIN_ALONE = re.compile(r"flash_bwd_dq_dk_dv|fmha_cutlassB_")
"""Backward kernels that a profiler was told to keep, without the launches around them: a call of one row."""
OWN_NOTES = {"naive": "bypass L1", "flash_bwd": "deterministic"}
"""Notes of the project's own kernels that say how they were built."""
DRIVER_SHARED_BYTES = 1024
"""Shared memory that the driver keeps for every CTA; `smem_bytes` of a row counts it."""
MAX_PAIRS = 200_000_000
"""Visited tile pairs of a row: more are not replayed here."""
MAX_CTAS, MAX_THREADS, MAX_REGISTERS, MAX_SPILLED_BYTES = (1 << 31) - 1, 1024, 255, 1 << 19
"""What CUDA lets a launch have: CTAs, threads a CTA, registers and local memory a thread."""
CALL_FACTS = ("implementation", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal", "dtype",
              "block_q", "block_k", "warps", "stages", "note", "order", "heavy_first", "section", "direction",
              "persistent", "window", "splits")  # fmt: skip


class NoModel(Exception):
    """No model covers a row; the text is the reason."""


@dataclass(frozen=True)
class Case:
    """What one call, or one chain, is predicted as.

    `chains` holds one chain for each row: the row's launch by itself, since such rows were measured with the L2 flushed
    before each launch; or all launches of a row that is a whole chain. A reason stands where a row has no launch.
    """

    problem: AttentionProblem
    kernel: Kernel
    chains: tuple[Chain | str, ...]
    variant: str


def problem_of(row: Row) -> AttentionProblem:
    """The attention problem of a row.

    Raises:
        InputError: its sizes make no sense.
        NoModel: the row leaves one empty.
    """
    name = row.implementation
    noted = _noted_mask(row.facts.get("note", ""))
    missing = [n for n in (CHAIN_COLUMNS if row.chain else LAUNCH_COLUMNS)
               if not row.facts[n] and not (noted and n == "causal")]  # fmt: skip
    if missing:
        raise NoModel(f"no model for '{name}' without {', '.join(missing)}, which the row leaves empty")
    if row.chain:
        passes = "fwd+bwd" if name.endswith(BOTH) else "fwd"
        sizes = {n: row.number(n) for n in ("batch", "heads", "head_dim")}
        return _problem(row, **sizes, seq_q=row.number("seq"), passes=passes)
    sizes = {n: row.number(n) for n in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")}
    window = row.number("window")
    mask = "window" if window is not None else "causal" if row.flag("causal") else "none"
    backward = name in ("flash_bwd", own_sm90_bwd.NAME) or name.endswith("_backward")
    words: dict[str, object] = {**noted} if noted else {"mask": mask, "window": window}
    if lengths := row.facts.get("seq_lens"):
        words["seq_lens"] = tuple(map(int, lengths.split()))
        del sizes["seq_q"], sizes["seq_k"]
    return _problem(row, **sizes, **words, passes="bwd" if backward else "fwd")


def _noted_mask(note: str) -> dict[str, str | int]:
    """The words of a mask that a note names; none where it names none."""
    window, blocks = WINDOW.fullmatch(note), BLOCKS.fullmatch(note)
    if window:
        return {"mask": "window", "window": int(window[1])}
    if not blocks:
        return {}
    words = (part.split() for part in blocks[2].split(", ") if part)
    return {"mask": blocks[1], **{name: int(value) for name, value in words if name in MASK_WORDS}}


def _problem(row: Row, **values: object) -> AttentionProblem:
    try:
        return AttentionProblem(dtype=row.facts["dtype"], **values)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"{OPTION} {row.source} call {row.call}: {error}") from None


def match(rows: Sequence[Row], profile: HardwareProfile) -> Case:
    """The case of one call's rows, in order of their launches, or of one chain.

    Raises:
        InputError: sizes that make no sense.
        NoModel: no catalog kernel stands for the rows.
    """
    first = rows[0]
    _check_known(first)
    problem = problem_of(first)
    _check_call(rows)
    try:
        return _chain_case(first, problem, profile) if first.chain else _call_case(rows, problem, profile)
    except InputError as error:
        raise NoModel(str(error)) from None


def _check_known(row: Row) -> None:
    name = row.implementation
    if row.chain:
        name = CHAIN_NAMES.get(name.removesuffix(BOTH), name.removesuffix(BOTH))
    try:
        entry_name(OWN.get(name, name))
    except InputError:
        raise NoModel(f"no model for '{row.implementation}'") from None


def _check_call(rows: Sequence[Row]) -> None:
    first = rows[0]
    if first.chain:
        return
    if [r.launch for r in rows] != list(range(1, len(rows) + 1)):
        raise NoModel(f"launches {', '.join(str(r.launch) for r in rows)} of the call are there, not 1 to {len(rows)}")
    for name in CALL_FACTS:
        if len({r.facts.get(name) for r in rows}) > 1:
            raise NoModel(f"the call's rows differ in {name}")
    note = first.facts.get("note", "")
    if not NOTES.fullmatch(note) and OWN_NOTES.get(first.implementation) != note:
        raise NoModel(f"no model for '{first.implementation}' with the note '{first.facts['note']}'")


def _chain_case(row: Row, problem: AttentionProblem, profile: HardwareProfile) -> Case:
    name = row.implementation.removesuffix(BOTH)
    own = name == "iosim_naive"
    kernel = resolve(CHAIN_NAMES.get(name, name), problem, profile, own_launches.NAIVE_BUILD if own else None)
    chain = plan(problem, own_launches.naive_as_launched(kernel) if own else kernel)
    if own:
        launches = (own_launches.naive_resources(n, problem) for n in own_launches.naive(chain).launches)
        chain = replace(chain, launches=tuple(launches))
    _check_size(chain)
    return Case(problem, kernel, (chain,), "")


def _call_case(rows: Sequence[Row], problem: AttentionProblem, profile: HardwareProfile) -> Case:
    row = rows[0]
    if row.implementation == own_sm90_bwd.NAME:
        kernel = own_sm90_bwd.kernel_of(row, problem, profile)
        chain = plan(problem, kernel)
        _check_size(chain)
        alone = tuple(replace(chain, launches=(launch,)) for launch in chain.launches[: len(rows)])
        return Case(problem, kernel, alone, own_sm90_bwd.variant(row))
    if row.implementation == own_sm90.NAME:
        kernel = own_sm90.kernel_of(row, problem, profile.need_int("sm_count"))
        chain = own_sm90.chain_of(row, problem, kernel)
        _check_size(chain)
        return Case(problem, kernel, (chain,), own_sm90.variant(row))
    own = row.implementation in OWN
    kernel = resolve(OWN.get(row.implementation, row.implementation), problem, profile, _overrides(row))
    if own:
        kernel = _as_launched(row, kernel)
    chain = _own_chain(rows, problem, kernel) if own else plan(problem, kernel)
    _check_size(chain)
    launches: list[Launch | str] = list(chain.launches)
    if row.facts.get("stage"):
        wanted = [r.facts["stage"] for r in rows]
        launches = [n for n in launches if isinstance(n, str) or n.name in wanted]
    if len(rows) == 1 < len(launches) and MAIN_ALONE.search(row.facts.get("kernel", "")):
        launches = [n for n in chain.launches if n.name == "bwd.main"]
    if len(launches) != len(rows):
        raise NoModel(f"the model has {len(launches)} launches ({', '.join(n.name for n in chain.launches)}), the call "
                      f"has {len(rows)}")  # fmt: skip
    chains = tuple(
        n if isinstance(n, str) else replace(chain, launches=(_with_facts(n, r) if _described(r) else n,))
        for n, r in zip(launches, rows, strict=True)
    )
    return Case(problem, kernel, chains, _variant(row))


def _own_chain(rows: Sequence[Row], problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The chain of one of the project's kernels, as its source launches it."""
    name = rows[0].implementation
    if name == "flash_fwd":
        alone = len(rows) == 2 and kernel.splits == 1
        planned = plan(problem, kernel.with_(splits=2) if alone else kernel)
        return own_launches.forward(own_launches.one_split(planned) if alone else planned)
    chain = plan(problem, kernel)
    if name == "minimal":
        return replace(chain, launches=(own_launches.stores_elements(chain.launches[1], problem, kernel),))
    if name == "flash_bwd":
        deterministic = rows[0].facts.get("note") == "deterministic"
        return own_launches.backward(problem, kernel, chain, deterministic=deterministic)
    return own_launches.naive(chain)


def _check_size(chain: Chain) -> None:
    for launch in chain.launches:
        pairs = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads
        if pairs > MAX_PAIRS:
            raise NoModel(f"launch {launch.name} visits {pairs} pairs of tiles; up to {MAX_PAIRS} are replayed here")


def _described(row: Row) -> bool:
    """Whether the row says what its kernel was built as, so that its resources go with the model's launches."""
    return row.implementation in OWN or bool(row.facts.get("block_q"))


def _overrides(row: Row) -> Overrides | None:
    """The settings that a row states over the catalog's own choice."""
    sides = row.number("block_q"), row.number("block_k")
    if sides[0] is None or sides[1] is None:
        if row.implementation in ("flash_fwd", "flash_bwd"):
            raise NoModel(f"'{row.implementation}' needs block_q and block_k, which the row does not state")
        return own_launches.NAIVE_BUILD if row.implementation == "naive" else None
    return Overrides(
        tile=(sides[0], sides[1]),
        warps=row.number("warps"),
        stages=row.number("stages"),
        order=row.facts.get("order") or None,
        heavy_first=row.flag("heavy_first"),
        section_heads=row.number("section") if row.facts.get("order") == "head" else None,
        direction=row.facts.get("direction") or None,
        scheduler="persistent" if row.flag("persistent") else None,
        splits=row.number("splits"),
    )


def _as_launched(row: Row, kernel: Kernel) -> Kernel:
    """The kernel with the tiles of its backward, of its products, and the persistent grid of the row."""
    if row.implementation == "naive":
        return own_launches.naive_as_launched(kernel)
    if row.implementation == "flash_bwd":
        return kernel.with_(backward=replace(kernel.backward, tile=kernel.tile))
    if row.implementation == "flash_fwd":
        kernel = kernel.with_(options=replace(options_of(kernel, FlashOptions), combine_rows=COMBINE_ROWS))
    spilled = _within("spill_store_bytes", row.number("spill_store_bytes") or 0, 0, MAX_SPILLED_BYTES)
    if kernel.schedule.scheduler is Scheduler.PERSISTENT:
        ctas = _product(row, "grid", MAX_CTAS)
        threads = kernel.cta_threads
        source = "the compiler's report, taken to lie before the list of tiles"
        once = Overhead("spill", Mode.STORE, per_cta=spilled * threads, inferred_from=source)
        return kernel.with_(persistent_ctas=ctas, overheads=(*kernel.overheads, *((once,) if spilled else ())))
    if spilled:
        report = Spill(write_per_pair=spilled, source="the compiler's report, all of it taken to lie in the key loop")
        return kernel.with_(spill=report)
    return kernel


def _with_facts(launch: Launch, row: Row) -> Launch:
    """The launch with the threads, registers and shared memory of its row."""
    registers, shared = row.number("registers"), row.number("smem_bytes")
    if not row.facts.get("block") or not registers or shared is None:
        return launch
    _within("registers", registers, 1, MAX_REGISTERS)
    threads, own = _product(row, "block", MAX_THREADS), max(0, shared - DRIVER_SHARED_BYTES)
    return replace(launch, resources=Resources(threads, registers, own, "the measured row"))


def _product(row: Row, name: str, most: int) -> int:
    """CTAs of a grid, or threads of a block, written "(8, 2, 8)"."""
    text = row.facts.get(name, "")
    match = re.fullmatch(r"\((\d{1,10}), (\d{1,10}), (\d{1,10})\)", text)
    if not match:
        raise NoModel(f"{name} '{text[:40]}' is not of the form (x, y, z)")
    x, y, z = (int(n) for n in match.groups())
    return _within(name, x * y * z, 1, most)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise NoModel(f"{name} {value} is out of range; accepted: {low} to {high}")
    return value


def _variant(row: Row) -> str:
    """The settings of a row that describes its kernel, in words."""
    f = row.facts
    if not f.get("block_q"):
        return ""
    words = [f"{f['block_q']}x{f['block_k']}", f"{f.get('warps')} warps", f"{f.get('stages') or 1} stages"]
    words += [f["order"]] if f.get("order") else []
    words += ["heavy first"] if f.get("heavy_first") == "1" else []
    words += [f"sections of {f['section']}"] if f.get("section", "0") not in ("", "0") else []
    words += [f["direction"]] if f.get("direction") else []
    words += ["persistent"] if f.get("persistent") == "1" else []
    words += [f"{f['splits']} splits"] if f.get("splits", "1") not in ("", "1") else []
    return ", ".join(words)
