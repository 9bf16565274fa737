"""Where does FlashAttention-2 begin to read HBM again? `python examples/sweep.py`.

A sweep over lengths and GPUs by the capacity rule, an estimate that takes milliseconds; the rows on both sides of a
border would be worth a replay. The same on the command line:

    iosim sweep --gpu a100,h100,l4,rtx-4090 --kernel fa2 --seq-len 1k:256k:1k --heads 8 --causal \\
        --method capacity --out borders.csv
"""

from __future__ import annotations

import iosim

GPUS = ["a100", "h100", "l4", "rtx-4090"]
LENGTHS = [1024 * n for n in range(1, 257)]


def main() -> None:
    rows = iosim.sweep(
        gpu=GPUS, kernel="fa2", seq_len=LENGTHS, heads=8, causal=True, method="capacity"
    )
    print(f"{len(rows):,} rows; FlashAttention-2, 8 heads of 128, causal")
    more = rows[rows.hbm_read_bytes > 1.5 * rows.compulsory_read_bytes]
    for gpu in GPUS:
        first = more[more.gpu == gpu].head(1)
        if first.empty:
            print(f"  {gpu:9} stays near the compulsory bytes up to {max(LENGTHS):,} tokens")
        else:
            row = first.iloc[0]
            times = row.hbm_read_bytes / row.compulsory_read_bytes
            print(
                f"  {gpu:9} reads {times:.1f} times the compulsory bytes from {row.seq_q:,} tokens on"
            )


if __name__ == "__main__":
    main()
