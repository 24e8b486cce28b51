"""Example of a report: two scripts of fixtures/, recorded with all optional parts, and compared.

    python benchmarks/report_example.py [REPORT.html]

The script also prints the results as terminal text.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from pytest_amp_check import record
from pytest_amp_check.frontends import charts, html, output, run_findings, source_lines
from pytest_amp_check.frontends.page.findings import serialize_findings
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.settings import Settings

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def record_script(script: str, *, epochs: int, init_scale: float) -> dict[str, Any]:
    """Record the training of a script, with an initial scale that may be too large."""
    parts = runpy.run_path(os.path.relpath(FIXTURES / script))
    torch.manual_seed(0)
    x = torch.randn(256, 64)
    batches = list(zip(x.chunk(16), x[:, :10].argmax(dim=1).chunk(16), strict=True))
    model = parts["Net"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=20)
    title = f"{script}, init_scale {charts.format_scale(init_scale)}"
    with record(model, dtypes=True, ops=True, numerics=True, memory=True, norms=True, title=title) as run:
        for _ in range(epochs):
            parts["train_epoch"](model, optimizer, scaler, batches)
    run.assert_memory(peak="300 KiB")
    findings = run_findings.apply_settings(
        run.findings, Settings(frozenset(RULES)), folder=os.path.join(os.getcwd(), "")
    )
    return {**run.as_dict(), "findings": serialize_findings(findings, source_lines.SourceLines())}


def runs() -> list[dict[str, Any]]:
    """Record a training that first finds its scale, and a training with mistakes."""
    return [
        record_script("headline_good.py", epochs=30, init_scale=2.0**24),
        record_script("headline.py", epochs=10, init_scale=2.0**10),
    ]


def page(runs: list[dict[str, Any]]) -> str:
    """Return the page of these runs, with the second run beside the first."""
    return html.render_report(runs, others=[{**runs[0], "title": runs[1]["title"]}])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", default="report.html")
    path = parser.parse_args().report
    html.check_writable(path)
    recorded = runs()
    Path(path).write_text(page(recorded), encoding="utf-8")
    width = shutil.get_terminal_size().columns
    for run in recorded:
        print(f"{run['title']}:")
        lines = charts.render_charts(run, width, sys.stdout.encoding)
        output.write_lines(lines, sys.stdout, output.is_color_wanted(sys.stdout))
    print(f"Written to {path}, {os.path.getsize(path):,} bytes.")


if __name__ == "__main__":
    main()
