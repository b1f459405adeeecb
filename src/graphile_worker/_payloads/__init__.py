"""What a payload may hold: JSON text that every implementation reads alike, and Python values.

`encode` writes a value as JSON text; `build_reader` makes what reads JSON as an annotation asks.
"""

from graphile_worker._payloads.annotations import build_reader
from graphile_worker._payloads.readers import Mismatch, Reader
from graphile_worker._payloads.writing import encode

__all__ = ["Mismatch", "Reader", "encode", "build_reader"]
