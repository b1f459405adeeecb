"""Who makes a request: signed sessions, tokens, passwords, and the function of the host."""

import base64
import binascii
import hashlib
import hmac
import inspect
import ipaddress
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from graphile_worker.contrib.dashboard._api import Problem
from graphile_worker.contrib.dashboard._settings import unmap_address
from graphile_worker.contrib.dashboard._users import Role, User
from graphile_worker.errors import ConfigurationError

COOKIE_NAME = "gw_session"
COOKIE_VERSION = "1"

# The name in the audit of a person who signs in without one.
DEFAULT_USER_NAME = "dashboard"
MAX_NAME_CHARS = 100

MIN_SECRET_CHARS = 16
MIN_PASSWORD_CHARS = 8

WRONG_CREDENTIALS = "these credentials are not valid. A link works once, for 10 minutes"

# Failed attempts of one address within the window. After many of all addresses, it is one.
MAX_FAILURES = 5
MANY_FAILURES = 100
MAX_KEPT_FAILURES = 10_000
FAILURE_WINDOW_SECONDS = 60.0

# How long a link is valid. Logs may contain it.
LINK_SECONDS = 600.0

Authenticate = Callable[[Request], User | Response | None | Awaitable[User | Response | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who makes a request.

    Attributes:
        user: The person.
        session_id: The session, or None if the function of the host or a proxy knows the person.
        expires_at: When the session ends, by `time.time()`.
    """

    user: User
    session_id: str | None = None
    expires_at: float | None = None


class Authentication(Protocol):
    """How people sign in."""

    @property
    def methods(self) -> tuple[str, ...]:
        """What the login page offers."""

    async def identify(self, request: Request) -> Identity | Response | None:
        """Return who makes a request, the host's answer to a person who must sign in, or None."""


class ClosedAuthentication:
    """No person may enter: `dashboard()` has no function that knows people."""

    methods: tuple[str, ...] = ()

    async def identify(self, request: Request) -> None:
        """Reject each request, with what to do."""
        raise Problem(
            403,
            "closed",
            "this dashboard is closed: it has no authenticate function. Pass "
            "dashboard(…, authenticate=…), a function that returns a User for people who may "
            "use it.",
        )


class HostAuthentication:
    """The function of the host application knows who makes a request."""

    methods: tuple[str, ...] = ()

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    async def identify(self, request: Request) -> Identity | Response | None:
        """Call the function, which may be async."""
        answer = self._authenticate(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, User):
            return Identity(user=answer)
        if answer is None or isinstance(answer, Response):
            return answer
        raise ConfigurationError(
            f"authenticate returned {type(answer).__qualname__}, expected a User, a Response or "
            "None"
        )


class LoginAuthentication:
    """People sign in with a token or a password, and get a cookie."""

    def __init__(
        self,
        sessions: "Sessions",
        *,
        token: str | None = None,
        password: str | None = None,
        links: "OneTimeLinks | None" = None,
        role: Role | str = Role.ADMIN,
        get_peer: Callable[[Request], str],
    ) -> None:
        _check_secret(token, "token", MIN_SECRET_CHARS)
        _check_secret(password, "password", MIN_PASSWORD_CHARS)
        self._sessions = sessions
        self._token = token
        self._password = password
        self._links = links
        self._role = Role(role)
        self._get_peer = get_peer
        self._throttle = Throttle()

    @property
    def methods(self) -> tuple[str, ...]:
        """What the login page offers."""
        offers = {"token": self._token or self._links, "password": self._password}
        return tuple(name for name, is_offered in offers.items() if is_offered)

    async def identify(self, request: Request) -> Identity | None:
        """Read the cookie, or the password of the `Authorization` header."""
        cookie = request.cookies.get(COOKIE_NAME)
        session = None if cookie is None else self._sessions.read(cookie)
        if session is not None:
            name, session_id, expires_at = session
            user = User(name, self._role)
            return Identity(user=user, session_id=session_id, expires_at=expires_at)
        return self._identify_by_header(request)

    def sign_in(
        self, request: Request, *, token: str | None, password: str | None, name: str | None
    ) -> tuple[Identity, str]:
        """Check a token or a password, and begin a session.

        Returns:
            Who has signed in, and the value of the cookie.

        Raises:
            Problem: They are wrong, or too many attempts failed.
        """
        if token is None and password is None:
            raise Problem(400, "bad_request", "pass a token or a password")
        peer = self._get_peer(request)
        self._throttle.check(peer)
        if not (self._accepts_token(token) or self._accepts_password(password)):
            self._throttle.record_failure(peer)
            raise Problem(401, "unauthenticated", WRONG_CREDENTIALS)
        user = User(_clean_name(name), self._role)
        cookie, session_id, expires_at = self._sessions.begin(user.name)
        return Identity(user=user, session_id=session_id, expires_at=expires_at), cookie

    def sign_out(self, identity: Identity) -> None:
        """End a session."""
        if identity.session_id is not None and identity.expires_at is not None:
            self._sessions.end(identity.session_id, identity.expires_at)

    def _identify_by_header(self, request: Request) -> Identity | None:
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic" or self._password is None:
            return None
        peer = self._get_peer(request)
        self._throttle.check(peer)
        name, password = _read_basic(value)
        if not self._accepts_password(password):
            self._throttle.record_failure(peer)
            return None
        return Identity(user=User(_clean_name(name), self._role))

    def _accepts_token(self, token: str | None) -> bool:
        if token is None:
            return False
        if self._links is not None and self._links.use(token):
            return True
        return self._token is not None and are_equal(token, self._token)

    def _accepts_password(self, password: str | None) -> bool:
        if password is None or self._password is None:
            return False
        return are_equal(password, self._password)


class ProxyAuthentication:
    """A trusted proxy has signed people in, and names them in a header."""

    methods: tuple[str, ...] = ()

    def __init__(self, header: str, *, role: Role | str, trusts: Callable[[Request], bool]) -> None:
        self._header = header
        self._role = Role(role)
        self._trusts = trusts

    async def identify(self, request: Request) -> Identity | None:
        """Read the header, if the peer is a trusted proxy."""
        names = request.headers.getlist(self._header)
        # Two headers: a proxy appended its own to that of a client.
        if len(names) != 1 or not names[0].strip() or not self._trusts(request):
            return None
        return Identity(user=User(_clean_name(names[0]), self._role))


class Sessions:
    """Signed cookies. Each names a person, a session and its end."""

    def __init__(self, key: bytes, lifetime: timedelta) -> None:
        self._key = key
        self.lifetime_seconds = int(lifetime.total_seconds())
        self._ended: dict[str, float] = {}

    def begin(self, name: str) -> tuple[str, str, float]:
        """Return a new cookie, its session id and when it ends."""
        session_id = secrets.token_urlsafe(24)
        expires_at = float(int(time.time() + self.lifetime_seconds))
        text = json.dumps([name, session_id, expires_at]).encode()
        body = base64.urlsafe_b64encode(text).decode().rstrip("=")
        return f"{COOKIE_VERSION}.{body}.{self._sign(body)}", session_id, expires_at

    def read(self, cookie: str) -> tuple[str, str, float] | None:
        """Return the name, the session id and the end of a cookie, or None if it is not valid."""
        version, _, rest = cookie.partition(".")
        body, _, signature = rest.partition(".")
        if version != COOKIE_VERSION or not are_equal(signature, self._sign(body)):
            return None
        name, session_id, expires_at = json.loads(base64.urlsafe_b64decode(body + "=="))
        if expires_at <= time.time() or session_id in self._ended:
            return None
        return name, session_id, expires_at

    def end(self, session_id: str, expires_at: float) -> None:
        """End a session before its time."""
        now = time.time()
        self._ended = {id: end for id, end in self._ended.items() if end > now}
        self._ended[session_id] = expires_at

    def has_ended(self, identity: Identity) -> bool:
        """Return whether the session of an identity has ended."""
        if identity.expires_at is not None and identity.expires_at <= time.time():
            return True
        return identity.session_id in self._ended

    def build_csrf_token(self, identity: Identity | None) -> str:
        """Return the token that changes of this person must carry."""
        if identity is None:
            return self._sign("csrf:")
        return self._sign(f"csrf:{identity.session_id or ''}:{identity.user.name}")

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


class OneTimeLinks:
    """A token that signs in one person within 10 minutes. The next one is made when it is used."""

    def __init__(
        self, announce: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._announce = announce
        self._clock = clock
        self._token = ""
        self._expires_at = 0.0

    def renew(self) -> None:
        """Make a token, and announce it."""
        self._token = secrets.token_urlsafe(32)
        self._expires_at = self._clock() + LINK_SECONDS
        self._announce(self._token)

    def use(self, token: str) -> bool:
        """Return whether this is the token and has not expired. It is then no longer valid."""
        if not self._token or not are_equal(token, self._token):
            return False
        is_valid = self._clock() < self._expires_at
        self.renew()
        return is_valid


class Throttle:
    """Limits failed attempts to sign in of each peer.

    Failures of other peers never reject a peer that has none, so that they cannot lock people out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: deque[tuple[float, str]] = deque(maxlen=MAX_KEPT_FAILURES)

    def check(self, peer: str) -> None:
        """Reject an attempt after too many failed ones.

        Raises:
            Problem: The peer failed too often.
        """
        since = self._clock() - FAILURE_WINDOW_SECONDS
        while self._failures and self._failures[0][0] <= since:
            self._failures.popleft()
        network = _find_network(peer)
        own = [at for at, each in self._failures if each == network]
        if len(own) < (MAX_FAILURES if len(self._failures) < MANY_FAILURES else 1):
            return
        raise Problem(
            429,
            "too_many_attempts",
            "too many attempts to sign in failed. Wait a minute.",
            retry_after=max(1, round(own[0] - since)),
        )

    def record_failure(self, peer: str) -> None:
        """Count a failed attempt."""
        self._failures.append((self._clock(), _find_network(peer)))


def _find_network(peer: str) -> str:
    """Return an address, or the network of one of IPv6: its owner has all addresses in it."""
    try:
        address = unmap_address(ipaddress.ip_address(peer))
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))


def make_key(secret: str | bytes | None, *credentials: str | None) -> bytes:
    """Return the key of cookies: from a secret that several processes share, or random.

    Args:
        secret: The secret, or None for a random key.
        credentials: The password and the token. A new one ends all sessions.
    """
    if secret is None:
        return secrets.token_bytes(32)
    data = secret.encode() if isinstance(secret, str) else secret
    if len(data) < MIN_SECRET_CHARS:
        raise ConfigurationError(f"secret must have at least {MIN_SECRET_CHARS} characters")
    text = f"graphile-worker dashboard: {json.dumps(credentials)}"
    return hmac.new(data, text.encode(), hashlib.sha256).digest()


def are_equal(left: str, right: str) -> bool:
    """Compare secrets in a time that does not depend on them."""
    digests = (hashlib.sha256(each.encode(errors="replace")).digest() for each in (left, right))
    return hmac.compare_digest(*digests)


def _check_secret(value: str | None, name: str, length: int) -> None:
    if value is not None and len(value) < length:
        raise ConfigurationError(
            f"the {name} of the dashboard must have at least {length} characters"
        )


def _clean_name(name: str | None) -> str:
    # Names reach the audit, logs and pages.
    printable = "".join(each for each in name or "" if each.isprintable())
    return printable.strip()[:MAX_NAME_CHARS] or DEFAULT_USER_NAME


def _read_basic(value: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password
