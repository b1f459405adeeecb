"""Add readings of three sensors, one of which is not registered."""

from datetime import UTC, datetime

from tasks import Reading, note

for sensor, value in [("kitchen", 21.5), ("cellar", 9.0), ("attic", 30.1), ("kitchen", 21.6)]:
    gathered = note(Reading(sensor, datetime.now(UTC), value))
    print(f"{sensor}: {gathered} gathered")
