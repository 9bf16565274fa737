"""Numbers from elsewhere: which level, direction and count a claimed number of bytes, seconds or operations is of."""

from iosim.evidence.claims.amount import Amount, parse, share
from iosim.evidence.claims.check import Check, Match, check

__all__ = ["Amount", "Check", "Match", "check", "parse", "share"]
