"""Payloads: `encode` writes JSON text, `build_reader` reads JSON by annotation."""

from graphile_worker._payloads.annotations import build_reader
from graphile_worker._payloads.readers import Field, Mismatch, Reader, read_fields
from graphile_worker._payloads.writing import encode

__all__ = ["Field", "Mismatch", "Reader", "build_reader", "encode", "read_fields"]
