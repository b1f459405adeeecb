"""Who uses the dashboard, and what they may do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Permission(StrEnum):
    """What a user may do. Each route of the dashboard requires one of them."""

    VIEW = "view"
    """See jobs, queues, workers and errors, without payloads."""
    VIEW_PAYLOAD = "view_payload"
    """See payloads and results of jobs."""
    RETRY = "retry"
    """Run jobs now."""
    RESCHEDULE = "reschedule"
    """Change the time, the priority and the attempts of jobs."""
    ENQUEUE = "enqueue"
    """Add jobs, and run cron items now."""
    PAUSE = "pause"
    """Pause and resume queues and tasks."""
    LIMIT = "limit"
    """Set and reset limits of tasks."""
    FAIL = "fail"
    """Fail jobs permanently."""
    DELETE = "delete"
    """Delete jobs as if they had been completed, and remove jobs by key."""
    RECOVER = "recover"
    """Release jobs of dead workers."""


class Role(StrEnum):
    """A named set of permissions."""

    READ_ONLY = "read-only"
    """See everything but payloads."""
    OPERATOR = "operator"
    """Also see payloads, retry, reschedule, pause and change limits."""
    ADMIN = "admin"
    """Everything."""


ROLE_PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    Role.READ_ONLY: frozenset({Permission.VIEW}),
    Role.OPERATOR: frozenset(
        {
            Permission.VIEW,
            Permission.VIEW_PAYLOAD,
            Permission.RETRY,
            Permission.RESCHEDULE,
            Permission.PAUSE,
            Permission.LIMIT,
        }
    ),
    Role.ADMIN: frozenset(Permission),
}


@dataclass(frozen=True, init=False, slots=True)
class User:
    """A person who has signed in.

    Args:
        name: Name of the person in the audit.
        role: Role of the person, if `permissions` is None.
        permissions: What the person may do, one by one.

    Raises:
        ValueError: The name is empty, or the role or a permission does not exist.
    """

    name: str
    permissions: frozenset[Permission]

    def __init__(
        self,
        name: str,
        role: Role | str = Role.READ_ONLY,
        *,
        permissions: Collection[Permission | str] | None = None,
    ) -> None:
        if not name.strip():
            raise ValueError("a user of the dashboard needs a name")
        chosen = ROLE_PERMISSIONS[Role(role)] if permissions is None else permissions
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "permissions", frozenset(map(Permission, chosen)))

    def may(self, permission: Permission) -> bool:
        """Return whether the user has a permission.

        Args:
            permission: The permission.

        Returns:
            Whether the user has it.
        """
        return permission in self.permissions
