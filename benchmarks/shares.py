"""How the CTAs of an SM share it, as recorded: `python benchmarks/shares.py`. Prints two Markdown tables.

kernels/measurements/h200_cta_shares.csv and h100_cta_shares.csv hold when the first CTAs of a launch ended;
iosim/readers/replay/sharing.py makes rates of them. The first table: how much more the oldest gets than the youngest,
of their mean, over this project's kernels by their number of CTAs an SM; the second: some kernels by name.
"""

from __future__ import annotations

from statistics import mean, median

from iosim.readers.replay.sharing import OWN, Key, measured_rates, runs_by_key

NAMED: dict[str, Key] = {
    "flash_fwd 128x64, head_dim 128": ("own", 128, 128, 64, 4, 2, False, False, "bf16", 2),
    "flash_fwd 128x64, head_dim 128, causal": ("own", 128, 128, 64, 4, 2, True, False, "bf16", 2),
    "flash_fwd 128x128, head_dim 64": ("own", 64, 128, 128, 4, 2, False, False, "bf16", 2),
    "flash_fwd 128x128, head_dim 64, causal": ("own", 64, 128, 128, 4, 2, True, False, "bf16", 2),
    **{
        ", ".join(
            ["PyTorch's flash", f"head_dim {d}", *["causal"] * causal, *[build] * bool(build)]
        ): ("flash", d, causal, build, 2)
        for d in (64, 128, 256)
        for causal in (False, True)
        for build in ("", "ragged", "narrow")
        if (d, build) != (256, "ragged")
    },
    **{
        f"PyTorch's CUTLASS kernel, head_dim {d}": ("efficient", d, False, "", n)
        for d, n in ((64, 4), (128, 2), (256, 4))
    },
}


def main() -> None:
    rates = {
        key: rates_of_key
        for name in (OWN, "flash", "efficient")
        for key, rates_of_key in measured_rates(name).items()
    }
    own_rates = {
        key: rates_of_key[0] - rates_of_key[-1]
        for key, rates_of_key in rates.items()
        if key[0] == OWN
    }
    print(f"{len(rates)} kernels.\n\n| CTAs an SM | kernels | least | median | most |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for ctas in sorted({len(rates[key]) for key in own_rates}):
        heights = [height for key, height in own_rates.items() if len(rates[key]) == ctas]
        print(
            f"| {ctas} | {len(heights)} | {min(heights):.1%} | {median(heights):.1%} | {max(heights):.1%} |"
        )
    twice = [runs for runs in runs_by_key(OWN).values() if len(runs) == 2]
    apart = [abs((a[0] - a[-1]) - (b[0] - b[-1])) for a, b in twice]
    print(f"\nTwo runs of one kernel differ by {mean(apart):.2%} on average.\n")
    print("| kernel | oldest less youngest | rates, the oldest first |\n| --- | ---: | --- |")
    for name, key in NAMED.items():
        series = rates[key]
        print(
            f"| {name} | {series[0] - series[-1]:.1%} | {', '.join(f'{rate:.3f}' for rate in series)} |"
        )


if __name__ == "__main__":
    main()
