"""A profile of one's own beside predictions: `python examples/own_profile.py`.

tests/data/ncu_user.csv is the raw page of Nsight Compute for a few PyTorch calls on an H200. Kernel names and grids say
what they can; the rest is said here. What is not matched is listed with the reason. The same on the command line:

    iosim validate --ncu tests/data/ncu_user.csv --seq-len 1000,4096 --heads 8 --head-dim 64,128 --causal
"""

from __future__ import annotations

from pathlib import Path

from iosim.base.units import bytes_text
from iosim.evidence.validate import compare
from iosim.evidence.validate.profile_rows import read_profile
from iosim.evidence.validate.recognise import Given
from iosim.evidence.validate.report import size_text
from iosim.hardware.profile import load_profile

FILE = Path(__file__).resolve().parent.parent / "tests" / "data" / "ncu_user.csv"
SAID = Given(heads=8, seqs=(1000, 4096), head_dims=(64, 128), causal=True)


def main() -> None:
    measured = read_profile(FILE, SAID)
    print("SM<->L2 reads, counted and predicted")
    for r in compare(measured.rows, load_profile("h200")).residuals:
        if r.quantity == "l2_read":
            words = f"{r.row.implementation} {r.launch}, {size_text(r.problem)}"
            print(f"  {words:64} {bytes_text(r.measured):>10} {bytes_text(r.predicted):>10}")
    print("not matched")
    for skipped in measured.unmatched:
        print(f"  {skipped.row.implementation[:44]:44} {skipped.reason}")


if __name__ == "__main__":
    main()
