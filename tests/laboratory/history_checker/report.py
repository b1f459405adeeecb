"""The result of a check: counts and examples of each rule, and figures."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

# Each rule with its invariant and its meaning. docs/about/reliability.md has the same table.
RULES: dict[str, tuple[str, str]] = {
    "gaps": ("I0", "a change is missing from the record, so the history proves nothing"),
    "lost": (
        "I1",
        "an acknowledged job never existed, or was deleted without a run",
    ),
    "unexpected": ("I1", "a job exists though no enqueue was called for it, or its enqueue failed"),
    "duplicated": ("I1", "one enqueue added several jobs"),
    "double_held": ("I2", "a job was claimed while another claim on it was open"),
    "fence_breaks": ("I3", "a claimed job was changed by a process that had not claimed it"),
    "queue_overlap": ("I4", "two jobs of one named queue were claimed at the same time"),
    "queue_order": ("I4", "a job of a named queue was claimed before a better one"),
    "attempts_drift": ("I5", "attempts are not the number of claims minus the released ones"),
    "cron_missing": ("I6", "a minute of a crontab has no job"),
    "cron_double": ("I6", "a minute of a crontab has several jobs, or a job belongs to no minute"),
    "orphan_locks": ("I7", "a job or a named queue is locked by a process that has ended"),
    "second_ends": ("I8", "one claim was ended twice"),
    "key_breaks": ("I9", "two jobs have one key, or the last payload for a key was lost"),
    "effects": ("I10", "a transactional job has no effect, or several"),
    "early": ("I11", "a job was claimed before its `run_at`"),
    "priority": ("I12", "a job was claimed before a better one"),
    "outcomes": (
        "I13",
        "a kept outcome or attempt is missing, stored twice, or not of the run that held the job",
    ),
    "limit_exceeded": ("I14", "more jobs of a limit ran at the same time than it allows"),
    "orphan_slots": ("I14", "a slot is rented by a process that has ended"),
    "unfinished": ("L4", "a job could run, and no worker ran it"),
    "exits": ("L5", "a process ended by itself"),
}

# The number of examples that a report has of each rule.
MAX_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, with the job, the change and the processes that it is about."""

    rule: str
    what: str
    job: int | None = None
    seq: int | None = None
    apps: tuple[str, ...] = ()


@dataclass
class Report:
    """Counts and examples of each rule, and figures."""

    counts: Counter[str] = field(default_factory=Counter)
    # Findings that do not count: about processes that are not checked, or without a promise.
    apart: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Violation]] = field(default_factory=lambda: defaultdict(list))
    apart_examples: dict[str, list[Violation]] = field(default_factory=lambda: defaultdict(list))
    kinds: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        """The number of findings that count; it must be 0."""
        return sum(self.counts.values())

    @property
    def broken(self) -> set[str]:
        """The invariants that are broken."""
        return {RULES[rule][0] for rule, count in self.counts.items() if count}

    def add(self, violation: Violation, *, counts: bool = True) -> None:
        tally, examples = (
            (self.counts, self.examples) if counts else (self.apart, self.apart_examples)
        )
        tally[violation.rule] += 1
        if len(examples[violation.rule]) < MAX_EXAMPLES:
            examples[violation.rule].append(violation)

    def lines(self) -> list[str]:
        """Return a table of the rules, the figures, and examples of violations."""
        table = [
            f"{RULES[rule][0]:<4} {rule:<15} {self.counts[rule]:>8} {self._apart(rule):>8}"
            for rule in RULES
        ]
        head = f"{'':<4} {'':<15} {'counted':>8} {'apart':>8}"
        figures = [f"{name}: {value}" for name, value in self.figures.items()]
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.kinds.items()))
        found = [
            f"{rule}: {_format_violation(each)}"
            for rule, some in self.examples.items()
            for each in some
        ]
        return [head, *table, f"changes: {kinds}", *figures, *found]

    def to_json(self) -> dict[str, Any]:
        return {
            "violations": self.violations,
            "counts": {rule: self.counts[rule] for rule in RULES},
            "apart": dict(self.apart),
            "changes": dict(self.kinds),
            "figures": self.figures,
            "examples": {
                rule: [_format_violation(each) for each in some]
                for rule, some in self.examples.items()
            },
            "apart_examples": {
                rule: [_format_violation(each) for each in some]
                for rule, some in self.apart_examples.items()
            },
        }

    def _apart(self, rule: str) -> str:
        return str(self.apart[rule]) if self.apart[rule] else ""


def _format_violation(violation: Violation) -> str:
    where = "" if violation.job is None else f"job {violation.job} "
    when = "" if violation.seq is None else f"at {violation.seq} "
    return f"{where}{when}{violation.what} [{', '.join(violation.apps)}]"
