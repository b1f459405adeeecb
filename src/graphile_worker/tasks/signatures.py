"""Signatures: how the arguments of a function travel as JSON, and how they come back."""

import inspect
import json
import sys
import typing
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from graphile_worker._payloads import Mismatch, Reader, build_reader, encode
from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.tasks.batch_results import BatchItems
from graphile_worker.tasks.context import JobContext


class Signature:
    """How the arguments of a function travel as JSON, and how they come back."""

    def __init__(self, fn: Callable[..., Any], task: str | None = None) -> None:
        self._fn = fn
        self.task = task or get_function_name(fn)
        _reject_class_method(fn)
        parameters = list(inspect.signature(fn, **_SIGNATURE_OPTIONS).parameters.values())
        self.takes_context = bool(parameters) and _is_context(fn, parameters[0])
        self._parameters = parameters[1:] if self.takes_context else parameters
        _check_parameters(fn, self._parameters, takes_context=self.takes_context)
        self.takes_whole_payload = any(each.kind is _POSITIONAL_ONLY for each in self._parameters)
        # By name, and whether it must be given; and that of `**rest`.
        self._named_parameters = [
            (each.name, each.default is inspect.Parameter.empty)
            for each in self._parameters
            if each.kind is not _VAR_KEYWORD
        ]
        self._kwargs_name = next(
            (each.name for each in self._parameters if each.kind is _VAR_KEYWORD), None
        )
        self._call_signature = inspect.Signature(self._parameters)
        self._readers: dict[str, Reader] | None = None
        self._resolve_early()

    @property
    def keys(self) -> list[str] | None:
        """The keys that its payloads may have; None if that is not known."""
        if self.takes_whole_payload or self._kwargs_name is not None:
            return None
        return [name for name, _ in self._named_parameters]

    def build_payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The payload of a call with these arguments, checked as the worker will check it."""
        bound = self._bind(args, kwargs)
        if self.takes_whole_payload:
            return self.normalize_payload(
                bound.args[0] if bound.args else self._parameters[0].default
            )
        given = _flatten(self._parameters, bound.arguments)
        for key in given:
            if key.startswith("_"):
                reason = "keys that begin with _ belong to the queue"
                raise self._build_error(Mismatch(key, reason), given)
        return self.normalize_payload(given)

    def normalize_payload(self, payload: Any) -> Any:
        """The payload as JSON has it; raises JobSpecError if the task cannot be called with it."""
        try:
            text = encode(payload)
        except JobSpecError as error:
            misfit = Mismatch(_find_unwritable_key(payload), error.reason, self.task)
            raise JobSpecError(
                error.argument, error.value, error.reason, error.code, str(misfit)
            ) from error
        plain = None if text is None else json.loads(text)
        try:
            # The database has an empty object where no payload is given.
            self.check_payload({} if plain is None else plain)
        except Mismatch as misfit:
            raise self._build_error(misfit, payload) from misfit
        return plain

    def check_payload(self, payload: Any) -> None:
        """Raise Mismatch unless all of that payload fits."""
        self.read_arguments(payload)

    def build_call_arguments(self, payload: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a call with that payload, the context among them if it is wanted."""
        try:
            args, kwargs = self.read_arguments(payload)
        except Mismatch as misfit:
            misfit.task = self.task
            raise
        return ([context, *args] if self.takes_context else args), kwargs

    def get_batch(self, args: Sequence[Any]) -> BatchItems | None:
        """The items among these arguments; here there are none."""
        return None

    def read_arguments(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a call with that payload; raises Mismatch where it does not fit.

        Keys that the function does not name are left out, and so are those that begin with `_`,
        which belong to the queue.
        """
        readers = self._resolve_readers()
        if self.takes_whole_payload:
            return [readers[self._parameters[0].name](payload)], {}
        if not isinstance(payload, dict):
            kind = type(payload).__name__
            raise Mismatch("", f"expected an object with the parameters as keys, got {kind}")
        return [], self._read_named(payload, readers)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            return self._call_signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.task}: {error}") from None

    def _build_error(self, misfit: Mismatch, given: Any) -> JobSpecError:
        misfit.task = self.task
        text = str(misfit)
        misfit.prepend_path("payload")
        return JobSpecError(misfit.path, given, misfit.reason, "22023", text)

    def _read_named(self, payload: dict[str, Any], readers: dict[str, Reader]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, is_required in self._named_parameters:
            if name in payload:
                found[name] = _read_value(readers[name], payload[name], name)
            elif is_required:
                raise Mismatch(name, "missing")
        if self._kwargs_name is not None:
            rest = payload.keys() - found.keys()
            given = [key for key in payload if key in rest and not key.startswith("_")]
            found |= {
                key: _read_value(readers[self._kwargs_name], payload[key], key) for key in given
            }
        return found

    def _resolve_early(self) -> None:
        # A wrong annotation fails where it is written; one that names a class defined further down
        # can only be looked at later.
        try:
            self._resolve_readers()
        except ConfigurationError as error:
            if not _has_missing_name(error):
                raise

    def _resolve_readers(self) -> dict[str, Reader]:
        if self._readers is None:
            self._readers = {each.name: self._build_reader(each) for each in self._parameters}
        return self._readers

    def _build_reader(self, parameter: inspect.Parameter) -> Reader:
        try:
            return build_reader(_evaluate(self._fn, parameter.annotation))
        except (ConfigurationError, NameError, AttributeError, TypeError, SyntaxError) as error:
            where = f"{get_function_name(self._fn)}, parameter {parameter.name}"
            raise ConfigurationError(f"{where}: {error}") from error


# From 3.14 on, annotations are evaluated when somebody asks; names may still be missing then.
_SIGNATURE_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _SIGNATURE_OPTIONS["annotation_format"] = annotationlib.Format.FORWARDREF


class PositionalSignature:
    """How the reference calls its tasks: `task(payload)` or `task(payload, context)`, unchecked."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        parameters = inspect.signature(fn).parameters.values()
        self._max_args = sum(each.kind in _POSITIONAL for each in parameters)
        if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
            self._max_args = 2

    def build_payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The payload of an enqueued call: its one argument."""
        if kwargs or len(args) > 1:
            raise TypeError("this task takes one payload, given by position")
        return args[0] if args else None

    def normalize_payload(self, payload: Any) -> Any:
        """Any payload will do."""
        return payload

    def build_call_arguments(self, payload: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        return [payload, context][: self._max_args], {}

    def get_batch(self, args: Sequence[Any]) -> BatchItems | None:
        """An array is a batch, as in the reference; if the task answers with an array too."""
        return BatchItems(range(len(args[0]))) if args and isinstance(args[0], list) else None


_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_POSITIONAL = (_POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _read_value(read: Reader, value: Any, name: str) -> Any:
    try:
        return read(value)
    except Mismatch as misfit:
        misfit.prepend_path(name)
        raise


def _flatten(parameters: Sequence[inspect.Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, those of `**rest` among them."""
    flat = dict(given)
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            flat |= flat.pop(parameter.name, {})
    return flat


def _find_unwritable_key(given: Any) -> str:
    """The key whose value JSON cannot carry; empty if it is not known."""
    for key, value in given.items() if isinstance(given, dict) else ():
        try:
            encode(value)
        except JobSpecError:
            return str(key)
    return ""


def get_function_name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(fn))


def _evaluate(fn: Callable[..., Any], annotation: Any) -> Any:
    """What an annotation of the function means, its strings looked up where the function stands.

    One by one, so that names which only the context or the result needs may be missing.
    """
    plain = inspect.unwrap(fn)
    alone = SimpleNamespace(
        __annotations__={"it": annotation}, __type_params__=getattr(plain, "__type_params__", ())
    )
    names = getattr(plain, "__globals__", {})
    return typing.get_type_hints(alone, names, include_extras=True)["it"]


def _has_missing_name(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, NameError):
        error = error.__context__
    return error is not None


def _is_context(fn: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        # Without its argument, which may be imported for type checkers alone; so may the class.
        text = text.partition("[")[0]
        try:
            annotation = _evaluate(fn, text)
        except (NameError, AttributeError, TypeError, SyntaxError):
            return text.rpartition(".")[2] == JobContext.__name__
    return (typing.get_origin(annotation) or annotation) is JobContext


def _reject_class_method(fn: Callable[..., Any]) -> None:
    # Not callable before its class is made.
    if isinstance(fn, classmethod):
        raise _build_method_error(get_function_name(fn.__func__), "cls")


def _build_method_error(name: str, parameter: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}: a method cannot be a task, because a worker has nothing to pass as "
        f"{parameter!r}. Define the task as a function outside the class, or remove {parameter!r} "
        "and write @staticmethod above the line that makes it a task"
    )


def _is_in_class_body(fn: Callable[..., Any]) -> bool:
    holder = getattr(fn, "__qualname__", "").rpartition(".")[0]
    return inspect.isfunction(fn) and holder != "" and not holder.endswith("<locals>")


def _check_parameters(
    fn: Callable[..., Any], parameters: Sequence[inspect.Parameter], *, takes_context: bool
) -> None:
    name = get_function_name(fn)
    kinds = [parameter.kind for parameter in parameters]
    first = parameters[0].name if parameters else ""
    if first in ("self", "cls") and _is_in_class_body(fn):
        raise _build_method_error(name, first)
    if _has_node_parameters(parameters):
        raise ConfigurationError(
            f"{name}: a task is not called with (payload, helpers). Name the keys of the payload "
            "as parameters, or take all of it as `def task(payload, /)`; the context comes first, "
            "as `ctx: JobContext`"
        )
    if not takes_context and any(
        each.name == "ctx" and _is_unannotated(each) for each in parameters
    ):
        raise ConfigurationError(
            f"{name}: parameter 'ctx' has no annotation, so it would be a key of the payload. "
            "Annotate it as `ctx: JobContext`, first of all parameters, to receive the context; "
            "annotate it with the type of its value if it is a key"
        )
    if any(_is_context(fn, parameter) for parameter in parameters):
        raise ConfigurationError(f"{name}: the JobContext must be the first parameter")
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise ConfigurationError(f"{name}: *args have no names, so they cannot be keys of JSON")
    if _POSITIONAL_ONLY in kinds and len(kinds) > 1:
        raise ConfigurationError(
            f"{name}: a positional-only parameter is the whole payload and stands alone"
        )
    for parameter in parameters:
        if parameter.kind in _KEYWORD_KINDS and parameter.name.startswith("_"):
            raise ConfigurationError(
                f"{name}: {parameter.name} would stay empty, as keys that begin with _ belong to "
                "the queue"
            )


def _is_unannotated(parameter: inspect.Parameter) -> bool:
    return parameter.annotation is inspect.Parameter.empty


def _has_node_parameters(parameters: Sequence[inspect.Parameter]) -> bool:
    bare = [each.name for each in parameters if _is_unannotated(each)]
    return "helpers" in bare or bare[:2] in (["payload", "ctx"], ["payload", "context"])
