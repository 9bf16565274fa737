"""What each kernel of the catalog was checked against: `python benchmarks/checked.py --write`.

Makes iosim/catalog/libraries/checked.csv out of the recorded tables, those of experiments/measurements and of
kernels/measurements: a row a kernel and kind of measurement, the strongest kind first, with the GPUs. A table's rows
are of the kernel that its column `implementation` or `kernel` names; bytes are counted where it has them, times where
it has those. What others recorded lies in tables called `published_...`.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import linear_times
import stack_times
from recorders import ROOT

from iosim import InputError, load_profile
from iosim.base.files import write_whole
from iosim.catalog.libraries.loader import (
    BACKWARD,
    BACKWARD_TIMED,
    CHECKED,
    COUNTED,
    PUBLISHED_TIMES,
    TIMED,
    entry,
    entry_name,
    on_gpu,
)
from iosim.catalog.serving import read_stack
from iosim.evidence.published.tables import BYTES as READ_BYTES
from iosim.evidence.published.tables import SPEEDUP, TIME, read, shipped
from iosim.evidence.times.tables import SERVING_GPUS
from iosim.evidence.validate.match import CHAIN_NAMES, OWN

TABLES = sorted(
    path
    for room in ("experiments", "kernels")
    for path in (ROOT / room / "measurements").glob("*.csv")
)
PREDICTED = ("_blind", "_predicted")
"""In the names of tables that hold predictions."""
STEPS = "h200_torch_"
"""Whole models' steps, in which a name is the backend's."""
PUBLISHED_BYTES = "published bytes on"
KINDS = (COUNTED, BACKWARD, PUBLISHED_BYTES, TIMED, PUBLISHED_TIMES, BACKWARD_TIMED)
BACKWARD_NAMES = ("_backward", "flash_bwd", "flash_bwd_sm90", "_fwdbwd")
"""How names of a backward's rows end."""
BYTES = ("hbm_read", "l2_read", "dram_sectors")
TIMES = ("seconds", "ms", "graph_ms", "tflops", "latency", "latency_ms", "best_ms")
GPUS = {"NVIDIA H200": "h200-sxm"}
"""Profiles by a table's word, where it is not their name."""
OTHER_KERNELS = ("attention_latency_a100_vidur.csv", "attention_latency_a30_flashinfer_vidur.csv")
"""Files of published_attention_times.csv whose times are set beside a kernel of the catalog that is not theirs."""
STAND_FOR = {"flash-cu": "flash", "eager": "naive"}
"""Kernels whose launches are another entry's, too: its tiles in CUDA, its launches and one for the scale."""
SPARSE = "published_sparse_attention.csv"
BEST_TILES = "published_triton_tiles.csv"
SPARSE_KERNELS = {True: "dsv4", False: "dsa"}
"""Of its rows those named after a ratio of compression, and the others."""


def kernels_of(table: str, row: dict[str, str], gpu: str) -> str | None:
    """The catalog's name of a row's kernel; None where it has none."""
    if table == linear_times.TABLE:
        return linear_times.KERNELS.get((row["framework"], row["kernel"]))
    if table == stack_times.TABLE:
        return stack_times.Row(row, held_out=False).kernel
    if table == SPARSE:
        return SPARSE_KERNELS[row["launch"].startswith("c")]
    if table == BEST_TILES:
        return "ibm-triton"
    if row.get("file") in OTHER_KERNELS:
        return None
    if "kernel_source" in row:
        return read_stack(row["source"].split("/")[0]).kernel(load_profile(gpu))
    name = row.get("implementation") or row.get("kernel", "")
    return entry_or_none((CHAIN_NAMES if "chain" in table else OWN).get(name, name))


@cache
def entry_or_none(name: str) -> str | None:
    try:
        return entry_name(name)
    except InputError:
        return None


@cache
def gpu_of(word: str) -> str | None:
    """The profile of a row's GPU; None where there is none."""
    name = GPUS.get(word, SERVING_GPUS.get(word, word.replace("_", "-")))
    try:
        return load_profile(name).name
    except InputError:
        return None


@cache
def runs_on(kernel: str, gpu: str) -> bool:
    requires = entry(kernel)["requires"]
    cc = load_profile(gpu).cc
    return bool(requires.get("min_cc", 0) <= cc <= requires.get("max_cc", cc))


def found() -> Iterator[tuple[str, str, str]]:
    """(kernel, kind, GPU) of every row of a catalog's kernel."""
    for path in TABLES:
        if path.name.startswith(STEPS) or any(word in path.name for word in PREDICTED):
            continue
        published = path.name.startswith("published_")
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                gpu = gpu_of(row.get("gpu") or f"{path.name[:4]}-sxm")
                kernel = kernels_of(path.name, row, gpu) if gpu else None
                if gpu is None or kernel is None or not runs_on(kernel, gpu):
                    continue
                kinds = (
                    [(PUBLISHED_BYTES, BYTES), (PUBLISHED_TIMES, TIMES)]
                    if published
                    else [(COUNTED, BYTES), (TIMED, TIMES)]
                )
                if not published and row.get("implementation", "").endswith(BACKWARD_NAMES):
                    kinds.append((BACKWARD, BYTES))
                if row.get("pass") == "bwd":
                    kinds = []
                if row.get("pass", "fwd") != "fwd":
                    kinds.append((BACKWARD_TIMED, TIMES))
                for kind, columns in kinds:
                    if any(row.get(column) for column in columns):
                        yield kernel, kind, gpu


def of_others() -> Iterator[tuple[str, str, str]]:
    """The same of whole calls in the tables of others."""
    for sample in (sample for path in shipped() for sample in read(path)[0]):
        if not sample.launch:
            name = on_gpu(entry(sample.kernel), sample.profile)["name"]
            kinds = [PUBLISHED_BYTES] if sample.quantity in READ_BYTES else []
            if sample.quantity in (TIME, SPEEDUP):
                kinds = [PUBLISHED_TIMES] if sample.problem.forward else []
                kinds += [BACKWARD_TIMED] if sample.problem.backward else []
            for kind in kinds:
                yield name, kind, sample.profile.name


def text() -> str:
    """The table, as checked.csv has it."""
    gpus: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kernel, kind, gpu in {*found(), *of_others()}:
        for name in {kernel, STAND_FOR.get(kernel, kernel)}:
            gpus[name, kind].add(gpu)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("kernel", "kind", "gpus"))
    for name, kind in sorted(gpus, key=lambda key: (key[0], KINDS.index(key[1]))):
        writer.writerow((name, kind, " ".join(sorted(gpus[name, kind]))))
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {CHECKED.relative_to(ROOT)}")
    if parser.parse_args().write:
        write_whole(CHECKED, text())
    else:
        print(text(), end="")


if __name__ == "__main__":
    main()
