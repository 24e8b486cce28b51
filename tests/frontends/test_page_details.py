"""Tables, tiles, legends and charts of the report, each in full: the content of cells, and the drawing."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_pages import MIB, bare_run, counts, example_run, finding, page, panel

from pytest_amp_check.frontends import figures, html
from pytest_amp_check.frontends.page import comparison

NUMBER = "number"


class Tables(HTMLParser):
    """The tables of a page by label: classes, headings with their classes, and rows."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.looks: dict[str, list[str]] = {}
        self.heads: dict[str, list[tuple[str, str]]] = {}
        self.rows: dict[str, list[list[str]]] = {}
        #: Texts of elements of other kinds, by class.
        self.texts: dict[str, list[str]] = {}
        self._label = ""
        self._open: list[tuple[str, str]] = []
        self._inside = False
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        look = found.get("class", "")
        if tag == "div" and look.startswith("wide"):
            # The tables of the first of several runs are kept.
            self._label = found["aria-label"]
            self._inside = self._label not in self.looks
            if self._inside:
                self.looks[self._label] = look.split()[1:]
                self.heads[self._label], self.rows[self._label] = [], []
        elif tag == "tr" and self._inside:
            self.rows[self._label].append([])
        elif tag == "th" and found.get("scope") == "col" and self._inside:
            self.heads[self._label].append(("", look))
        elif tag in ("th", "td") and self._inside:
            self.rows[self._label][-1].append("")
        elif look:
            self.texts.setdefault(look, []).append("")
        if tag not in ("meta", "input", "br"):
            self._open.append((tag, look))

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        kinds = [tag for tag, _ in self._open]
        if "thead" in kinds and self._inside:
            head, look = self.heads[self._label][-1]
            self.heads[self._label][-1] = head + data, look
        elif "tbody" in kinds and self._inside:
            self.rows[self._label][-1][-1] += data
        for look in {look for _, look in self._open if look and not look.startswith("wide")}:
            if look in self.texts:
                self.texts[look][-1] += data


def tables(*runs: dict[str, Any], others: tuple[dict[str, Any], ...] = ()) -> Tables:
    made = Tables(html.render_report(runs, html.TITLE, others))
    for rows in made.rows.values():
        # The row of the headings.
        assert rows.pop(0) == []
    return made


def beside() -> dict[str, Any]:
    """Return a run that differs from the example in findings, memory and dtypes."""
    other = example_run(findings=[finding(code="AMP301", name="undivided-loss")], steps=150)
    other["dtypes"]["modules"]["head"] = "float32"
    del other["dtypes"]["parameters"]["head.weight"]
    other["memory"]["peak"] = {"parameters": 100 * MIB, "gradients": 50 * MIB, "inputs": 1, "total": 150 * MIB + 1}
    return other


# Tables.


def test_tables_scroll_and_take_the_width_that_they_need() -> None:
    assert tables(example_run(), others=(beside(),)).looks == {
        "Runs": ["full"],
        "What the gradients went through": ["tall"],
        "Changes of the loss scale": ["tall"],
        "Skipped steps": ["tall"],
        "Non-zero gradient values by what they are in float16": [],
        "Other gradient values": [],
        "Worst modules by underflow": ["tall"],
        "Parameters by underflow": ["full", "tall"],
        "Greatest magnitudes beside the most that float16 holds": ["full", "tall"],
        "The peak by category": [],
        "What made most of the peak": ["tall"],
        "Operators by dtype": ["tall"],
        "Both runs in figures": [],
        "Findings that differ": ["tall"],
        "Memory at the peak by category": [],
        "Dtypes that differ": ["full", "tall"],
    }


def test_headings_of_numbers_stand_where_numbers_do() -> None:
    heads = tables(example_run(), others=(beside(),)).heads
    differing = [("This run", NUMBER), ("The other", NUMBER), ("Difference", NUMBER)]
    assert heads == {
        "Runs": [
            ("Run", ""),
            ("Findings", ""),
            ("Steps", NUMBER),
            ("Skipped", NUMBER),
            ("Final scale", NUMBER),
            ("Lost without scaling", NUMBER),
            ("Memory peak", NUMBER),
        ],
        "What the gradients went through": [("Optimizer", ""), ("States", ""), ("Steps", NUMBER), ("Which", "")],
        "Changes of the loss scale": [("From step", NUMBER), ("Scaler", ""), ("Scale", NUMBER)],
        "Skipped steps": [("Step", NUMBER), ("Optimizer", ""), ("Scale", NUMBER), ("Where", "")],
        "Non-zero gradient values by what they are in float16": [
            ("Non-zero values, in float16", ""),
            ("Before", NUMBER),
            ("After", NUMBER),
        ],
        "Other gradient values": [("Other values, counted", ""), ("Before", NUMBER), ("After", NUMBER)],
        "Worst modules by underflow": [
            ("Module", ""),
            ("Rounded to zero without scaling", NUMBER),
            ("With scaling", NUMBER),
        ],
        "Parameters by underflow": [
            ("Parameter", ""),
            ("Rounded to zero without → with scaling", NUMBER),
            ("Bands without and with scaling", ""),
            ("Subnormal", NUMBER),
            ("Above 65,504", NUMBER),
            ("Zeros", NUMBER),
            ("inf, NaN", NUMBER),
        ],
        "Greatest magnitudes beside the most that float16 holds": [
            ("Module", ""),
            ("What", ""),
            ("Greatest", NUMBER),
            ("Of 65,504", NUMBER),
            ("Doublings left", NUMBER),
            ("Of what float16 holds", ""),
        ],
        "The peak by category": [("Category", ""), ("At the peak", NUMBER), ("Of the total", NUMBER), ("Share", "")],
        "What made most of the peak": [("Made by", ""), ("Category", ""), ("At the peak", NUMBER)],
        "Operators by dtype": [("Operator", ""), ("Calls by dtype", "")],
        "Both runs in figures": [("Figure", ""), *differing],
        "Findings that differ": [("In", ""), ("Finding", ""), ("Where", "")],
        "Memory at the peak by category": [("Category", ""), *differing],
        "Dtypes that differ": [("What", ""), ("This run", ""), ("The other", "")],
    }


def test_rows_of_the_steps() -> None:
    found = tables(example_run()).rows
    assert found["Runs"] == [
        ["examples/train.py", "✕1 error:  AMP201", "200", "4", "32,768", "50.0 %", "500.00 MiB of 600.00 MiB"]
    ]
    assert found["Skipped steps"] == [
        ["0", "optimizer", "65,536 → 32,768", "train.py:31"],
        ["1", "optimizer", "32,768 → 16,384", "train.py:31"],
        ["2", "optimizer", "16,384 → 8,192", "train.py:31"],
        ["150", "optimizer", "32,768 → 16,384", "train.py:31"],
    ]
    # It grows after steps 59, 119 and 179.
    assert found["Changes of the loss scale"] == [
        ["0", "scaler", "65,536"],
        ["1", "scaler", "32,768"],
        ["2", "scaler", "16,384"],
        ["3", "scaler", "8,192"],
        ["60", "scaler", "16,384"],
        ["120", "scaler", "32,768"],
        ["151", "scaler", "16,384"],
        ["180", "scaler", "32,768"],
    ]


def test_rows_of_magnitudes() -> None:
    found = tables(example_run()).rows
    # Bins of 1,000 values each, from two below the center to one above it.
    assert found["Parameters by underflow"] == [
        ["layers.0.weight", "100 % → 0 %", "", "0 % → 50.0 %", "0 %", "0", "0"],
        ["layers.1.weight", "75.0 % → 0 %", "", "25.0 % → 0 %", "0 %", "0", "0"],
        ["head.weight", "0 % → 0 %", "", "0 % → 0 %", "0 %", "0", "0"],
    ]
    assert found["Greatest magnitudes beside the most that float16 holds"] == [
        ["head", "output", "inf", "not finite", "none", ""],
        ["layers.0", "output", "3.275e+04", "50.0 %", "1.0", ""],
        ["layers.1", "product", "2047", "3.1 %", "5.0", ""],
    ]


def test_zeros_that_float16_has_made_count_as_lost_and_overflows_are_counted() -> None:
    run = example_run()
    before, after = counts(-10, zero=30, flushed=20), counts(14, inf=2, nan=1)
    run["numerics"]["parameters"] = {"w": {"before": before, "after": after, "lost": 0.0}}
    # 20 of 4,020 values, and after scaling none above: the values reach from 2^12 to 2^16.
    assert tables(run).rows["Parameters by underflow"] == [["w", "0.5 % → 0 %", "", "0 % → 0 %", "0 %", "10", "3"]]
    assert tables(run).rows["Worst modules by underflow"] == [["(model)", "0.5 %", "0 %"]]


def test_bands_of_a_parameter_are_drawn_and_said() -> None:
    run = example_run()
    after = counts(15)
    run["numerics"]["parameters"] = {"w": {"before": counts(-15), "after": after, "lost": 0.0}}
    source = html.render_report([run])
    assert (
        '<div class="bar" role="img" aria-label="before scaling: subnormal 75.0 %, normal 25.0 %" '
        'title="before scaling: subnormal 75.0 %, normal 25.0 %">'
        '<span style="width:75.00%;background:var(--memory-1)"></span>'
        '<span style="width:25.00%;background:var(--memory-3)"></span></div>'
    ) in source
    assert (
        '<div class="bar" role="img" aria-label="after scaling: normal 75.0 %, above 65,504 25.0 %" '
        'title="after scaling: normal 75.0 %, above 65,504 25.0 %">'
        '<span style="width:75.00%;background:var(--memory-3)"></span>'
        '<span style="width:25.00%;background:var(--memory-2)"></span></div>'
    ) in source


def test_bars_of_headroom_fill_by_powers_of_two() -> None:
    outputs = {"a": 2.0**8, "b": 2.0**12 * 1.1, "c": 2.0**15 * 1.5, "d": 0.5, "e": 0.0, "f": 1e6, "g": math.nan}
    source = html.render_report([example_run(headroom={"outputs": outputs, "products": {}})])
    found = Tables(source).rows["Greatest magnitudes beside the most that float16 holds"][1:]
    assert found == [
        ["g", "output", "nan", "not finite", "none", ""],
        ["f", "output", "1e+06", "1526.6 %", "-3.9", ""],
        ["c", "output", "4.915e+04", "75.0 %", "0.4", ""],
        ["b", "output", "4506", "6.9 %", "3.9", ""],
        ["a", "output", "256", "0.4 %", "8.0", ""],
        ["d", "output", "0.5", "<0.1 %", "17.0", ""],
        ["e", "output", "0", "0 %", "\u2013", ""],
    ]
    start = source.index("Greatest magnitudes beside")
    bars = [part.split('"')[0] for part in source[start : source.index("<h3>Memory")].split('<span style="')[1:]]
    # On the log2 axis, 2^8 is half of 65504 within two digits.
    assert bars == [
        "width:100.0%;background:var(--memory-6)",
        "width:100.0%;background:var(--memory-6)",
        "width:97.4%;background:var(--memory-6)",
        "width:75.9%;background:var(--memory-1)",
        "width:50.0%;background:var(--memory-3)",
        "width:0.0%;background:var(--memory-3)",
        "width:0.0%;background:var(--memory-3)",
    ]


def test_rows_of_memory() -> None:
    found = tables(example_run())
    assert found.rows["The peak by category"] == [
        ["activations", "300.00 MiB", "60.0 %", ""],
        ["gradients", "100.00 MiB", "20.0 %", ""],
        ["parameters", "100.00 MiB", "20.0 %", ""],
    ]
    assert found.rows["What made most of the peak"] == [
        ["layers.0", "activations", "200.00 MiB"],
        ["head.weight", "gradients", "100.00 MiB"],
    ]


@pytest.mark.parametrize(
    ("budget", "said", "fails"),
    [
        (None, "500.00 MiB at the peak. Counted", False),
        (500 * MIB, "500.00 MiB at the peak, 0 B below the budget of 500.00 MiB. Counted", False),
        (500 * MIB - 1, "500.00 MiB at the peak, 1 B over the budget of 500.00 MiB. Counted", True),
    ],
)
def test_a_budget_is_kept_up_to_its_last_byte(budget: int | None, said: str, fails: bool) -> None:
    run = example_run()
    run["memory"]["budget"] = budget
    source = html.render_report([run])
    assert f"<p{' class=' if fails else ''}{chr(34) + 'error' + chr(34) if fails else ''}>{said}" in source


def test_memory_without_a_category_has_no_table() -> None:
    memory: dict[str, Any] = {"how": "x", "device": "cpu", "peak": {"total": 0}, "timeline": [], "budget": None}
    source = html.render_report([example_run(memory=memory)])
    assert "<p>0 B at the peak. Counted on cpu: x.</p><h3>Dtypes</h3>" in source


def test_rows_of_operators_have_the_most_frequent_dtype_first() -> None:
    run = example_run()
    run["dtypes"]["ops"] = {"b": {"float32": 2, "float16": 1200}, "a": {"float8": 1}}
    assert tables(run).rows["Operators by dtype"] == [["a", "float8 1"], ["b", "float16 1,200 float32 2"]]
    source = html.render_report([run])
    assert '<span class="chip otherdtype">float8</span> 1' in source
    assert '<span class="chip float16">float16</span> 1,200' in source
    run["dtypes"]["ops"] = None
    assert "Operators" not in html.render_report([run])


def test_each_dtype_that_a_module_returns_is_shown_by_itself() -> None:
    run = example_run()
    run["dtypes"]["modules"] = {"": "float16, int64"}
    chips = '<span class="chip float16">float16</span> <span class="chip otherdtype">int64</span>'
    assert f'<span data-label="out">{chips}</span>' in html.render_report([run])


def test_more_operators_than_are_shown_are_counted() -> None:
    run = example_run()
    run["dtypes"]["ops"] = {f"op{number:04}": {"float32": 1} for number in range(302)}
    assert "op0299" in html.render_report([run])
    assert "op0300" not in html.render_report([run])
    assert "2 more operators are not shown." in page(run).text("run-1")


def test_what_has_a_dtype_is_shown_on_hovering() -> None:
    run = example_run()
    run["dtypes"]["parameters"] = {f"head.w{number:02}": "float64" for number in range(15)}
    source = html.render_report([run])
    names = ", ".join(f"head.w{number:02}" for number in range(12))
    shown = [part.split('"')[0] for part in source.split('<span class="chip float64" title="')[1:]]
    assert shown
    assert all(each.count(", ") == 11 and each.endswith(" and 3 more") for each in shown)
    assert names.split(", ")[0].rpartition(".")[2] in shown[0]


# Two runs.


def test_rows_of_two_runs() -> None:
    found = tables(example_run(), others=(beside(),)).rows
    assert found["Both runs in figures"] == [
        ["Findings", "1", "1", "the same"],
        ["Steps", "200", "150", "+50"],
        ["Skipped steps", "4", "3", "+1"],
        ["Final loss scale", "32,768", "32,768", "the same"],
        # 2.3 times e to the power of -199/80, and of -149/80.
        ["Last loss", "0.19117", "0.357153", "differs"],
        ["Lost without scaling", "50.0 %", "50.0 %", "the same"],
        ["Memory peak", "500.00 MiB of 600.00 MiB", "150.00 MiB of 600.00 MiB", "differs"],
        ["torch", "2.13.0", "2.13.0", "the same"],
        ["Device", "cpu", "cpu", "the same"],
    ]
    assert found["Findings that differ"] == [
        ["only in this run", "AMP201 clip-before-unscale", "train.py:36"],
        ["only in the other", "AMP301 undivided-loss", "train.py:36"],
    ]
    assert found["Memory at the peak by category"] == [
        ["parameters", "100.00 MiB", "100.00 MiB", "the same"],
        ["gradients", "100.00 MiB", "50.00 MiB", "+50.00 MiB (+100 %)"],
        ["activations", "300.00 MiB", "0 B", "+300.00 MiB"],
        ["inputs", "0 B", "1 B", "\u22121 B"],
        ["total", "500.00 MiB", "150.00 MiB", "+350.00 MiB (+233.3 %)"],
    ]
    assert found["Dtypes that differ"] == [
        ["output of head", "bfloat16", "float32"],
        ["parameter head.weight", "bfloat16", "absent"],
    ]


def test_less_of_something_is_a_share_of_the_other_run() -> None:
    now, other = example_run(), example_run()
    now["memory"]["peak"] = {"parameters": 75, "gradients": 999, "inputs": 1000, "total": 2074}
    other["memory"]["peak"] = {"parameters": 100, "gradients": 1000, "inputs": 100, "total": 1200}
    assert tables(now, others=(other,)).rows["Memory at the peak by category"] == [
        ["parameters", "75 B", "100 B", "\u221225 B (\u221225.0 %)"],
        # A thousandth is not shown as a difference, and a factor of ten is not shown as a percentage.
        ["gradients", "999 B", "1000 B", "the same"],
        ["inputs", "1000 B", "100 B", "+900 B"],
        ["total", "2.03 KiB", "1.17 KiB", "+874 B (+72.8 %)"],
    ]


def test_two_runs_that_are_the_same() -> None:
    shown = page(example_run(), others=[example_run()]).text("compare-1")
    assert "Findings that differ None: 1 finding in both." in shown
    assert shown.endswith("Dtypes that differ None.")
    assert shown.count("the same") == 9 + 4


def test_two_runs_of_which_little_was_recorded() -> None:
    shown = page(bare_run(steps=0), others=[bare_run(steps=0)]).text("compare-1")
    assert "Step by step No optimizer step was recorded." in shown
    assert "Memory at the peak Not recorded in both runs." in shown
    assert "Dtypes that differ Not recorded in both runs." in shown
    assert "Last loss \u2013 \u2013 the same" in shown
    one = page(example_run(), others=[bare_run("examples/train.py")]).text("compare-1")
    other = page(bare_run("examples/train.py"), others=[example_run()]).text("compare-1")
    for shown in (one, other):
        assert shown.count("Not recorded in both runs.") == 2


def test_runs_are_compared_with_those_of_the_same_title() -> None:
    found = page(bare_run("a"), bare_run("b"), bare_run("c"), others=[bare_run("c"), bare_run("a"), bare_run("d")])
    assert list(found.sections) == ["overview", "run-1", "run-2", "run-3", "compare-1", "compare-2"]
    assert found.text("compare-1").startswith("Compared: a Figure")
    assert "Compared a beside a c beside c" in found.text("overview")
    alone = page(bare_run("a"), others=[bare_run("b")])
    assert alone.text("compare-1").startswith("Compared Figure")
    assert "Compared a beside b" in alone.text("overview")
    none = page(bare_run("a"), bare_run("b"), others=[bare_run("c")])
    assert "Compared No two runs of the same title." in none.text("overview")
    assert "compare-1" not in none.sections
    assert "Compared" not in page(bare_run("a")).text("overview")


def test_curves_of_two_runs_are_drawn_into_each_other() -> None:
    found = page(example_run(), others=[beside()])
    drawn = found.data["compare-1-steps-data"]
    assert drawn["x"] == {"title": "optimizer step", "word": "step", "low": 0, "high": 200, "last": 199}
    assert [each["title"] for each in drawn["panels"]] == [
        "loss scale",
        "loss",
        "gradient norm at the step, unscaled",
    ]
    assert [(trace["name"], trace["colour"]) for trace in drawn["panels"][0]["data"]] == [
        ("scale (this run)", "var(--line-0)"),
        ("skipped (this run)", "var(--bad)"),
        ("scale (the other)", "var(--line-1)"),
        ("skipped (the other)", "var(--bad)"),
    ]
    skipped = drawn["panels"][0]["data"][3]
    assert skipped["said"][0].startswith("optimizer skipped (the other): inf or NaN in the gradient, scale 65536 → ")
    assert [trace["name"] for trace in drawn["panels"][1]["data"]] == ["loss (this run)", "loss (the other)"]
    other = beside() | {"grad_norm": "before clipping"}
    mixed = page(example_run(), others=[other]).data["compare-1-steps-data"]["panels"]
    assert mixed[-1]["title"] == "gradient norm, unscaled"


# Charts.


def test_the_chart_of_steps_in_full() -> None:
    run = example_run(steps=3)
    run["steps"][1]["loss"] = math.inf
    found = page(run)
    drawn = found.data["run-1-steps-data"]
    assert drawn["x"] == {"title": "optimizer step", "word": "step", "low": 0, "high": 3, "last": 2}
    scale, states, loss, norm = drawn["panels"]
    assert (scale["height"], scale["y"]) == (110, {"kind": "power", "low": 12, "high": 17})
    assert scale["data"] == [
        {"kind": "step", "name": "scale", "x": [0, 1, 2, 3], "y": [16, 15, 14, 13], "colour": "var(--line-0)"},
        {
            "kind": "points",
            "mark": "cross",
            "name": "skipped",
            "x": [0, 1, 2],
            "y": [16, 15, 14],
            "said": [
                f"optimizer skipped: inf or NaN in the gradient, scale {before} → {before // 2}, train.py:31"
                for before in (65536, 32768, 16384)
            ],
            "words": [0, 1, 2],
            "colour": "var(--bad)",
        },
    ]
    # Four rows of 24 pixels and a border.
    assert states["height"] == 104
    assert states["y"] == {
        "kind": "rows",
        "rows": ["CLEAN", "SCALED", "UNSCALED", "STEPPED"],
        "low": -0.5,
        "high": 3.5,
    }
    assert states["data"][0]["colours"] == ["var(--line-4)", "var(--before)", "var(--after)", "var(--good)"]
    assert states["data"][0]["name"] == "state of the gradients"
    mistake = states["data"][1]
    assert {name: mistake[name] for name in ("kind", "mark", "name", "colour", "words")} == {
        "kind": "points",
        "mark": "finding",
        "name": "AMP201",
        "colour": "var(--bad)",
        "words": [0, 0],
    }
    assert (loss["title"], loss["height"]) == ("loss", 90)
    assert loss["data"][0] | {"y": []} == {
        "kind": "line",
        "name": "loss",
        "x": [0, 1, 2],
        "y": [],
        "colour": "var(--line-0)",
    }
    assert loss["y"] == {"kind": "linear", "low": 2.2432, "high": 2.3}
    assert loss["data"][1] == {
        "kind": "points",
        "mark": "down",
        "name": "loss not finite",
        "x": [1],
        "y": [2.2432],
        "said": ["loss inf"],
        "words": [0],
        "colour": "var(--bad)",
    }
    # No norm is finite, because all three steps were skipped.
    assert norm["y"] == {"kind": "linear", "low": 0.0, "high": 1.0}
    assert norm["data"][1]["y"] == [0, 0, 0]


def test_a_state_is_marked_where_its_finding_was_made() -> None:
    run = example_run()
    found = run["states"]["violations"]
    found[0]["spans"] = [[0, 0], [3, 3], [5, 8]]
    drawn = panel(page(run), "run-1-steps", "state")["data"]
    # In the middle of the second of three states, at the ends of each series of steps. A series has a line.
    assert drawn[1]["x"] == [0.5, 3.5, 5.5, 8.5]
    assert drawn[1]["spans"] == [[5, 9]]
    # A finding without a state is above all states, in the middle of the step.
    found[0] |= {"state": "", "optimizer": None}
    drawn = panel(page(run), "run-1-steps", "state")["data"]
    assert (drawn[1]["y"], drawn[1]["x"]) == ([-0.5] * 4, [0.5, 3.5, 5.5, 8.5])
    assert page(run).text("run-1").count("Made at steps 0, 3, 5 to 8. ") == 1
    # A state of the first four, in the middle of the second quarter.
    found[0] |= {"state": "unscaled", "spans": [[20, 20]], "steps": 1}
    drawn = panel(page(run), "run-1-steps", "state")["data"]
    assert (drawn[1]["y"], drawn[1]["x"], drawn[1]["spans"]) == ([2], [20.625], [])
    assert "Made at step 20, while the gradients were UNSCALED ." in page(run).text("run-1")


def test_states_of_two_optimizers_have_panels_of_their_own() -> None:
    run = example_run()
    run["states"]["optimizers"].append({"name": "other", "spans": [[0, 4, ["raw", "spent"]]]})
    run["states"]["optimizers"].append({"name": "idle", "spans": []})
    drawn = [
        each
        for each in page(run).data["run-1-steps-data"]["panels"]
        if each["title"].startswith("state of the gradients")
    ]
    assert [each["title"] for each in drawn] == [
        "state of the gradients of optimizer",
        "state of the gradients of other",
    ]
    assert drawn[1]["y"]["rows"] == ["RAW", "SPENT"]
    assert drawn[1]["data"][0]["colours"] == ["var(--line-5)", "var(--good)"]
    assert len(drawn[0]["data"]) == 2
    assert len(drawn[1]["data"]) == 1
    assert drawn[1]["height"] == 56
    run["states"]["violations"][0]["optimizer"] = 1
    assert [len(each["data"]) for each in page(run).data["run-1-steps-data"]["panels"][1:3]] == [1, 2]


def test_a_scale_that_is_no_power_of_two_is_said() -> None:
    run = bare_run(steps=4)
    for step, scale in zip(run["steps"], (1000.0, 1000.0, 3.0, math.inf), strict=True):
        step |= {"scale_before": scale, "scale_after": scale, "skipped": False}
    drawn = panel(page(run), "run-1-steps", "loss scale")
    assert drawn["data"][0]["x"] == [0, 2, 3, 4]
    assert drawn["data"][0]["y"] == [9.9658, 1.585, None, None]
    assert drawn["data"][0]["words"] == ["1000", "3", "inf", "inf"]
    assert drawn["y"] == {"kind": "power", "low": 0, "high": 11}


def test_a_scale_of_which_nothing_is_known_has_an_axis() -> None:
    run = bare_run(steps=1)
    run["steps"][0] |= {"scale_before": 0.0, "scale_after": 0.0, "skipped": False}
    assert panel(page(run), "run-1-steps", "loss scale")["y"] == {"kind": "power", "low": -1, "high": 17}


def test_norms_of_different_magnitudes_have_a_logarithmic_axis() -> None:
    run = bare_run(steps=2)
    for step, norm in zip(run["steps"], (1.0, 30.0), strict=True):
        step |= {"grad_norm": norm, "loss": norm}
    drawn = {each["title"]: each["y"]["kind"] for each in page(run).data["run-1-steps-data"]["panels"]}
    assert drawn["gradient norm at the step, unscaled"] == "linear"
    run["steps"][1] |= {"grad_norm": 31.0, "loss": 31.0}
    drawn = {each["title"]: each["y"]["kind"] for each in page(run).data["run-1-steps-data"]["panels"]}
    assert (drawn["gradient norm at the step, unscaled"], drawn["loss"]) == ("log", "linear")
    run["steps"][0] |= {"grad_norm": 0.0}
    drawn = {each["title"]: each["y"]["kind"] for each in page(run).data["run-1-steps-data"]["panels"]}
    assert drawn["gradient norm at the step, unscaled"] == "linear"


@pytest.mark.parametrize("norms", [(0.09999924153, 0.09999996421), (2.00000011, 1.99999991), (0.999994, 1.000004)])
def test_almost_equal_norms_are_inside_their_chart(norms: tuple[float, float]) -> None:
    run = example_run(steps=2)
    for step, norm in zip(run["steps"], norms, strict=True):
        step |= {"grad_norm": norm, "loss": norm}
    for drawn in page(run).data["run-1-steps-data"]["panels"]:
        if drawn["title"] in ("loss", "gradient norm at the step, unscaled"):
            low, high = drawn["y"]["low"], drawn["y"]["high"]
            assert all(low <= y <= high for y in drawn["data"][0]["y"]), drawn


@pytest.mark.parametrize("norms", [(0.09999924153, 0.09999996421), (2.00000011, 1.99999), (0.999994, 1.0)])
def test_the_rounding_of_almost_equal_norms_is_no_cliff(norms: tuple[float, float]) -> None:
    def heights() -> list[float]:
        panels = page(run).data["run-1-steps-data"]["panels"]
        axes = [each["y"] for each in panels if each["title"] in ("loss", "gradient norm at the step, unscaled")]
        return [axis["high"] - axis["low"] for axis in axes]

    run = example_run(steps=2)
    for step, norm in zip(run["steps"], norms, strict=True):
        step |= {"grad_norm": norm, "loss": -norm}
    assert heights() == pytest.approx([norms[0] / 5] * 2, rel=0.01)
    run["steps"][1] |= {"grad_norm": norms[0] * 1.01, "loss": norms[0] * -1.01}
    assert heights() == pytest.approx([norms[0] / 100] * 2, rel=0.01)


def test_every_chart_has_a_name_for_screen_readers() -> None:
    source = html.render_report([example_run()], others=[example_run()])
    assert re.findall(r'data-figure="([\w-]+)-data" data-label="([^"]+)"', source) == [
        ("run-1-steps", "Optimizer steps of the run"),
        ("run-1-gradients", "Gradient magnitudes by power of two"),
        ("run-1-memory", "Memory by category over the moments of the run"),
        ("compare-1-steps", "Optimizer steps of both runs"),
    ]


def test_numbers_that_json_cannot_hold_are_numbers_again(tmp_path: Path) -> None:
    run = bare_run(steps=2)
    run["steps"][0] |= {"loss": "NaN", "grad_norm": "Infinity", "scale_after": "-Infinity"}
    run["title"] = "NaN"
    path = tmp_path / "before.json"
    path.write_text(json.dumps(run), encoding="utf-8")
    (held,) = comparison.load_runs(str(path))
    step = held["steps"][0]
    assert math.isnan(step["loss"])
    assert (step["grad_norm"], step["scale_after"]) == (math.inf, -math.inf)
    assert held["title"] == "NaN"


def test_the_chart_of_magnitudes_in_full() -> None:
    drawn = page(example_run()).data["run-1-gradients-data"]
    assert drawn["x"] == {
        "title": "magnitude of a gradient value",
        "kind": "power",
        "low": -36,
        "high": 35,
        "from": -31,
        "to": 21,
        "columns": [[-34, "0"], [25, "inf"], [33, "NaN"]],
    }
    (shown,) = drawn["panels"]
    assert (shown["title"], shown["height"]) == ("share of the values", 180)
    assert shown["marks"] == [[-25, "2⁻²⁵"], [-14, "2⁻¹⁴"], [16, "65,504"]]
    assert shown["bands"] == [
        {"from": -31, "to": -25, "colour": "var(--band-lost)"},
        {"from": -25, "to": -14, "colour": "var(--band-subnormal)"},
        {"from": 16, "to": 21, "colour": "var(--band-above)"},
    ]
    # The smallest share is one NaN in 5,000 values.
    assert shown["y"] == {"kind": "log", "low": pytest.approx(0.01), "high": 150.0, "unit": " %", "most": 20.0}
    assert [(each["kind"], each["name"], each["colour"]) for each in shown["data"]] == [
        ("bars", "before scaling", "var(--before)"),
        ("bars", "after scaling", "var(--after)"),
    ]
    assert shown["data"][1]["words"][0] == "19.9 % 0 (996)"
    assert shown["data"][1]["words"][1] == "20 % from 2⁻¹¹ to 2⁻¹⁰ (1,000, normal in float16)"


@pytest.mark.parametrize(
    ("exponent", "said"),
    [
        (-26, "rounded to zero in float16"),
        (-25, "subnormal in float16"),
        (-15, "subnormal in float16"),
        (-14, "normal in float16"),
        (15, "normal in float16"),
        (16, "above float16's largest number"),
    ],
)
def test_what_float16_makes_of_a_power_of_two(exponent: int, said: str) -> None:
    assert figures.describe_band(exponent) == said
    raised = {-26: "2⁻²⁶", -25: "2⁻²⁵", -15: "2⁻¹⁵", -14: "2⁻¹⁴", 15: "2¹⁵", 16: "2¹⁶"}
    assert figures.format_power(exponent) == raised[exponent]


def test_the_chart_of_memory_in_full() -> None:
    drawn = page(example_run()).data["run-1-memory-data"]
    (shown,) = drawn["panels"]
    assert (shown["title"], shown["height"]) == ("memory", 250)
    assert shown["y"] == {"kind": "linear", "low": 0, "high": pytest.approx(648), "unit": " MiB"}
    assert shown["data"] == [
        {"kind": "stack", "name": "parameters", "y": [100] * 4, "colour": "var(--memory-0)"},
        {"kind": "stack", "name": "gradients", "y": [0, 100, 100, 100], "colour": "var(--memory-1)"},
        {"kind": "stack", "name": "activations", "y": [300, 300, 0, 0], "colour": "var(--memory-3)"},
        {
            "kind": "total",
            "name": "total",
            "y": [400, 500, 200, 200],
            "words": [0, 1, 2, 3],
            "said": ["forward", "peak", "backward", "step"],
            "colour": "var(--text)",
        },
    ]


def test_memory_of_a_category_of_its_own_and_without_a_budget() -> None:
    run = example_run()
    run["memory"] |= {"budget": None, "timeline": [{"label": "a", "bytes": {"mine": 3 * 1024, "inputs": 1024}}] * 2}
    (shown,) = page(run).data["run-1-memory-data"]["panels"]
    assert "lines" not in shown
    assert [(each["name"], each["y"], each["colour"]) for each in shown["data"]] == [
        ("inputs", [1, 1], "var(--memory-4)"),
        ("mine", [3, 3], "var(--memory-8)"),
        ("total", [4, 4], "var(--text)"),
    ]
    # Two moments with the same name are named once.
    assert (shown["data"][2]["said"], shown["data"][2]["words"]) == (["a"], [0, 0])
    assert shown["y"]["unit"] == " KiB"


# Words.


def test_text_in_the_data_of_a_chart_stays_what_it_is() -> None:
    run = bare_run(steps=1)
    odd = "a & b < c > d </script> \u2028"
    run["steps"][0] |= {"optimizer": odd, "site": odd}
    skipped = panel(page(run), "run-1-steps", "loss scale")["data"][1]
    assert skipped["said"] == [f"{odd} skipped: inf or NaN in the gradient, scale 65536 → 32768, {odd}"]
    source = html.render_report([run])
    start = source.index('<script type="application/json"')
    assert not {"&", "<", ">"} & set(source[source.index(">", start) + 1 : source.index("</script>", start)])


def test_code_and_paragraphs_in_prose() -> None:
    reported = finding(message="`a < b` and ``c``\n\nnext `d")
    source = html.render_report([example_run(findings=[reported])])
    assert "<p><code>a &lt; b</code> and <code>c</code><br><br>next `d</p>" in source


def test_how_a_run_ended_is_a_glyph_and_words() -> None:
    def state(*severities: str) -> str:
        source = html.render_report([bare_run("a") | {"findings": [finding(severity=each) for each in severities]}])
        return source[source.index('<ul id="runs">') :].split("<span>a</span>")[0]

    assert state().endswith(
        '<span class="state good" title="no findings" aria-hidden="true">✓</span>'
        '<span class="hidden">no findings: </span>'
    )
    assert state("info", "info").endswith(
        '<span class="state info" title="2 info" aria-hidden="true">i</span><span class="hidden">2 info: </span>'
    )
    assert state("info", "warning").endswith(
        '<span class="state warning" title="1 warning, 1 info" aria-hidden="true">!</span>'
        '<span class="hidden">1 warning, 1 info: </span>'
    )
    assert state("warning", "error", "warning", "error").endswith(
        '<span class="state error" title="2 errors, 2 warnings" aria-hidden="true">✕</span>'
        '<span class="hidden">2 errors, 2 warnings: </span>'
    )


def test_codes_are_counted_and_sorted() -> None:
    codes = ["AMP503", "AMP201", "AMP503", "AMP503"]
    run = bare_run("a") | {"findings": [finding(code=code) for code in codes]}
    assert tables(run).rows["Runs"][0][1] == "✕4 errors:  AMP201, AMP503 (3)"


def test_findings_are_shown_the_worst_first() -> None:
    severities = ("info", "error", "warning")
    run = bare_run() | {"findings": [finding(severity=each, message=f"of {each}") for each in severities]}
    shown = page(run).text("run-1")
    assert shown.index("of error") < shown.index("of warning") < shown.index("of info")


def test_the_list_of_runs_can_be_filtered_where_it_is_long() -> None:
    few, many = ([bare_run(str(number)) for number in range(count)] for count in (8, 9))
    assert 'id="filter"' not in html.render_report(few)
    assert 'type="search" placeholder="Filter runs" aria-label="Filter runs"' in html.render_report(many)
    assert "<details open><summary>9 runs</summary>" in html.render_report(many)
    assert "<details open><summary>1 run</summary>" in html.render_report([bare_run()])


def test_only_the_overview_is_shown_at_first() -> None:
    sections = [found for tag, found in page(bare_run(), bare_run()).elements if tag == "section"]
    assert [(found["id"], "hidden" in found) for found in sections] == [
        ("overview", False),
        ("run-1", True),
        ("run-2", True),
    ]


def test_runs_without_a_scaler_have_no_final_scale() -> None:
    source = html.render_report([bare_run(scale_history=[], steps=0), bare_run(scale_history=[], steps=0)])
    overview = source[: source.index('<section id="run-1"')]
    assert "<dt>Final loss scale</dt><dd>none<small>no GradScaler was used</small></dd>" in overview


def test_a_large_tree_of_modules_is_open_at_the_first_two_levels() -> None:
    names = [f"{outer}.{middle}.{inner}" for outer in "abcd" for middle in "efgh" for inner in "ijklm"]
    parents = {name.rsplit(".", depth)[0] for name in names for depth in (1, 2)}
    dtypes = dict.fromkeys([*names, *parents], "float32")
    run = example_run()
    run["dtypes"] = run["dtypes"] | {"modules": {"": "float32", **dtypes}, "parameters": {}, "gradients": {}}
    source = html.render_report([run])
    assert source.count('<details open><summary class="row">') == 1 + 4
    assert source.count('<details><summary class="row">') == 4 * 4


def test_tiles_of_a_run() -> None:
    def tiles(run: dict[str, Any]) -> list[str]:
        source = html.render_report([run])
        start = source.index('<section id="run-1"')
        found = source[source.index('<dl class="tiles">', start) :].split("</dl>")[0].split("<div>")[1:]
        return [each.replace("</dd></div>", "").replace("<dt>", "").replace("</dt><dd>", "|") for each in found]

    assert tiles(example_run()) == [
        "Findings|1<small>1 error</small>",
        "Skipped steps|4<small>of 200 steps</small>",
        "Final loss scale|32,768",
        "Lost without scaling|50.0 %<small>of non-zero gradient values, in float16</small>",
        "Memory peak|500.00 MiB<small>of 600.00 MiB</small>",
    ]
    run = bare_run(steps=1)
    run["steps"][0] |= {"scaler": None, "scale_before": None, "skipped": False}
    run["skipped_total"] = 0
    run["memory"] = example_run()["memory"] | {"budget": None}
    assert tiles(run) == [
        "Findings|0",
        "Skipped steps|0<small>of 1 step</small>",
        "Final loss scale|none<small>no GradScaler was used</small>",
        "Memory peak|500.00 MiB<small>no budget is set</small>",
    ]


def test_what_a_run_advises_is_listed() -> None:
    advice = [{"what": "use `bfloat16`", "evidence": "3 of 4 steps < 1"}]
    assert (
        "<h3>Advice</h3><ul><li>use <code>bfloat16</code>: 3 of 4 steps &lt; 1</li></ul><h3>Steps</h3>"
    ) in html.render_report([bare_run(advice=advice)])
    assert "Advice" not in html.render_report([bare_run(advice=[])])


def test_many_rows_of_steps_are_counted() -> None:
    run = bare_run(steps=302)
    for index, step in enumerate(run["steps"]):
        step |= {"skipped": True, "scale_before": 2.0 + index, "scale_after": 3.0 + index}
    found = tables(run | {"skipped_total": 305})
    assert len(found.rows["Skipped steps"]) == len(found.rows["Changes of the loss scale"]) == 300
    shown = page(run | {"skipped_total": 305}).text("run-1")
    # One change more than the number of steps, and the skips of dropped steps.
    assert "Where 0 optimizer 2 → 3 train.py:31" in shown
    assert "3 more are not shown. Skipped steps" in shown
    assert "5 more are not shown. Gradient magnitudes" in shown


def test_ways_of_gradients_are_counted_and_their_steps_said() -> None:
    run = example_run()
    way, other = ["clean", "raw", "spent"], ["clean", "fed"]
    spans = [[n * 2, n * 2, way] for n in range(7)] + [[1000, 1999, other], [2000, 2000, []]]
    run["states"]["optimizers"][0]["spans"] = spans
    run["states"]["violations"] = []
    assert tables(run).rows["What the gradients went through"] == [
        ["optimizer", "CLEAN → RAW → SPENT", "7", "0, 2, 4, 6, 8, 10, …"],
        ["optimizer", "CLEAN → FED", "1,000", "1,000 to 1,999"],
        ["optimizer", "nothing known", "1", "2,000"],
    ]
    run["states"] = None
    assert "What the gradients went through" not in html.render_report([run])


def test_a_run_says_where_it_ran() -> None:
    assert '<p class="muted">torch 2.13.0 · cpu · Linux</p>' in html.render_report([bare_run()])


def test_parameters_that_lose_the_same_are_sorted_by_name() -> None:
    run = example_run()
    each = {"before": counts(-30), "after": counts(-14), "lost": 1.0}
    run["numerics"]["parameters"] = dict.fromkeys(("b.w", "c.w", "a.w"), each)
    assert [row[0] for row in tables(run).rows["Parameters by underflow"]] == ["a.w", "b.w", "c.w"]
    assert [row[0] for row in tables(run).rows["Worst modules by underflow"]] == ["a", "b", "c"]
