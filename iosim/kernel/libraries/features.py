"""What a library kernel takes besides Q, K and V: a bias, stored masks, key padding, dropout.

A catalog file lists under `requires.takes` the names of `AttentionProblem.terms` that its kernel reads;
`requires.dropout` is false where it has none, and `requires.one_score_tensor` is true where bias and masks come as one
tensor, as PyTorch's `attn_mask` does.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.kernel.libraries.loader import Entry, entry, entry_names
from iosim.problem.attention import AttentionProblem

SCORE_TENSORS = ("bias", "alibi", "key_padding", "mask_tensor")
"""The terms that come as a tensor beside Q, K and V."""


def check_features(data: Entry, problem: AttentionProblem) -> None:
    """Refuse what the kernel does not read or do.

    Raises:
        InputError: names the catalog's kernels that take it.
    """
    requires, name = data["requires"], data["name"]
    taken = requires.get("takes", ())
    for term, asked in problem.terms.items():
        if term not in taken:
            raise InputError(f"`{asked}`: kernel {name} does not take it; accepted by: {_others(term)}")
    if problem.dropout and not requires.get("dropout", True):
        raise InputError(f"`dropout` {problem.dropout:g}: kernel {name} has none; accepted by: {_with_dropout()}")
    one = [asked for term, asked in problem.terms.items() if term in SCORE_TENSORS]
    if requires.get("one_score_tensor") and len(one) > 1:
        raise InputError(f"`{one[1]}` beside `{one[0]}`: kernel {name} takes one tensor of scores; accepted: one of "
                         "them (add the masks to the bias)")  # fmt: skip


def _others(term: str) -> str:
    return ", ".join(n for n in entry_names() if term in entry(n)["requires"].get("takes", ()))


def _with_dropout() -> str:
    return ", ".join(n for n in entry_names() if entry(n)["requires"].get("dropout", True))
