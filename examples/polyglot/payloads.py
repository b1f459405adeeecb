"""What travels between the two languages, as Python sees it; payloads.ts is its twin."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal


@dataclass
class Line:
    product: str
    amount: int


@dataclass
class Order:
    """For price_order, which Python runs."""

    order: int
    lines: list[Line]


@dataclass
class Invoice:
    """For send_invoice, which Node runs."""

    order: int
    total: Decimal  # sent as text, as JSON has no exact decimals
    due: date  # sent as ISO text
