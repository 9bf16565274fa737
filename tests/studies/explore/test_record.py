"""What the page is told of a call: how many blocks its tiles have, where keys are split, too."""

from __future__ import annotations

from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.studies.explore.record import record


def test_the_map_counts_blocks_where_keys_are_split() -> None:
    """512 tokens in 8 blocks of 64 queries and 2 of 256 keys, each in a split of its own."""
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, mask="causal")
    facts, _ = record(predict(problem, "fa2", "a100", method="bounds"))
    assert facts["drawn"] == "main"
    assert facts["loops"]["main"] == ["query", "key", 8, 2]
