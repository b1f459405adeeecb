"""A small client of a language server, which answers as an editor would show it."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class LanguageServer:
    """basedpyright's language server for one folder, seen from an interpreter."""

    def __init__(self, command: Path, folder: Path, python: Path) -> None:
        self._folder = folder
        self._python = python
        self._last_id = 0
        self._process = subprocess.Popen(
            [command, "--stdio"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        settings = {"workspace": {"configuration": True}}
        root = {"rootUri": self._folder.as_uri(), "capabilities": settings, "processId": None}
        self.request("initialize", root)
        self._send({"method": "initialized", "params": {}})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self, file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})

    def ask(self, method: str, file: Path, line: int, column: int) -> Any:
        """Send a question about a position in a file, and return the answer."""
        position = {"line": line, "character": column}
        return self.request(
            f"textDocument/{method}", {"textDocument": {"uri": file.as_uri()}, "position": position}
        )

    def request(self, method: str, params: dict[str, Any]) -> Any:
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" in message and "id" in message:
                self._send({"id": message["id"], "result": self._answer(message)})
            elif message.get("id") == self._last_id:
                return message["result"]

    def _answer(self, message: dict[str, Any]) -> Any:
        if message["method"] != "workspace/configuration":
            return None
        python = {"pythonPath": str(self._python)}
        sections = [item.get("section") for item in message["params"]["items"]]
        return [python if section == "python" else {} for section in sections]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _receive(self) -> Any:
        stream = self._process.stdout
        assert stream is not None
        length = 0
        while (line := stream.readline().strip()) or not length:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return json.loads(stream.read(length))
