"""Tests of the Python half, without Node: the job for Node is a row to check."""

import pytest
from graphile_worker import Discard

from payloads import Line, Order
from python_worker import app, price_order


@pytest.fixture
def gw_app():
    return app


def test_an_order_becomes_an_invoice(gw):
    price_order.enqueue(Order(7, [Line("tea", 2), Line("cup", 1)]))

    gw.drain()

    invoice = gw.assert_enqueued("send_invoice", order=7)
    assert invoice.payload["total"] == "15.90"  # as Node will see it


def test_an_order_of_an_unknown_product_is_discarded(gw):
    price_order.enqueue(Order(8, [Line("moon", 1)]))

    with pytest.raises(Discard):
        gw.drain()

    gw.assert_not_enqueued("send_invoice")
