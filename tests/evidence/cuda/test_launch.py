"""The kernels against float64 on this machine's GPU."""

from __future__ import annotations

import pytest

from iosim.base.errors import InputError
from iosim.evidence.cuda import driver
from iosim.evidence.cuda.compiler import find_nvcc
from iosim.evidence.cuda.launch import Forward, Order, Shape
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec

pytestmark = pytest.mark.gpu

SPECS = [
    FwdSpec(64, 128, 128, 4, 2, "causal", min_ctas=2),
    FwdSpec(96, 128, 64, 4, 2, "none", "fp16"),
    FwdSpec(128, 128, 64, 4, 2, "window", min_ctas=2),
    FwdSpec(128, 64, 64, 4, 1, "causal", "fp16", persistent=True),
    FwdSpec(128, 64, 64, 4, 2, "none", split=True),
    FwdSpec(256, 64, 32, 4, 2, "causal"),
    BwdSpec(64, 64, 64, 4, "causal", "fp16"),
    BwdSpec(128, 32, 64, 4, "none", deterministic=True),
    NaiveSpec(64, "fp16"),
    MinimalSpec(64),
]


@pytest.fixture(scope="module")
def bench() -> object:
    """experiments/bench.py, or a skip with what is missing here."""
    try:
        find_nvcc()
        driver.use_device()
    except InputError as error:
        pytest.skip(str(error))
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch here is built without CUDA")
    return pytest.importorskip("bench")


@pytest.mark.parametrize(
    "spec",
    SPECS,
    ids=lambda spec: type(spec).__name__ + "-" + "-".join(map(str, vars(spec).values())),
)
def test_agrees_with_float64(
    bench: object, spec: FwdSpec | BwdSpec | NaiveSpec | MinimalSpec
) -> None:
    for seed, (case, extremes) in enumerate(bench.small(spec)):  # type: ignore[attr-defined]
        good, errors = bench.trusted(case, seed, **extremes)  # type: ignore[attr-defined]
        assert good, f"{case}: {errors}"


def test_calls_that_do_not_fit_are_refused(bench: object) -> None:
    forward = Forward(FwdSpec(64, 64, 64, 4, 2))
    shape = Shape(1, 2, 2, 64, 64, 64)
    addresses = dict.fromkeys(("q", "k", "v", "o", "lse"), 0)
    with pytest.raises(InputError, match="head_dim 128 is not the 64"):
        forward.launches(Shape(1, 2, 2, 64, 64, 128), addresses)
    with pytest.raises(InputError, match="needs a kernel built with split keys"):
        forward.launches(shape, addresses, Order(splits=2))
    with pytest.raises(InputError, match="does not fit a kernel built for mask none"):
        forward.launches(Shape(1, 2, 2, 64, 64, 64, window=8), addresses)
    with pytest.raises(InputError, match="scale -1"):
        forward.launches(shape, addresses, scale=-1)
