"""What the catalog resolves, for kernels, GPUs and problems drawn at random, and its rules on grids of numbers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from iosim.base.errors import InputError
from iosim.catalog.libraries import (
    Overrides,
    cudnn,
    entry,
    entry_name,
    fa2,
    fa3,
    flashmla,
    resolve,
    tiled,
)
from iosim.catalog.libraries.rules import rules_of
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.problem.attention import AttentionProblem

GPUS = ("v100", "t4", "a100", "l4", "h100", "h200", "b200")
SEED = 5
EACH = 9
"""Problems of a kernel and GPU."""


def problem_at_random(rng: random.Random) -> AttentionProblem | None:
    kv_heads = rng.choice((1, 2, 4, 8))
    head_dim = rng.choice((32, 64, 64, 72, 96, 128, 128, 128, 192, 256))
    values: dict[str, Any] = {
        "batch": rng.choice((1, 1, 2, 8, 32)),
        "kv_heads": kv_heads,
        "heads": kv_heads * rng.choice((1, 1, 2, 4, 8)),
        "head_dim": head_dim,
        "dtype": rng.choice(("bf16", "bf16", "fp16", "fp16", "fp32", "fp8")),
        "mask": rng.choice(("none", "causal", "causal", "window")),
        "passes": rng.choice(("fwd", "fwd", "fwd", "bwd")),
        "seq_q": rng.choice((1, 1, 2, 16, 64, 200, 512, 1024, 4096, 8192)),
        "seq_k": rng.choice((None, None, 1024, 5000, 16384, 131072)),
        "dropout": rng.choice((0.0, 0.0, 0.0, 0.1)),
    }
    if values["mask"] == "window":
        values["window"] = rng.choice((0, 63, 256, 4096))
    if rng.random() < 0.2:
        values["page_size"] = rng.choice((16, 64, 128, 256))
    if rng.random() < 0.1:
        values["bias"] = rng.choice(("full", "alibi"))
    if rng.random() < 0.1:
        values |= {"latent_kv": True, "head_dim": 576, "head_dim_v": 512, "kv_heads": 1}
    try:
        return AttentionProblem(**values)
    except InputError:
        return None


def name_of(p: AttentionProblem) -> str:
    """A problem in short."""
    words = [
        f"{p.batch}x{p.heads}/{p.kv_heads}",
        f"{p.seq_q}x{p.seq_k}",
        f"d{p.head_dim}",
        p.dtype,
        p.mask,
        p.passes,
    ]
    words += [f"dv{p.head_dim_v}"] if p.head_dim_v != p.head_dim else []
    words += [f"w{p.window}"] if p.window is not None else []
    words += [f"page{p.page_size}"] if p.page_size is not None else []
    words += [f"drop{p.dropout}"] if p.dropout else []
    words += [p.bias] if p.bias != "none" else []
    words += ["latent"] if p.latent_kv else []
    return " ".join(words)


def flat(kernel: Kernel) -> Iterator[tuple[str, Any, Any]]:
    """(name, value, default) of a kernel's settings, those of its backward after the forward's of the same name."""
    backward = {f.name: f for f in dataclasses.fields(kernel.backward)}
    late = []
    for field in dataclasses.fields(kernel):
        if field.name == "backward":
            yield from late
            continue
        yield field.name, getattr(kernel, field.name), default_of(field)
        if field.name in backward:
            other = backward[field.name]
            entry = (
                f"backward_{field.name}",
                getattr(kernel.backward, field.name),
                default_of(other),
            )
            late += [entry] if field.name == "registers" else []
            yield from [] if field.name == "registers" else [entry]


def default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default is not dataclasses.MISSING else None


def described(kernel: Kernel) -> list[Any]:
    """Every field of a kernel that is not its default, names and texts apart."""
    lines: list[Any] = []
    for name, value, default in flat(kernel):
        if name in ("name", "algorithm", "notes", "cta_shares") or value == default:
            continue
        if name in ("tile", "backward_tile"):
            lines.append(f"{name} {value.block_q}x{value.block_k} w{value.warps} s{value.stages}")
        elif name in ("schedule", "backward_schedule"):
            s = value
            lines.append(
                f"{name} {s.order} {s.direction} {s.scheduler} {s.section_heads} {s.start}"
            )
        elif name in ("overheads", "backward_overheads"):
            lines += [
                f"{o.name} {o.mode} {o.per_cta} {o.per_tile} {o.per_pair} {o.per_tile_fetch}"
                for o in value
            ]
        elif name == "spill":
            lines += [
                f"spill {value.write_per_tile} {value.write_per_pair} {value.read_per_tile} {value.read_per_pair}"
            ]
        elif name == "options":
            lines += [
                f"{o.name}={getattr(value, o.name)}"
                for o in dataclasses.fields(value)
                if getattr(value, o.name) != o.default
            ]
        else:
            lines.append(f"{name} {value}")
    return lines


def drawn(kernel: str) -> Iterator[tuple[str, Any]]:
    """Problems at random on every GPU, the same ones whatever other kernels there are."""
    rng = random.Random(f"{SEED} {kernel}")
    for gpu in GPUS:
        profile = load_profile(gpu)
        refused, seen = 0, set()
        for _ in range(EACH):
            problem = problem_at_random(rng)
            if problem is None or (case := f"{kernel} {gpu} {name_of(problem)}") in seen:
                continue
            seen.add(case)
            try:
                resolved = resolve(kernel, problem, profile)
            except InputError:
                refused += 1
                continue
            yield (
                case,
                [resolved.name, *described(resolved)] if kernel == "sdpa" else described(resolved),
            )
        yield f"{kernel} {gpu} refused", refused


DECODE = [
    ("fa2", "a100", 8, 1),
    ("fa2", "a100", 8, 4),
    ("fa3", "h100", 8, 8),
    ("cudnn", "h100", 8, 4),
    ("flashmla", "h100", 1, 128),
    ("flash", "a100", 8, 2),
]


def decoding() -> Iterator[tuple[str, Any]]:
    """One token, or a few, against a cache: splits, packing and the tiles that go with them."""
    for kernel, gpu, kv_heads, group in DECODE:
        for batch, tokens, keys, page in product(
            (1, 5, 33), (1, 3), (63, 700, 4096, 70000), (None, 64, 256)
        ):
            latent = kernel == "flashmla"
            values: dict[str, Any] = (
                {"latent_kv": True, "head_dim": 576, "head_dim_v": 512}
                if latent
                else {"head_dim": 128}
            )
            problem = AttentionProblem(
                batch=batch,
                heads=kv_heads * group,
                kv_heads=kv_heads,
                seq_q=tokens,
                seq_k=keys,
                dtype="bf16",
                mask="causal",
                page_size=page,
                **values,
            )
            try:
                lines = described(resolve(kernel, problem, load_profile(gpu)))
            except InputError:
                continue
            yield f"decode {kernel} {gpu} {name_of(problem)}", lines


def asked_for() -> Iterator[tuple[str, Any]]:
    """Settings by hand."""
    problem = AttentionProblem(
        heads=8, kv_heads=2, seq_q=1000, head_dim=128, dtype="bf16", mask="causal"
    )
    options: list[dict[str, Any]] = [
        {"tile": (32, 48)},
        {"tile": (32, 64), "warps": 2},
        {"warps": 2},
        {"warps": 8},
        {"stages": 3},
        {"tile": (16, 16), "warps": 1, "stages": 2},
        {"order": "head"},
        {"order": "batch"},
        {"heavy_first": True},
        {"heavy_first": False},
        {"section_heads": 2},
        {"section_heads": 0},
        {"section_heads": -1},
        {"direction": "alternating"},
        {"scheduler": "persistent"},
        {"scheduler": "dynamic"},
        {"splits": 1},
        {"splits": 3},
        {"splits": 200},
        {"splits": 0},
        {"registers": 255},
        {"registers": 256},
        {"registers": 1},
        {"registers": 0},
        {"shared_memory_bytes": 0},
        {"shared_memory_bytes": -1},
        {"pack_group": True},
        {"pack_group": False},
        {"append_kv": True},
    ]
    for kernel, gpu in (
        ("fa2", "a100"),
        ("fa3", "h100"),
        ("triton", "a100"),
        ("flash1", "a100"),
        ("cutlass", "v100"),
    ):
        problem_here = problem.with_(dtype="fp16") if gpu == "v100" else problem
        for over in options:
            case = f"by hand {kernel} {' '.join(f'{k}={v}' for k, v in over.items())}"
            try:
                yield (
                    case,
                    described(resolve(kernel, problem_here, load_profile(gpu), Overrides(**over))),
                )
            except InputError:
                yield case, "refused"
    long = AttentionProblem(heads=1, seq_q=1 << 24, head_dim=64, dtype="bf16")
    for block_q in (3, 4):  # 2^24 tokens in at most 2^22 query blocks
        try:
            resolve("cutlass", long, load_profile("a100"), Overrides(tile=(block_q, 64)))
            yield f"by hand block_q {block_q} of 2^24", "taken"
        except InputError:
            yield f"by hand block_q {block_q} of 2^24", "refused"
    for rows, head in ((1 << 24, 0), (1 << 24, 1)):
        problem_here = AttentionProblem(
            batch=2, heads=2 + head, seq_q=rows // 4, head_dim=64, dtype="bf16"
        )
        try:
            yield (
                f"by hand 2 splits of {4 + 2 * head} x 2^22 rows",
                resolve("fa2", problem_here, load_profile("a100"), Overrides(splits=2)).splits,
            )
        except InputError:
            yield f"by hand 2 splits of {4 + 2 * head} x 2^22 rows", "refused"


def names() -> Iterator[tuple[str, Any]]:
    """What is no kernel's name."""
    for alias in ("", "fa", "no such kernel"):
        try:
            yield f"name {alias!r}", entry_name(alias)
        except InputError:
            yield f"name {alias!r}", "refused"


def borders() -> Iterator[tuple[str, Any]]:
    """Problems just inside and just outside of what a kernel takes."""
    for kernel, gpu, values in product(
        ("fa2", "fa3", "cudnn", "cutlass", "flash", "flash1", "triton", "uniform"),
        ("v100", "a100", "h100"),
        BORDERS,
    ):
        dtype = "fp16"
        p = AttentionProblem(
            **({"heads": 4, "seq_q": 512, "head_dim": 64, "dtype": dtype} | values)
        )
        case = f"border {kernel} {gpu} {' '.join(f'{k}={v}' for k, v in values.items())}"
        try:
            yield case, described(resolve(kernel, p, load_profile(gpu)))
        except InputError:
            yield case, "refused"


BORDERS: tuple[dict[str, Any], ...] = (
    {"head_dim": 256}, {"head_dim": 257}, {"head_dim": 129}, {"head_dim": 65, "head_dim_v": 64}, {"head_dim": 8},
    {"head_dim": 64, "head_dim_v": 130}, {"dropout": 0.2}, {"dropout": 0.2, "passes": "bwd"},
    {"mask": "causal", "offset": -3}, {"mask": "causal", "offset": 0, "seq_k": 400},
    {"mask": "window", "window": 0, "offset": -1}, {"seq_lens": (200, 312)}, {"seq_lens": (500, 12), "mask": "causal"},
    {"seq_q": 1, "seq_k": 512, "mask": "causal", "offset": 100},
    {"seq_q": 1, "kv_heads": 1, "mask": "window", "window": 9},
    {"seq_q": 1, "kv_heads": 1, "head_dim": 68}, {"seq_q": 1, "kv_heads": 1, "dropout": 0.1},
    {"bias": "full"}, {"bias": "alibi"}, {"key_padding": True}, {"bias": "full", "key_padding": True},
    {"mask": "causal", "mask_storage": "bool"}, {"passes": "bwd", "head_dim": 192},
    {"dtype": "fp32"}, {"dtype": "tf32"},
    {"page_size": 16, "seq_q": 1}, {"page_size": 48, "seq_q": 1}, {"page_size": 256, "seq_q": 1},
)  # fmt: skip


def rules() -> Iterator[tuple[str, Any]]:
    """Rules by their numbers alone."""
    for width in (10, 100, 132, 216):
        tiles = sorted(
            {
                1,
                2,
                3,
                7,
                8,
                9,
                17,
                width // 2,
                width * 4 // 5 - 1,
                width * 4 // 5,
                width * 4 // 5 + 1,
                width,
                2 * width,
            }
        )
        blocks = (1, 2, 3, 5, 8, 40, 127, 128, 129, 1000)
        yield (
            f"fa2_splits of {width}",
            {n: [fa2.fa2_splits(n, b, width) for b in blocks] for n in tiles},
        )
        yield (
            f"cudnn_splits of {width}",
            {n: [cudnn.cudnn_splits(n, b, width) for b in blocks] for n in tiles},
        )
    for batch, sms, keys in product((1, 2, 3, 7, 64), (1, 78, 132), (1, 64, 640, 5000, 100_000)):
        problem = AttentionProblem(
            batch=batch,
            heads=128,
            seq_q=1,
            seq_k=keys,
            head_dim=576,
            head_dim_v=512,
            latent_kv=True,
        )
        split_counts = [
            flashmla.flashmla_splits(problem.with_(seq_q=q), sms, 64, 64) for q in (1, 2)
        ]
        yield f"flashmla_splits {batch} {sms} {keys}", split_counts
    for group, mask in product((1, 4), ("none", "causal")):
        for keys in (64, 400, 600, 5000, 131072, 262144, 1 << 20):
            split_list = []
            for batch, tokens in product((1, 4, 13, 32), (1, 64, 129, 20000)):
                problem = AttentionProblem(
                    batch=batch,
                    heads=4 * group,
                    kv_heads=4,
                    seq_q=tokens,
                    seq_k=keys,
                    head_dim=128,
                    mask=mask,
                )
                split_list.append(fa3.fa3_splits(problem, 132, 128, 128))
            yield f"fa3_splits {group} {mask} {keys}", split_list
    for batch in (105, 106, 110, 130, 132, 133):  # 80 % of 132 SMs are 105.6
        problem = AttentionProblem(batch=batch, seq_q=1, seq_k=65536, head_dim=128)
        yield f"fa3_splits of {batch} tiles", fa3.fa3_splits(problem, 132, 128, 128)
    problem = AttentionProblem(
        batch=17, seq_q=1, seq_k=65536, head_dim=128
    )  # 5 splits fill 85 % of 100 SMs, 100 all
    yield "fa3_splits at the very share", fa3.fa3_splits(problem, 100, 128, 128)
    for width, heads, passes, gpu in product(
        (16, 64, 256, 512, 1024, 2048), (1, 6, 8), ("fwd", "bwd"), ("t4", "a100")
    ):
        problem = AttentionProblem(
            heads=heads, seq_q=512, head_dim=64, head_dim_v=width, dtype="fp16", passes=passes
        )
        try:
            yield (
                f"uniform {width} {heads} {passes} {gpu}",
                described(resolve("uniform", problem, load_profile(gpu))),
            )
        except InputError:
            yield f"uniform {width} {heads} {passes} {gpu}", "refused"
    for width, page in product((64, 65, 128, 129), (None, 128)):
        problem = AttentionProblem(
            heads=8, seq_q=1, seq_k=700, head_dim=width, dtype="bf16", mask="causal", page_size=page
        )
        split_counts = (
            rules_of("fa3").as_launched(problem),
            rules_of("fa2").as_launched(problem.with_(seq_q=2)),
        )
        yield f"as launched {width} {page}", [x.mask for x in split_counts]
    for group, page in product((2, 3, 8, 16), (None, 64, 128)):
        split_list = []
        for tokens, splits in product((1, 8, 43, 64, 100, 115, 128, 129, 200), (1, 2)):
            problem = AttentionProblem(
                heads=group, kv_heads=1, seq_q=tokens, seq_k=4096, head_dim=128, page_size=page
            )
            split_list.append(int(fa3.fa3_packs_group(problem, splits, 128, 128)))
        yield f"fa3_packs_group {group} {page}", split_list
    for keys, width in product((100, 8192, 32768, 65535, 65536, 131072, 1 << 20), (64, 128)):
        problem = AttentionProblem(heads=4, kv_heads=2, seq_q=keys, head_dim=width, dtype="bf16")
        yield (
            f"fa3_section_heads {keys} {width}",
            [
                fa3.fa3_section_heads(problem),
                fa3.fa3_section_heads(problem, fa3.BACKWARD_SECTION_BYTES),
            ],
        )
    for dtype, tokens, mask in product(
        ("bf16", "fp8"), (128, 129, 256, 257, 384), ("none", "causal")
    ):
        problem = AttentionProblem(seq_q=tokens, mask=mask, dtype=dtype)
        split_counts = [
            fa3.cluster(problem, 128, d, n) for d in (64, 127, 128, 192, 256) for n in (1, 2)
        ]
        yield f"cluster {dtype} {tokens} {mask}", split_counts
    for block_q, block_k, stages, latent in product(
        (16, 128, 256), (16, 128), (1, 2), (False, True)
    ):
        widths = (
            {"head_dim": 576, "head_dim_v": 512, "latent_kv": True}
            if latent
            else {"head_dim": 192, "head_dim_v": 64}
        )
        problem = AttentionProblem(heads=4, seq_q=512, dtype="bf16", **widths)
        split_counts = [
            tiled.fitting(Tile(block_q, block_k, 8, stages), problem, load_profile(gpu))
            for gpu in ("t4", "a100")
        ]
        yield (
            f"fitting {block_q}x{block_k} {stages} {latent}",
            [[t.block_q, t.block_k, t.warps] for t in split_counts],
        )


def cases() -> Iterator[tuple[str, Any]]:
    yield from drawn("sdpa")
    for part in (decoding, asked_for, names, borders, rules):
        yield from part()


def of_kernel(name: str) -> Iterator[tuple[str, Any]]:
    """Its other names, and what it is resolved to."""
    data = entry(name)
    for alias in (*data.get("aliases", ()), *data.get("backward_aliases", ())):
        yield f"name {name} {alias}", [entry_name(alias), entry_name(alias.upper())]
    yield from drawn(name)
