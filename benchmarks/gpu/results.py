"""Results of a benchmark run: a JSON file, rewritten with every row, and a summary in Markdown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpu.claims import Claim

Row = dict[str, Any]
#: Rows per table in the summary. The JSON file has all rows.
SHOWN = 40


class Results:
    """The header (GPU, versions, commit, date), rows by part, the end of each part, and the verdicts on claims."""

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.header = header
        self.rows: list[Row] = []
        self.parts: dict[str, dict[str, Any]] = {}
        self.verdicts: dict[str, str] = {}
        names = (str(header["gpu"]), f"torch{header['torch'].partition('+')[0]}")
        stem = "-".join(["gpu", *(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") for name in names)])
        self.path = folder / f"{stem}.json"
        self.summary = folder / f"{stem}.md"

    def of(self, part: str) -> list[Row]:
        return [row for row in self.rows if row["part"] == part]

    def check(self, claims: Iterable[Claim]) -> None:
        """Check the rows against claims. An empty verdict means that the claim is confirmed."""
        for claim in claims:
            ended = self.parts.get(claim.part, {}).get("ended", "not run")
            wrong = claim.refuted(self.of(claim.part))
            self.verdicts[claim.name] = wrong or ("" if ended == "complete" else f"not decided: {claim.part} {ended}")

    def write(self) -> None:
        """Replace each file atomically, so that readers see a consistent file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"header": self.header, "parts": self.parts, "claims": self.verdicts, "rows": self.rows}
        for path, text in (
            (self.path, json.dumps(whole, indent=1, ensure_ascii=False)),
            (self.summary, self.markdown()),
        ):
            partial = path.with_suffix(f"{path.suffix}.part")
            partial.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
            os.replace(partial, path)

    def markdown(self) -> str:
        lines = [f"# {self.header['gpu']}, torch {self.header['torch']}", ""]
        lines += [f"- {name}: {value}" for name, value in self.header.items()]
        if self.verdicts:
            lines += ["", "## Claims", "", "| claim | verdict |", "| --- | --- |"]
            lines += [f"| {name} | {wrong or 'holds'} |" for name, wrong in self.verdicts.items()]
        for part, state in self.parts.items():
            rows = self.of(part)
            lines += ["", f"## {part}", "", f"{state['ended']}, {state['seconds']:.0f} s, {len(rows)} rows", ""]
            lines += _tables(rows)
        return "\n".join(lines)


def _tables(rows: Sequence[Row]) -> list[str]:
    """Return one table for each set of columns, in the order of the rows."""
    lines: list[str] = []
    kinds = dict.fromkeys(tuple(key for key in row if key != "part") for row in rows)
    for columns in kinds:
        same = [row for row in rows if tuple(key for key in row if key != "part") == columns]
        lines += [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
        # Disagreements come first, so that a cut hides none of them.
        same.sort(key=lambda row: row.get("agrees") is not False)
        lines += [f"| {' | '.join(_cell(row[column]) for column in columns)} |" for row in same[:SHOWN]]
        if len(same) > SHOWN:
            lines.append(f"\nand {len(same) - SHOWN} more")
        lines.append("")
    return lines


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        value = ", ".join(f"{name} {_cell(each)}" for name, each in value.items())
    elif isinstance(value, list):
        value = ", ".join(map(_cell, value))
    return " ".join(str(value).replace("|", "\\|").split())
