"""Fields that a formula is asked for with. Loads nothing heavy, so that a command line can be parsed at once."""

from __future__ import annotations

from iosim.base.records import replace
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import BESIDES, FIELDS

SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v")
SYMBOLS = (*SIZES, "window", "window_right", "offset", "splits")
"""Fields of the problem and the kernel that are symbols of a formula."""
CHOICES = ("offset", "dropout", "passes", "layout", "window", "window_right", "mask_block", "mask_stride",
           "global_tokens", "mask_file", "bias", "bias_shared", "bias_dtype", "bias_grad", "key_padding",
           "mask_storage")  # fmt: skip
"""Fields of the problem that decide which formula it is."""
_OPEN = (*SIZES, "dtype", "mask", "splits", "tile")
FORMULA = {name: replace({**FIELDS, **OVERRIDES}[name], default=None, usual=None, default_text="") for name in _OPEN}
FORMULA |= {name: FIELDS[name] for name in CHOICES} | {"causal": BESIDES["causal"]}
"""What a formula is asked for with, field by field; sizes that are not given stay symbols."""
