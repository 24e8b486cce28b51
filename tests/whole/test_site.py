"""The documentation in a browser: its width on a phone, its accessibility and its search."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[2]
AXE = os.environ.get("AXE_CORE", "")
#: The last one is beside a page with a < in its title.
PAGES = [
    *("", "install/", "rules/", "rules/AMP201/", "messages/", "messages/anomaly-nan/", "api/", "options/", "found/"),
    "messages/checkpoint-metadata/",
]
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def build_once(base: Path) -> Path:
    """Return the folder of the site, which the first worker of a run builds."""
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    site, is_built = shared / "site", shared / "site-is-built"
    try:
        site.mkdir()
    except FileExistsError:
        ends = time.monotonic() + 300
        while not is_built.exists() and time.monotonic() < ends:
            time.sleep(0.2)
        return site
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    try:
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    finally:
        is_built.touch()
    return site


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    site = build_once(tmp_path_factory.getbasetemp())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    opened.start()
    yield opened
    opened.close()


def show(browser: Browser, address: str, width: int) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 500)
    browser.open(address)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_and_is_accessible(browser: Browser, address: str, page: str, width: int) -> None:
    show(browser, f"{address}/{page}", width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.querySelectorAll('h1').length") == 1
    if not AXE:
        pytest.skip("AXE_CORE names no axe.min.js")
    browser.run(Path(AXE).read_text(encoding="utf-8") + ";0")
    found = browser.run(
        "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.impact]))"
    )
    assert [name for name, impact in found if impact in ("serious", "critical")] == []


@pytest.mark.parametrize(
    ("words", "page"), [("install", "/install/"), ("nan loss", "/messages/anomaly-nan/"), ("AMP201", "/rules/AMP201/")]
)
def test_the_search_finds(browser: Browser, address: str, words: str, page: str) -> None:
    show(browser, f"{address}/?q={words.replace(' ', '+')}", 1280)
    links = "[...document.querySelectorAll('.md-search-result__link')].map(link => new URL(link.href).pathname)"
    until = time.monotonic() + 60
    while not (found := browser.value(links)) and time.monotonic() < until:
        time.sleep(0.2)
    assert page in found[:5]
