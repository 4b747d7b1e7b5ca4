"""Options for Debian's Chromium, and a driver for Debian's Firefox that speaks its own protocol.

Debian has no geckodriver, and Playwright cannot control a distribution's Firefox. Firefox speaks
Marionette (https://firefox-source-docs.mozilla.org/testing/marionette) over TCP. Each message
consists of the length of a list, a colon, and the list as JSON.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

#: Options for Chromium without background requests and without the sandbox, which containers lack.
CHROMIUM_OPTIONS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
)
_PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "marionette.port": 0,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
}
#: Timeout for the start of the browser, in seconds.
#: Other timeouts are multiples of this one.
_SECONDS = 60


class Firefox:
    """A headless Firefox with one window.

    Args:
        width, height: Size of the page, in CSS pixels.
        dark: Whether the browser prefers dark colors.
        frame_rate: Frame rate in frames per second, or 0 for no limit.
    """

    def __init__(
        self, width: int, height: int = 900, *, dark: bool = False, frame_rate: int = -1
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._size = (width, height)
        preferences = {
            **_PREFERENCES,
            "ui.systemUsesDarkTheme": int(dark),
            "layout.frame_rate": frame_rate,
        }
        lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in preferences.items())
        Path(self._folder.name, "user.js").write_text("\n".join(lines), encoding="utf-8")
        self._asked = 0

    def __enter__(self) -> Firefox:
        """Start the browser, open a session, and give the page the requested size.

        Raises:
            FileNotFoundError: No Firefox is installed.
            TimeoutError: The browser does not start listening in time.
        """
        program = shutil.which("firefox-esr") or shutil.which("firefox")
        if program is None:
            raise FileNotFoundError("firefox-esr")
        self._process = subprocess.Popen(
            [program, "--headless", "--no-remote", "--marionette", "--profile", self._folder.name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._socket = socket.create_connection(("127.0.0.1", self._read_port()), _SECONDS)
        self._socket.settimeout(10 * _SECONDS)
        self._stream = self._socket.makefile("rb")
        self._read_message()  # a greeting
        self.ask("WebDriver:NewSession", acceptInsecureCerts=False)
        self.ask("WebDriver:SetTimeouts", script=5 * _SECONDS * 1000)
        self._resize()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait(_SECONDS)
        self._folder.cleanup()

    def _read_port(self) -> int:
        """Return the port on which the browser listens.

        The browser writes the port to its profile.
        """
        file = Path(self._folder.name, "MarionetteActivePort")
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            if file.exists() and (text := file.read_text()):
                return int(text)
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise TimeoutError("firefox does not listen")

    def _resize(self) -> None:
        """Resize the window so that the viewport has the requested size."""
        width, height = self._size
        self.ask("WebDriver:SetWindowRect", width=width, height=height)
        inner = self.run("return [innerWidth, innerHeight]")
        self.ask(
            "WebDriver:SetWindowRect", width=2 * width - inner[0], height=2 * height - inner[1]
        )

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command, and return the value of the answer.

        Raises:
            RuntimeError: The command failed.
        """
        self._asked += 1
        text = json.dumps([0, self._asked, command, arguments]).encode()
        self._socket.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self._read_message()
        if error:
            raise RuntimeError(f"{command}: {error['message']}\n{error['stacktrace']}")
        return result["value"] if isinstance(result, dict) and "value" in result else result

    def _read_message(self) -> Any:
        """Return the next message from the browser, decoded from JSON.

        Raises:
            EOFError: The browser closed the connection.
        """
        length = b""
        while (digit := self._stream.read(1)) != b":":
            if not digit:
                raise EOFError("firefox closed the connection")
            length += digit
        return json.loads(self._stream.read(int(length)))

    def open(self, url: str, ready: str = "body[data-ready]") -> None:
        """Open a page, and wait until the page marks itself as ready."""
        self.ask("WebDriver:Navigate", url=url)
        self.ask("WebDriver:SetTimeouts", implicit=_SECONDS * 1000)
        self.ask("WebDriver:FindElement", using="css selector", value=ready)
        self.ask("WebDriver:SetTimeouts", implicit=0)

    def run(self, script: str) -> Any:
        """Run the body of an asynchronous function in the page, and return its result."""
        wrapped_script = (
            "const [args, done] = [arguments, arguments[arguments.length - 1]];"
            f"(async () => {{ {script} }})().then((value) => done([value, null]),"
            " (error) => done([null, String(error)]));"
        )
        value, error = self.ask(
            "WebDriver:ExecuteAsyncScript",
            script=wrapped_script,
            args=[],
            sandbox=None,
            newSandbox=False,
        )
        if error:
            raise RuntimeError(error)
        return value

    def act(self, kind: str, *actions: dict[str, Any]) -> None:
        """Perform WebDriver actions with a ``pointer``, a ``wheel`` or a ``key``."""
        source = {"type": kind, "id": kind, "actions": list(actions)}
        self.ask("WebDriver:PerformActions", actions=[source])

    def press(self, key: str) -> None:
        """Press and release a key."""
        self.act("key", {"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})

    def printed(self) -> bytes:
        return base64.b64decode(self.ask("WebDriver:Print", background=True))
