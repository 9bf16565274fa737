"""Roles of launches and kinds of tensors: readers ask for these, and compare no names."""

from __future__ import annotations

import ast

import pytest
from house import modules, parsed

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import LaunchRole
from iosim.kernel.tensor_kinds import KEY_SUMS, TensorKind
from iosim.problem.attention import AttentionProblem

BOTH = AttentionProblem(heads=4, kv_heads=2, seq_q=256, seq_k=256, head_dim=64, passes="fwd+bwd")
SPLIT = AttentionProblem(heads=4, seq_q=1, seq_k=4096, head_dim=64, passes="fwd")


@pytest.mark.parametrize(
    ("problem", "kernel", "roles"),
    [
        (BOTH, "fa2", {"main": LaunchRole.MAIN, "bwd.main": LaunchRole.MAIN_BACKWARD}),
        (BOTH, "cutlass", {"main": LaunchRole.MAIN, "bwd.main": LaunchRole.MAIN_BACKWARD}),
        (SPLIT, "fa2", {"main": LaunchRole.MAIN, "combine": LaunchRole.COMBINE}),
        (BOTH, "naive", {}),  # products of a matrix library, and no loop
    ],
)
def test_each_launch_has_its_role(
    problem: AttentionProblem, kernel: str, roles: dict[str, LaunchRole]
) -> None:
    gpu = load_profile("a100")
    chain = plan(problem, resolve(kernel, problem, gpu))
    assert {n.name: n.role for n in chain.launches if n.role is not LaunchRole.OTHER} == roles
    main = chain.launch_of(LaunchRole.MAIN)
    assert (main.name if main else None) == ("main" if "main" in roles else None)


def test_an_appending_launch_has_its_role() -> None:
    gpu = load_profile("a100")
    kernel = resolve("fa2", SPLIT, gpu, Overrides(append_kv=True))
    chain = plan(SPLIT, kernel)
    appends = [launch for launch in chain.launches if launch.role is LaunchRole.APPEND]
    assert [launch.name for launch in appends] == ["append"]


def test_a_kind_is_the_ending_of_a_name() -> None:
    assert TensorKind.SUMS.of("dQ") == "dQ_acc"
    assert TensorKind.COPY.source("LSE_copy") == "LSE"
    assert TensorKind.COPY.source("dQ_acc") == "dQ_acc"
    assert TensorKind.PER_HEAD.is_kind_of("dK_heads")
    assert not TensorKind.PER_HEAD.is_kind_of("kvheads")
    assert KEY_SUMS == ("dK_acc", "dV_acc")


def test_no_module_compares_a_launch_with_a_name_of_the_main_one() -> None:
    named = []
    for module, path in modules().items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Compare):
                texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                if texts & {"main", "bwd.main", "combine", "append"}:
                    named.append(f"{module}:{node.lineno}")
    assert named == []


@pytest.mark.parametrize(("layout", "copies"), [("bhsd", 2), ("bshd", 0)])
def test_a_pass_of_one_layout_is_not_launched_in_another(layout: str, copies: int) -> None:
    problem = AttentionProblem(heads=4, seq_q=256, head_dim=64, passes="bwd", layout=layout)
    chain = plan(problem, resolve("fa2", problem, load_profile("a100")))
    assert sum(launch.name.startswith("bwd.copy") for launch in chain.launches) == copies
