"""Bodies of `mla` (arXiv 2405.04434, section 2.1): attention whose V is the first columns of K."""

from __future__ import annotations

from iosim.readers.execute.bodies.cache import append
from iosim.readers.execute.bodies.common import masked_scores
from iosim.readers.execute.bodies.flash import Combine, Forward
from iosim.readers.execute.place import Place
from iosim.readers.execute.registry import body


@body("mla", "main")
class Latent(Forward):
    """Online softmax over the visited keys, values taken from the same tile."""

    def pair(self, at: Place) -> None:
        self.softmax.add(masked_scores(at), at["K"][:, : at.problem.d_v], at.dropout_factor)


body("mla", "combine")(Combine)
body("mla", "append")(append)
