"""The playground in a browser: the analyzer runs there, without any other address than that of the site."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from marks import marks

from pytest_amp_check.protocol.rule import RUNTIME
from pytest_amp_check.protocol.rules import RULES

DOCS = Path(__file__).resolve().parents[2] / "docs"
FETCHED = DOCS / "playground" / "runtime"
AXE = os.environ.get("AXE_CORE", "")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.skipif(not FETCHED.is_dir(), reason="needs python docs/playground/fetch.py"),
]

#: Rules that the analyzer decides.
CODES = sorted(code for code in RULES if RULES[code].detected_by != RUNTIME)


class Site(http.server.SimpleHTTPRequestHandler):
    """The page as the site shows it: the HTML of the Markdown file, and all files beside it."""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/playground/":
            super().do_GET()
            return
        lines = (DOCS / "playground.md").read_text(encoding="utf-8").splitlines()
        parts = "\n".join(line for line in lines if line.startswith("<"))
        page = f"<!doctype html><html lang='en'><title>Playground</title><main><h1>Playground</h1>{parts}</main></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    # The analyzer of the checkout, which may have changed since the files were fetched.
    subprocess.run([sys.executable, str(DOCS / "playground" / "fetch.py"), "--keep"], check=True, capture_output=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=str(DOCS))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/playground/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    opened.start()
    opened.open(address)
    # Compiling Python for the first time takes seconds, on a loaded machine many.
    wait(opened)
    yield opened
    opened.close()


#: The state of the page, once it is no longer checking; "checking" after 20 seconds.
SETTLED = """new Promise(done => {
  const until = performance.now() + 20000, root = document.getElementById("amp-playground");
  const look = () => {
    const state = root.dataset.state ?? "checking";
    if (state === "fixes" || state === "failed") done(state);
    else if (performance.now() > until) done("checking");
    else setTimeout(look, 10);
  };
  look();
})"""


def wait(browser: Browser) -> Any:
    """Return the state of the page, which a loaded machine reaches after several times 20 seconds."""
    state = "checking"
    for _ in range(8):
        state = browser.run(SETTLED)
        if state != "checking":
            break
    return state


def findings(browser: Browser) -> list[tuple[str, int]]:
    """Return code and line of the findings that the page shows, after the check."""
    assert wait(browser) == "fixes", browser.run('document.querySelector("[role=status]").textContent')
    shown = browser.run('[...document.querySelectorAll(".amp-findings li")].map(x => [x.dataset.code, +x.dataset.row])')
    return sorted((code, row) for code, row in shown)


def choose(browser: Browser, code: str, kind: str) -> list[tuple[str, int]]:
    browser.run(
        f'{{ const s = document.getElementById("amp-example"); s.value = "{code} {kind}";'
        ' s.dispatchEvent(new Event("change")); }'
    )
    return findings(browser)


def write(browser: Browser, text: str) -> list[tuple[str, int]]:
    browser.run(
        f'{{ const e = document.querySelector("#amp-playground textarea"); e.value = {json.dumps(text)};'
        ' e.dispatchEvent(new Event("input")); document.getElementById("amp-playground").dataset.state = "checking"; }'
    )
    return findings(browser)


def expected(text: str) -> list[tuple[str, int]]:
    return sorted((code, line) for line, code in marks(text))


def test_the_page_opens_with_an_example(browser: Browser) -> None:
    assert choose(browser, "AMP201", "bad") == expected(RULES["AMP201"].bad_example)
    assert browser.run('document.querySelector("[role=status]").textContent') == "1 finding."
    assert browser.run('document.querySelector(".amp-findings p").textContent').startswith(
        "torch.nn.utils.clip_grad_norm_ clips gradients that are still multiplied by the loss scale"
    )
    assert browser.run('document.querySelector(".amp-findings a").href').endswith("/rules/AMP201/")
    assert browser.run('document.querySelectorAll("#amp-example optgroup").length') == len(CODES)


def test_the_page_loads_nothing_from_elsewhere(browser: Browser, address: str) -> None:
    loaded = browser.run('performance.getEntriesByType("resource").map(entry => entry.name)')
    assert loaded
    assert [name for name in loaded if not name.startswith(address.removesuffix("playground/"))] == []


@pytest.mark.parametrize("code", CODES)
def test_every_example_is_checked(browser: Browser, code: str) -> None:
    rule = RULES[code]
    # With all rules, calls that are not analyzed are also shown, which are no mistakes.
    others = {"AMP904"} - {code}
    assert [found for found in choose(browser, code, "bad") if found[0] not in others] == expected(rule.bad_example)
    assert [found for found in choose(browser, code, "good") if found[0] not in others] == []


def test_a_fix_changes_the_code(browser: Browser) -> None:
    choose(browser, "AMP201", "bad")
    browser.run('document.querySelector(".amp-fix").click()')
    assert findings(browser) == []
    assert "scaler.unscale_(optimizer)" in browser.run('document.querySelector("#amp-playground textarea").value')


def test_columns_count_characters_not_units(browser: Browser) -> None:
    # A character outside of the Basic Multilingual Plane takes two units in a browser.
    text = 'import torch\nx = "\U0001f600"; scaler = torch.cuda.amp.GradScaler()\n'
    assert write(browser, text) == [("AMP901", 2)]
    browser.run('document.querySelector(".amp-line").click()')
    editor = 'document.querySelector("#amp-playground textarea")'
    chosen = browser.run(f"{editor}.value.slice({editor}.selectionStart, {editor}.selectionEnd)")
    assert chosen.startswith("torch.cuda.amp.GradScaler")
    browser.run('document.querySelector(".amp-fix").click()')
    assert findings(browser) == []
    assert browser.run(f"{editor}.value") == text.replace("torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cuda")')


def test_what_is_no_python_is_a_finding(browser: Browser) -> None:
    assert write(browser, "scaler.step(optimizer)\nfor x in\n") == [("AMP903", 2)]


def test_syntax_that_fixes_do_not_know_still_has_findings(browser: Browser) -> None:
    text = RULES["AMP201"].bad_example + "\nmatch model:\n    case None:\n        pass\n"
    assert write(browser, text) == expected(text)


def test_a_link_carries_the_code(browser: Browser, address: str) -> None:
    text = RULES["AMP201"].bad_example.replace("torch.manual_seed(0)", "torch.manual_seed(0)  # é \U0001f600")
    write(browser, text)
    browser.run('document.querySelector(".amp-bar button").click()')
    fragment = browser.run("location.hash")
    assert re.fullmatch(r"#code=[\w-]+", fragment)
    browser.open("about:blank")
    browser.open(address + fragment)
    assert findings(browser) == expected(text)
    assert browser.run('document.querySelector("#amp-playground textarea").value') == text


@pytest.mark.skipif(not AXE, reason="AXE_CORE names no axe.min.js")
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_is_accessible(browser: Browser, width: int) -> None:
    browser.view(width, "light")
    choose(browser, "AMP201", "bad")
    browser.run(f"{Path(AXE).read_text(encoding='utf-8')}; null")
    report = browser.run(
        "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.impact]))"
    )
    assert [found for found in report if found[1] in ("serious", "critical")] == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
