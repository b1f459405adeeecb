"""Everybody in turn, several times; then medians, and ratios of one round."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

Figures = dict[str, float | None]


def alternated(
    measures: Mapping[str, Callable[[], Figures]], rounds: int
) -> dict[str, list[Figures]]:
    """What each measured, round by round; who goes first changes from round to round."""
    names = list(measures)
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(rounds):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            found[name].append(measures[name]())
            click.echo(f"round {number + 1}, {name}: {_short(found[name][-1])}", err=True)
    return found


def summary(found: Sequence[Figures]) -> dict[str, Any]:
    """Each figure with its median and all of its rounds."""
    return {
        key: {
            "median": rounded(statistics.median(values)),
            "rounds": [rounded(value) for value in values],
        }
        for key in found[0]
        if (values := [each for figures in found if (each := figures[key]) is not None])
    }


def ratios(found: Mapping[str, Sequence[Figures]], ours: str, key: str) -> dict[str, Any]:
    """Ours divided by theirs, in each round, and the median of that."""
    told = {}
    for name, theirs in found.items():
        if name == ours:
            continue
        each = [
            (mine[key] or 0) / (other[key] or 1)
            for mine, other in zip(found[ours], theirs, strict=True)
        ]
        told[name] = {
            "median": rounded(statistics.median(each)),
            "rounds": [rounded(value) for value in each],
        }
    return told


def rounded(value: float) -> float:
    """Four digits are more than a noisy machine can tell."""
    return float(f"{value:.4g}")


def _short(figures: Figures) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in figures.items() if value is not None)
