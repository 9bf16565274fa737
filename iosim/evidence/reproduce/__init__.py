"""Published numbers, computed again: claim, what iosim's models give, the ratio, and the reason where they differ.

A TOML file a paper holds its claims, with the problem, kernel and GPU of each (`paper` says what a row may hold); a
module stands beside them where a number needs arithmetic of its own, named after what it computes. Nothing here is
fitted: the rows state assumptions that their sources allow, and the models do the sums.
"""

from iosim.evidence.reproduce.paper import (
    Row,
    Section,
    Verdict,
    reproduce,
    reproduced_answer,
    sections,
)

__all__ = ["Row", "Section", "Verdict", "reproduce", "reproduced_answer", "sections"]
