"""The arguments of `instrument`, checked."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from graphile_worker.errors import ConfigurationError

Propagation = Literal["off", "read", "read-write"]
RecordedField = Literal["exception_message", "job_key", "queue_name"]
Metrics = Literal["off", "counters", "histograms"]
Parent = Literal["link", "first-attempt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What spans, metrics and payloads contain."""

    propagation: Propagation = "read"
    parent: Parent = "link"
    record: Collection[RecordedField] = ()
    metrics: Metrics = "counters"

    def __post_init__(self) -> None:
        _check_choice("propagation", self.propagation, Propagation)
        _check_choice("parent", self.parent, Parent)
        _check_choice("metrics", self.metrics, Metrics)
        if isinstance(self.record, str) or not set(self.record) <= {*get_args(RecordedField)}:
            choices = ", ".join(get_args(RecordedField))
            raise ConfigurationError(
                f"record must be a list of any of {choices}, got {self.record!r}"
            )

    @property
    def reads_context(self) -> bool:
        return self.propagation != "off"

    @property
    def writes_context(self) -> bool:
        return self.propagation == "read-write"


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        listed = ", ".join(get_args(choices))
        raise ConfigurationError(f"{name} must be one of {listed}, got {value!r}")
