"""How fast the CTAs of a launch go where no load has to be waited for: what the timing model tells the replay."""

from __future__ import annotations

from iosim.base.records import dataclass


@dataclass(frozen=True)
class Pace:
    """Seconds of a launch's CTAs, loads that miss apart. Launches that only stream their tensors have none: they go as
    fast as memory does."""

    launch_s: float = 0.0
    """From the end of the launch before to the launch's first CTA."""
    tile_s: float = 0.0
    """What a work tile takes beside its steps and the loads that nothing is computed beside, which a replay plays."""
    step_s: tuple[float, ...] = ()
    """A step of each of n CTAs that share an SM, for n = 1, 2, ..., as many as the SM holds."""
    waits: int = 0
    """Loads of a step, one behind the other, that a CTA waits for; 0 where they are asked for a step ahead. Of a launch whose
    moves are known: for how many a move waits."""
    turns: float = 0.0
    """Turns that a work tile makes of the loop that loads; 0 where a step is a turn, or there is no loop."""
