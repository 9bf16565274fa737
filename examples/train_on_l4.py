"""Training on one L4: what fits, what recomputation costs, and what naive attention takes.

python examples/train_on_l4.py
"""

from iosim import load_profile
from iosim.studies.training import Decoder, Setup, frontier, predict_training

MODEL = Decoder(layers=24, width=1024, heads=16, vocabulary=50304)
GB = 1e9


def main() -> None:
    gpu = load_profile("l4")
    print(
        f"{MODEL.layers} layers of width {MODEL.width} on {gpu.title}, AdamW, autocast in bf16, batch 1\n"
    )
    print(
        f"{'tokens':>7}{'attention':>11}{'recompute':>11}{'peak GB':>9}{'saved GB':>10}{'step ms':>9}  fits"
    )
    for tokens in (2048, 8192):
        for attention in ("naive", "flash"):
            for recompute in ("none", "attention", "full"):
                setup = Setup(seq_len=tokens, attention=attention, recompute=recompute)
                training = predict_training(MODEL, setup, gpu)
                total = sum(training.saved_by_kind.values())
                assert training.time is not None
                print(
                    f"{tokens:>7}{attention:>11}{recompute:>11}{training.peak_bytes / GB:>9.2f}{total / GB:>10.2f}"
                    f"{training.time.total_s * 1e3:>9.0f}  {'yes' if training.fits else 'no'}"
                )

    print("\nLongest sequence that fits, by width")
    print(f"{'width':>7}{'naive':>8}{'flash':>8}{'flash, recomputed':>19}")
    kinds = {"naive": Setup(attention="naive"), "flash": Setup(), "again": Setup(recompute="full")}
    widths = (512, 1024, 1536)
    bytes_by_algorithm = {
        name: frontier(MODEL, setup, gpu, "width", widths, (2048, 8192)).longest
        for name, setup in kinds.items()
    }
    for n, width in enumerate(widths):
        print(
            f"{width:>7}{bytes_by_algorithm['naive'][n]:>8}{bytes_by_algorithm['flash'][n]:>8}{bytes_by_algorithm['again'][n]:>19}"
        )


if __name__ == "__main__":
    main()
