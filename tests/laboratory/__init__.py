"""The fault laboratory: random faults on real workers, and a check of the recorded history."""
