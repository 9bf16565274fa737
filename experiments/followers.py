"""What the L2 still holds at which distance: `python experiments/followers.py --out h200_iosim_followers.csv`.

Groups of CTAs read a buffer step by step, all in step (followers.cu). Leaders read new data; followers read the same
data at a distance; a hot set is read again and again beside a stream; scans go round. The profiler counts what is
fetched. Groups lie on one side of the L2, on both, or each on its own; a group's CTAs share a chunk or read all of it
each; loads are plain, asynchronous or bulk copies with and without hints. `benchmarks/followers.py` plays the same
tables through the model of the L2.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiment import FROM_EMPTY, compiled, counts, profiled, run_script, write_provenance

from iosim import InputError
from iosim.base.files import write_whole
from iosim.evidence.cuda import driver
from iosim.evidence.cuda.ncu import parse_raw
from iosim.evidence.measure.machine import profiler_version

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
BUFFER = 2048 * MIB
PAGE = 2 * MIB
OPS = {"load": 0, "store": 1 << 30, "reduce": 1 << 29}
SHARED_BYTES = 180 << 10
LOADS = (
    "ld",
    "cp.async",
    "cp.async 128B",
    "bulk",
    "bulk evict_last",
    "bulk evict_first",
    "bulk evict_unchanged",
)
COUNTED = ("hbm_read", "hbm_write", "l2_read", "l2_slice_read", "l2_slice_miss", "l2_fabric")


@dataclass(frozen=True)
class Case:
    """One launch. Sizes and distances are in MiB.

    Attributes:
        pattern: `follow` (each group reads a stream at a distance behind the group before it), `hot` (group 0 passes
            through a stream, group 1 through a hot set once in every `distance` of it), `scan` (one group, four times
            round `distance`), `write` (one group writes `distance` once), `beside` (group 0 reads a stream, group 1
            writes a stream of `hot` meanwhile).
        sides: `one` (all groups on side 0), `both` (each half on either), `apart` (group by group in turn).
        shared: whether each CTA takes the whole chunk, or the group shares it out.
        groups, distance, stream, hot: how many groups; see `pattern`.
        load: how it is loaded, one of LOADS.
        chunk: KiB of a step.
        apart: reads alternate between two areas so far from each other; 0 is one area.
        stream_op, hot_op: `load`, `store` or `reduce`.
        place: where in the buffer: 0 at its start, -n at n eighths of it, n in pages drawn at random with the seed n.
    """

    pattern: str
    sides: str
    shared: bool
    groups: int
    distance: float
    stream: int = 192
    hot: float = 0
    load: str = "ld"
    chunk: int = 256
    apart: float = 0
    stream_op: str = "load"
    hot_op: str = "load"
    place: int = 0

    def _chunks(self, mib: float) -> int:
        return int(mib * 1024) // self.chunk

    def _placed(self, chunk: npt.NDArray[np.int_]) -> npt.NDArray[np.int_]:
        """Chunks in their areas: in turn here and there, or all in one, or in pages here and there."""
        if self.place < 0:
            return np.where(chunk < 0, -1, chunk - self.place * (BUFFER >> 13) // self.chunk)
        if self.place > 0:
            chunks = PAGE // 1024 // self.chunk
            page = np.random.default_rng(self.place).permutation(BUFFER // PAGE)
            return np.where(
                chunk < 0, -1, page[np.maximum(chunk, 0) // chunks] * chunks + chunk % chunks
            )
        if not self.apart:
            return chunk
        return np.where(chunk < 0, -1, chunk // 2 + chunk % 2 * self._chunks(self.apart))

    def table(self) -> npt.NDArray[np.int32]:
        """Chunk by step and group with what is done to it, -1 where a group rests."""
        n = self._chunks(self.stream)
        size = self._chunks(self.distance)
        if self.pattern == "scan":
            places = self._placed(np.arange(4 * size) % size)[:, None]
        elif self.pattern == "write":
            places = np.arange(size)[:, None] | OPS["store"]
        elif self.pattern == "beside":
            step = np.arange(n)
            many = self._chunks(self.hot)
            at = step * many // n
            before = (step - 1) * many // n
            places = np.stack([step, np.where(at != before, (n + at) | OPS["store"], -1)], axis=1)
        elif self.pattern == "hot":
            step = np.arange(n)
            hot = self._chunks(self.hot)
            at = step % size * hot // size
            before = (step % size - 1) * hot // size
            reads = np.where((at != before) | (step % size == 0), (n + at) | OPS[self.hot_op], -1)
            places = np.stack([step | OPS[self.stream_op], reads], axis=1)
        else:
            lag = size * np.arange(self.groups)
            chunk = np.arange(n + lag[-1])[:, None] - lag[None, :]
            places = self._placed(np.where((chunk >= 0) & (chunk < n), chunk, -1))
        return np.ascontiguousarray(places, dtype=np.int32)

    def members(self, side: npt.NDArray[np.int_]) -> npt.NDArray[np.int32]:
        """Group, rank and size by SM."""
        chunks = (64 if self.sides == "one" else 128) // self.groups
        by_side = [list(np.flatnonzero(side == s)) for s in (0, 1)]
        member = np.tile(np.array([-1, 0, 1], dtype=np.int32), (side.size, 1))
        for g in range(self.groups):
            of = {
                "one": [0] * chunks,
                "apart": [g % 2] * chunks,
                "both": [k % 2 for k in range(chunks)],
            }[self.sides]
            for rank, s in enumerate(of):
                member[by_side[s].pop(0)] = (g, 0, 1) if self.shared else (g, rank, chunks)
        return member


def plan() -> list[Case]:
    """What is measured."""
    near = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 32, 36, 40, 48)
    cases = [
        Case("follow", sides, shared, groups, d)
        for sides in ("one", "both", "apart")
        for shared in (False, True)
        for groups in (2, 4, 8)
        for d in near
        if (groups - 1) * d <= 112
    ]
    cases += [
        Case("follow", "both", True, groups, d, load=load)
        for load in LOADS[1:]
        for groups, distances in ((2, (20, 24, 28, 32)), (8, (3, 4, 6, 8, 12)))
        for d in distances
    ]
    cases += [
        Case("follow", sides, True, groups, total / groups, chunk=32)
        for sides in ("both", "apart")
        for groups in (16, 32, 64)
        for total in (24, 26, 28, 30, 32, 36, 40, 48)
    ]
    cases += [
        Case("follow", "both", True, groups, d, stream=min(192, 2 * apart), apart=apart)
        for apart in (128, 100, 50)
        for groups, distances in ((2, (10, 12, 13, 14, 15, 16, 18, 20)), (8, (3, 4, 6)))
        for d in distances
    ]
    cases += [
        Case("hot", sides, True, 2, period, hot=hot)
        for sides in ("one", "both")
        for hot in (4, 8, 16)
        for period in (8, 12, 16, 20, 24, 32, 48, 96)
        if hot < period
    ]
    cases += [
        Case("hot", "both", True, 2, period, hot=hot, stream_op=stream, hot_op=op)
        for stream, op in (
            ("store", "load"),
            ("load", "store"),
            ("load", "reduce"),
            ("store", "store"),
        )
        for hot in (4, 8)
        for period in (8, 12, 16, 20, 24, 32, 48)
        if hot < period
    ]
    scans = (20, 24, 26, 28, 29, 30, 31, 32, 34, 36, 40, 44, 48, 52, 56, 60)
    cases += [
        Case("scan", sides, shared, 1, size)
        for sides in ("one", "both")
        for shared in (False, True)
        for size in scans
    ]
    cases += [
        Case("scan", "both", True, 1, size, apart=apart)
        for apart in (128, 100, 50)
        for size in scans[3:9]
    ]
    cases += [
        Case("write", "both", False, 1, size)
        for size in (2, 4, 8, 12, 16, 20, 24, 26, 28, 30, 32, 36, 40, 48, 56, 64, 96, 128, 256)
    ]
    cases += [
        Case("beside", "both", shared, 2, 0, hot=hot)
        for shared in (False, True)
        for hot in (2, 6, 12, 24, 48, 96, 192)
    ]
    cases += [
        Case("scan", "both", True, 1, size, place=place)
        for place in (-1, -2, -3, 1, 2, 3)
        for size in (26, 27, 28, 29, 30, 31, 32, 34)
    ]
    cases += [
        Case("follow", "both", True, 64, total / 64, chunk=32, place=place)
        for place in (-1, -2, -3, 1, 2, 3)
        for total in (26, 28, 30, 32)
    ]
    return cases


class Params(ctypes.Structure):
    """`FollowParams` of followers.cu."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("member", ctypes.c_void_p),
        ("barrier", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("chunk", ctypes.c_int64),
        ("steps", ctypes.c_int32),
        ("groups", ctypes.c_int32),
        ("load", ctypes.c_int32),
    )


def play(cases: list[Case], side: npt.NDArray[np.int_], cubin: Path) -> None:
    """Makes the launches, one after the other."""
    import torch

    function = driver.Function(cubin, "follow", SHARED_BYTES)
    data = torch.zeros(BUFFER // 4, device="cuda", dtype=torch.int32)
    barriers = torch.zeros((len(cases), 32), device="cuda", dtype=torch.int32)
    for i, case in enumerate(cases):
        table = torch.from_numpy(case.table().copy()).cuda()
        member = torch.from_numpy(case.members(side)).cuda()
        if (
            int((table & (OPS["reduce"] - 1)).where(table >= 0, 0).max()) + 1
        ) * case.chunk * 1024 > BUFFER:
            raise InputError(f"{case}: the buffer is too small")
        p = Params(
            data.data_ptr(),
            table.data_ptr(),
            member.data_ptr(),
            barriers[i].data_ptr(),
            barriers[i, 8:].data_ptr(),
            case.chunk * 64,
            table.shape[0],
            table.shape[1],
            LOADS.index(case.load),
        )
        torch.cuda.synchronize()
        function.launch((side.size, 1, 1), 1024, p, 0, SHARED_BYTES)
        torch.cuda.synchronize()


def measured(
    cases: list[Case], side: npt.NDArray[np.int_], cubin: Path, folder: Path
) -> pd.DataFrame:
    """The cases with what the profiler counted."""
    plan = {"side": side.tolist(), "cubin": str(cubin), "cases": [asdict(c) for c in cases]}
    planned = folder / "plan.json"
    planned.write_text(json.dumps(plan), encoding="utf-8")
    options = [*FROM_EMPTY, "--kernel-name", "regex:^follow"]
    launches, _ = parse_raw(profiled([__file__, "--play", str(planned)], options, COUNTED, folder))
    return pd.DataFrame(
        [asdict(c) | counts(launch, COUNTED) for c, launch in zip(cases, launches, strict=True)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="CSV to write; its provenance goes beside it")
    parser.add_argument(
        "--play", type=Path, help="make the launches of this plan; for the profiler"
    )
    parser.add_argument("--dry-run", action="store_true", help="count the launches")
    arguments = parser.parse_args()
    if arguments.dry_run:
        for case in plan():
            table = case.table()
            _ = case.members(np.arange(132) % 2)
            size = (
                (int(np.where(table < 0, 0, table & (OPS["reduce"] - 1)).max()) + 1)
                * case.chunk
                * 1024
            )
            if size > BUFFER:
                raise InputError(f"{case} needs {size} bytes")
        print(f"{len(plan())} launches")
        return
    driver.use_device()
    if arguments.play:
        data = json.loads(arguments.play.read_text(encoding="utf-8"))
        play([Case(**c) for c in data["cases"]], np.array(data["side"]), Path(data["cubin"]))
        return
    from timeline import sides_of_sms

    out: Path = arguments.out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        side = sides_of_sms(folder, driver.multiprocessors())
        table = measured(
            plan(), side, compiled(HERE / "followers.cu", folder / "followers.cubin"), folder
        )
    write_whole(out, table.to_csv(index=False))
    write_provenance(
        out,
        f"python experiments/followers.py --out {out.name}",
        profiler=profiler_version(),
        profiler_options=" ".join(FROM_EMPTY),
        side_of_each_sm="".join(map(str, side)),
    )


if __name__ == "__main__":
    run_script(main)
