"""Training steps: memory by kind and phase, times by part, what fits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from iosim.base.errors import InputError
from iosim.hardware.profile import load_profile
from iosim.readers.replay.blocks import CachingAllocator
from iosim.studies.training import (
    Decoder,
    Setup,
    TrainingPrediction,
    frontier,
    longest_sequence,
    plan,
    predict_training,
)
from iosim.studies.training.frontier import changed, peak_bytes, step_seconds
from iosim.studies.training.graph import saved_storages
from iosim.studies.training.model import OPTIMIZERS, STEPS, optimizer

SEED = 11
STUDIES = 70
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"layers": 2, "width": 128, "heads": 4, "vocabulary": 512},
    "grouped": {
        "layers": 3,
        "width": 192,
        "heads": 6,
        "kv_heads": 2,
        "vocabulary": 1000,
        "tied": False,
        "bias": False,
        "norm": "rms",
        "gated": True,
        "activation": "silu",
        "mlp_width": 500,
        "positions": "none",
    },
    "bare": {
        "layers": 1,
        "width": 64,
        "heads": 2,
        "vocabulary": 0,
        "mlp_width": 0,
        "norm": "none",
        "bias": False,
    },
    "one head": {"layers": 2, "width": 64, "heads": 1, "vocabulary": 0, "activation": "relu"},
    "wide": {"layers": 5, "width": 1024, "heads": 16, "vocabulary": 5000, "positions": "none"},
    "multi-query": {
        "layers": 2,
        "width": 256,
        "heads": 4,
        "kv_heads": 1,
        "vocabulary": 300,
        "activation": "silu",
    },
}


def checksum(p: TrainingPrediction) -> int:
    """Of every event's bytes, each with a weight of its own."""
    return sum(n * (2 * e.peak_bytes + e.after_bytes) for n, e in enumerate(p.timeline.events, 1))


def told(p: TrainingPrediction) -> dict[str, Any]:
    data = p.to_dict()
    data["events"] = [len(data.pop("timeline")), checksum(p), len(p.timeline.requests)]
    data["curve"] = [sum(x[0] for x in p.curve()), p.curve()[-1][0]]
    data["parameters"] = data.pop("model")["parameters"]
    data["kept"] = [sum(s.bytes for s in saved_storages(p.graph)), p.peak_bytes, p.capacity_bytes]
    del data["setup"], data["profile"]
    return data


def drawn() -> Iterator[tuple[str, Any]]:
    rng = random.Random(SEED)
    while True:
        for model in MODELS:
            setup: dict[str, Any] = {
                "batch": rng.choice((1, 2, 3)),
                "seq_len": rng.choice((1, 64, 96, 200, 512)),
                "attention": rng.choice(("naive", "flash")),
                "causal": rng.random() < 0.7,
                "precision": rng.choice(("fp32", "fp16", "bf16", "amp-fp16", "amp-bf16")),
                "optimizer": rng.choice(OPTIMIZERS),
                "step": rng.choice(STEPS),
                "recompute": rng.choice(("none", "none", "full", "attention")),
                "backend": rng.choice(("cuda", "cuda", "cuda", "cpu")),
                "accumulate": rng.random() < 0.3,
            }
            gpu = rng.choice(("l4", "a100", "h100", "v100"))
            try:
                yield (
                    " ".join(map(str, (model, gpu, *setup.values()))),
                    (Decoder(**MODELS[model]), Setup(**setup), gpu),
                )
            except InputError:
                continue


def steps() -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for name, (model, setup, gpu) in drawn():
        if len(seen) == STUDIES:
            return
        if name in seen:
            continue
        try:
            facts = told(predict_training(model, setup, gpu, reserve_bytes=1000 * len(seen)))
        except InputError:
            continue
        seen.add(name)
        yield name, facts


def fits() -> Iterator[tuple[str, Any]]:
    model = Decoder(layers=6, width=256, heads=4, kv_heads=2, vocabulary=2000)
    for attention, recompute in (("flash", "none"), ("naive", "full"), ("flash", "attention")):
        setup = Setup(attention=attention, recompute=recompute)
        for axis, values in (
            ("width", (128, 256, 512)),
            ("batch", (1, 4)),
            ("layers", (2, 4, 5, 9)),
        ):
            points = frontier(
                model,
                setup,
                load_profile("l4"),
                axis,
                values,
                (256, 2048),
                reserve_bytes=23_000_000_000,
            )
            yield f"frontier {attention} {recompute} {axis}", points.to_dict()
        for budget in (1, 60_000_000, 200_000_000, 5_000_000_000):
            yield (
                f"longest {attention} {recompute} {budget}",
                longest_sequence(model, setup, budget),
            )
        yield (
            f"longest {attention} {recompute} between",
            longest_sequence(model, setup, 200_000_000, 128, 4096),
        )
        fit_setup = Setup(seq_len=128, attention=attention, recompute=recompute)
        yield (
            f"layers {attention} {recompute}",
            [peak_bytes(changed(model, fit_setup, "layers", n)[0], fit_setup) for n in range(1, 9)],
        )
        yield (
            f"seconds {attention} {recompute}",
            step_seconds(model, fit_setup, load_profile("a100")),
        )


def norms() -> Iterator[tuple[str, Any]]:
    """Norms on a CPU, whose own input may want no gradient."""
    for vocabulary, precision, norm in (
        (0, "fp32", "rms"),
        (0, "bf16", "rms"),
        (50, "bf16", "rms"),
        (0, "amp-bf16", "layer"),
    ):
        model = Decoder(layers=1, width=64, heads=2, vocabulary=vocabulary, norm=norm)
        setup = Setup(seq_len=96, precision=precision, backend="cpu", attention="naive")
        yield f"norm {vocabulary} {precision} {norm}", told(predict_training(model, setup, "l4"))
    points = frontier(
        Decoder(layers=1, width=64, heads=2, vocabulary=0),
        Setup(),
        load_profile("l4"),
        "batch",
        (1, 2),
        (64,),
        reserve_bytes=23_020_000_000,
    )
    yield "fits", [points.fits(0, 0), points.fits(1, 0), points.peak_bytes, points.capacity_bytes]
    training = predict_training(
        Decoder(layers=1, width=64, heads=2, vocabulary=0), Setup(seq_len=64)
    )
    yield "by default", [training.profile.name, training.capacity_bytes, training.time is not None]
    yield "fits in its own peak", replace(points, capacity_bytes=points.peak_bytes[0][0]).fits(0, 0)


def accepted(call: Callable[[], object]) -> bool:
    try:
        call()
    except InputError:
        return False
    return True


def words() -> Iterator[tuple[str, Any]]:
    """Defaults, and words that are not known."""
    yield "default model", Decoder().to_dict()
    yield "default setup", Setup().to_dict()
    for name in ("norm", "activation", "positions"):
        yield f"word {name}", accepted(lambda n=name: Decoder(**{n: "none of them"}))
    for name in ("attention", "precision", "optimizer", "step", "recompute", "backend"):
        yield f"word {name}", accepted(lambda n=name: Setup(**{n: "none of them"}))
    for alias in ("Adam-8bit", " 8bit-adam", "sgd+momentum", "sgd-momentum", "ADAMW"):
        yield (
            f"word {alias}",
            [
                Setup(optimizer=alias).optimizer,
                accepted(lambda a=alias: Setup(optimizer=a, step="loop")),
            ],
        )
    model = Decoder(layers=2, width=192, heads=12, kv_heads=4, vocabulary=0)
    setup = Setup(seq_len=64)
    for axis, value in (
        ("width", 64),
        ("width", 96),
        ("width", 100),
        ("width", 48),
        ("width", 16),
        ("batch", 7),
        ("layers", 3),
        ("depth", 3),
        ("width", 80),
        ("batch", 0),
    ):
        try:
            model_changed, how = changed(model, setup, axis, value)
            yield (
                f"axis {axis} {value}",
                [
                    model_changed.width,
                    model_changed.heads,
                    model_changed.kv_heads,
                    model_changed.mlp_width,
                    model_changed.layers,
                    how.batch,
                ],
            )
        except InputError:
            yield f"axis {axis} {value}", "refused"


def limits() -> Iterator[tuple[str, Any]]:
    """The largest sizes that are taken, and one more; the smallest, and one less."""
    bounds = {
        "layers": (1, 1024),
        "width": (1, 1 << 20),
        "vocabulary": (0, 1 << 24),
        "mlp_width": (0, 64 << 20),
        "heads": (1, 64),
    }
    for name, (low, high) in bounds.items():
        base = {"layers": 1, "heads": 1, "vocabulary": 0, "mlp_width": 0, "width": 64}
        for value in (low - 1, low, high, high + 1):
            yield (
                f"limit {name} {value}",
                accepted(lambda v=value, n=name, b=base: Decoder(**(b | {n: v}))),
            )
    for kv_heads in (0, 1, 3, 4, 6, 12, 13):
        yield (
            f"limit kv_heads {kv_heads}",
            accepted(lambda n=kv_heads: Decoder(width=144, heads=12, kv_heads=n)),
        )
    for name, high in (("batch", 1 << 16), ("seq_len", 1 << 24)):
        for value in (0, 1, high, high + 1):
            yield f"limit {name} {value}", accepted(lambda v=value, n=name: Setup(**{n: v}))
    for heads, backend in ((2, "cuda"), (4, "cuda"), (4, "cpu")):  # head dimensions 24 and 12
        model = Decoder(layers=1, width=48, heads=heads, vocabulary=0)
        yield (
            f"limit head_dim {heads} {backend}",
            accepted(lambda m=model, b=backend: plan(m, Setup(seq_len=8, backend=b))),
        )
    model = Decoder(layers=1, width=64, heads=1, vocabulary=0)
    for batch, tokens in (
        (2048, 1 << 23),
        (2048, (1 << 23) + 1),
        (1 << 16, (1 << 24) // 10),
        (8, 1 << 24),
        (512, 1 << 24),
        (513, 1 << 24),
    ):
        yield (
            f"limit elements {batch} {tokens}",
            accepted(lambda b=batch, n=tokens: plan(model, Setup(batch=b, seq_len=n))),
        )
    for rows, columns in ((1, 0), (0, 1), (2500, 1), (2501, 1), (51, 50)):
        tiny = Decoder(layers=1, width=8, heads=1, vocabulary=0, mlp_width=0)
        values = tuple(range(1, rows + 1))
        lengths = tuple(range(1, columns + 1))
        if rows * columns <= 2500 < 2 * rows * columns:
            continue  # taken, and long
        yield (
            f"limit cells {rows} {columns}",
            accepted(
                lambda v=values, n=lengths, m=tiny: frontier(
                    m, Setup(), load_profile("l4"), "batch", v, n
                )
            ),
        )


def optimizers() -> Iterator[tuple[str, Any]]:
    model = Decoder(layers=1, width=66, heads=1, vocabulary=31, mlp_width=63)
    parameters = plan(model, Setup(seq_len=8, attention="naive")).parameters
    for name in OPTIMIZERS:
        for step in STEPS:
            if (name, step) != ("adam8bit", "loop"):
                rule = optimizer(name, step)
                yield (
                    f"optimizer {name} {step}",
                    [
                        f(parameters, size)
                        for size in (2, 4)
                        for f in (rule.state_bytes, rule.step_bytes, rule.moved_bytes)
                    ],
                )


def allocators() -> Iterator[tuple[str, Any]]:
    """Blocks taken and given back in turn, sizes around every border of the rules."""
    sizes = (
        1,
        511,
        512,
        513,
        1000,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
        3 << 20,
        (10 << 20) - 1,
        10 << 20,
        (19 << 20) + 5,
        (20 << 20) - 512,
        (21 << 20) + 1,
    )
    for seed in range(6):
        rng, allocator, held, seen = random.Random(seed), CachingAllocator(), [], []
        for _ in range(60):
            if held and rng.random() < 0.45:
                allocator.release(held.pop(rng.randrange(len(held))))
            else:
                held.append(allocator.allocate(rng.choice(sizes)))
                seen.append(held[-1].address)
        yield (
            f"allocator {seed}",
            [
                allocator.in_use,
                allocator.most,
                allocator.reserved,
                len(allocator.free_blocks),
                seen[-12:],
            ],
        )


def cases() -> Iterator[tuple[str, Any]]:
    for part in (steps, fits, norms, words, limits, optimizers, allocators):
        yield from part()
