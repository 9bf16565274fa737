"""Compiled Triton kernels: machine code read, described as kernels, and what Proton is told. Kernels are recorded ones
(tests/golden/make_triton.py) in stand-ins for Triton's classes; where Triton is installed, it compiles one."""

from __future__ import annotations

import base64
import json
import math
import zlib
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from scripts import ROOT

from iosim import AttentionProblem, predict
from iosim.base.errors import InputError
from iosim.catalog.resource_table import spill_of_frame
from iosim.code.cubin import read_cubin
from iosim.integrations.triton.compiled import schedule_of
from iosim.kernel.kernel import Kernel, Order, Scheduler, Tile
from iosim.kernel.remap import place
from iosim.kernel.schedule import Schedule
from iosim.kernel.unit import MatrixUnit
from iosim.triton import describe, launch_metadata

RECORDED = json.loads((ROOT / "tests" / "golden" / "triton.json").read_text())
PROBLEM = AttentionProblem(heads=8, seq_q=1024, head_dim=32, dtype="fp16")
ARGS = {"Z": 1, "H": 8, "N_CTX": 1024, "HEAD_DIM": 32, "STAGE": 1}
GRID = (16, 8, 1)


def cubin(name: str) -> bytes:
    return zlib.decompress(base64.b64decode(RECORDED[name]["cubin"]))


def compiled(name: str, **changes: Any) -> Any:
    """As Triton's CompiledKernel."""
    record = RECORDED[name]
    source = SimpleNamespace(
        constants={tuple(k): v for k, v in record["constants"]},
        fn=SimpleNamespace(arg_names=record["arg_names"]),
    )
    asm = {"ptx": "\n".join(record["ptx"]), "cubin": cubin(name)}
    parts = {"metadata": SimpleNamespace(**record["metadata"]), "asm": asm, "src": source} | changes
    return SimpleNamespace(**parts)


class TestCubin:
    def test_a_kernel_that_spills(self) -> None:
        flash_forward = read_cubin(cubin("spilling"))["flash_forward"]
        assert (flash_forward.registers, flash_forward.frame_bytes) == (64, 216)

    def test_a_kernel_that_does_not(self) -> None:
        flash_forward = read_cubin(cubin("small"))["flash_forward"]
        assert (flash_forward.registers, flash_forward.frame_bytes) == (69, 0)

    @pytest.mark.parametrize("data", [b"", b"PK", b"\x7fELF", cubin("small")[:3000]])
    def test_what_is_no_cubin(self, data: bytes) -> None:
        with pytest.raises(InputError, match="no cubin"):
            read_cubin(data)


class TestDescribe:
    def test_a_compiled_kernel(self) -> None:
        description = describe(compiled("small"), GRID, ARGS)
        assert description == Kernel(
            "flash_forward",
            "flash",
            Tile(64, 32, 4, 2),
            threads=128,
            registers=69,
            shared_memory_bytes=6144,
            matrix_unit=MatrixUnit.WGMMA,
            machine=description.machine,
            notes=description.notes,
        )
        assert description.machine is not None or "nvdisasm is not found" in description.notes[0]
        assert predict(PROBLEM, description, "h100", method="capacity").time.total_s > 0

    def test_turns_of_its_loop_take_time(self) -> None:
        """16 times the keys are 16 times the turns of each CTA, beside what a launch takes anyway."""
        description = describe(compiled("small"), GRID, ARGS)
        if description.machine is None:
            pytest.skip("nvdisasm is not found")
        seconds = [
            predict(PROBLEM.with_(seq_k=keys), description, "h100", method="capacity").time_s
            for keys in (1024, 16_384)
        ]
        assert 4 < seconds[1] / seconds[0] <= 16

    @pytest.mark.slow
    def test_what_spills_costs_traffic_and_time(self) -> None:
        description = describe(compiled("spilling"), GRID, ARGS)
        assert description.matrix_unit is MatrixUnit.MMA_SYNC
        assert description.spill is not None
        if (
            description.machine is None
        ):  # no tool reads the code here: the whole frame is taken to be stored once a step
            assert description.spill == spill_of_frame(216)
        else:  # of 54 words of frame the loop stores 34; the others before it, once
            assert (description.spill.write_per_pair, description.spill.source) == (
                34 * 4,
                "counted in machine code",
            )
        with_, without = (
            predict(PROBLEM, k, "a100", method="capacity")
            for k in (description, description.with_(spill=None))
        )
        # 34 words of 128 threads at each of 16 steps of 8 x 16 tiles, and what is stored before the loop
        stored = 16 * description.spill.write_per_pair + description.spill.write_per_tile
        assert with_.total("l2", "write") - without.total("l2", "write") == stored * 128 * 8 * 16
        slow = description.with_(machine=None)
        assert (
            predict(PROBLEM, slow, "a100").time_s
            > predict(PROBLEM, slow.with_(spill=None), "a100").time_s
        )

    def test_the_drivers_word_where_there_is_no_machine_code(self) -> None:
        loaded = compiled("small", asm={}, n_regs=255, n_spills=190)
        description = describe(loaded, GRID, ARGS)
        assert (description.registers, description.spill, description.matrix_unit) == (
            255,
            spill_of_frame(760),
            None,
        )
        assert describe(compiled("small", asm={}), GRID, ARGS).registers is None  # estimated

    @pytest.mark.parametrize(
        ("grid", "order", "scheduler", "ctas"),
        [
            ((16, 8, 1), Order.QUERY, Scheduler.STATIC, None),
            ((8, 16), Order.HEAD, Scheduler.STATIC, None),
            ((128,), Order.QUERY, Scheduler.STATIC, None),
            ((100, 1, 1), Order.QUERY, Scheduler.PERSISTENT, 100),
        ],
    )
    def test_the_grid_tells_the_order(
        self, grid: tuple[int, ...], order: Order, scheduler: Scheduler, ctas: int | None
    ) -> None:
        description = describe(compiled("small"), grid, ARGS)
        assert (
            description.schedule.order,
            description.schedule.scheduler,
            description.persistent_ctas,
        ) == (
            order,
            scheduler,
            ctas,
        )

    @pytest.mark.parametrize("batch", [2, 16])
    @pytest.mark.parametrize("axes", list(permutations(("blocks", "heads", "batch"))))
    def test_tiles_start_as_the_axes_run(self, axes: tuple[str, ...], batch: int) -> None:
        """Programs of a grid whose axes stand in any order start head by head and block by block as CUDA starts them,
        up to what heads are called where sequences run faster than heads."""
        problem = PROBLEM.with_(batch=batch, kv_heads=8)
        sizes = {"blocks": 32, "heads": 8, "batch": batch}
        tile = Tile(32, 32, 4, 2)
        schedule, ctas = schedule_of([sizes[axis] for axis in axes], problem, tile)
        assert ctas is None
        number = np.arange(math.prod(sizes.values()))
        at, rest = {}, number
        for axis in axes:
            at[axis], rest = rest % sizes[axis], rest // sizes[axis]
        head, block = place(schedule, number, blocks=32, heads=8 * batch, batch=batch)
        assert (block == at["blocks"]).all()
        expected_head = at["batch"] * 8 + at["heads"]
        if axes.index("heads") < axes.index("batch") or axes[0] == "blocks":
            assert (head == expected_head).all()
        else:  # another name for each head, the same one throughout
            assert len(set(zip(head.tolist(), expected_head.tolist(), strict=True))) == 8 * batch

    def test_heads_of_all_sequences_on_one_axis(self) -> None:
        problem = PROBLEM.with_(batch=4)
        tile = Tile(64, 32, 4, 2)
        assert schedule_of((32, 16), problem, tile)[0] == Schedule(order=Order.HEAD)
        assert schedule_of((16, 32), problem, tile)[0] == Schedule(order=Order.QUERY)
        assert schedule_of((16, 1, 32), problem, tile)[0] == Schedule(order=Order.QUERY)
        assert schedule_of((128, 4), problem, tile)[0] == Schedule(order=Order.QUERY)
        as_many = PROBLEM.with_(batch=8)  # sequences as heads
        assert schedule_of((8, 8, 16), as_many, tile)[0] == Schedule(order=Order.HEAD)

    def test_a_problem_of_ones_own_and_no_grid(self) -> None:
        assert describe(compiled("small")).schedule.order is Order.QUERY
        assert describe(compiled("small"), (8, 16, 1), problem=PROBLEM).schedule.order is Order.HEAD

    @pytest.mark.parametrize(
        ("fn", "grid", "more", "words"),
        [
            (
                "small",
                (17, 8, 1),
                {},
                "has 136 programs; 8 heads of 16 query blocks need 128 at most",
            ),
            ("small", (0,), {}, "no grid"),
            ("small", GRID, {"names": ("TILE_Q", "TILE_K")}, "lack TILE_Q, TILE_K"),
            ("small", GRID, {"args": {"Z": 1}}, "lack H, N_CTX"),
            (print, GRID, {}, "neither a compiled Triton kernel"),
        ],
    )
    def test_bad_input(
        self, fn: Any, grid: tuple[int, ...], more: dict[str, Any], words: str
    ) -> None:
        kernel_given = compiled(fn) if isinstance(fn, str) else fn
        with pytest.raises(InputError, match=words):
            describe(kernel_given, grid, **({"args": ARGS} | more))

    def test_a_function_needs_a_gpu(self) -> None:
        with pytest.raises(InputError, match="gpu None"):
            describe(SimpleNamespace(arg_names=[], params=[]), GRID, ARGS)

    def test_triton_compiles_for_a_gpu_that_is_not_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("triton")
        from iosim.integrations.triton.forward import flash_forward

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        tensors = dict.fromkeys(("Q", "K", "V", "Out"), "*fp16") | {"M": "*fp32", "sm_scale": 0.1}
        constants = {"BLOCK_M": 64, "BLOCK_N": 32, "HEAD_DIM": 32, "STAGE": 1}
        description = describe(
            flash_forward, GRID, ARGS | tensors | constants, gpu="h100", num_stages=2
        )
        assert description.tile == Tile(64, 32, 4, 2)
        assert description.registers
        assert description.matrix_unit is MatrixUnit.WGMMA


class TestLaunchMetadata:
    METADATA = SimpleNamespace(name="_attn_fwd", num_warps=4, num_stages=3, shared=65536)
    TILE: ClassVar = {"BLOCK_M": 64, "BLOCK_N": 64}

    def test_what_proton_is_told(self) -> None:
        metadata = launch_metadata("h100")(GRID, self.METADATA, ARGS | self.TILE)
        assert metadata["name"] == "_attn_fwd [batch=1, heads=8, tokens=1024, head_dim=32]"
        assert metadata["flops16"] == 4 * 8 * 1024 * 1024 * 32
        # Q, K, V and O once, and the log-sum-exp: all of it stays in the L2 between its uses, and writes may too
        assert 3 * 8 * 1024 * 32 * 2 <= metadata["bytes"] <= 4 * 8 * 1024 * 32 * 2 + 8 * 1024 * 4
        assert set(metadata) == {"name", "flops16", "bytes"}

    def test_bytes_between_sms_and_l2(self) -> None:
        metadata = launch_metadata("h100", level="l2", problem=PROBLEM)(
            GRID, self.METADATA, self.TILE
        )
        # 8 x 16 tiles read 64 rows of Q and all of K and V, and write as many of O and the log-sum-exp
        assert metadata["bytes"] == 8 * 16 * ((64 + 2 * 1024) * 64 + 64 * 64 + 64 * 4)

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match="level 'l1'"):
            launch_metadata("h100", level="l1")
        with pytest.raises(InputError, match="lack BLOCK_M, BLOCK_N"):
            launch_metadata("h100")(GRID, self.METADATA, ARGS)
