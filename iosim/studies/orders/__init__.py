"""In which order the tiles of a kernel should start: every order predicted, the best first, and its code."""

from iosim.studies.orders.entry import OrderEntry, OrderRanking

__all__ = ["OrderEntry", "OrderRanking"]
