"""Find what changed between two JSON Schemas of tasks, and which changes break producers.

A change is breaking if a payload that fitted before may not fit any more. Such a payload can be in
the queue, or come from a program that was not updated. What cannot be compared counts as breaking.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from graphile_worker._payloads.json_schema import DEFINITION_PREFIX, Schema, list_references

# Keywords that describe a value and do not limit it.
_ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "discriminator", "examples", "title"}
)
_LOWER_LIMITS = frozenset(
    {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"}
)
_UPPER_LIMITS = frozenset(
    {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"}
)
_FORMATS_WITH_PATTERN = frozenset({"date", "date-time", "uuid"})
# Keywords that separate code below compares.
_STRUCTURE = frozenset(
    {"additionalProperties", "const", "contentSchema", "items", "patternProperties"}
    | {"prefixItems", "properties", "propertyNames", "required", "type"}
)
# Upper bound on the places of one class whose changes are listed.
MAX_PLACES = 10
_KEYWORDS_BY_TYPE = {
    "string": {"minLength", "maxLength", "pattern", "format"}
    | {"contentEncoding", "contentMediaType", "contentSchema"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}
    | {"minContains", "maxContains", "unevaluatedItems"},
    "object": {"properties", "required", "additionalProperties", "propertyNames"}
    | {"patternProperties", "minProperties", "maxProperties", "dependentRequired"}
    | {"dependentSchemas", "unevaluatedProperties"},
}
_TYPE_OF_KEYWORD = {name: kind for kind, names in _KEYWORDS_BY_TYPE.items() for name in names}

_TYPE_NAMES = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "text",
}


class Change(NamedTuple):
    """A difference between two versions of a task. The path is empty for the whole payload."""

    task: str
    path: str
    reason: str
    is_breaking: bool


# Values of one type, with the keywords that limit it. None is any type.
class Branch(NamedTuple):
    kind: str | None
    schema: dict[str, Any]

    @property
    def is_listed(self) -> bool:
        return "const" in self.schema

    @property
    def is_unlimited(self) -> bool:
        return not (self.schema.keys() - {"type"})


# The JSON texts of an old and a new schema of one value.
_Pair = tuple[str, str]


def compare_documents(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """List what changed between two documents of `build_document`, by task."""
    changes: list[Change] = []
    for task in sorted({*old["properties"], *new["properties"]}):
        if task not in new["properties"]:
            changes.append(Change(task, "", "the task is removed, so its jobs fail", True))
        elif task not in old["properties"]:
            changes.append(Change(task, "", "new task", False))
        else:
            comparison = _Comparison(task, old, new)
            comparison.run(old["properties"][task], new["properties"][task])
            changes += dict.fromkeys(comparison.changes)
    return changes


class _Comparison:
    """The comparison of two schemas of a task.

    The number of paths may double with each class on them. So the first step finds which pairs of
    schemas break, each pair once. The second step lists the changes, for some paths to each class.
    """

    def __init__(self, task: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._task = task
        self._old = old
        self._new = new
        self.changes: list[Change] = []
        self._unchanged = _find_unchanged(old.get("$defs", {}), new.get("$defs", {}))
        self._breaking_pairs: set[_Pair] = set()
        # Whether changes are listed, with those in the parts of a value.
        self._is_listing = False
        # Pairs in the parts of the value that is being compared, in the first step.
        self._parts: set[_Pair] = set()
        # Pairs that are being listed, because a class may contain itself.
        self._open_pairs: set[_Pair] = set()
        self._places: Counter[_Pair] = Counter()

    def run(self, old: Schema, new: Schema) -> None:
        """Add the changes between two schemas."""
        self._find_breaking_pairs((json.dumps(old), json.dumps(new)))
        self._is_listing, self.changes = True, []
        self.compare(old, new, "")

    def compare(self, old: Schema, new: Schema, path: str) -> None:
        """Add the changes between two schemas of the value at this path."""
        pair = (json.dumps(old), json.dumps(new))
        if pair[0] == pair[1] and self._unchanged.issuperset(list_references(old)):
            return
        if not self._is_listing:
            self._parts.add(pair)
            if pair in self._breaking_pairs:
                self._add(path, "", is_breaking=True)
            return
        if pair in self._open_pairs or self._places[pair] == MAX_PLACES:
            return
        if list_references([old, new]):
            self._places[pair] += 1
        self._open_pairs.add(pair)
        try:
            self._compare_pair(pair, path)
        finally:
            self._open_pairs.remove(pair)

    def _find_breaking_pairs(self, root: _Pair) -> None:
        """Find the pairs of schemas that break, directly or in one of their parts."""
        waiting = [root]
        containers: dict[_Pair, set[_Pair]] = {root: set()}
        while waiting:
            pair = waiting.pop()
            self.changes, self._parts = [], set()
            self._compare_pair(pair, "")
            for part in self._parts:
                if part not in containers:
                    containers[part] = set()
                    waiting.append(part)
                containers[part].add(pair)
            is_breaking = any(change.is_breaking for change in self.changes)
            if is_breaking and pair not in self._breaking_pairs:
                self._breaking_pairs.add(pair)
                waiting += containers[pair]

    def _compare_pair(self, pair: _Pair, path: str) -> None:
        old, new = map(json.loads, pair)
        self._compare_alternatives(
            _list_branches(old, self._old), _list_branches(new, self._new), path
        )

    def _compare_alternatives(self, olds: list[Branch], news: list[Branch], path: str) -> None:
        if any(each.kind is None and each.is_unlimited for each in news):
            if not any(each.kind is None for each in olds):
                self._add(path, "any value is accepted now", is_breaking=False)
            return
        matched = [self._compare_branch(old, olds, news, path) for old in olds]
        for new in news:
            if any(new is each for each in matched):
                continue
            known = [
                old for old in olds if _may_meet(old, new) and (new.is_listed or not old.is_listed)
            ]
            if not known:
                self._add(path, f"{_name(new)} is accepted now", is_breaking=False)
            elif not new.is_listed:
                self._add(path, f"another form of {_name(new)} is accepted now", is_breaking=False)

    def _compare_branch(
        self, old: Branch, olds: Sequence[Branch], news: Sequence[Branch], path: str
    ) -> Branch | None:
        """Compare an old branch with the new branch that is most like it, and return that one."""
        if old.is_listed:
            self._compare_constant(old, news, path)
            return None
        candidates = [new for new in news if _may_meet(old, new) and not new.is_listed]
        if not candidates or (old.kind is None and None not in [new.kind for new in news]):
            self._add_narrowed(old, news, path)
            return None
        counts = [self._count_breaking(old, new) for new in candidates]
        best = candidates[counts.index(min(counts))]
        # Beside other forms of the same type, a wider one of them means little.
        is_only = len(candidates) == 1 and sum(_may_meet(each, candidates[0]) for each in olds) == 1
        before, self.changes = self.changes, []
        self._compare_branches(old, best, path)
        found, self.changes = self.changes, before
        self.changes += [change for change in found if change.is_breaking or is_only]
        return best

    def _compare_constant(self, old: Branch, news: Sequence[Branch], path: str) -> None:
        if any(_contains_constant(new, old) for new in news):
            return
        same = [new for new in news if new.is_listed and _may_meet(old, new)]
        if same:
            # The first one with the fewest limits.
            self._compare_branches(old, min(same, key=lambda new: len(new.schema)), path)
        else:
            self._add(path, f"{_name(old)} is not accepted any more", is_breaking=True)

    def _add_narrowed(self, old: Branch, news: Sequence[Branch], path: str) -> None:
        accepted = " or ".join(dict.fromkeys(map(_name, news))) or "nothing"
        if old.kind is None or any(_may_meet(old, new) for new in news):
            self._add(path, f"only {accepted} is accepted now", is_breaking=True)
        else:
            reason = f"{_name(old)} is not accepted any more, only {accepted}"
            self._add(path, reason, is_breaking=True)

    def _count_breaking(self, old: Branch, new: Branch) -> int:
        """Count the breaking changes between two branches. Each part that breaks counts as one."""
        before = self.changes, self._is_listing
        self.changes, self._is_listing = [], False
        try:
            self._compare_branches(old, new, "")
            return sum(change.is_breaking for change in self.changes)
        finally:
            self.changes, self._is_listing = before

    def _compare_branches(self, old: Branch, new: Branch, path: str) -> None:
        if old.kind != new.kind and new.kind is not None:
            if old.kind is None or (old.kind, new.kind) != ("integer", "number"):
                self._add_narrowed(old, [new], path)
                return
            self._add(path, "a number with a fraction is accepted now", is_breaking=False)
        self._compare_limits(old.schema, new.schema, path)
        if old.kind in ("object", None):
            self._compare_objects(old.schema, new.schema, path)
        if old.kind in ("array", None):
            self._compare_arrays(old.schema, new.schema, path)
        if old.kind in ("string", None):
            self.compare(
                old.schema.get("contentSchema", True),
                new.schema.get("contentSchema", True),
                f"{path}{{content}}" if path else "{content}",
            )

    def _compare_limits(self, old: dict[str, Any], new: dict[str, Any], path: str) -> None:
        for keyword in sorted((old.keys() | new.keys()) - _STRUCTURE):
            before, after = old.get(keyword), new.get(keyword)
            if json.dumps(before) == json.dumps(after):
                if not self._unchanged.issuperset(list_references(before)):
                    self._add(path, f"a class in the limit {keyword} changed", is_breaking=True)
                continue
            if keyword == "pattern" and _is_told_by_format(old, new):
                continue
            is_breaking = after is not None and not (
                _is_wider(keyword, before, after) or _is_in_bound(old, keyword, after)
            )
            reason = _explain_limit(keyword, before, after)
            if keyword == "pattern" and new.get("format") in _FORMATS_WITH_PATTERN:
                reason = f"must be a {new['format']} in the spelling of RFC 3339 now"
            self._add(path, reason, is_breaking=is_breaking)

    def _compare_objects(self, old: dict[str, Any], new: dict[str, Any], path: str) -> None:
        before, after = old.get("properties", {}), new.get("properties", {})
        rest_before = old.get("additionalProperties", True)
        rest_after = new.get("additionalProperties", True)
        required_before, required_after = old.get("required", ()), new.get("required", ())
        for key in sorted({*before, *after, *required_before, *required_after}):
            here = f"{path}.{key}" if path else key
            if key in required_after and key not in required_before:
                self._add(here, "required now, so jobs without it fail", is_breaking=True)
            if key in before and key in after:
                if key in required_before and key not in required_after:
                    self._add(here, "optional now", is_breaking=False)
                self.compare(before[key], after[key], here)
            elif key in after:
                meanings = _list_meanings(old, key)
                for meaning in meanings:
                    self.compare(meaning, after[key], here)
                if not meanings and key not in required_after:
                    self._add(here, "new optional key", is_breaking=False)
            elif key in before:
                self._compare_removed_key(before[key], rest_after, here)
        self._compare_patterns(old, new, path)
        self._compare_rest(rest_before, rest_after, path)
        self.compare(
            old.get("propertyNames", True),
            new.get("propertyNames", True),
            f"{path}{{keys}}" if path else "{keys}",
        )

    def _compare_patterns(self, old: dict[str, Any], new: dict[str, Any], path: str) -> None:
        before, after = old.get("patternProperties", {}), new.get("patternProperties", {})
        for pattern in sorted({*before, *after}):
            here = f"{path}.{pattern}" if path else pattern
            following = after.get(pattern, new.get("additionalProperties", True))
            if pattern in before:
                self.compare(before[pattern], following, here)
            elif not _is_open(following):
                self._add(here, "keys of this pattern are limited now", is_breaking=True)

    def _compare_removed_key(self, schema: Schema, rest: Schema, path: str) -> None:
        if _is_open(rest):
            self._add(path, "removed, so its value is ignored", is_breaking=False)
        elif rest is False:
            self._add(path, "removed, so jobs with it fail", is_breaking=True)
        else:
            self.compare(schema, rest, path)

    def _compare_rest(self, before: Schema, after: Schema, path: str) -> None:
        if _is_open(before) and _is_open(after):
            return
        if after is False:
            if before is not False:
                self._add(path, "keys that are not listed fail now", is_breaking=True)
        elif before is False:
            self._add(path, "keys that are not listed are accepted now", is_breaking=False)
        else:
            self.compare(before, after, f"{path}.*" if path else "*")

    def _compare_arrays(self, old: dict[str, Any], new: dict[str, Any], path: str) -> None:
        before, after = old.get("prefixItems", ()), new.get("prefixItems", ())
        rest_before, rest_after = old.get("items", True), new.get("items", True)
        longest = old.get("maxItems")
        for position in range(max(len(before), len(after))):
            if longest is None or position < longest:
                self.compare(
                    before[position] if position < len(before) else rest_before,
                    after[position] if position < len(after) else rest_after,
                    f"{path}[{position}]",
                )
        if longest is None or longest > max(len(before), len(after)):
            self.compare(rest_before, rest_after, f"{path}[]")

    def _add(self, path: str, reason: str, *, is_breaking: bool) -> None:
        self.changes.append(Change(self._task, path, reason, is_breaking))


def _find_unchanged(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Return the definitions that are the same in both documents, with all they refer to."""
    same = {name for name in old if json.dumps(old[name]) == json.dumps(new.get(name))}
    while changed := {name for name in same if not same.issuperset(list_references(old[name]))}:
        same -= changed
    return same


def _list_branches(schema: Schema, document: Mapping[str, Any]) -> list[Branch]:
    """Return the alternatives of a schema, with one spelling for null and for any boolean."""
    branches = list(_iter_branches(schema, document))
    for kind, values in (("null", [None]), ("boolean", [False, True])):
        listed = [
            each for each in branches if each.kind == kind and each.schema.keys() == {"const"}
        ]
        if {each.schema["const"] for each in listed} == set(values):
            first = next(index for index, each in enumerate(branches) if each is listed[0])
            branches[first] = Branch(kind, {})
            branches = [each for each in branches if not any(each is other for other in listed)]
    return branches


def _iter_branches(schema: Schema, document: Mapping[str, Any]) -> Iterator[Branch]:
    """Yield the alternatives of a schema."""
    if isinstance(schema, bool):
        if schema:
            yield Branch(None, {})
        return
    schema = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    if schema.get("patternProperties") == {"^_": {}}:
        # Keys that are reserved for the queue.
        del schema["patternProperties"]
    if isinstance(reference := schema.pop("$ref", None), str):
        found = document.get("$defs", {}).get(reference.removeprefix(DEFINITION_PREFIX), True)
        yield from _iter_branches(_merge([schema, found]), document)
    elif "allOf" in schema:
        yield from _iter_branches(_merge([schema, *schema.pop("allOf")]), document)
    elif alternatives := schema.pop("anyOf", None) or schema.pop("oneOf", None):
        for each in alternatives:
            yield from _iter_branches(_merge([schema, each]), document)
    elif "enum" in schema or "const" in schema:
        yield from _iter_constants(schema)
    else:
        kinds = schema.get("type")
        for kind in [kinds] if kinds is None or isinstance(kinds, str) else kinds:
            yield Branch(kind, _keep_keywords(schema, kind))


def _iter_constants(schema: dict[str, Any]) -> Iterator[Branch]:
    """Yield the listed values, with the keywords that limit them further."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for value in schema.get("enum", [schema.get("const")]):
        kind = _get_type(value)
        is_kind = kinds is None or kind in kinds or (kind == "integer" and "number" in kinds)
        if is_kind and _is_same(schema.get("const", value), value):
            limits = _keep_keywords(schema, kind)
            limits.pop("enum", None)
            yield Branch(kind, {**limits, "const": value})


def _merge(schemas: Iterable[Schema]) -> Schema:
    merged: dict[str, Any] = {}
    for each in schemas:
        if each is False:
            return False
        if isinstance(each, dict):
            for key, value in each.items():
                # A second limit of the same kind. It is only compared as a whole.
                is_second = key in merged and merged[key] != value
                merged[f"{key} of allOf" if is_second else key] = value
    return merged


def _keep_keywords(schema: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """Return the schema without the keywords that only limit other types."""
    wanted = "number" if kind == "integer" else kind
    return {
        key: value
        for key, value in schema.items()
        if key != "type" and (kind is None or _TYPE_OF_KEYWORD.get(key, wanted) == wanted)
    }


def _get_type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
    return "null" if value is None else names.get(type(value), "object")


def _may_meet(old: Branch, new: Branch) -> bool:
    """Return whether a value may be of both types."""
    if old.is_listed and new.is_listed:
        return _is_same(old.schema["const"], new.schema["const"])
    kinds = {old.kind, new.kind}
    return len(kinds) == 1 or None in kinds or kinds == {"integer", "number"}


def _contains_constant(new: Branch, old: Branch) -> bool:
    """Return whether a branch without listed values accepts a listed value for sure."""
    return new.is_unlimited and (
        new.kind in (None, old.kind) or (old.kind, new.kind) == ("integer", "number")
    )


def _is_told_by_format(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether the pattern belongs to the format, which is compared by name.

    Two versions of this package may write the pattern of a format differently.
    """
    is_removed = "pattern" not in new and "format" not in new and "format" in old
    if new.get("format") not in _FORMATS_WITH_PATTERN:
        return is_removed
    # The pattern of date-time requires an offset, and validators may ignore the format.
    is_stricter = "pattern" in new and "pattern" not in old and old.get("format") == new["format"]
    return not is_stricter


def _is_wider(keyword: str, before: Any, after: Any) -> bool:
    if before is None:
        return bool(keyword.startswith("min") and after == 0 and keyword != "minimum")
    if keyword in _LOWER_LIMITS:
        return bool(after < before)
    return bool(keyword in _UPPER_LIMITS and after > before)


def _is_in_bound(old: Mapping[str, Any], keyword: str, bound: Any) -> bool:
    """Return whether all numbers of a schema are within a bound, which includes itself or not."""
    inclusive, exclusive = (
        ("minimum", "exclusiveMinimum")
        if keyword in ("minimum", "exclusiveMinimum")
        else ("maximum", "exclusiveMaximum")
    )
    if keyword not in (inclusive, exclusive):
        return False
    sign = 1 if inclusive == "minimum" else -1
    beyond = [sign * (old[each] - bound) for each in (inclusive, exclusive) if each in old]
    is_at_bound = keyword == inclusive or (exclusive in old and old[exclusive] == bound)
    return any(each > 0 or (each == 0 and is_at_bound) for each in beyond)


def _explain_limit(keyword: str, before: Any, after: Any) -> str:
    if keyword == "format":
        if after is None:
            return f"need not be the text of a {before} any more"
        return f"must be the text of a {after} now"
    if after is None:
        return f"the limit {keyword}={json.dumps(before)} is removed"
    if before is None:
        return f"the limit {keyword}={json.dumps(after)} is new"
    return f"the limit {keyword}={json.dumps(before)} is {json.dumps(after)} now"


def _name(branch: Branch) -> str:
    if branch.is_listed:
        return json.dumps(branch.schema["const"], ensure_ascii=False)
    if branch.kind is None:
        return "any value"
    text_format = branch.schema.get("format")
    if text_format and branch.kind == "string":
        return f"the text of a {text_format}"
    return _TYPE_NAMES.get(branch.kind, branch.kind)


def _is_open(schema: Schema) -> bool:
    return schema is True or schema == {}


def _is_same(first: Any, second: Any) -> bool:
    """Compare JSON values by their text, because 1 equals True."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _list_meanings(schema: dict[str, Any], key: str) -> list[Schema]:
    """Return the schemas of a key that an object does not list, or none if it ignored the key."""
    rest = schema.get("additionalProperties", True)
    # An object without listed keys takes any key, and each has a meaning.
    is_open = "additionalProperties" in schema or "properties" not in schema
    meanings = [*schema.get("patternProperties", {}).values()]
    if meanings or is_open or key in schema.get("required", ()):
        meanings.append(rest)
    return [each for each in meanings if each is not False]
