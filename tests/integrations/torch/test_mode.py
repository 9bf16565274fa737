"""TrafficMode: what PyTorch modules move on a GPU that is not there."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import ROOT
from trace_events import checked

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from iosim.base.errors import InputError  # noqa: E402
from iosim.prediction.predictor import predict  # noqa: E402
from iosim.problem.attention import AttentionProblem  # noqa: E402
from iosim.studies.program.operators import Program  # noqa: E402
from iosim.torch import Part, Pass, ProgramTraffic, Scratch, TrafficMode, register_traffic_formula  # noqa: E402

WIDTH, HEADS, TOKENS, BATCH = 128, 2, 256, 2
BF16 = torch.bfloat16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2)
            for t in self.qkv(self.norm(x)).split(WIDTH, dim=-1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Drawn(nn.Module):
    """Modules in modules, with operators of its own before, between or after them."""

    def __init__(self, children: list[nn.Module], repeats: list[int]) -> None:
        super().__init__()
        self.parts, self.own = nn.ModuleList(children), repeats

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, repeats in zip([*self.parts, nn.Identity()], self.own, strict=True):
            for _ in range(repeats):
                x = x * 1.5
            x = part(x)
        return x


def drawn(depth: int) -> nn.Module:
    def number(highest: int) -> int:
        return int(torch.randint(highest + 1, ()))

    if not depth or not number(4):
        return nn.Linear(8, 8) if number(1) else nn.Tanh()
    children = [drawn(depth - 1) for _ in range(1 + number(2))]
    return Drawn(children, [number(2) for _ in range(len(children) + 1)])


def step(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)
    loss = functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1))
    loss.backward()
    return loss


@pytest.fixture(scope="module")
def trained() -> tuple[ProgramTraffic, Model, torch.Tensor]:
    torch.manual_seed(0)
    model = made()
    tokens = torch.randint(1000, (BATCH, TOKENS))
    with TrafficMode(gpu="h200", cudnn="9.19.0") as t:
        step(model, tokens)
    return t.result, model, tokens


def made() -> Model:
    """A model whose parameters are bf16 from the start: fake ones cannot be converted."""
    torch.set_default_dtype(BF16)
    try:
        return Model()
    finally:
        torch.set_default_dtype(torch.float32)


def fused(traffic: ProgramTraffic) -> list[tuple[str, str]]:
    return [(row.operator, row.kernel) for row in traffic.rows if row.kernel]


def one(call: object, gpu: str = "h200", cudnn: str | None = "9.19.0") -> ProgramTraffic:
    """What a call moves."""
    with TrafficMode(gpu=gpu, cudnn=cudnn) as t:
        call()  # type: ignore[operator]
    return t.result


def recorded(call: object) -> Program:
    """The launches of a call and the memory that they use."""
    with TrafficMode(gpu="h200") as t:
        call()  # type: ignore[operator]
    return t._recorder.program


def heads(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype, requires_grad=grad) for _ in range(3)]


class TestModule:
    def test_sums_by_module_and_phase_add_up(
        self, trained: tuple[ProgramTraffic, Model, torch.Tensor]
    ) -> None:
        traffic = trained[0]
        assert (
            sum(r.hbm for r in traffic.phase("forward").rows) + traffic.phase("backward").hbm.total
            == traffic.hbm.total
        )
        table = traffic.table(depth=2)
        by_name = {str(row[0]).strip(): row for row in table.rows}
        assert [name for name in by_name if name.isdigit()] == ["0", "1"]
        blocks = by_name["blocks"]
        columns = [c.key for c in table.columns]
        for key in ("operators", "hbm_read_bytes", "hbm_write_bytes", "compulsory_bytes"):
            at = columns.index(key)
            assert blocks[at] == by_name["0"][at] + by_name["1"][at]  # type: ignore[operator]

    @pytest.mark.parametrize("seed", range(12))
    def test_children_add_up_to_their_parent(self, seed: int) -> None:
        """Of modules drawn at random, at every depth: what runs in none of a module's children is its own."""
        torch.manual_seed(seed)
        model = drawn(3)
        with TrafficMode("h200") as t:
            (model(torch.ones(4, 8, requires_grad=True)) * 2).sum().backward()
        for depth in range(5):
            rows = t.table(depth).rows
            levels = [
                (len(name) - len(name.lstrip())) // 2 for name in (str(row[0]) for row in rows)
            ]
            for n, (row, level) in enumerate(zip(rows, levels, strict=True)):
                below = [m for m in range(n + 1, len(rows)) if min(levels[n + 1 : m + 1]) > level]
                children = [rows[m] for m in below if levels[m] == level + 1]
                if n == 0:  # the whole program's children stand where it does
                    children = [rows[m] for m in range(1, len(rows)) if levels[m] == 0]
                for at in (1, 2, 3, 5, 6):  # operators and bytes
                    assert not children or row[at] == sum(child[at] for child in children)  # type: ignore[misc]
        assert str(t).count("(own)") >= 1

    def test_backward_stands_in_the_module_whose_forward_it_is_of(
        self, trained: tuple[ProgramTraffic, Model, torch.Tensor]
    ) -> None:
        where = {
            (r.operator, r.phase): r.module
            for r in trained[0].rows
            if r.operator.startswith("attention")
        }
        assert where["attention", "forward"] == ("Model", "blocks", "1")
        assert where["attention_backward", "backward"] == ("Model", "blocks", "0")
        weights = [
            r for r in trained[0].rows if r.operator == "mm" and r.module == ("Model", "head")
        ]
        assert {r.phase for r in weights} == {"backward"}
        assert len(weights) == 2  # of the input and of the weight

    def test_every_call_gets_the_kernel_of_that_gpu(
        self, trained: tuple[ProgramTraffic, Model, torch.Tensor]
    ) -> None:
        assert (
            fused(trained[0])
            == [("attention", "cudnn")] * 2 + [("attention_backward", "cudnn")] * 2
        )
        assert trained[0].unknown == ()

    @pytest.mark.slow
    def test_values_stay_what_they_are(
        self, trained: tuple[ProgramTraffic, Model, torch.Tensor]
    ) -> None:
        _, model, tokens = trained
        mine = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        step(model, tokens)
        for name, p in model.named_parameters():
            assert torch.allclose(mine[name], p.grad, atol=1e-2), name

    @pytest.mark.slow
    def test_fake_tensors_move_what_real_ones_do(
        self, trained: tuple[ProgramTraffic, Model, torch.Tensor]
    ) -> None:
        with FakeTensorMode():
            model = made()
            tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
            fake = one(lambda: step(model, tokens))
        assert [r.operator for r in fake.rows] == [r.operator for r in trained[0].rows]
        assert fake.hbm == trained[0].hbm

    def test_results_as_the_house_shows_them(
        self, trained: tuple[ProgramTraffic, Model, torch.Tensor], tmp_path: Path
    ) -> None:
        traffic = trained[0]
        frame = traffic.to_pandas()
        assert int(frame.hbm_read.sum()) == traffic.hbm.read
        assert set(frame.phase) == {"forward", "backward"}
        assert "<table>" in traffic._repr_html_()
        assert "blocks" in str(traffic)
        assert traffic.to_dict()["totals"]["hbm"]["read"] == traffic.hbm.read
        traffic.export_chrome_trace(tmp_path / "trace.json")
        events = checked((tmp_path / "trace.json").read_text())["traceEvents"]
        operators = [
            e for e in events if e["ph"] == "X" and e.get("cat") in ("forward", "backward")
        ]
        assert sum(e["args"]["hbm_read"] for e in operators) == traffic.hbm.read
        end = operators[-1]["ts"] + operators[-1]["dur"]
        assert end == pytest.approx(traffic.time_s * 1e6, abs=1e-3)  # whole nanoseconds
        modules = [e for e in events if e.get("cat") == "module"]
        assert max(e["ts"] + e["dur"] for e in modules) == pytest.approx(end)
        assert events.index(modules[0]) < events.index(operators[0])


class TestAttention:
    @pytest.mark.parametrize(
        ("gpu", "cudnn", "dtype", "kernel"),
        [
            ("h200", "9.19.0", BF16, "cudnn"),
            ("h200", "9.10.2", BF16, "fa2"),
            ("h200", "none", BF16, "fa2"),
            ("a100", "9.19.0", BF16, "fa2"),
            ("t4", "9.19.0", torch.float16, "cutlass"),
            ("h200", "9.19.0", torch.float32, "cutlass"),
        ],
    )
    def test_pytorchs_own_order(
        self, gpu: str, cudnn: str, dtype: torch.dtype, kernel: str
    ) -> None:
        q, k, v = heads(1, 2, 128, 64, dtype=dtype)
        assert fused(one(lambda: functional.scaled_dot_product_attention(q, k, v), gpu, cudnn)) == [
            ("attention", kernel)
        ]

    def test_sdpa_kernel_is_obeyed(self) -> None:
        q, k, v = heads(1, 2, 128, 64)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            assert fused(one(lambda: functional.scaled_dot_product_attention(q, k, v))) == [
                ("attention", "cutlass")
            ]
        with sdpa_kernel(SDPBackend.MATH):
            math = one(lambda: functional.scaled_dot_product_attention(q, k, v))
        assert math.attention.rows == math.rows
        assert [r.operator for r in math.rows].count("bmm") == 2
        assert math.flops == 2 * (2 * 2 * 128 * 128 * 64)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(InputError, match="no kernel"):
            one(lambda: functional.scaled_dot_product_attention(q.float(), k.float(), v.float()))

    def test_fused_kernels_take_no_strided_mask(self) -> None:
        q, k, v = heads(1, 2, 128, 64)
        bias = torch.empty(128, 128, 2, dtype=BF16).permute(2, 0, 1)[
            None
        ]  # as T5 makes its own of an embedding
        seen = {
            name: one(
                lambda mask=mask: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            )
            for name, mask in (("strided", bias), ("contiguous", bias.contiguous()))
        }
        assert fused(seen["contiguous"]) == [("attention", "cudnn")]
        assert [r.operator for r in seen["strided"].rows].count("bmm") == 2

    def test_a_mask_with_256_columns_is_cudnns(self) -> None:
        """Gemma 3 on an H100: PyTorch 2.11 takes cuDNN's fprop and bprop, not the memory-efficient kernel."""
        q = torch.empty(1, 2, 256, 256, dtype=BF16, device="meta", requires_grad=True)
        mask = torch.ones(256, 256, dtype=torch.bool, device="meta")
        traffic = one(
            lambda: (
                functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum().backward()
            ),
            "h100",
            cudnn="9.19.0",
        )
        assert fused(traffic) == [("attention", "cudnn"), ("attention_backward", "cudnn")]

    def test_alone_it_moves_what_predict_says(self) -> None:
        q, k, v = heads(2, 8, 1024, 64)
        traffic = one(
            lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True), cudnn="none"
        )
        problem = AttentionProblem(
            batch=2, heads=8, seq_q=1024, head_dim=64, dtype="bf16", mask="causal"
        )
        p = predict(problem, "fa2", "h200")
        assert traffic.rows[0].l2_read == p.l2.read
        assert traffic.rows[0].hbm_read == pytest.approx(p.hbm.read, rel=0.01)

    def test_grouped_heads_and_masks(self) -> None:
        q, k, v = (
            torch.empty(1, 8, 256, 64, dtype=BF16),
            *(torch.empty(1, 2, 256, 64, dtype=BF16) for _ in range(2)),
        )
        grouped = one(lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))
        assert grouped.rows[0].compulsory == 2 * (2 * q.numel() + 2 * k.numel())
        k, v = heads(1, 8, 256, 64)[:2]
        mask = torch.ones(256, 256, dtype=torch.bool)
        masked = one(
            lambda: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), "a100"
        )
        assert fused(masked) == [("attention", "cutlass")]
        assert sum(r.operator == "convert_mask" for r in masked.rows) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("backend", "kernel"), [("flash", "fa2"), ("efficient", "cutlass"), ("cudnn", "cudnn")]
    )
    def test_an_operator_that_names_its_backend(self, backend: str, kernel: str) -> None:
        q = torch.empty(1, 2, 256, 64, dtype=BF16, device="meta", requires_grad=True)
        more = {} if backend == "flash" else {"attn_bias": None, "compute_log_sumexp": True}
        operator = getattr(torch.ops.aten, f"_scaled_dot_product_{backend}_attention")
        traffic = one(lambda: operator(q, q, q, is_causal=True, **more)[0].sum().backward())
        assert fused(traffic) == [("attention", kernel), ("attention_backward", kernel)]

    def test_modules_of_pytorch_that_attend(self) -> None:
        layer = nn.MultiheadAttention(64, 2, batch_first=True, dtype=BF16)
        x = torch.randn(2, 128, 64, dtype=BF16)
        assert fused(one(lambda: layer(x, x, x, need_weights=False))) == [("attention", "cudnn")]

    @pytest.mark.slow
    def test_flex_attention(self) -> None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q = torch.randn(1, 2, 512, 64)
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512, device="cpu")
        with TrafficMode("h200") as t:
            out = flex_attention(q, q, q, block_mask=mask)
        assert torch.allclose(
            out, functional.scaled_dot_product_attention(q, q, q, is_causal=True), atol=1e-5
        )
        assert fused(t.result) == [("attention", "flex")]
        every = one(lambda: flex_attention(q, q, q))
        assert [r.launches for r in every.rows if r.is_attention] == [
            1
        ]  # a list's fills are operators of their own
        whole = every.attention
        assert t.result.l2.read < whole.l2.read  # ten of sixteen blocks

    @pytest.mark.parametrize(
        "keeps",
        [
            lambda b, h, i, j: i >= j,
            lambda b, h, i, j: (i - j).abs() <= 100,
            lambda b, h, i, j: (i // 300) == (j // 300),
        ],
    )
    def test_block_masks_without_values(self, keeps: Callable[..., torch.Tensor]) -> None:
        """On the meta device, as fake tensors and on the CPU for queries that have no values: the same blocks."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        real = create_block_mask(keeps, None, None, 900, 1000, device="cpu")
        bare = create_block_mask(keeps, 1, 1, 900, 1000, device="meta")
        q = torch.randn(1, 2, 900, 64)
        k = torch.randn(1, 2, 1000, 64)
        wanted = one(lambda: flex_attention(q, k, k, block_mask=real)).l2
        q = q.to("meta")
        k = k.to("meta")
        for mask in (real, bare):
            assert one(lambda mask=mask: flex_attention(q, k, k, block_mask=mask)).l2 == wanted
        with FakeTensorMode():
            fake = create_block_mask(keeps, None, None, 900, 1000, device="cpu")
            q = torch.empty(1, 2, 900, 64)
            k = torch.empty(1, 2, 1000, 64)
            assert one(lambda: flex_attention(q, k, k, block_mask=fake)).l2 == wanted
        trained = torch.empty(1, 2, 900, 64, device="meta", requires_grad=True)
        with TrafficMode("h200") as t:
            out = flex_attention(trained, k.to("meta"), k.to("meta"), block_mask=bare)
            out.backward(torch.empty_like(out))
        assert {r.kernel for r in t.result.attention.rows} == {"flex"}

    def test_a_block_mask_that_hangs_on_values(self) -> None:
        from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

        q = torch.empty(1, 2, 512, 64, device="meta")
        documents = torch.empty(512, dtype=torch.long, device="meta")
        mask = create_block_mask(
            lambda b, h, i, j: documents[i] == documents[j], 1, 1, 512, 512, device="meta"
        )
        with pytest.raises(InputError, match="mask_mod that needs none of those"):
            one(lambda: flex_attention(q, q, q, block_mask=mask))
        counts, places = (
            torch.empty(1, 1, 4, *more, dtype=torch.int32, device="meta") for more in ((), (4,))
        )
        block_mask = BlockMask.from_kv_blocks(counts, places)  # no function made it
        with pytest.raises(InputError, match="a BlockMask of CPU tensors"):
            one(lambda: flex_attention(q, q, q, block_mask=block_mask))


class TestOperators:
    def test_views_cost_nothing_and_passes_their_tensors(self) -> None:
        x = torch.empty(64, 1024)
        traffic = one(lambda: x.view(1024, 64).t()[:32].expand(2, 32, 1024).add(1.0))
        assert [(r.operator, r.compulsory) for r in traffic.rows] == [
            ("add", 4 * (32 * 1024 + 2 * 32 * 1024))
        ]

    def test_what_is_in_the_l2_is_not_read_again(self) -> None:
        with FakeTensorMode():
            x, y = (
                torch.empty(1 << 20),
                torch.empty(1 << 26),
            )  # 4 MB, which fit with the result, and 256 MB
            first, second = one(lambda: x.add(1.0).mul(2.0)).rows
            long = one(lambda: y.add(1.0).mul(2.0)).rows
        assert first.hbm_read >= x.nbytes
        assert second.hbm_read < 0.02 * x.nbytes
        assert long[1].hbm_read > 0.9 * y.nbytes

    def test_rows_of_one_cta_come_from_one_side_of_the_l2(self) -> None:
        """Attention with one query block a head: nothing is loaded by two CTAs, and 44 MB of Q, K, V and O are there
        once it has ended, where loads from both sides would take twice as much room."""
        with FakeTensorMode():
            q, k, v = (torch.empty(512, 2, 84, 64, dtype=BF16) for _ in range(3))
            o = one(lambda: functional.scaled_dot_product_attention(q, k, v).add(q)).rows
        assert o[1].hbm_read < 0.2 * 2 * q.nbytes

    def test_products_are_compulsory_where_they_fit(self) -> None:
        a = torch.empty(2048, 512, dtype=BF16)
        b = torch.empty(512, 1024, dtype=BF16)
        (row,) = one(lambda: a @ b).rows
        assert row.flops == 2 * 2048 * 512 * 1024
        assert row.compulsory == a.nbytes + b.nbytes + 2 * 2048 * 1024
        assert row.hbm_read == pytest.approx(a.nbytes + b.nbytes, rel=0.02)

    def test_norms_and_dropout_are_the_gpus_launches(self) -> None:
        norm = nn.RMSNorm(256)
        x = torch.randn(8, 256, requires_grad=True)
        with TrafficMode("h200") as t:
            y = norm(x)
            functional.dropout(y, 0.5).sum().backward()
        names = [r.operator for r in t.result.rows]
        assert names[:2] == ["_fused_rms_norm", "native_dropout"]
        assert names[-2:] == ["_fused_rms_norm_backward.input", "_fused_rms_norm_backward.weight"]
        assert x.grad is not None
        assert norm.weight.grad is not None

    def test_long_rows_of_a_softmax_are_read_again(self) -> None:
        with FakeTensorMode():
            long, result = (
                torch.empty(4096, 50_000, dtype=BF16),
                torch.empty(4096, 50_000, dtype=BF16),
            )
            again = one(lambda: torch._softmax_backward_data(long, result, -1, BF16))
            short = torch.empty(200_000, 1024, dtype=BF16)
            once = one(lambda: functional.softmax(short, dim=-1))
        product, last = again.rows
        assert (product.operator, last.operator) == (
            "_softmax_backward_data.product",
            "_softmax_backward_data",
        )
        # softmax_backward_cuda_out writes grad x result first, and sums that.
        assert product.l2_write == long.nbytes
        assert product.hbm_read == pytest.approx(2 * long.nbytes, rel=0.02)
        assert last.hbm_read > 2.6 * long.nbytes
        assert once.hbm.read == pytest.approx(short.nbytes, rel=0.02)

    def test_unknown_operators_are_listed_and_counted_once(self) -> None:
        x = torch.randn(64, 64)
        traffic = one(lambda: torch.linalg.qr(x))
        assert traffic.unknown == ("linalg_qr",)
        assert any("linalg_qr" in note for note in traffic.notes)
        assert traffic.rows[0].compulsory == 3 * x.nbytes

    def test_memory_of_an_operators_own(self) -> None:
        @torch.library.custom_op("iosim_test::in_two_steps", mutates_args=())
        def in_two_steps(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @register_traffic_formula(torch.ops.iosim_test.in_two_steps)
        def formula(x: torch.Tensor, *, out: torch.Tensor) -> list[Pass]:
            between = Scratch(x.nbytes)
            return [Pass([x], [between], "first"), Pass([between], [out], "second")]

        x = torch.ones(4096, 8192)  # 134 MB: more than the L2
        first, second = one(lambda: in_two_steps(x)).rows
        assert first.hbm_read == pytest.approx(x.nbytes, rel=0.01)
        assert second.hbm_read > 0.6 * x.nbytes

    def test_what_is_changed_in_place_was_there_before(self) -> None:
        """Three tensors of the caller's, and one that is made within."""
        x = torch.ones(64)
        y = torch.zeros(64, dtype=torch.int64)
        z = torch.ones(8, 8)

        def changes() -> torch.Tensor:
            x.add_(1)
            y.zero_()
            nn.functional.relu_(z)
            return x.mul(2)

        program = recorded(changes)
        producers = [storage.made for storage in program.storages]
        assert producers == [None, None, None, len(program.operators) - 1]

    def test_convolutions_put_channels_last(self) -> None:
        x = torch.randn(8, 16, 64, 64, dtype=BF16)
        conv = nn.Conv2d(16, 32, 3, bias=False, dtype=BF16)
        names = [r.operator for r in one(lambda: conv(x)).rows]
        assert names == ["convolution.channels_last"] * 2 + [
            "convolution",
            "convolution.channels_first",
        ]
        program = recorded(lambda: conv(x).neg())
        laid, _, product, put_back, _ = program.operators
        # The product reads what the copy wrote, and leaves its result where the last launch finds it.
        assert product.views["A"].storage in {view.storage for view in laid.views.values()}
        assert product.views["A"].storage != laid.views["t0"].storage
        assert product.views["C"].storage == put_back.views["t0"].storage
        result = program.storages[product.views["C"].storage]
        assert (result.made, result.freed) == (2, 4)  # between the copies and the negation
        last = conv.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        assert [r.operator for r in one(lambda: last[0](last[1])).rows] == ["convolution"]
        bare = nn.Conv2d(
            16, 32, 3, bias=False, dtype=BF16, device="meta"
        )  # of tokens, as a vision model lays them out
        tokens = (
            torch.empty(8, 64 * 64, 16, dtype=BF16, device="meta")
            .transpose(1, 2)
            .unflatten(2, (64, 64))
        )
        assert [r.operator for r in one(lambda: bare(tokens)).rows] == [
            "convolution.channels_last",
            "convolution",
        ]
        with TrafficMode("h200"):
            assert bare(tokens).is_contiguous(memory_format=torch.channels_last)
        single = nn.Conv2d(3, 8, 3)
        assert [r.operator for r in one(lambda: single(torch.randn(2, 3, 8, 8))).rows] == [
            "randn",
            "convolution",
            "convolution.bias",
        ]

    def test_copies_for_cudnn_have_whole_channels(self) -> None:
        x = torch.empty(8, 3, 64, 64, dtype=BF16)
        conv = nn.Conv2d(3, 32, 3, bias=False, dtype=BF16)
        image, weight, product, _ = one(lambda: conv(x)).rows
        assert (image.l2_read, image.l2_write) == (x.nbytes, x.nbytes * 8 // 3)
        assert weight.l2_write == conv.weight.nbytes * 8 // 3
        assert product.flops == 2 * 8 * 62 * 62 * 32 * 27  # padding multiplies nothing

    def test_windows_that_overlap_are_read_from_hbm_once(self) -> None:
        last = torch.channels_last
        x = torch.empty(8, 64, 128, 128, dtype=BF16).to(memory_format=last)  # 17 MB
        conv = nn.Conv2d(64, 64, 3, bias=False, dtype=BF16).to(memory_format=last)
        (product,) = one(lambda: conv(x)).rows
        assert product.l2_read > 8 * x.nbytes  # every window by itself
        assert product.hbm_read < 1.1 * x.nbytes

    def test_an_inputs_gradient_is_written_once(self) -> None:
        last = torch.channels_last
        x = torch.empty(8, 64, 64, 64, dtype=BF16).to(memory_format=last).requires_grad_()
        conv = nn.Conv2d(64, 64, 3, padding=1, bias=False, dtype=BF16).to(memory_format=last)
        with TrafficMode("h200") as t:
            conv(x).backward(torch.empty_like(x))
        (product,) = (r for r in t.result.rows if r.operator == "convolution_backward.input")
        assert product.l2_write == x.nbytes
        assert product.flops == 2 * 8 * 64 * 64 * 64 * 64 * 9

    def test_depthwise_convolutions_keep_channels_last(self) -> None:
        conv = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False, dtype=BF16, device="meta")
        tokens = torch.empty(2, 32 * 32, 64, dtype=BF16, device="meta")
        with TrafficMode("h200") as t:
            out = conv(tokens.transpose(1, 2).unflatten(2, (32, 32))).flatten(2).transpose(1, 2)
            assert out.is_contiguous()  # so that a linear layer after it copies nothing
        assert [r.operator for r in t.result.rows] == ["convolution.depthwise"]

    @pytest.mark.parametrize(("channels", "side"), [(128, 128), (256, 64), (640, 32), (1024, 16)])
    def test_depthwise_convolutions_load_a_rim(self, channels: int, side: int) -> None:
        """As an H200 counted them in a SegFormer: within a quarter forward, a tenth backward."""
        stage = 3 - [128, 256, 640, 1024].index(channels)
        table = ROOT / "experiments" / "measurements" / "h200_transformers_kernels.csv"
        with table.open(encoding="utf-8") as file:
            counted = [r for r in csv.DictReader(file) if r["model"] == "segformer"]
        kernels = [r for r in counted if r["pass"] == "bwd" and r["kernel"].startswith("dgrad")]
        forward = [r for r in counted if r["pass"] == "fwd"][2 * (3 - stage)]
        conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False, dtype=BF16)
        x = torch.empty(8, channels, side, side, dtype=BF16, device="meta")
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        with TrafficMode("h200") as t:
            out = conv.to("meta")(x)
            out.backward(torch.empty_like(out))
        by_operator = {r.operator: r.l2_read for r in t.result.rows}
        assert by_operator["convolution.depthwise"] == pytest.approx(
            int(forward["l2_read"]), rel=0.25
        )
        backward = int(kernels[2 * stage]["l2_read"])
        assert by_operator["convolution_backward.input"] == pytest.approx(backward, rel=0.1)

    @pytest.mark.parametrize(("channels", "times"), [(512, 16), (64, 2), (32, 1)])
    def test_a_transposed_operand_costs_a_sector_an_element(
        self, channels: int, times: int
    ) -> None:
        # A CTA takes 512 elements of the result in a row: of 512 channels those of one place, of 32 those of 16 places,
        # which are all that a sector has.
        x = torch.empty(4, channels, 1024, dtype=BF16, device="meta").transpose(1, 2)
        y = torch.empty(4, 1024, channels, dtype=BF16, device="meta")
        copied, added = one(lambda: (x.contiguous(), y + x)).rows
        assert (copied.l2_read, copied.l2_write) == (times * x.nbytes, x.nbytes)
        assert added.l2_read == (1 + times) * x.nbytes
        assert copied.hbm_read < x.nbytes + 65536  # the rest of a sector waits in the L2

    def test_statistics_of_a_row_take_a_sector(self) -> None:
        x = torch.empty(4096, 64, dtype=BF16, device="meta", requires_grad=True)
        norm = nn.LayerNorm(64, dtype=BF16, device="meta")
        with TrafficMode("h200") as t:
            norm(x).backward(torch.empty_like(x))
        forward, of_input, _ = t.result.rows
        sectors = 2 * 4096 * 32  # a mean and an rstd a row
        weights = 2 * 64 * 2
        assert (forward.l2_read, forward.l2_write) == (x.nbytes + weights, x.nbytes + sectors)
        assert of_input.l2_read == 2 * x.nbytes + weights // 2 + sectors
        assert forward.compulsory == 2 * x.nbytes + weights + 2 * 4096 * 4

    def test_norms_and_softmaxes_copy_what_is_not_contiguous(self) -> None:
        x = torch.empty(4, 64, 256, dtype=BF16, device="meta").transpose(1, 2)
        norm = nn.LayerNorm(64, dtype=BF16, device="meta")
        rows = one(lambda: (norm(x), x.softmax(-1), norm(x.contiguous()))).rows
        assert [r.operator for r in rows] == [
            "native_layer_norm.copy",
            "native_layer_norm",
            "_softmax.copy",
            "_softmax",
            "clone",
            "native_layer_norm",
        ]

    def test_a_depthwise_convolution_reads_each_channel_once(self) -> None:
        conv = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False, dtype=BF16)
        x = torch.empty(2, 64, 32, 32, dtype=BF16).requires_grad_()
        (forward,) = one(lambda: conv(x)).rows
        assert forward.operator == "convolution.depthwise"
        assert (forward.l2_read, forward.l2_write) == (2 * (x.numel() + 64 * 9), 2 * x.numel())
        with TrafficMode("h200") as t:
            conv(x).backward(torch.empty_like(x))
        read = {r.operator: r.l2_read for r in t.result.rows if r.phase == "backward"}
        assert read["convolution_backward.input"] == 2 * (x.numel() + 64 * 9)
        assert read["convolution_backward.weight"] == 2 * 2 * x.numel()
        grouped = nn.Conv2d(64, 128, 1, groups=4, bias=False, dtype=BF16)
        (product,) = one(lambda: grouped(x.detach())).rows
        assert product.flops == 2 * 2 * 32 * 32 * 128 * 16

    def test_an_operator_of_ones_own(self) -> None:
        @torch.library.custom_op("iosim_test::scale_rows", mutates_args=())
        def scale_rows(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
            return x * scales[:, None]

        x = torch.ones(256, 64)
        scales = torch.ones(256)
        assert one(lambda: scale_rows(x, scales)).unknown == ("iosim_test::scale_rows",)

        @register_traffic_formula(torch.ops.iosim_test.scale_rows)
        def formula(x: torch.Tensor, scales: torch.Tensor, *, out: torch.Tensor) -> list[Pass]:
            return [Pass([Part(x, x.numel() // 2), scales], [out], "half")]

        traffic = one(lambda: scale_rows(x, scales))
        assert traffic.unknown == ()
        assert [(r.operator, r.compulsory) for r in traffic.rows] == [
            ("iosim_test::scale_rows.half", 4 * (128 * 64 + 256 + 256 * 64))
        ]
        with pytest.raises(InputError, match="override"):
            register_traffic_formula(scale_rows)(formula)

    @pytest.mark.slow
    def test_compiled_modules_run_as_they_were_written(self) -> None:
        layer = nn.Sequential(nn.Linear(64, 64), nn.GELU())
        x = torch.randn(32, 64)
        compiled = torch.compile(layer, backend="eager")
        assert [r.operator for r in one(lambda: compiled(x)).rows] == [
            r.operator for r in one(lambda: layer(x)).rows
        ]

    def test_a_training_step_with_its_optimizer(self) -> None:
        layer = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
        )
        optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)

        def train() -> None:
            functional.cross_entropy(
                layer(torch.ones(4, 3, 8, 8)), torch.zeros(4, dtype=torch.long)
            ).backward()
            optimizer.step()

        traffic = one(train)
        assert traffic.unknown == ()
        assert {r.operator for r in traffic.rows} >= {
            "convolution",
            "convolution.bias",
            "convolution_backward.weight",
            "native_batch_norm_backward.sums",
            "_foreach_lerp_",
        }


class TestRefusals:
    def test_results_that_hang_on_values(self) -> None:
        with FakeTensorMode():
            x = torch.empty(8)
            with pytest.raises(InputError, match="hangs on values"):
                one(lambda: torch.nonzero(x))

    @pytest.mark.parametrize(
        ("options", "message"), [({"gpu": "h201"}, "h201"), ({"cudnn": "new"}, "cudnn 'new'")]
    )
    def test_bad_input(self, options: dict[str, str], message: str) -> None:
        with pytest.raises(InputError, match=message):
            TrafficMode(**options)  # type: ignore[arg-type]

    def test_the_result_is_there_after_the_end(self) -> None:
        with TrafficMode("h200") as t:
            torch.ones(4)
            with pytest.raises(InputError, match="after the with block"):
                _ = t.result
            with pytest.raises(InputError, match="runs already"), t:
                pass
        with pytest.raises(InputError, match="depth -1"):
            t.table(depth=-1)
        with pytest.raises(InputError, match="phase 'both'"):
            t.result.phase("both")


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        ("torch.sparse_csr", lambda x: x.to_sparse_csr() @ x),
        ("torch.sparse_coo", lambda x: x.to_sparse()),
        ("nested", lambda x: torch.nested.nested_tensor([x, x[:2]]) * 2),
    ],
)
def test_a_tensor_without_one_storage_is_refused_in_a_line(
    kind: str, program: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    message = f"a {kind} tensor .* is not described; accepted: dense tensors"
    with TrafficMode(gpu="a100"), pytest.raises(InputError, match=message):
        program(torch.eye(4))
