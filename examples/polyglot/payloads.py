"""The payloads of both languages. tasks.ts and tasks.json are generated from them."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal


@dataclass
class Line:
    product: str
    amount: int


@dataclass
class Order:
    """An order, which Python prices."""

    order: int
    lines: list[Line]


@dataclass
class Invoice:
    """An invoice, which Node sends."""

    order: int
    total: Decimal  # written as text, because JSON has no exact decimals
    due: date  # written as ISO text
