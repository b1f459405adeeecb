"""What a worker answers to whoever asks how it is."""

import urllib.error
import urllib.request


def status(port: int | str, path: str) -> int:
    """The status with which it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            found: int = answer.status
            return found
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
