"""Published numbers, computed again: claim, what iosim's models give, the ratio, and the reason where they differ.

Every module whose name is one letter is a section; a new one is a new file and nothing else. Nothing here is fitted:
the sections choose assumptions that their sources allow and name them, and the models do the sums.
"""

from iosim.evidence.reproduce.registry import Section, reproduce, section, sections
from iosim.evidence.reproduce.row import Row

__all__ = ["Row", "Section", "reproduce", "section", "sections"]
