"""Requests to the health port of a worker."""

import urllib.error
import urllib.request


def status(port: int | str, path: str, host: str = "127.0.0.1") -> int:
    """The status of the answer."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
            found: int = answer.status
            return found
    except urllib.error.HTTPError as error:
        with error:
            return error.code
