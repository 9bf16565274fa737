"""PyTorch's attention kernels compiled from their sources, without a GPU, beside the builds of its library."""

from __future__ import annotations

from types import ModuleType

import pytest
from scripts import load_script

SAME = ("registers", "frame", "products", "ex2", "fp32", "conversions", "barriers", "local_load_bytes", "local_store_bytes",
        "shared_loads", "shared_stores", "global_synchronous", "global_asynchronous")  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("experiments/source_loops.py")


def rows(script: ModuleType, build: str) -> dict[tuple[str, ...], dict[str, str]]:
    names = ("kernel", "cc", "head_dim", "tile", "mask")
    return {
        tuple(row[name] for name in names): row
        for row in script.recorded()
        if row["build"] == build
    }


def test_sources_of_the_memory_efficient_kernel_compile_to_what_the_library_holds(
    script: ModuleType,
) -> None:
    """Headers of a later PyTorch: some further integer instructions, all else alike."""
    library, source = rows(script, "library"), rows(script, "source")
    compared = [key for key in library if key[0] == "cutlass"]
    assert len(compared) == 4
    for key in compared:
        assert {n: source[key][n] for n in SAME} == {n: library[key][n] for n in SAME}
        assert float(source[key]["turn"]) == pytest.approx(float(library[key]["turn"]), rel=0.01)


def test_a_t4_loads_what_an_a100_copies_asynchronously(script: ModuleType) -> None:
    for key, row in rows(script, "source").items():
        if key[0] == "cutlass":
            assert (float(row["global_asynchronous"]) > 0) == (key[1] == "80")


def test_the_packages_build_issues_half_of_what_pytorchs_does(script: ModuleType) -> None:
    """Its options let an exponential be one instruction; PyTorch's take denormal numbers apart."""
    library, package = rows(script, "library"), rows(script, "package")
    key = ("fa2", "80", "64", "128x128", "none")
    assert float(package[key]["fp32"]) < 0.5 * float(library[key]["fp32"])
    assert package[key]["products"] == library[key]["products"]


def test_recorded_rows_of_the_library_are_those_of_its_table(script: ModuleType) -> None:
    found = rows(script, "library")
    builds = [b for b in script.EFFICIENT_BUILDS + script.FLASH_BUILDS if b.build == "source"]
    for build in builds:
        counted = script.of_library(build)
        key = (
            build.kernel,
            str(build.cc),
            str(build.head_dim),
            f"{build.block_q}x{build.block_k}",
            "none",
        )
        if key in found:
            assert {n: found[key][n] for n in script.COUNTS} == {
                n: counted[n] for n in script.COUNTS
            }
