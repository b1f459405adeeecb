"""Names of schemas: checked and quoted."""

from hashlib import sha256

from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.errors import ConfigurationError

# PostgreSQL truncates longer names without an error.
MAX_NAME_BYTES = 63

# PostgreSQL reserves this schema, and names with this prefix.
INFORMATION_SCHEMA = "information_schema"
RESERVED_PREFIX = "pg_"


class Schemas(LazyDataclass):
    """The shared schema, and the companion schema of this package."""

    shared: str
    companion: str

    @classmethod
    def from_names(cls, schema: str, ext_schema: str | None = None) -> "Schemas":
        """Check both names. Derive the name of the companion schema if there is none."""
        _check_name(schema, "schema")
        companion = derive_companion_schema(schema) if ext_schema is None else ext_schema
        _check_name(companion, "ext_schema")
        if companion == schema:
            raise ConfigurationError(f"ext_schema must differ from schema, both are {schema!r}")
        return cls(schema, companion)


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def derive_companion_schema(schema: str) -> str:
    """Return `<schema>_ext`, shortened with a checksum where PostgreSQL would truncate it."""
    plain = f"{schema}_ext"
    if len(plain.encode()) <= MAX_NAME_BYTES:
        return plain
    prefix = schema.encode()[:50].decode(errors="ignore")
    return f"{prefix}_{sha256(schema.encode()).hexdigest()[:8]}_ext"


def _check_name(name: object, argument: str) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{argument} must be a name, got {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{argument} is not valid text: {name!r}") from None
    if "\x00" in name:
        raise ConfigurationError(f"{argument} must not contain NUL: {name!r}")
    if size > MAX_NAME_BYTES:
        raise ConfigurationError(f"{argument} may have {MAX_NAME_BYTES} bytes, {name!r} has {size}")
    if name == INFORMATION_SCHEMA or name.startswith(RESERVED_PREFIX):
        raise ConfigurationError(
            f"{argument} is {name!r}, which PostgreSQL reserves. Choose another name than "
            f"{INFORMATION_SCHEMA}, without the prefix {RESERVED_PREFIX}."
        )
