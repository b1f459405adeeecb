"""What a handler may ask about the person behind a request, beyond their name."""

from dataclasses import dataclass

from starlette.requests import Request

from graphile_worker.contrib.dashboard._auth import Authentication, Identity, Sessions


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How the person of a request has signed in.

    Attributes:
        identity: Who it is, or None.
        authentication: How people sign in.
        sessions: The cookies.
        base_path: The path of the dashboard in the browser.
        is_secure: Whether the browser uses https.
    """

    identity: Identity | None
    authentication: Authentication
    sessions: Sessions
    base_path: str
    is_secure: bool


def get_access(request: Request) -> Access:
    """Return how the person of a request has signed in."""
    access = request.state.access
    assert isinstance(access, Access)
    return access
