"""Convert the arguments of a task to a JSON payload and back."""

import inspect
import json
import sys
import typing
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from graphile_worker._payloads import (
    Field,
    Mismatch,
    Reader,
    build_reader,
    encode,
    read_fields,
)
from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.tasks.batch_results import BatchItems
from graphile_worker.tasks.context import BaseJobContext, JobContext, SyncJobContext

if TYPE_CHECKING:
    from graphile_worker._payloads.json_schema import Schema, SchemaBuilder


class Signature:
    """Convert the arguments of a function to a JSON payload and back."""

    def __init__(self, fn: Callable[..., Any], task: str | None = None) -> None:
        self._fn = fn
        self.task = task or get_function_name(fn)
        if isinstance(fn, classmethod):  # not callable until its class exists
            raise _build_method_error(get_function_name(fn.__func__), "cls")
        signature = inspect.signature(fn, **_SIGNATURE_OPTIONS)
        parameters = list(signature.parameters.values())
        context = _find_context(fn, parameters[0]) if parameters else None
        self.takes_context = context is not None
        self._parameters = parameters[1:] if self.takes_context else parameters
        _check_context(fn, context)
        _check_parameters(fn, self._parameters, takes_context=self.takes_context)
        self.takes_whole_payload = any(each.kind is _POSITIONAL_ONLY for each in self._parameters)
        self._kwargs_name = next(
            (each.name for each in self._parameters if each.kind is _VAR_KEYWORD), None
        )
        self._call_signature = inspect.Signature(self._parameters)
        self._readers: dict[str, Reader] = {}
        self._fields: list[Field] | None = None
        self._return_annotation = signature.return_annotation
        self._read_return: Reader | None = None
        self._resolve_early(self._resolve_readers)

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """Return the parameters of the function, without its context."""
        return tuple(self._parameters)

    @property
    def keys(self) -> list[str] | None:
        """Return the keys that payloads may have, or None if they may have any."""
        if self.takes_whole_payload or self._kwargs_name is not None:
            return None
        return [each.name for each in self._parameters]

    @property
    def has_keys(self) -> bool:
        """Return whether payloads are objects with the parameters as keys."""
        return not self.takes_whole_payload

    def build_payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Build the payload of a call and check it as the worker will.

        Raises:
            TypeError: The function cannot be called with these arguments.
            JobSpecError: A value has no JSON form or does not fit its annotation.
        """
        bound = self._bind(args, kwargs)
        if self.takes_whole_payload:
            return self.normalize_payload(
                bound.args[0] if bound.args else self._parameters[0].default
            )
        payload = dict(bound.arguments)
        if self._kwargs_name is not None:
            payload |= payload.pop(self._kwargs_name, {})
        for key in payload:
            if key.startswith("_"):
                reason = "keys that begin with _ are reserved for the queue"
                raise self._build_error(Mismatch(key, reason), payload)
        return self.normalize_payload(payload)

    def normalize_payload(self, payload: Any) -> Any:
        """Convert the payload to JSON values.

        Raises:
            JobSpecError: The task cannot be called with this payload.
        """
        try:
            text = encode(payload)
        except JobSpecError as error:
            mismatch = Mismatch(self._find_unencodable_key(payload), error.reason, self.task)
            raise JobSpecError(
                error.argument, error.value, error.reason, error.code, str(mismatch)
            ) from error
        plain = None if text is None else json.loads(text)
        try:
            # The database stores an empty object for a job without a payload.
            self.check_payload({} if plain is None else plain)
        except Mismatch as mismatch:
            raise self._build_error(mismatch, payload) from mismatch
        return plain

    def check_payload(self, payload: Any) -> None:
        """Raise Mismatch unless the whole payload fits."""
        self.read_arguments(payload)

    def build_call_arguments(self, payload: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for a call, with the context first if the function takes it.

        Crontabs of Rust workers add the payload null where other languages add an object.

        Raises:
            Mismatch: The payload does not fit.
        """
        if payload is None and self.has_keys:
            payload = {}
        try:
            args, kwargs = self.read_arguments(payload)
        except Mismatch as mismatch:
            mismatch.task = self.task
            raise
        return ([context, *args] if self.takes_context else args), kwargs

    def build_payload_schema(self, builder: "SchemaBuilder") -> "Schema":
        """Build the JSON Schema of the payloads that fit.

        Raises:
            ConfigurationError: An annotation cannot be resolved.
        """
        self._resolve_readers()
        schemas = {
            each.name: builder.build(self._evaluate(each.annotation)) for each in self._parameters
        }
        if self.takes_whole_payload:
            return schemas[self._parameters[0].name]
        rest = None if self._kwargs_name is None else schemas.pop(self._kwargs_name)
        schema: dict[str, Any] = {"type": "object", "properties": schemas}
        if required := [field.key for field in self._fields or () if field.is_required]:
            schema["required"] = required
        if rest == {}:
            # Without this keyword, the function ignores other keys.
            schema["additionalProperties"] = True
        elif rest is not None:
            # Keys that begin with _ are ignored.
            schema |= {"patternProperties": {"^_": {}}, "additionalProperties": rest}
        return schema

    def check_result(self) -> None:
        """Raise ConfigurationError if no JSON value has the type of the return annotation.

        A name that is defined further down is resolved later.
        """
        self._resolve_early(self._resolve_return_reader)

    def read_result(self, text: str) -> Any:
        """Read the result of a job from its JSON text. Without an annotation, any JSON fits.

        Raises:
            Mismatch: The result does not fit the return annotation.
            ConfigurationError: The annotation cannot be resolved, or JSON has no such type.
        """
        return self._resolve_return_reader()(json.loads(text))

    def get_batch(self, args: Sequence[Any]) -> BatchItems | None:
        """Return the items of a batch task, otherwise None."""
        return None

    def read_arguments(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        """Read the arguments of a call from the payload.

        Keys that the function does not name are ignored, and so are keys that begin with `_`.

        Raises:
            Mismatch: The payload does not fit.
        """
        readers = self._resolve_readers()
        if self.takes_whole_payload:
            return [readers[self._parameters[0].name](payload)], {}
        if not isinstance(payload, dict):
            kind = type(payload).__name__
            raise Mismatch("", f"expected an object with the parameters as keys, got {kind}")
        arguments = read_fields(payload, self._fields or ())
        if self._kwargs_name is not None:
            self._read_rest(payload, arguments, readers[self._kwargs_name])
        return [], arguments

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            return self._call_signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.task}: {error}") from None

    def _build_error(self, mismatch: Mismatch, value: Any) -> JobSpecError:
        mismatch.task = self.task
        text = str(mismatch)
        mismatch.prepend_path("payload")
        return JobSpecError(mismatch.path, value, mismatch.reason, "22023", text)

    def _find_unencodable_key(self, payload: Any) -> str:
        names = {each.name for each in self._parameters if each.kind in _KEYWORD_KINDS}
        for key, value in payload.items() if isinstance(payload, dict) else ():
            try:
                encode(value)
            except JobSpecError:
                return str(key) if key in names else "[...]"
        return ""

    def _read_rest(self, payload: dict[str, Any], arguments: dict[str, Any], read: Reader) -> None:
        try:
            for key, value in payload.items():
                if key not in arguments and not key.startswith("_"):
                    arguments[key] = read(value)
        except Mismatch as mismatch:
            # These keys are data, and messages never quote data.
            mismatch.prepend_path("[...]")
            raise

    def _resolve_early(self, resolve: Callable[[], object]) -> None:
        # A wrong annotation fails at the definition of the task. An annotation that names a class
        # defined further down is resolved later.
        try:
            resolve()
        except ConfigurationError as error:
            if not _has_missing_name(error):
                raise

    def _resolve_readers(self) -> dict[str, Reader]:
        if self._fields is None:
            self._readers = {
                each.name: self._build_reader(each.annotation, f"parameter {each.name}")
                for each in self._parameters
            }
            self._fields = [
                Field(
                    key=each.name,
                    keyword=each.name,
                    is_required=each.default is inspect.Parameter.empty,
                    read=self._readers[each.name],
                )
                for each in self._parameters
                if each.kind is not _VAR_KEYWORD
            ]
        return self._readers

    def _resolve_return_reader(self) -> Reader:
        if self._read_return is None:
            self._read_return = self._build_reader(self._return_annotation, "return annotation")
        return self._read_return

    def _evaluate(self, annotation: Any) -> Any:
        """Resolve the strings in an annotation with the names of the function's module.

        Each annotation is resolved separately, so that names for the context or the result may be
        missing.
        """
        return _evaluate(self._fn, annotation)

    def _build_reader(self, annotation: Any, where: str) -> Reader:
        try:
            return build_reader(self._evaluate(annotation))
        except (ConfigurationError, NameError, AttributeError, TypeError, SyntaxError) as error:
            name = get_function_name(self._fn)
            raise ConfigurationError(f"{name}, {where}: {error}") from error


# Python 3.14 evaluates annotations on access, when names may still be missing.
_SIGNATURE_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    _SIGNATURE_OPTIONS["annotation_format"] = annotationlib.Format.FORWARDREF


class PositionalSignature:
    """Call tasks as in Node: `task(payload)` or `task(payload, context)`, unchecked."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        parameters = inspect.signature(fn).parameters.values()
        self._max_args = sum(each.kind in _POSITIONAL for each in parameters)
        if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
            self._max_args = 2

    def build_payload(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the payload of a call: its one argument."""
        if kwargs or len(args) > 1:
            raise TypeError("this task takes one payload, passed by position")
        return args[0] if args else None

    def normalize_payload(self, payload: Any) -> Any:
        """Return the payload unchecked."""
        return payload

    def build_payload_schema(self, builder: "SchemaBuilder") -> "Schema":
        """Return the JSON Schema that any payload fits."""
        return {}

    def build_call_arguments(self, payload: Any, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for a call."""
        return [payload, context][: self._max_args], {}

    def read_result(self, text: str) -> Any:
        """Read the result of a job from its JSON text, unchecked."""
        return json.loads(text)

    def get_batch(self, args: Sequence[Any]) -> BatchItems | None:
        """Return the items of a payload that is an array, as in Node."""
        return BatchItems(range(len(args[0]))) if args and isinstance(args[0], list) else None


_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_POSITIONAL = (_POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_CONTEXTS: tuple[type, ...] = (BaseJobContext, JobContext, SyncJobContext)


def get_function_name(fn: Callable[..., Any]) -> str:
    """Return the qualified name of a function."""
    return getattr(fn, "__qualname__", repr(fn))


def is_async_function(fn: Callable[..., Any]) -> bool:
    """Return whether a call returns a coroutine, also for an object with an async `__call__`."""
    call = getattr(type(fn), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def _evaluate(fn: Callable[..., Any], annotation: Any) -> Any:
    plain = inspect.unwrap(fn)
    holder = SimpleNamespace(
        __annotations__={"value": annotation}, __type_params__=getattr(plain, "__type_params__", ())
    )
    names = getattr(plain, "__globals__", {})
    return typing.get_type_hints(holder, names, include_extras=True)["value"]


def _has_missing_name(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, NameError):
        error = error.__context__
    return error is not None


def _find_context(fn: Callable[..., Any], parameter: inspect.Parameter) -> type | None:
    """Return the context protocol that a parameter is annotated with, or None."""
    annotation = parameter.annotation
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        # Without the argument of the annotation: it and the class may be imported for type
        # checkers only.
        text = text.partition("[")[0]
        try:
            annotation = _evaluate(fn, text)
        except (NameError, AttributeError, TypeError, SyntaxError):
            name = text.rpartition(".")[2]
            return next((each for each in _CONTEXTS if each.__name__ == name), None)
    origin = typing.get_origin(annotation) or annotation
    return next((each for each in _CONTEXTS if each is origin), None)


def _check_context(fn: Callable[..., Any], context: type | None) -> None:
    """Raise ConfigurationError if the context does not suit the kind of the function."""
    kind, expected = ("async def", JobContext) if is_async_function(fn) else ("def", SyncJobContext)
    if context not in (None, BaseJobContext, expected):
        raise ConfigurationError(
            f"{get_function_name(fn)}: a task written with `{kind}` receives a "
            f"{expected.__name__}. Annotate its first parameter as `ctx: {expected.__name__}`."
        )


def _build_method_error(name: str, parameter: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}: a method cannot be a task, because a worker has nothing to pass as "
        f"{parameter!r}. Define the task as a function outside the class, or remove "
        f"{parameter!r} and write @staticmethod above the line that makes it a task."
    )


def _is_in_class_body(fn: Callable[..., Any]) -> bool:
    holder = getattr(fn, "__qualname__", "").rpartition(".")[0]
    return inspect.isfunction(fn) and holder != "" and not holder.endswith("<locals>")


def _check_parameters(
    fn: Callable[..., Any], parameters: Sequence[inspect.Parameter], *, takes_context: bool
) -> None:
    name = get_function_name(fn)
    kinds = [parameter.kind for parameter in parameters]
    unannotated = [each.name for each in parameters if each.annotation is inspect.Parameter.empty]
    first = parameters[0].name if parameters else ""
    if first in ("self", "cls") and _is_in_class_body(fn):
        raise _build_method_error(name, first)
    context = (JobContext if is_async_function(fn) else SyncJobContext).__name__
    if "helpers" in unannotated or unannotated[:2] in (["payload", "ctx"], ["payload", "context"]):
        raise ConfigurationError(
            f"{name}: a task is not called with (payload, helpers). Name the keys of the payload "
            "as parameters, or take all of it as `def task(payload, /)`. The context comes "
            f"first, as `ctx: {context}`."
        )
    if not takes_context and "ctx" in unannotated:
        raise ConfigurationError(
            f"{name}: parameter 'ctx' has no annotation, so it would be a key of the payload. "
            f"Make it the first parameter and annotate it as `ctx: {context}` to receive the "
            "context. If it is a key, annotate it with the type of its value."
        )
    if any(_find_context(fn, parameter) for parameter in parameters):
        raise ConfigurationError(f"{name}: the context must be the first parameter")
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise ConfigurationError(
            f"{name}: *args have no names, so they cannot be keys of a payload"
        )
    if _POSITIONAL_ONLY in kinds and len(kinds) > 1:
        raise ConfigurationError(
            f"{name}: a positional-only parameter takes the whole payload and must be the only one"
        )
    for parameter in parameters:
        if parameter.kind in _KEYWORD_KINDS and parameter.name.startswith("_"):
            raise ConfigurationError(
                f"{name}: rename {parameter.name}. Keys that begin with _ are reserved for the "
                "queue and never reach parameters."
            )
