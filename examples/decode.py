"""What attention costs while a model generates: packed groups, splits, pages, a latent cache, a chunked prefill.

Run it as `python examples/decode.py`; examples/output/decode.txt holds what it prints.
"""

from iosim import AttentionProblem, predict
from iosim.base.units import bytes_text, seconds_text
from iosim.catalog.libraries import Overrides
from iosim.studies.decode import ModelShape, decode_point

GPU = "h200"
CONTEXT = 32768


def one_layer() -> None:
    """Packing decides how often the keys cross from L2, splitting how many SMs read them."""
    problem = AttentionProblem(
        heads=32, kv_heads=8, seq_q=1, seq_k=CONTEXT, head_dim=128, dtype="bf16"
    )
    print(f"One token of 32 heads against {CONTEXT:,} keys of 8 heads, one layer, {GPU}")
    for name, packs, splits in (
        ("a CTA a head", False, 1),
        ("a group's heads in one tile", True, 1),
        ("and 16 splits", True, 16),
    ):
        prediction = predict(
            problem,
            "flash",
            GPU,
            overrides=Overrides(tile=(64, 64), splits=splits, pack_group=packs),
        )
        print(
            f"  {name:<28} SM<->L2 {bytes_text(prediction.total('l2')):>9}  HBM read "
            f"{bytes_text(prediction.total('hbm', 'read')):>9}  {seconds_text(prediction.time.total_s):>8}"
        )


def whole_model() -> None:
    """Two models' attention per generated token over the context."""
    grouped = ModelShape(heads=32, kv_heads=8, head_dim=128, layers=32, page_size=16)
    latent = ModelShape(
        heads=128, kv_heads=1, head_dim=576, head_dim_v=512, layers=61, latent_kv=True, page_size=64
    )
    for name, shape in (
        ("8 key/value heads, 32 layers", grouped),
        ("one latent K/V, 61 layers", latent),
    ):
        print(f"\nPer generated token: {name}, {GPU}, batch 8, pages of {shape.page_size}")
        for context in (2048, 8192, 32768, 131072):
            p = decode_point(shape, context, GPU, batch=8)
            print(
                f"  {context:>7,} tokens  {p.prediction.kernel.name}, {p.prediction.kernel.splits:>2} splits  cache "
                f"{bytes_text(p.cache_bytes):>8}  HBM {bytes_text(p.per_token('hbm') or 0):>8}  "
                f"{p.tokens_per_s:>7,.0f} tokens/s (K/V bound {p.bound_tokens_per_s:>7,.0f})"
            )


def pages() -> None:
    """What pages cost: entries of the block table, and the empty end of the last page."""
    print("\n1,000 tokens in pages, one sequence, 8 key/value heads of 128, bf16")
    for size in (1, 16, 64, 256):
        problem = AttentionProblem(
            heads=32, kv_heads=8, seq_k=1000, head_dim=128, dtype="bf16", page_size=size
        )
        prediction = predict(
            problem, "flash", GPU, overrides=Overrides(tile=(64, 64), pack_group=True)
        )
        table = prediction.traffic.total("l2", "read", tensor="block_table")
        unused = sum(t.allocated_bytes - t.bytes for t in prediction.chain.tensors.values())
        print(
            f"  pages of {size:>3}: table {table / prediction.total('l2', 'read'):.2%} of the reads into the SMs, "
            f"{bytes_text(unused)} unused"
        )


def chunks() -> None:
    """A prompt of 16k tokens in chunks: every chunk reads the cached prefix again."""
    print(
        "\nA prompt of 16,384 tokens through one layer, fa3, in chunks that are appended to the cache"
    )
    for chunk in (16384, 4096, 1024):
        read, time = 0, 0.0
        for prefix in range(0, 16384, chunk):
            problem = AttentionProblem(
                heads=32,
                kv_heads=8,
                seq_q=chunk,
                seq_k=prefix + chunk,
                head_dim=128,
                dtype="bf16",
                mask="causal",
            )
            prediction = predict(
                problem, "fa3", GPU, method="capacity", overrides=Overrides(append_kv=True)
            )
            read = read + prediction.total("hbm", "read")
            time = time + prediction.time.total_s
        print(f"  chunks of {chunk:>6,}: HBM read {bytes_text(read):>8}, {seconds_text(time)}")


if __name__ == "__main__":
    one_layer()
    whole_model()
    pages()
    chunks()
