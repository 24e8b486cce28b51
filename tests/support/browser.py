"""Headless Chromium, controlled over the pipe of its DevTools protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A headless Chromium without a network, controlled over the pipe of its DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--proxy-server=127.0.0.1:9",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = ["sh", "-c", f'exec "$@" 3</dev/fd/{commands} 4>/dev/fd/{answers}', "sh", *command]
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(shell, pass_fds=(commands, answers), stdout=silent, stderr=silent)
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        #: The URL of the page.
        self.opened = ""

    def start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            part = os.read(self._read, 1 << 16) if ready else b""
            assert part, "Chromium has ended or does not answer"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str) -> None:
        self.events.clear()
        self.opened = url
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def view(self, width: int, scheme: str) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        # The value is taken two frames later: the effects of a change to the page have happened by then.
        frames = f"new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({expression}))))"
        return self.run(frames)

    def run(self, expression: str) -> Any:
        """Evaluate an expression and return its value. A promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key, given by character or name."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
        kinds = ("rawKeyDown", "char", "keyUp") if text else ("rawKeyDown", "keyUp")
        for kind in kinds:
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=text,
                modifiers=8 if shift else 0,
                windowsVirtualKeyCode=codes.get(key, ord(key[0])),
            )

    def until(self, expression: str, expected: object) -> None:
        """Wait until an expression of the page has the expected value, at most 30 s."""
        until = time.monotonic() + 30
        while (value := self.value(expression)) != expected:
            assert time.monotonic() < until, f"{expression} stays {value!r}, not {expected!r}"

    def complaints(self) -> list[str]:
        """Return errors and messages of the console, and requests for any URL outside the file and its contents."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(parameters))
            if method == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:", "about:")):
                    found.append(url)
        return found

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
