"""Which changes of a kernel may go in? Each is held against the kernel as it is, with limits at every level.

Run it as `python examples/gate.py`; examples/output/gate.txt holds what it prints.
"""

from typing import Any

import iosim

CALL: dict[str, Any] = {
    "kernel": "flash",
    "gpu": "h100",
    "heads": 32,
    "seq_len": 8192,
    "causal": True,
}
LIMITS = "hbm=5%,l2=20%,time=5%"
CHANGES: tuple[dict[str, Any], ...] = ({"stages": 2}, {"tile": "64x64"}, {"order": "head"})


def main() -> None:
    computed = iosim.predict(**CALL)
    print(
        f"flash with its {computed.kernel.tile} on an H100, 8,192 tokens, 32 heads, causal; limits {LIMITS}"
    )
    for change in CHANGES:
        d = iosim.predict(**CALL, **change, against=computed, fail_above=LIMITS)
        (difference,) = d.differences
        print(
            f"\n{', '.join(f'{name} {value}' for name, value in change.items())}: {'yes' if d.holds else 'no'}"
        )
        print(f"  {difference.line}")
        for line in (*d.exceeded, *difference.reasons):
            print(f"  {line}")


if __name__ == "__main__":
    main()
