"""What a worker answers to whoever asks how it is."""

import urllib.error
import urllib.request


def status(port: int | str, path: str, host: str = "127.0.0.1") -> int:
    """The status with which it answers."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
            found: int = answer.status
            return found
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
