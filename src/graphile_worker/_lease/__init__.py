"""Heartbeats and leases of pools, and the recovery of jobs of dead pools."""
