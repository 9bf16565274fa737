"""iosim: simulator and cost model of the input/output of attention on GPUs.

    >>> import iosim
    >>> p = iosim.predict(kernel="fa2", gpu="h100", heads=32, seq_len=4096, head_dim=128, causal=True)
    >>> p.hbm.read, p.l2.read, p.time_s

The functions take the options of the command of their name as keywords; `print` shows a result as the command does.
"""

from typing import TYPE_CHECKING

from iosim.base.version import __version__ as __version__

if TYPE_CHECKING:
    from iosim.api.names import *  # noqa: F403
else:
    from iosim.api.names import __all__, __dir__, __getattr__  # noqa: F401
