"""What each answer and each request must have: headers, an allowed host, and an origin."""

import hmac
import ipaddress
import re
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from graphile_worker.contrib.dashboard._api import Problem
from graphile_worker.contrib.dashboard._settings import (
    ANY_HOST,
    LOOPBACK_HOSTS,
    UNIX_SOCKET,
    DashboardSettings,
    unmap_address,
)

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'self'; form-action 'none'; "
    "frame-ancestors 'none'"
)

SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

CSRF_HEADER = "x-csrf-token"
JSON_TYPE = "application/json"

HOST_PATTERN = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
PREFIX_PATTERN = re.compile(r"(/[A-Za-z0-9._~%-]+)+")
DEFAULT_PORTS = {"http": "80", "https": "443"}

HTTPS_PROXY_MISSING = (
    "rejected: the page has an https address, but the request arrived over http. If a proxy serves "
    "the dashboard over HTTPS, let it send X-Forwarded-Proto, and pass --forwarded and "
    "--trusted-proxy with the network of the proxy, in code forwarded=True and "
    "trusted_proxies=[…]."
)


def add_security_headers(response: Response) -> Response:
    """Add the headers that each answer has. Only static files may be cached."""
    for name, value in SECURITY_HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("cache-control", "no-store")
    return response


class RequestGuard:
    """Checks hosts and origins, with the headers of trusted proxies if the settings allow it."""

    def __init__(self, settings: DashboardSettings) -> None:
        self._allowed = {each.lower() for each in (*LOOPBACK_HOSTS, *settings.allowed_hosts)}
        self._domains = tuple(each for each in self._allowed if each.startswith("."))
        self._is_forwarded = settings.forwarded
        self._networks = settings.list_trusted_networks()
        self._trusts_unix_socket = UNIX_SOCKET in (settings.trusted_proxies or ())

    def trusts(self, request: Request) -> bool:
        """Return whether the peer of the request is a proxy of the settings."""
        if request.client is None:
            return self._trusts_unix_socket
        try:
            address = ipaddress.ip_address(request.client.host)
        except ValueError:
            return False
        # A network may be written in the form of a dual-stack socket too.
        forms = {address, unmap_address(address)}
        return any(form in network for form in forms for network in self._networks)

    def get_peer(self, request: Request) -> str:
        """Return the address of the browser, as far as it is known."""
        forwarded = self._get_forwarded(request, "x-forwarded-for") or ""
        # A proxy appends the address that it saw. The entries before it can be made up.
        return forwarded.rpartition(",")[2].strip() or (
            "" if request.client is None else request.client.host
        )

    def get_scheme(self, request: Request) -> str:
        """Return `https` or `http`, as the browser sees it."""
        scheme = self._get_forwarded(request, "x-forwarded-proto")
        return scheme if scheme in DEFAULT_PORTS else str(request.scope.get("scheme", "http"))

    def get_base_path(self, request: Request) -> str:
        """Return the path of the dashboard in the browser, from a slash to a slash."""
        prefix = self._get_forwarded(request, "x-forwarded-prefix") or ""
        if not PREFIX_PATTERN.fullmatch(prefix.rstrip("/")):
            prefix = ""
        root = quote(str(request.scope.get("root_path", "")), safe="/~")
        path = f"{prefix.rstrip('/')}{root}".rstrip("/")
        # Two slashes at the beginning would name another host.
        return "/" + path.lstrip("/") + ("/" if path.strip("/") else "")

    def check_host(self, request: Request) -> None:
        """Reject a request for a name that is not allowed: another site may have made it.

        A page of that site can add `X-Forwarded-Host`, so both names must be allowed.
        """
        for host in {request.headers.get("host", ""), self._get_host(request)}:
            if not self._allows_host(host):
                raise Problem(
                    421,
                    "host",
                    f"this dashboard does not answer requests for the host {host[:100]!r}. Add it "
                    "with --allow-host, in code allowed_hosts=[…].",
                )

    def _allows_host(self, host: str) -> bool:
        match = HOST_PATTERN.fullmatch(host)
        if match is None:
            return False
        names = {match[1].lower(), host.lower()}
        if not self._allowed.isdisjoint({*names, ANY_HOST}):
            return True
        if any(f".{each}".endswith(self._domains) for each in names):
            return True
        # Only a name can lead to this machine by a change of its DNS entry.
        return _is_address(match[1])

    def check_origin(self, request: Request) -> None:
        """Reject a change from a page of another site, or from one that does not show its site."""
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        if site is not None and site != "same-origin":
            raise _build_csrf_problem("the request comes from another site")
        if origin is not None:
            self._check_own_origin(request, origin)
        if site is None and origin is None:
            raise _build_csrf_problem("the request has neither Sec-Fetch-Site nor Origin")
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != JSON_TYPE:
            raise _build_csrf_problem(f"the content type is not {JSON_TYPE}")

    def _check_own_origin(self, request: Request, origin: str) -> None:
        scheme = self.get_scheme(request)
        host = _strip_port(self._get_host(request), scheme)
        origin_scheme, origin_host = _split_origin(origin)
        if origin_host != host or origin_scheme not in (scheme, "https"):
            raise _build_csrf_problem("the request comes from another origin")
        if origin_scheme != scheme:
            raise Problem(403, "csrf", HTTPS_PROXY_MISSING)

    def _get_host(self, request: Request) -> str:
        forwarded = self._get_forwarded(request, "x-forwarded-host")
        return forwarded or request.headers.get("host", "")

    def _get_forwarded(self, request: Request, header: str) -> str | None:
        if not self._is_forwarded or not self.trusts(request):
            return None
        # A client may have sent the lines before the one of the proxy.
        values = request.headers.getlist(header)
        return values[-1] if values else None


def check_csrf_token(request: Request, expected: str) -> None:
    """Reject a change without the token that /session returned to this person."""
    token = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(token.encode(), expected.encode()):
        raise _build_csrf_problem(f"the header {CSRF_HEADER} is missing or has expired")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _split_origin(origin: str) -> tuple[str, str]:
    """Return the scheme and the host of an origin, empty if it has none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return "", ""
    return parts.scheme, _strip_port(parts.netloc, parts.scheme)


def _strip_port(host: str, scheme: str) -> str:
    return host.lower().removesuffix(f":{DEFAULT_PORTS.get(scheme, '')}")


def _build_csrf_problem(reason: str) -> Problem:
    return Problem(403, "csrf", f"rejected: {reason}. Reload the page.")
