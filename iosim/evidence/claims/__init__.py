"""Numbers from elsewhere: which level, direction and count a claimed number of bytes, seconds or operations is of."""

from iosim.evidence.claims.check import Check, Match, check
from iosim.evidence.claims.readings import Amount, parse, share

__all__ = ["Amount", "Check", "Match", "check", "parse", "share"]
