"""Hostile overloads: what a role with CREATE on public can put in the way of built-in names.

Every function and operator that a SQL file names gets overloads in public, for all types that could
be meant and that no built-in one has exactly. Each overload records that it was called.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.support.sql import Sql
from tests.support.sql_tokens import calls, operators, relations, sql_files, tokens

# Only a number survives a rollback; the text of a record has more.
RECORDING = """
create table public.called (what text);
create sequence public.calls;
grant insert on public.called to public;
grant usage on sequence public.calls to public;
create function public.record_call(text) returns void language sql as $body$
  select pg_catalog.nextval('public.calls');
  insert into public.called values ($1);
$body$;
"""

TYPES = """
select
  types.oid::int8,
  format_type(types.oid, null),
  types.typcategory = 'A',
  types.typarray::int8,
  format_type(types.typarray, null)
from pg_type as types
where types.typtype in ('b', 'c')
  and (
    types.typnamespace = 'pg_catalog'::regnamespace
    and types.typtype = 'b'
    and (
      types.typname = any ($1::text[])
      or types.oid in (
        select atttypid
        from pg_attribute
        join pg_class on pg_class.oid = attrelid
        where relnamespace = 'pg_catalog'::regnamespace and relname = any ($2::text[])
      )
    )
    or types.typnamespace in (select oid from pg_namespace where nspname = any ($3::text[]))
  )
"""

FUNCTIONS = """
select
  proname::text,
  proargtypes::oid[]::int8[],
  provariadic::int8,
  pronargdefaults,
  format_type(prorettype, null),
  (select typtype = 'p' and typname <> 'void' from pg_type where oid = prorettype)
from pg_proc
where pronamespace = 'pg_catalog'::regnamespace and proname = any ($1::text[])
"""

OPERATORS = """
select
  oprname::text,
  oprleft::int8,
  oprright::int8,
  format_type(oprresult, null),
  (select typtype = 'p' from pg_type where oid = oprresult)
from pg_operator
where oprnamespace = 'pg_catalog'::regnamespace and oprname = any ($1::text[])
"""

IMPLICIT = "select castsource::int8, casttarget::int8 from pg_cast where castcontext = 'i'"
PSEUDO = "select oid::int8, typname::text from pg_type where typtype = 'p'"

# What has parsed bodies in schema `resolved`, and which overload was chosen for it.
CHOSEN = """
select
  makers.proname::text,
  coalesce(chosen_operators.oid::regoperator::text, chosen_functions.oid::regprocedure::text)
from pg_depend
join pg_proc as makers on classid = 'pg_proc'::regclass and objid = makers.oid
left join pg_operator as chosen_operators
  on refclassid = 'pg_operator'::regclass
  and refobjid = chosen_operators.oid
  and oprnamespace = 'public'::regnamespace
left join pg_proc as chosen_functions
  on refclassid = 'pg_proc'::regclass
  and refobjid = chosen_functions.oid
  and chosen_functions.pronamespace = 'public'::regnamespace
where makers.pronamespace = 'resolved'::regnamespace
  and (chosen_operators.oid is not null or chosen_functions.oid is not null)
order by 1, 2
"""

# Names of types that are keywords, as the catalog calls them.
KEYWORDS = {
    "smallint": "int2",
    "integer": "int4",
    "int": "int4",
    "bigint": "int8",
    "boolean": "bool",
}
# Types that expressions have without a cast to them: extract(), literals, and what is declared.
EXPRESSED = ("numeric", "timestamp", "varchar", "regnamespace")
ARRAYS = ("anyarray", "anycompatiblearray")
NOT_ARRAYS = ("anynonarray", "anycompatiblenonarray")
ANYTHING = ("any", "anyelement", "anycompatible")
TEXT = 25


@dataclass(frozen=True, slots=True)
class Type:
    oid: int
    name: str
    is_array: bool
    array: int
    array_name: str


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    arguments: list[int]
    variadic: int
    defaults: int
    result: str
    result_is_pseudo: bool


@dataclass(frozen=True, slots=True)
class Names:
    """What all SQL files name."""

    functions: dict[str, set[int]]
    operators: set[str]
    relations: set[str]
    types: set[str]


def names_in_files() -> Names:
    """The built-in functions, with the numbers of their arguments, and all else that is named."""
    names = Names({}, set(), set(), set(EXPRESSED))
    for text in (path.read_text(encoding="utf-8") for path in sql_files()):
        for call in calls(text):
            if call.schema in (None, "pg_catalog"):
                names.functions.setdefault(call.name.lower(), set()).add(call.arguments)
        names.operators.update(operators(text))
        names.relations.update(name for _, name, _ in relations(text))
        names.types.update(types_in(text))
    return names


def types_in(text: str) -> Iterator[str]:
    """The types that a text casts to, as the catalog calls them."""
    found = [token.text for token in tokens(text)]
    for n, each in enumerate(found):
        if n and (found[n - 1] == "::" or each == "interval"):
            name = KEYWORDS.get(each, each)
            yield f"_{name}" if found[n + 1 : n + 3] == ["[", "]"] else name


@dataclass
class Overloads:
    """Makes overloads in a database, and reports which of them were called or chosen.

    `made` are those that the database has already.
    """

    sql: Sql
    names: Names = field(default_factory=names_in_files)
    made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # What the test itself asks must find nothing of this.
        self.sql.run("set search_path = pg_catalog")
        self.sql.run("set check_function_bodies = off")
        if not self.made:
            self.sql.connection.execute(RECORDING.encode())
        self._pseudo = dict(self.sql.run(PSEUDO))
        self._implicit = set(self.sql.run(IMPLICIT))
        self._types: dict[int, Type] = {}
        self._type_names: dict[int, str] = {}

    def in_copy(self, sql: Sql) -> "Overloads":
        """The same in a copy of the database."""
        return Overloads(sql, self.names, set(self.made))

    def make(self, *schemas: str) -> int:
        """Overloads for the types of schemas, or for all that are built in; how many are new."""
        built_in = ([], []) if schemas else (self.names.types, self.names.relations)
        args = [*map(sorted, built_in), list(schemas)]
        found = [Type(*row) for row in self.sql.run(TYPES, *args)]
        self._types = {each.oid: each for each in found}
        self._type_names |= {each.array: each.array_name for each in found}
        self._type_names |= {each.oid: each.name for each in found}
        statements = [*self._functions(), *self._operators()]
        self.sql.connection.execute("\n".join(statements).encode())
        return len(statements)

    def calls(self) -> list[str]:
        """What was called; more than that if a transaction was rolled back."""
        called = [what for (what,) in self.sql.run("select what from public.called")]
        count = self.sql.value(
            "select case when is_called then last_value else 0 end from public.calls"
        )
        return called + ["(rolled back)"] * (count - len(called))

    def chosen(self) -> list[tuple[str, str]]:
        """Names in schema `resolved` with a parsed body, and the overload that each would call."""
        return [(name, overload) for name, overload in self.sql.run(CHOSEN)]

    def _functions(self) -> Iterator[str]:
        for row in self.sql.run(FUNCTIONS, sorted(self.names.functions)):
            function = Function(*row)
            result = "text" if function.result_is_pseudo else function.result
            for arity in self.names.functions[function.name]:
                for arguments in self._signatures(function, arity):
                    yield from self._function(function.name, self._named(arguments), result)
        for name, arities in self.names.functions.items():
            for arity in arities - {0}:
                yield from self._function(name, ["anyelement"] * arity, "text")
                yield from self._function(name, ["anycompatible"] * arity, "text")
            yield from self._function(name, ["variadic anyarray"], "text")

    def _signatures(self, function: Function, arity: int) -> Iterator[list[int]]:
        """Types of arguments for which an overload could fit a call better than the built-in."""
        arguments = function.arguments
        fixed = arguments[:-1] if function.variadic else arguments
        if function.variadic:
            arguments = fixed + [function.variadic] * (arity - len(fixed))
        if not len(arguments) - function.defaults <= arity <= len(arguments):
            return
        arguments = arguments[:arity]
        if not any(each in self._pseudo for each in arguments):
            yield arguments
            for n, wanted in enumerate(arguments):
                for given in self._types:
                    if (given, wanted) in self._implicit:
                        yield [*arguments[:n], given, *arguments[n + 1 :]]
            return
        for each in self._types.values():
            filled = [self._filled(argument, each) for argument in arguments]
            if all(filled):
                yield filled
            if function.variadic and not fixed:
                yield [each.oid if n % 2 else TEXT for n in range(arity)]

    def _filled(self, argument: int, by: Type) -> int:
        """A type in place of a polymorphic one; 0 if it does not fit."""
        kind = self._pseudo.get(argument)
        if kind is None:
            return argument
        if kind in ARRAYS:
            return by.array
        if kind in ANYTHING or (kind in NOT_ARRAYS and not by.is_array):
            return by.oid
        return 0

    def _operators(self) -> Iterator[str]:
        built_in = self.sql.run(OPERATORS, sorted(self.names.operators))
        exact = {(name, left, right) for name, left, right, *_ in built_in}
        for name, left, right, result, is_pseudo in built_in:
            for one in self._accepted(left):
                for other in self._accepted(right):
                    if (name, one, other) not in exact:
                        kind = "text" if is_pseudo else result
                        yield from self._operator(name, one, other, kind)

    def _accepted(self, wanted: int) -> Iterable[int]:
        """The types that an operand of a built-in operator may have; 0 if there is none."""
        kind = self._pseudo.get(wanted)
        if wanted == 0:
            return [0]
        if kind is None:
            return [
                each for each in self._types if (each, wanted) in self._implicit or each == wanted
            ]
        if kind in ANYTHING:
            return list(self._types)
        wants_array = kind in ARRAYS
        if not wants_array and kind not in NOT_ARRAYS:
            return []
        return [each.oid for each in self._types.values() if each.is_array is wants_array]

    def _operator(self, name: str, left: int, right: int, result: str) -> Iterator[str]:
        operands = [each for each in (left, right) if each]
        signature = f"{name} ({', '.join(self._named(operands))})"
        if signature in self.made:
            return
        self.made.add(signature)
        # Names of their own: to find one of thousands of overloads, PostgreSQL reads all of them.
        function = re.sub(r"\W+", "_", f"returning_{result}_{left}_{right}")
        yield from self._function(function, self._named(operands), result)
        sides = [f"leftarg = {self._name(left)}"] if left else []
        sides.append(f"rightarg = {self._name(right)}")
        yield f"create operator public.{name} ({', '.join(sides)}, function = public.{function});"

    def _function(self, name: str, arguments: list[str], result: str) -> Iterator[str]:
        signature = f"{name}({', '.join(arguments)})"
        if signature in self.made:
            return
        self.made.add(signature)
        ending = "return;" if result == "void" else "return null;"
        yield (
            f"create function public.{signature} returns {result} language plpgsql as $overload$"
            f"begin perform public.record_call('{signature}'); {ending} end$overload$;"
        )

    def _named(self, types: Iterable[int]) -> list[str]:
        return [self._name(each) for each in types]

    def _name(self, oid: int) -> str:
        if oid not in self._type_names:
            self._type_names[oid] = self.sql.value("select format_type($1::int8::oid, null)", oid)
        return self._type_names[oid]
