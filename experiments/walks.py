"""When the CTAs of a Triton kernel come to which key block, and on which SM: `python experiments/walks.py --out FILE.csv`.

On a GPU with PyTorch and Triton. A row is a launch of walks.toml from a flushed L2, its kernel with timers in it:
registers and spilled words of a thread, CTAs of an SM, and of the time from one key block to the next

- its mean; by the age of a CTA among those of its SM, over that mean, the oldest first;
- standard deviations, as shares of it: of SMs (of their CTAs' mean times, less what these vary by chance), of CTAs and of
  single blocks.

Its counters: `python experiments/user_kernels.py --cases experiments/walks.toml --out FILE.csv`, without timers.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from user_kernels import Launcher, cases, provenance

CASES = Path(__file__).resolve().with_name("walks.toml")
MARKS = 32
"""Times that a CTA notes of its loop, about."""
FLUSHED_BYTES = 1 << 28
COLUMNS = ("case", "registers", "spilled_words", "ctas_per_sm", "block_us", "by_age", "sms", "ctas", "blocks")  # fmt: skip
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def parted(at: Floats, place: Ints, every: int) -> dict[str, Any]:
    """What the times of a launch's CTAs say: a row of `at` is a CTA's begin, its marks and its end, `place` its SM."""
    begin, marks, end = at[:, 0], at[:, 1:-1], at[:, -1]
    took = np.diff(marks, axis=1) / every
    middle = (marks[:, 1:] + marks[:, :-1]) / 2
    older, beside = np.zeros(took.shape, int), np.zeros(took.shape, int)
    for sm in np.unique(place):
        here = np.flatnonzero(place == sm)
        for cta in here:
            others = here[here != cta]
            runs = (begin[others, None] <= middle[cta]) & (end[others, None] >= middle[cta])
            first = (begin[others] < begin[cta]) | ((begin[others] == begin[cta]) & (others < cta))
            beside[cta], older[cta] = runs.sum(0), (runs & first[:, None]).sum(0)
    # Only while an SM holds as many CTAs as it mostly does.
    resident = int(np.bincount(beside.ravel()).argmax())
    steady = np.where(beside == resident, took, np.nan)
    mean = np.nanmean(steady)
    by_age = np.array([np.nanmean(steady[older == age]) for age in range(resident + 1)]) / mean
    of_sm = np.array([np.nanmean(steady[place == sm]) for sm in np.unique(place)]) / mean
    rest = steady / mean - of_sm[np.searchsorted(np.unique(place), place)][:, None]
    rest -= by_age[np.minimum(older, resident)] - 1
    of_cta = np.nanmean(rest, axis=1)
    # What the mean of an SM's CTAs varies by chance is no speed of the SM.
    chance = np.nanvar(of_cta) * of_sm.size / len(at)
    return {
        "ctas_per_sm": resident + 1,
        "block_us": round(mean / 1e3, 4),
        "by_age": " ".join(f"{share:.4f}" for share in by_age),
        "sms": round(float(max(0.0, of_sm.var() - chance)) ** 0.5, 5),
        "ctas": round(float(np.nanstd(of_cta)), 5),
        "blocks": round(float(np.nanmean(np.nanstd(rest, axis=1))) * every**0.5, 5),
    }


def walked(launcher: Launcher, case: dict[str, Any]) -> dict[str, Any]:
    """The row of a launch."""
    import torch

    tokens, width = case["arguments"]["tokens"], case["constants"]["BLOCK_N"]
    every = max(1, tokens // width // MARKS)
    marks = -(-tokens // width // every) + 2
    ctas = int(np.prod(case["grid"]))
    times = torch.zeros(ctas * marks, device="cuda", dtype=torch.int64)
    places = torch.zeros(ctas, device="cuda", dtype=torch.int32)
    more = {"times": times, "places": places, "EVERY": every, "MARKS": marks}
    launch = launcher.ready({**case, "constants": case["constants"] | more})
    compiled = launch()
    flush = torch.empty(FLUSHED_BYTES, device="cuda", dtype=torch.int8)
    flush.zero_()
    launch()
    torch.cuda.synchronize()
    at = times.cpu().numpy().reshape(ctas, marks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CTAs that never had as many beside them as is usual
        row = parted((at - at[:, 0].min()).astype(float), places.cpu().numpy(), every)
    return {
        "case": case["name"],
        "registers": compiled.n_regs,
        "spilled_words": compiled.n_spills,
        **row,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the table")
    options = parser.parse_args()
    launcher = Launcher(CASES.parent)
    rows = [walked(launcher, case) for case in cases(CASES)]
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    provenance(options.out, "python experiments/walks.py " + " ".join(sys.argv[1:]))


if __name__ == "__main__":
    main()
