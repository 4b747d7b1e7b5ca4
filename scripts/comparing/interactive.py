"""Runs interactive commands of one tree. The tree's Python runs this script.

In the folder of a case, ``python interactive.py WORDS`` runs ``bubbleviz WORDS`` and acts as its
client: an assistant for ``mcp``, or a browser for ``view``. Answers are printed on standard output.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

_PROGRAM = (sys.executable, "-m", "bubbleviz")
#: Tools of ``mcp``, each with the arguments of a call.
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((tool, {"path": "1f1b"}) for tool in ("inspect", "analyze", "why", "plan", "timeline")),
    ("compare", {"before": "1f1b", "after": "zb-h2"}),
    ("simulate", {"schedule": "zb-h1", "path": "1f1b"}),
)


def main() -> None:
    """Run the command that is given by the arguments."""
    sys.path.pop(0)
    words = sys.argv[1:]
    {"mcp": _call_tools, "view": _open_page}[words[0]](words)


def _call_tools(words: list[str]) -> None:
    """Call every tool of the server and print the answers."""
    client = {"protocolVersion": "2025-06-18", "capabilities": {}}
    client["clientInfo"] = {"name": "comparison", "version": "1"}
    requests = [("initialize", client), ("tools/list", {})]
    requests += [
        ("tools/call", {"name": name, "arguments": arguments}) for name, arguments in _CALLS
    ]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*_PROGRAM, *words], **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for number, (method, parameters) in enumerate(requests):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}
            print(json.dumps(request), file=server.stdin, flush=True)
            answer = json.loads(server.stdout.readline())
            for content in answer.get("result", {}).get("content", ()):
                print(content.get("text"))
            if "content" not in answer.get("result", {}):
                print(json.dumps(answer, indent=1, sort_keys=True))
            if number == 0:
                initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                print(json.dumps(initialized), file=server.stdin, flush=True)


def _open_page(words: list[str]) -> None:
    """Fetch the page that is served, and then stop the server as Ctrl-C would."""
    command = [*_PROGRAM, *words, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with urllib.request.urlopen(address) as answer:
            Path("page.html").write_bytes(answer.read())
        server.send_signal(signal.SIGINT)
    print(f"the server ended with {server.returncode}")


if __name__ == "__main__":
    main()
