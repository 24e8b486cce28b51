"""The report read from top to bottom: every line of text outside of its tables, and the elements around the lines."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from report_pages import VOID, bare_run, counts, example_run, finding

from pytest_amp_check.frontends import html
from pytest_amp_check.protocol.rules import RULES

#: Elements that hold other elements and no text.
_HOLDERS = {"html", "body", "ul", "ol", "dl", "nav", "main", "section", "details", "figure", "article", "div", "head"}
_TABLE = {"table", "thead", "tbody", "tr"}
_BLOCKS = {"a", "p", "h1", "h2", "h3", "h4", "li", "dt", "dd", "summary", "pre", "title"}


class Lines(HTMLParser):
    """The lines of a page by section, "" for the parts around the sections; cells of tables are no lines."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.lines: dict[str, list[str]] = {}
        #: Texts in elements that hold no text.
        self.loose: list[str] = []
        self.classes: set[str] = set()
        self.styles: list[str] = []
        self._open: list[str] = []
        self._section = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.classes.update(found.get("class", "").split())
        if "style" in found:
            self.styles.append(found["style"])
        if tag == "section":
            self._section = found["id"]
        row = "row" in found.get("class", "").split()
        if tag == "small":
            self.lines[self._section][-1] += " | "
        if row or (tag in _BLOCKS and _BLOCKS.isdisjoint(set(self._open) - {"li"})):
            self.lines.setdefault(self._section, []).append("")
        if tag not in VOID:
            self._open.append("row" if row else tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() in (tag, "row")
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        if tag in ("script", "style"):
            return
        if tag in _HOLDERS | _TABLE | {""}:
            self.loose += [data] if data.strip() else []
        elif "table" not in self._open:
            # Parts of a line that are elements stand beside each other.
            self.lines[self._section][-1] += f"{data} " if tag == "span" or "row" in self._open else data

    def section(self, name: str) -> list[str]:
        """Return the lines of a section. A blank stands between the parts of a line."""
        return [" ".join(line.split()) for line in self.lines[name] if line.strip()]


def read(*runs: dict[str, Any], others: tuple[dict[str, Any], ...] = ()) -> Lines:
    return Lines(html.render_report(runs, html.TITLE, others))


def test_a_run_is_read_from_top_to_bottom() -> None:
    assert read(example_run()).section("run-1") == [
        "examples/train.py",
        "torch 2.13.0 · cpu · Linux",
        *("Findings", "1 | 1 error"),
        *("Skipped steps", "4 | of 200 steps"),
        *("Final loss scale", "32,768"),
        *("Lost without scaling", "50.0 % | of non-zero gradient values, in float16"),
        *("Memory peak", "500.00 MiB | of 600.00 MiB"),
        "Findings",
        "✕ error AMP201 clip-before-unscale",
        "clip_grad_norm_ limits gradients that are multiplied by scaler's scale: unscale first",
        "examples/train.py:36",
        "Made at steps 0 to 9, while the gradients were SCALED.",
        "Trace",
        "examples/train.py:33 : backward() scales them",
        "examples/train.py:36 : clip_grad_norm_()",
        "Steps",
        (
            "scaler: 65,536 at first, 32,768 at last, 8,192 at the lowest. 4 of 200 steps skipped. "
            "The gradient norm is that of the gradients as the step finds them, after any clipping."
        ),
        "What the gradients went through",
        "CLEAN: none, or zero",
        "SCALED: multiplied by the loss scale",
        "UNSCALED: divided by the loss scale again",
        "STEPPED: used by scaler.step()",
        "Changes of the loss scale",
        "Skipped steps",
        "Gradient magnitudes",
        "Without scaling, float16 would round 50.0 % of the non-zero gradient values to zero (4 steps looked at).",
        *("before scaling", "after scaling"),
        *("rounded to zero in float16", "subnormal in float16", "above 65,504"),
        "Worst modules by underflow",
        "Parameters by underflow",
        *("rounded to zero", "subnormal", "normal", "above 65,504"),
        "Headroom",
        "The smallest gradient without scaling is about 7.5e-09; float16 holds 6e-8 at least.",
        "Memory",
        "500.00 MiB at the peak, 100.00 MiB below the budget of 600.00 MiB. Counted on cpu: storages of tensors.",
        "What made most of the peak",
        "Dtypes",
        "Loss float32 · Optimizer state float32",
        "Module Output Parameters Gradients",
        "(model) float32 float32 bfloat16 float32 bfloat16",
        "layers float16 float32 float32",
        "0-5 float16 float32 float32",
        "head bfloat16 bfloat16 bfloat16",
        "Operators",
    ]


def test_a_run_without_data_says_how_to_record_them() -> None:
    assert read(bare_run(steps=3)).section("run-1") == [
        "bare",
        "torch 2.13.0 · cpu · Linux",
        *("Findings", "0"),
        *("Skipped steps", "3 | of 3 steps"),
        *("Final loss scale", "8,192"),
        "Findings",
        "✓ No AMP mistakes were found in this run.",
        "Steps",
        (
            "scaler: 65,536 at first, 8,192 at last, 8,192 at the lowest. 3 of 3 steps skipped. "
            "The gradient norm is that of the gradients as the step finds them, after any clipping."
        ),
        "Changes of the loss scale",
        "Skipped steps",
        "Gradient magnitudes",
        "Not recorded: record(model, numerics=True) shows how large gradients are and what float16 would lose of them.",
        "Memory",
        (
            "Not recorded: record(model, memory=True) or amp-check run --memory shows the bytes of parameters, "
            "gradients, activations and optimizer state over time."
        ),
        "Dtypes",
        "Not recorded: record(model, dtypes=True) shows the dtype of every module's output, parameters and gradients.",
    ]


def test_a_comparison_is_read_from_top_to_bottom() -> None:
    lines = read(example_run(), others=(example_run(steps=150),)).section("compare-1")
    assert lines == [
        "Compared",
        "Step by step",
        "this run: examples/train.py",
        "the other: examples/train.py",
        "Findings that differ",
        "None: 1 finding in both.",
        "Memory at the peak",
        "Dtypes that differ",
        "None.",
    ]


def test_the_frame_and_the_overview_are_read_from_top_to_bottom() -> None:
    found = read(example_run(), bare_run(steps=10), others=(example_run(),))
    assert found.section("") == [
        *["Mixed-precision training report", "Skip to content", "Mixed-precision training report"],
        *["≡ Overview", "2 runs"],
        *["✕ 1 error: examples/train.py", "✓ no findings: bare", "✕ 1 error: Compared"],
        "The charts are drawn by JavaScript, which is off; all else is here.",
        html.KEYS,
    ]
    lines = found.section("overview")
    assert lines[:14] == [
        "Overview",
        *("Runs", "2 | 1 without findings"),
        *("Findings", "1 | 1 error"),
        *("Skipped steps", "7 | of 210 steps"),
        *("Final loss scale", "8,192 to 32,768"),
        *("Highest memory peak", "500.00 MiB"),
        "Runs",
        "Compared",
        "examples/train.py beside examples/train.py",
    ]
    rule = RULES["AMP201"]
    assert lines[14:] == [
        "Rules that were broken",
        f"AMP201 {rule.name}: {plain(rule.summary)}",
        plain(rule.rationale),
        f"Measured harm. {plain(rule.harm)}",
        f"Fix. {plain(rule.fix_advice)}",
        " ".join(rule.good_example.split()),
    ]


def plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


@pytest.mark.parametrize(
    ("runs", "others", "section", "expected"),
    [
        ([], (), "overview", ["No run was recorded."]),
        ([example_run()], (), "overview", ["Final loss scale", "32,768"]),
        ([example_run(), bare_run()], (bare_run("another"),), "overview", ["No two runs of the same title."]),
        ([bare_run(scale_history=[], steps=0)], (), "run-1", ["none | no GradScaler was used"]),
        ([bare_run(scale_history=[], steps=0)], (), "run-1", ["No optimizer step was recorded."]),
        (
            [example_run(memory=None)],
            (),
            "run-1",
            [
                (
                    "Not recorded: record(model, memory=True) or amp-check run --memory shows the bytes of "
                    "parameters, gradients, activations and optimizer state over time."
                )
            ],
        ),
        (
            [example_run(findings=[finding(certain=False, condition="if `a`")])],
            (),
            "run-1",
            ["Only if `a`."],
        ),
        (
            [example_run(findings=[finding(severity="warning"), finding(severity="info"), finding(severity="info")])],
            (),
            "run-1",
            ["3 | 1 warning, 2 info"],
        ),
        (
            [example_run(grad_norm="before clipping")],
            (),
            "run-1",
            [
                (
                    "scaler: 65,536 at first, 32,768 at last, 8,192 at the lowest. 4 of 200 steps skipped. "
                    "The gradient norm is that which the program has clipped by, before it did."
                )
            ],
        ),
        (
            [example_run(steps_total=1000)],
            (),
            "run-1",
            [
                (
                    "scaler: 65,536 at first, 32,768 at last, 8,192 at the lowest. 4 of 1,000 steps skipped. "
                    "The gradient norm is that of the gradients as the step finds them, after any clipping. "
                    "The record kept the last 200 steps."
                )
            ],
        ),
        ([bare_run()], (bare_run(),), "compare-1", ["Not recorded in both runs."]),
    ],
)
def test_lines_of_other_runs(
    runs: list[dict[str, Any]], others: tuple[dict[str, Any], ...], section: str, expected: list[str]
) -> None:
    lines = read(*runs, others=others).section(section)
    assert [line for line in expected if line not in lines] == []


def many() -> dict[str, Any]:
    """Return a run with more of everything than the page shows."""
    run = example_run(findings=[finding(location={"row": row, "column": 1}) for row in range(501)])
    names = [f"m{number}" for number in range(301)]
    lossy = {"before": counts(-30), "after": counts(-14), "lost": 1.0}
    run["numerics"]["parameters"] = {f"{name}.weight": lossy for name in names}
    run["headroom"]["outputs"] = dict.fromkeys(names[:30], 1.0)
    run["headroom"]["products"] = {"last": 0.5}
    run["dtypes"]["modules"] = {name: ("float16", "float32")[number % 2] for number, name in enumerate(names)}
    run["dtypes"]["parameters"] = run["dtypes"]["gradients"] = {}
    run["dtypes"]["ops"] = {name: {"float16": 1} for name in names}
    return run


def test_what_is_not_shown_is_counted() -> None:
    lines = read(many()).section("run-1")
    assert [line for line in lines if " more " in line] == [
        "1 more findings are not shown.",
        "271 more modules that lose less are not shown.",
        "1 more parameters that lose less are not shown.",
        "1 more that stay farther away are not shown.",
        # The row of the model itself counts, too.
        "2 more modules are not shown.",
        "1 more operators are not shown.",
    ]


STYLES = re.compile(
    r"(?:background|--chip):var\(--[\w-]+\)|width:\d+\.\d{1,2}%;background:var\(--[\w-]+\)|min-height:\d+px"
)


@pytest.mark.parametrize("runs", [(example_run(), bare_run()), (many(),), ()], ids=["two", "many", "none"])
def test_elements_have_styles_and_texts_have_elements(runs: tuple[dict[str, Any], ...]) -> None:
    found = read(*runs, others=(example_run(steps=150),))
    assert found.loose == []
    assert [style for style in found.styles if not STYLES.fullmatch(style)] == []
    source = html.render_report(runs)
    sheet = source[source.index("<style>") : source.index("</style>")]
    script = source[source.rindex("<script>") :]
    # Names that only the structure of the page needs.
    bare = {"name", "path", "missing", "leaf", "chart", "legend"}
    unknown = {name for name in found.classes if f".{name}" not in sheet and f".{name}" not in script}
    assert unknown <= bare
