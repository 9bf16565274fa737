"""A ranking of orders that several files ask."""

from __future__ import annotations

import pytest
from orders_asked import CAUSAL, FILE, H200

from iosim.studies.orders import OrderRanking, search
from iosim.studies.requests import OrdersRequest


@pytest.fixture(scope="package")
def ranking() -> OrderRanking:
    return search.rank_orders(OrdersRequest(problems=[CAUSAL], kernel=FILE, gpu=H200))
