"""In which order the tiles of a kernel should start: every order predicted, the best first, and its code."""

from iosim.studies.orders.entry import OrderEntry, OrderRanking
from iosim.studies.orders.search import search_orders

__all__ = ["OrderEntry", "OrderRanking", "search_orders"]
