"""What was found in a history: counts and examples of each rule, and figures."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

# What is counted, under which invariant, and what it means.
RULES: dict[str, tuple[str, str]] = {
    "gaps": ("I0", "a row was changed unseen, so that the history proves nothing"),
    "lost": ("I1", "a job whose enqueue was acknowledged is gone, or never was"),
    "unexpected": ("I1", "a job is there that nobody has added, or whose adding has failed"),
    "duplicated": ("I1", "one enqueue has made several jobs"),
    "double_held": ("I2", "a job was taken while somebody held it"),
    "fence_breaks": ("I3", "a job was changed by a process that did not hold it"),
    "queue_overlap": ("I4", "two jobs of one named queue were held at a time"),
    "queue_order": ("I4", "a job of a named queue was taken before a better one"),
    "attempts_drift": ("I5", "attempts are not the number of claims less those given back"),
    "cron_missing": ("I6", "no job for a minute of a crontab"),
    "cron_double": ("I6", "several jobs for a minute of a crontab, or one that is not its own"),
    "orphan_locks": ("I7", "a job or a named queue is locked by somebody who is gone"),
    "second_ends": ("I8", "the end of a job was committed twice for one claim"),
    "key_breaks": ("I9", "two jobs have one key, or the last payload given for it was lost"),
    "effects": ("I10", "a transactional job has an effect that is not exactly one"),
    "early": ("I11", "a job was taken before its time"),
    "priority": ("I12", "a job was taken before a better one"),
    "unfinished": ("L4", "a job could run, and nobody has run it"),
    "exits": ("L5", "a process ended by itself"),
}

# Of each rule, so many are told.
EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: which, when, of which job, and the processes that it is about."""

    rule: str
    what: str
    job: int | None = None
    seq: int | None = None
    apps: tuple[str, ...] = ()


@dataclass
class Report:
    """What was found: counts and examples of each rule, and figures."""

    counts: Counter[str] = field(default_factory=Counter)
    # What is about other processes than those asked for, or is only of interest.
    apart: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Violation]] = field(default_factory=lambda: defaultdict(list))
    apart_examples: dict[str, list[Violation]] = field(default_factory=lambda: defaultdict(list))
    kinds: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        """How many promises were broken; it must be 0."""
        return sum(self.counts.values())

    @property
    def broken(self) -> set[str]:
        """The invariants that do not hold."""
        return {RULES[rule][0] for rule, count in self.counts.items() if count}

    def add(self, violation: Violation, *, counts: bool = True) -> None:
        tally, examples = (
            (self.counts, self.examples) if counts else (self.apart, self.apart_examples)
        )
        tally[violation.rule] += 1
        if len(examples[violation.rule]) < EXAMPLES:
            examples[violation.rule].append(violation)

    def lines(self) -> list[str]:
        """A table of it, with examples of what is broken."""
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
