"""Causal attention over eight A100s: what balancing saves, where messages stop hiding, and the schedule itself.

python examples/ring.py
"""

from __future__ import annotations

from iosim import AttentionProblem, load_profile
from iosim.studies.distributed import build, cluster, idle, study


def main() -> None:
    profile = load_profile("a100")
    problem = AttentionProblem(
        heads=32, seq_q=256 * 1024, head_dim=128, mask="causal", passes="fwd+bwd"
    )

    print("One layer's attention of 256K tokens, forward and backward, on 8 x A100 over NVLink\n")
    print(
        f"{'method':<10}{'idle slots':>11}{'received, Nd':>14}{'time, ms':>10}{'speed-up':>10}{'memory, GB':>12}"
    )
    for result in study(problem, 8, profile, cluster(profile)):
        slots = str(result.idle.slots) if result.idle else "-"
        print(
            f"{result.name:<10}{slots:>11}{result.received_nd:>14.3f}{1e3 * result.seconds:>10.0f}{result.speedup:>10.2f}"
            f"{result.memory_bytes / 1e9:>12.2f}"
        )

    print("\nIdle slots by the number of GPUs, exact\n")
    print(f"{'GPUs':<6}{'ring':>8}{'balanced':>10}{'balanced / P^2':>16}")
    for gpus in (2, 3, 4, 5, 8, 16, 64):
        short = AttentionProblem(seq_q=gpus, mask="causal")
        ring, balanced = (idle(build(name, short, gpus)) for name in ("ring", "balanced"))
        print(f"{gpus:<6}{ring.slots!s:>8}{balanced.slots!s:>10}{balanced.of_unbalanced!s:>16}")

    print(
        "\nForward on two nodes of four, 100 Gb/s a GPU between them: communication that is not hidden, ms\n"
    )
    names = ("ring", "balanced", "zigzag", "megatron")
    print(f"{'tokens':<8}" + "".join(f"{n:>10}" for n in names))
    nodes = cluster(profile, "nvlink", "ib-100g", 4)
    for thousands in (16, 64, 256, 1024):
        attention = problem.with_(seq_q=thousands * 1024, seq_k=thousands * 1024, passes="fwd")
        exposed = (
            f"{1e3 * r.exposed_s:>10.1f}" for r in study(attention, 8, profile, nodes, names=names)
        )
        print(f"{thousands:>4}k   " + "".join(exposed))

    print()
    print(build("balanced", problem, 4).to_text(), end="")


if __name__ == "__main__":
    main()
