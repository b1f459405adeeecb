"""What a schema holds, as PostgreSQL prints it: lines that compare across databases and names."""

import re
from typing import Any

from graphile_worker._sql.identifiers import derive_companion_schema
from tests.support.sql import Sql

# Every question takes the schema's name as $1 and answers with one line of text per object.
SCHEMA = """
select concat_ws(' ', 'schema', 'owner', pg_get_userbyid(nspowner), 'acl', nspacl)
from pg_namespace
where nspname = $1::text
"""

# All objects directly in the schema, also of kinds that no other query covers.
OBJECTS = """
select concat_ws(' ', 'object', object.type, object.identity)
from pg_depend
join pg_namespace on pg_namespace.oid = refobjid
cross join pg_identify_object(classid, objid, objsubid) as object
where refclassid = 'pg_namespace'::regclass and nspname = $1::text
"""

RELATIONS = """
select concat_ws(
  ' ', 'relation', relname, 'kind', relkind, 'persistence', relpersistence,
  'owner', pg_get_userbyid(relowner), 'acl', relacl, 'options', reloptions,
  'row security', relrowsecurity, 'forced', relforcerowsecurity, 'identity', relreplident,
  'access', amname
)
from pg_class
join pg_namespace on pg_namespace.oid = relnamespace
left join pg_am on pg_am.oid = relam
where nspname = $1::text and relname not like 'gwpy\\_%'
"""

# Counted without the columns that were dropped on the way.
COLUMNS = """
select concat_ws(
  ' ', 'column', relname,
  row_number() over (partition by attrelid order by attnum), attname,
  format_type(atttypid, atttypmod),
  case when attnotnull then 'not null' end,
  'identity ' || nullif(attidentity::text, ''),
  'generated ' || nullif(attgenerated::text, ''),
  'default ' || pg_get_expr(adbin, adrelid),
  'collation ' || nullif(attcollation, 0)::regcollation,
  'storage', attstorage, 'compression', attcompression, 'acl', attacl, 'options', attoptions
)
from pg_attribute
join pg_class on pg_class.oid = attrelid
join pg_namespace on pg_namespace.oid = relnamespace
left join pg_attrdef on adrelid = attrelid and adnum = attnum
where nspname = $1::text and relkind in ('r', 'p', 'v', 'm', 'c', 'f')
  and attnum > 0 and not attisdropped
"""

# PostgreSQL 18 gives names to NOT NULL constraints, after the table of that moment: the column
# counts, not the name.
CONSTRAINTS = """
select concat_ws(
  ' ', 'constraint', relname, case when contype <> 'n' then conname end,
  pg_get_constraintdef(pg_constraint.oid), 'validated', convalidated, 'local', conislocal
)
from pg_constraint
join pg_class on pg_class.oid = conrelid
join pg_namespace on pg_namespace.oid = relnamespace
where nspname = $1::text
"""

INDEXES = """
select concat_ws(
  ' ', 'index', pg_get_indexdef(indexrelid), 'valid', indisvalid, 'clustered', indisclustered
)
from pg_index
join pg_class on pg_class.oid = indexrelid
join pg_namespace on pg_namespace.oid = relnamespace
where nspname = $1::text and relname not like 'gwpy\\_%'
"""

SEQUENCES = """
select concat_ws(
  ' ', 'sequence', sequence.relname, format_type(seqtypid, null), 'start', seqstart,
  'increment', seqincrement, 'max', seqmax, 'min', seqmin, 'cache', seqcache, 'cycle', seqcycle,
  'of', owner.relname, attname, deptype
)
from pg_sequence
join pg_class as sequence on sequence.oid = seqrelid
join pg_namespace on pg_namespace.oid = sequence.relnamespace
left join pg_depend
  on classid = 'pg_class'::regclass and objid = seqrelid and refclassid = 'pg_class'::regclass
left join pg_class as owner on owner.oid = refobjid
left join pg_attribute on attrelid = refobjid and attnum = refobjsubid
where nspname = $1::text
"""

VIEWS = """
select concat_ws(' ', 'view', relname, pg_get_viewdef(pg_class.oid))
from pg_class
join pg_namespace on pg_namespace.oid = relnamespace
where nspname = $1::text and relkind in ('v', 'm')
"""

FUNCTIONS = """
select concat_ws(
  ' ', 'function', proname, '(' || pg_get_function_identity_arguments(pg_proc.oid) || ')',
  '(' || pg_get_function_arguments(pg_proc.oid) || ')',
  'returns', pg_get_function_result(pg_proc.oid), 'kind', prokind, 'language', lanname,
  'volatility', provolatile, 'strict', proisstrict, 'definer', prosecdef,
  'parallel', proparallel, 'cost', procost, 'rows', prorows, 'leakproof', proleakproof,
  'settings', proconfig, 'owner', pg_get_userbyid(proowner), 'acl', proacl
)
from pg_proc
join pg_namespace on pg_namespace.oid = pronamespace
join pg_language on pg_language.oid = prolang
where nspname = $1::text
"""

TYPES = """
select concat_ws(
  ' ', 'type', typname, 'kind', typtype, 'category', typcategory,
  'owner', pg_get_userbyid(typowner), 'acl', typacl,
  'labels ' || (select string_agg(enumlabel, ',' order by enumsortorder)
                from pg_enum where enumtypid = pg_type.oid)
)
from pg_type
join pg_namespace on pg_namespace.oid = typnamespace
where nspname = $1::text
"""

TRIGGERS = """
select concat_ws(' ', 'trigger', pg_get_triggerdef(pg_trigger.oid), 'enabled', tgenabled)
from pg_trigger
join pg_class on pg_class.oid = tgrelid
join pg_namespace on pg_namespace.oid = relnamespace
where nspname = $1::text and not tgisinternal
"""

RULES = """
select concat_ws(' ', 'rule', tablename, rulename, definition)
from pg_rules
where schemaname = $1::text
"""

POLICIES = """
select concat_ws(' ', 'policy', tablename, policyname, permissive, roles, cmd, qual, with_check)
from pg_policies
where schemaname = $1::text
"""

# Built-in objects have thousands of comments, and oids below 16384.
COMMENTS = """
select concat_ws(' ', 'comment', object.type, object.identity, description)
from pg_description
cross join pg_identify_object(classoid, objoid, objsubid) as object
where objoid >= 16384
  and (
    object.schema = quote_ident($1::text)
    or (object.type = 'schema' and object.name = quote_ident($1::text))
  )
"""

DEFAULT_RIGHTS = """
select concat_ws(' ', 'default rights', pg_get_userbyid(defaclrole), defaclobjtype, defaclacl)
from pg_default_acl
join pg_namespace on pg_namespace.oid = defaclnamespace
where nspname = $1::text
"""

QUESTIONS = (
    SCHEMA,
    OBJECTS,
    RELATIONS,
    COLUMNS,
    CONSTRAINTS,
    INDEXES,
    SEQUENCES,
    VIEWS,
    FUNCTIONS,
    TYPES,
    TRIGGERS,
    RULES,
    POLICIES,
    COMMENTS,
    DEFAULT_RIGHTS,
)

BODIES = """
select proname || ': ' || prosrc
from pg_proc
join pg_namespace on pg_namespace.oid = pronamespace
where nspname = $1::text
"""

# With an empty path PostgreSQL writes the schema in front of every name.
NO_PATH = "select set_config('search_path', '', false)"


def read_catalogue(dsn: str, schema: str) -> list[str]:
    """Everything about a schema except the bodies of its functions and the rows of its tables."""
    return _answers(dsn, schema, QUESTIONS)


def read_companion(dsn: str, schema: str) -> list[str]:
    """The same for the schema that is only ours."""
    return read_catalogue(dsn, derive_companion_schema(schema))


def read_bodies(dsn: str, schema: str) -> list[str]:
    """The functions' own text."""
    return _answers(dsn, schema, (BODIES,))


def read_ledger(dsn: str, schema: str) -> list[tuple[int, bool]]:
    """Which levels are entered, and which of them as breaking."""
    return [(level, breaking) for level, _, breaking in read_dated_ledger(dsn, schema)]


def read_everything(database: Any) -> tuple[object, ...]:
    """Return the catalog, the function bodies and the ledger of a test's database."""
    where = (database.dsn, database.schema)
    return read_catalogue(*where), read_bodies(*where), read_dated_ledger(*where)


def read_dated_ledger(dsn: str, schema: str) -> list[tuple[int, object, bool]]:
    """The ledger's rows with the moment at which each was entered."""
    sql = Sql(dsn, schema)
    try:
        rows = sql.run("select id, ts, breaking from :schema.migrations order by id")
    finally:
        sql.close()
    return [(level, moment, breaking) for level, moment, breaking in rows]


def _answers(dsn: str, schema: str, questions: tuple[str, ...]) -> list[str]:
    sql = Sql(dsn, schema)
    try:
        sql.run(NO_PATH)
        name = re.compile(r'(?<![\w"])' + re.escape(sql.value("select quote_ident($1)", schema)))
        answers = [line for each in questions for (line,) in sql.run(each, schema)]
    finally:
        sql.close()
    return sorted(name.sub("<schema>", line) for line in answers)
