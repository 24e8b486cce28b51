"""Generator of the pictures in the documentation: the report in a browser, and the terminal output.

    python benchmarks/pictures.py [FOLDER]

Writes report.png and steps.png by Chromium, which must be installed, and check.svg and run.svg by rich, into
docs/pictures. Findings and charts come from fixtures/, so that they change with the tool's output.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import report_example
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from pytest_amp_check.frontends import html

ROOT = Path(__file__).resolve().parent.parent
#: Largest size of one picture in bytes: a page with all pictures still loads on a slow connection.
MOST = 200_000
#: Name -> number of the run on the page, selector of hidden parts, and size of the window in pixels.
SHOTS = {
    "report": (1, "", 1200, 830),
    "steps": (0, ".side, #run-1 > :not(figure:has(#run-1-steps)), .tools, .reading", 900, 760),
}
#: Name -> the command, and the columns of its terminal.
TERMINALS = {
    "check": (["check", "--select", "AMP201,AMP401", "fixtures/headline.py"], 118),
    "run": (["run", "fixtures/headline.py"], 118),
}
#: Largest number of terminal lines in a picture.
LINES = 34


def photograph(page: Path, width: int, height: int, into: Path) -> None:
    """Take a screenshot of the upper part of a page in Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("pictures of the page need chromium, which is not installed")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        flags += [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={into}"]
        flags += ["--proxy-server=127.0.0.1:9", "--virtual-time-budget=3000", page.as_uri()]
        subprocess.run([browser, *flags], check=True, capture_output=True, timeout=120)


def terminal(arguments: list[str], columns: int, into: Path) -> None:
    """Write the colored output of the command as an SVG picture."""
    environment = {**os.environ, "COLUMNS": str(columns), "OMP_NUM_THREADS": "1", "AMP_CHECK_CACHE": "0"}
    command = [sys.executable, "-m", "pytest_amp_check", arguments[0], "--color", "always", *arguments[1:]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    shown = done.stdout.splitlines()
    if len(shown) > LINES:
        shown = [*shown[: LINES - 2], "...", shown[-1]]
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(f"$ amp-check {' '.join(arguments)}"))
    for line in shown:
        console.print(Text.from_ansi(line), soft_wrap=False)
    # No font from a third-party server: the reader's own font is sufficient.
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    picture = console.export_svg(title="amp-check", theme=MONOKAI, code_format=form, unique_id=into.stem)
    into.write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs" / "pictures")
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    for name, (arguments, columns) in TERMINALS.items():
        terminal(arguments, columns, folder / f"{name}.svg")
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "report.html"
        runs = report_example.runs()
        for name, (number, hidden, width, height) in SHOTS.items():
            source = html.render_report([runs[number]])
            # A window shows the upper end of a page, so the content above the wanted part is hidden.
            rest = (
                f"<style>body {{ display: block }} {hidden} {{ display: none }}</style></head>" if hidden else "</head>"
            )
            page.write_text(source.replace("</head>", rest, 1), encoding="utf-8")
            photograph(page, width, height, folder / f"{name}.png")
    for picture in sorted(folder.iterdir()):
        size = picture.stat().st_size
        print(f"{picture.name}: {size:,} bytes")
        if size > MOST:
            sys.exit(f"{picture} has more than {MOST:,} bytes: show less of it")


if __name__ == "__main__":
    main()
