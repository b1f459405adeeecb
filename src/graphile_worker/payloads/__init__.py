"""What a payload may hold: JSON text that every implementation reads alike, and Python values.

`encode` writes a value as JSON text; `reader` reads JSON back as the annotation of a task asks.
"""

from graphile_worker.payloads.annotations import reader
from graphile_worker.payloads.readers import Mismatch, Reader
from graphile_worker.payloads.writing import encode

__all__ = ["Mismatch", "Reader", "encode", "reader"]
