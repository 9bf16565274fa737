"""Which tensors of a library's chain are made and dropped inside the operator that runs it."""

from __future__ import annotations

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Role
from iosim.problem.attention import AttentionProblem
from iosim.studies.program.operators import View, with_scratch


def test_what_lies_nowhere_in_the_program_is_scratch() -> None:
    problem = AttentionProblem(heads=2, seq_q=128, head_dim=64, dtype="bf16")
    chain = plan(problem, resolve("fa2", problem, load_profile("a100")))
    roles = {name: tensor.role for name, tensor in chain.tensors.items()}
    assert (roles["Q"], roles["O"]) == (Role.INPUT, Role.OUTPUT)
    # 1 x 128 x 2 heads x 64 columns of two bytes, one behind the other
    view = View(0, 0, (1, 128, 2, 64), (16384, 128, 64, 1), 2)
    program = dict.fromkeys(("Q", "K", "V", "O"), view)
    role_of = {name: t.role for name, t in with_scratch(chain, program).tensors.items()}
    assert role_of == {name: roles[name] if name in program else Role.TEMP for name in roles}
    assert len(role_of) > len(program), "the row sums, which only a backward reads"
    nothing = with_scratch(chain, {})
    assert {t.role for t in nothing.tensors.values()} == {Role.TEMP}
    assert nothing.launches == chain.launches
