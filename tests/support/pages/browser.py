"""A headless Chromium, driven by ChromeDriver's own protocol (W3C WebDriver), which is JSON over HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "no Chromium with ChromeDriver: install chromium and chromium-driver"

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "ArrowUp": "\ue013", "Shift": "\ue008", "Tab": "\ue004"}


class Browser:
    """One window. Elements are named by CSS selectors; a wait longer than `patience` seconds is an AssertionError."""

    patience = 300.0

    def __init__(self, session: str) -> None:
        self.session = session

    def call(self, method: str, path: str, **body: Any) -> Any:
        return _call(method, f"{self.session}/{path}", body)

    def open(self, address: str) -> None:
        self.call("POST", "url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that the body of a function returns."""
        return self.call("POST", "execute/sync", script=script, args=list(arguments))

    def later(self, script: str, *arguments: Any) -> Any:
        """The value that the body of a function passes to the last one of its arguments."""
        return self.call("POST", "execute/async", script=script, args=list(arguments))

    def until(self, condition: str, *arguments: Any) -> Any:
        """Waits until an expression is true."""
        end = time.monotonic() + self.patience
        while not (value := self.run(f"return {condition}", *arguments)):
            assert time.monotonic() < end, f"never true: {condition}\n{self.run('return document.body.innerText')}"
            time.sleep(0.05)
        return value

    def find(self, selector: str) -> str:
        self.until("document.querySelector(arguments[0])", selector)
        found = self.call("POST", "element", using="css selector", value=selector)
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        self.call("POST", f"element/{self.find(selector)}/click")

    def upload(self, selector: str, path: Path) -> None:
        """Chooses a file in a file field."""
        self.call("POST", f"element/{self.find(selector)}/value", text=str(path))

    def text(self, selector: str) -> str:
        self.find(selector)
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def type(self, text: str) -> None:
        """Presses keys, whatever has the focus; `{Enter}` and other names of KEYS stand for theirs."""
        for name, key in KEYS.items():
            text = text.replace(f"{{{name}}}", key)
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.call("POST", "actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def shift_enter(self) -> None:
        keys = [("keyDown", "Shift"), ("keyDown", "Enter"), ("keyUp", "Enter"), ("keyUp", "Shift")]
        actions = [{"type": kind, "value": KEYS[name]} for kind, name in keys]
        self.call("POST", "actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    @contextmanager
    def second_tab(self) -> Iterator[tuple[str, str]]:
        """Goes to a new tab, which is closed after the block; gives the names of the first tab and of the new one."""
        first = str(self.call("GET", "window"))
        second = str(self.call("POST", "window/new", type="window")["handle"])
        self.go(second)
        try:
            yield first, second
        finally:
            self.go(second)
            self.call("DELETE", "window")
            self.go(first)

    def go(self, tab: str) -> None:
        self.call("POST", "window", handle=tab)

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self.call("POST", "goog/cdp/execute", cmd=name, params=parameters)

    def media(self, scheme: str) -> None:
        """`scheme`: the light or dark that the system asks for."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 * phone, mobile=phone
        )
        self.command("Emulation.setTouchEmulationEnabled", enabled=phone)

    def complaints(self) -> list[str]:
        """What the console has since the last call: errors of scripts and of the content security policy among it."""
        entries = self.call("POST", "se/log", type="browser")
        return [entry["message"] for entry in entries]


def _call(method: str, address: str, body: dict[str, Any]) -> Any:
    data = None if method in ("GET", "DELETE") else json.dumps(body).encode()
    try:
        with urlopen(
            Request(address, data, {"Content-Type": "application/json"}, method=method), timeout=120
        ) as answer:
            return json.load(answer)["value"]
    except HTTPError as error:
        raise AssertionError(f"{method} {address}: {json.load(error)['value']['message']}") from None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts ChromeDriver and a window with an empty profile; both end with the context."""
    assert DRIVER is not None, MISSING
    with tempfile.TemporaryDirectory() as profile:
        driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        try:
            assert driver.stdout is not None
            port = next(line.split()[-1].rstrip(".") for line in driver.stdout if "successfully on port" in line)
            options = {"binary": CHROMIUM, "args": [*_FLAGS.split(), f"--user-data-dir={profile}"]}
            wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
            made = _call("POST", f"http://127.0.0.1:{port}/session", {"capabilities": wanted})
            browser = Browser(f"http://127.0.0.1:{port}/session/{made['sessionId']}")
            browser.size(1280, 800)
            yield browser
            _call("DELETE", browser.session, {})
        finally:
            driver.terminate()
            driver.wait()
            driver.stdout and driver.stdout.close()
