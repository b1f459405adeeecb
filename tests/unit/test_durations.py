"""Lengths of time for people: as much of them as is read."""

from datetime import timedelta

import pytest

from graphile_worker._support.durations import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (0.04, "0.0s"),
        (9.96, "10.0s"),
        (10, "10s"),
        (59.4, "59s"),
        (160, "2m40s"),
        (120, "2m"),
        (3600, "1h"),
        (3725, "1h2m"),
        (3605, "1h"),
        (90000, "1d1h"),
        (86400 * 400 + 59, "400d"),
        (-160, "-2m40s"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert format_duration(timedelta(seconds=seconds)) == text
