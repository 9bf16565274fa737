"""Bodies of `minimal`: Algorithm 1 as the public minimal kernel does it, without mask or dropout."""

from __future__ import annotations

from iosim.readers.execute.bodies.common import masked_scores
from iosim.readers.execute.bodies.flash1 import fill, running_output
from iosim.readers.execute.place import Place
from iosim.readers.execute.registry import Body, body

body("minimal", "fill")(fill)


@body("minimal", "main")
class Forward(Body):
    """A head: keys outside, queries inside; O, l and m through memory at every pair."""

    def pair(self, at: Place) -> None:
        output, total, maximum = running_output(at, masked_scores(at), "O")
        at.put("O", output)
        at.put("l", total)
        at.put("m", maximum)
