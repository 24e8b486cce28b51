"""The report: its content, its safety (nothing runs or loads), and its display in a browser."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from browser import CHROMIUM, Browser
from hypothesis import given
from hypothesis import strategies as st
from report_pages import MIB, Page, bare_run, counts, example_run, finding, page, panel

from pytest_amp_check.frontends import cli, figures, html
from pytest_amp_check.protocol.rules import RULES

# Content.


def test_the_parts_refer_to_each_other() -> None:
    found = page(example_run(), bare_run())
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in found.values("href")} <= set(ids)
    assert set(found.values("data-figure")) == {
        "run-1-steps-data",
        "run-1-gradients-data",
        "run-1-memory-data",
        "run-2-steps-data",
    }
    assert set(found.values("data-figure")) == set(found.data)
    assert set(found.values("aria-labelledby")) | set(found.values("aria-describedby")) <= set(ids)
    assert [value for value in found.values("href") if value.startswith("#run")] == ["#run-1", "#run-2"] * 2
    assert list(found.sections) == ["overview", "run-1", "run-2"]


def test_the_overview() -> None:
    shown = page(example_run(), bare_run(steps=10)).text("overview")
    assert shown.startswith(
        "Overview Runs 2 1 without findings Findings 1 1 error Skipped steps 7 of 210 steps "
        "Final loss scale 8,192 to 32,768 Highest memory peak 500.00 MiB Runs"
    )
    assert "examples/train.py ✕ 1 error: AMP201 200 4 32,768 50.0 % 500.00 MiB of 600.00 MiB" in shown
    assert "bare ✓ no findings: none 10 3 8,192 \u2013 \u2013" in shown


def test_a_rule_that_was_broken_is_explained_once() -> None:
    found = page(example_run(), example_run())
    assert found.values("id").count("rule-AMP201") == 1
    assert found.values("href").count("#rule-AMP201") == 2
    assert " ".join(RULES["AMP201"].fix_advice.replace("`", "").split()) in found.text("overview")


def test_a_finding_and_its_trace() -> None:
    uncertain = finding(severity="warning", certain=False, condition="when use_amp is true", cell=3, code="AMP999")
    shown = page(example_run(findings=[uncertain, finding()])).text("run-1")
    error = (
        "✕ error AMP201 clip-before-unscale clip_grad_norm_ limits gradients that are multiplied by scaler's scale: "
        "unscale first examples/train.py:36 Made at steps 0 to 9, while the gradients were SCALED . "
        "Trace examples/train.py:33 : backward() scales them examples/train.py:36 : clip_grad_norm_()"
    )
    assert f"Findings {error} ! warning AMP999" in shown
    assert "examples/train.py:cell 3:36 Only on some paths, when use_amp is true." in shown


def test_the_loss_scale_in_words_and_in_a_chart() -> None:
    found = page(example_run())
    assert "scaler: 65,536 at first, 32,768 at last, 8,192 at the lowest. 4 of 200 steps skipped." in found.text(
        "run-1"
    )
    scale, skips = panel(found, "run-1-steps", "loss scale")["data"]
    # At changes, and at both ends.
    assert scale["x"] == [0, 1, 2, 3, 60, 120, 151, 180, 200]
    assert scale["y"] == [16, 15, 14, 13, 14, 15, 14, 15, 15]
    assert (skips["x"], skips["y"]) == ([0, 1, 2, 150], [16, 15, 14, 15])
    assert skips["said"][skips["words"][3]] == (
        "optimizer skipped: inf or NaN in the gradient, scale 32768 → 16384, train.py:31"
    )
    (loss,) = found.data["run-1-steps-data"]["panels"][2]["data"]
    assert loss["y"][0] == 2.3
    norm, wild = panel(found, "run-1-steps", "gradient norm at the step, unscaled")["data"]
    assert norm["y"][:4] == [None, None, None, 1.25]
    assert wild["x"] == [0, 1, 2, 150]
    assert [each["title"] for each in found.data["run-1-steps-data"]["panels"]] == [
        "loss scale",
        "state of the gradients",
        "loss",
        "gradient norm at the step, unscaled",
    ]


def test_it_is_said_which_gradients_the_norm_is_of() -> None:
    after = "The gradient norm is that of the gradients as the step finds them, after any clipping."
    before = "The gradient norm is that which the program has clipped by, before it did."
    assert after in page(example_run()).text("run-1")
    assert before in page(example_run(grad_norm="before clipping")).text("run-1")
    run = example_run()
    for step in run["steps"]:
        step["grad_norm"] = None
    assert after not in page(run).text("run-1")


def test_what_the_gradients_went_through_with_the_findings_on_it() -> None:
    found = page(example_run())
    states, mistake = panel(found, "run-1-steps", "state of the gradients")["data"]
    assert panel(found, "run-1-steps", "state")["y"]["rows"] == ["CLEAN", "SCALED", "UNSCALED", "STEPPED"]
    assert states["spans"] == [[0, 9, [0, 1, 3]], [10, 199, [0, 1, 2, 3]]]
    # In the middle of the second of three states, at the first and the last step.
    assert (mistake["x"], mistake["y"], mistake["spans"]) == ([0.5, 9.5], [1, 1], [[0, 10]])
    assert mistake["said"] == ["AMP201 at train.py:36"]
    assert (
        "Optimizer States Steps Which optimizer CLEAN → SCALED → STEPPED 10 0 to 9 "
        "optimizer CLEAN → SCALED → UNSCALED → STEPPED 190 10 to 199 "
        "CLEAN: none, or zero SCALED: multiplied by the loss scale UNSCALED: divided by the loss scale again "
        "STEPPED: used by scaler.step()"
    ) in found.text("run-1")


def test_a_finding_that_is_not_shown_is_on_no_chart() -> None:
    found = page(example_run(findings=[]))
    assert [trace["kind"] for trace in panel(found, "run-1-steps", "state")["data"]] == ["states"]


def test_a_loss_that_is_not_finite_is_said_and_marked() -> None:
    run = bare_run(steps=5)
    run["steps"][3]["loss"] = math.nan
    found = page(run)
    assert "The loss is not finite at 1 step, first at 3." in found.text("run-1")
    loss, wild = found.data["run-1-steps-data"]["panels"][1]["data"]
    assert loss["y"][3] is None
    assert (wild["x"], [wild["said"][number] for number in wild["words"]]) == ([3], ["loss nan"])


def test_dropped_steps_are_said() -> None:
    run = bare_run()
    run["steps"] = run["steps"][100:]
    assert "The record kept the last 100 steps." in page(run).text("run-1")


def test_the_histogram_and_its_bands() -> None:
    found = page(example_run())
    drawn = panel(found, "run-1-gradients")
    before, after = drawn["data"]
    # 5,000 values, 1,000 in each bin between consecutive powers of two. Zeros are left of the bins.
    assert before["x"] == [-34, -26.5, -25.5, -24.5, -23.5]
    assert before["y"] == [20] * 5
    assert before["words"] == [
        "20 % 0 (1,000)",
        "20 % from 2⁻²⁷ to 2⁻²⁶ (1,000, rounded to zero in float16)",
        "20 % from 2⁻²⁶ to 2⁻²⁵ (1,000, rounded to zero in float16)",
        "20 % from 2⁻²⁵ to 2⁻²⁴ (1,000, subnormal in float16)",
        "20 % from 2⁻²⁴ to 2⁻²³ (1,000, subnormal in float16)",
    ]
    assert after["words"][-2:] == ["0.06 % inf (3)", "0.02 % NaN (1)"]
    assert found.data["run-1-gradients-data"]["x"]["columns"] == [[-34, "0"], [25, "inf"], [33, "NaN"]]
    assert [(band["from"], band["to"]) for band in drawn["bands"]] == [(-31, -25), (-25, -14), (16, 21)]
    shown = found.text("run-1")
    # The lost share is consistent: sentence and table show the same share of the same values.
    assert "float16 would round 50.0 % of the non-zero gradient values to zero" in shown
    assert "Before After rounded to zero 50.0 % 0 % subnormal 50.0 % 0 % normal 0 % 100 % above 65,504 0 % 0 %" in shown
    assert "Before After zero in any precision 1,000 996 inf 0 3 NaN 0 1" in shown
    assert (
        "Worst modules by underflow Module Rounded to zero without scaling With scaling "
        "layers.0 100 % 0 % layers.1 75.0 % 0 % Parameter" in shown
    )
    # The worst first.
    names = re.findall(r"(?:layers\.\d|head)\.weight (?=[\d.]+ %)", shown)
    assert names == ["layers.0.weight ", "layers.1.weight ", "head.weight "]


def test_memory_over_time_and_its_budget() -> None:
    found = page(example_run())
    assert (
        "500.00 MiB at the peak, 100.00 MiB below the budget of 600.00 MiB. Counted on cpu: storages of tensors."
        in found.text("run-1")
    )
    drawn = panel(found, "run-1-memory")
    assert [trace["name"] for trace in drawn["data"]] == ["parameters", "gradients", "activations", "total"]
    assert found.data["run-1-memory-data"]["places"] == [0, 1, 2, 3]
    # The last moment is as wide as the others, and it is the last with a number.
    assert found.data["run-1-memory-data"]["x"] == {"title": "moment", "word": "moment", "low": 0, "high": 4, "last": 3}
    assert drawn["data"][-1]["y"] == [400, 500, 200, 200]
    assert drawn["lines"] == [{"y": 600, "text": "budget 600.00 MiB"}]
    assert "activations 300.00 MiB 60.0 %" in found.text("run-1")
    assert (
        "Made by Category At the peak layers.0 activations 200.00 MiB head.weight gradients 100.00 MiB"
    ) in found.text("run-1")


def test_headroom_of_each_module() -> None:
    assert (
        "Headroom The smallest gradient without scaling is about 7.5e-09; float16 holds 6e-8 at least. "
        "Module What Greatest Of 65,504 Doublings left Of what float16 holds "
        "head output inf not finite none layers.0 output 3.275e+04 50.0 % 1.0 layers.1 product 2047 3.1 % 5.0"
    ) in page(example_run()).text("run-1")


def test_memory_over_its_budget() -> None:
    run = example_run()
    run["memory"]["budget"] = 400 * MIB
    assert "500.00 MiB at the peak, 100.00 MiB over the budget of 400.00 MiB." in page(run).text("run-1")


def test_the_dtype_map_folds_layers_that_are_alike() -> None:
    shown = page(example_run()).text("run-1")
    assert (
        "Dtypes Loss float32 · Optimizer state float32 Module Output Parameters Gradients "
        "(model) float32 float32 bfloat16 float32 bfloat16 layers float16 float32 float32 "
        "0-5 float16 float32 float32 head bfloat16 bfloat16 bfloat16 Operators" in shown
    )
    run = example_run()
    run["dtypes"]["modules"]["layers.3"] = "float32"
    assert "0-2 float16 float32 float32 3 float32 float32 float32 4-5 float16 float32 float32 head" in page(run).text(
        "run-1"
    )


def test_what_was_not_recorded_is_one_line_that_says_how() -> None:
    shown = page(bare_run()).text("run-1")
    assert "No AMP mistakes were found in this run." in shown
    # The command records the other parts anyway.
    for argument, command in (("numerics", ""), ("memory", " or amp-check run --memory"), ("dtypes", "")):
        assert shown.count(f"Not recorded: record(model, {argument}=True){command} shows ") == 1


def test_runs_in_which_nothing_happened() -> None:
    empty = counts(0) | {"normal": 0, "histogram": {}}
    run = example_run(
        steps=0,
        numerics={
            "exponents": [],
            "before": empty,
            "after": empty,
            "parameters": {},
            "lost_without_scaling": 0.0,
            "samples": 0,
        },
        memory={"how": "x", "device": "cpu", "peak": {"total": 0}, "timeline": [], "budget": None},
        dtypes={"modules": {}, "parameters": {}, "gradients": {}, "loss": None, "optimizer state": {}, "ops": None},
    )
    shown = page(run).text("run-1")
    for sentence in (
        "No optimizer step was recorded.",
        "No gradient was seen.",
        "0 B at the peak.",
        "No module was called.",
    ):
        assert sentence in shown
    assert "No run was recorded." in page().text("overview")


def test_a_run_without_a_title_has_a_number() -> None:
    found = page(bare_run("named"), bare_run(""))
    assert found.text("run-2").startswith("Run 2 torch 2.13.0")
    assert "Run 2 ✓ no findings: none" in found.text("overview")


def test_without_a_scaler() -> None:
    run = bare_run(steps=3)
    for step in run["steps"]:
        step |= {"scaler": None, "scale_before": None, "scale_after": None, "skipped": False, "grad_norm": None}
    found = page(run | {"skipped_total": 0})
    assert "No GradScaler was used. 0 of 3 steps skipped." in found.text("run-1")
    assert [each["title"] for each in found.data["run-1-steps-data"]["panels"]] == ["loss"]


def test_scalers_and_optimizers_have_lines_and_colours_of_their_own() -> None:
    run = bare_run(steps=6)
    for step in run["steps"][::2]:
        step |= {"scaler": "scaler_d", "optimizer": "optimizer_d"}
    found = page(run)
    panels = found.data["run-1-steps-data"]["panels"]
    lines = [trace for each in panels for trace in each["data"] if trace["kind"] in ("step", "line")]
    assert [trace["name"] for trace in lines] == [
        "scaler_d",
        "scaler",
        "loss (optimizer_d)",
        "loss (optimizer)",
        "gradient norm (optimizer_d)",
        "gradient norm (optimizer)",
    ]
    assert [trace["colour"] for trace in lines] == ["var(--line-0)", "var(--line-1)"] * 3


def test_every_colour_has_a_value_in_both_schemes() -> None:
    source = html.render_report([example_run()])
    css = source[source.index("<style>") : source.index("</style>")]
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    used = set(re.findall(r"var\((--[\w-]+)\)", source)) - {"--x", "--chip"}
    defined = set(re.findall(r"(--[\w-]+):", light))
    assert used <= defined
    # Colors that must contrast with the background have a value for each of the two themes.
    needed = {"--background", "--text", "--muted", "--bad", "--line-0", "--before", "--after", "--band-lost"}
    assert needed <= set(re.findall(r"(--[\w-]+):", dark))


# Safety: no script of the data runs, nothing is loaded, and the output is deterministic.

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;<a href='https://example.com'>\u2028"


def hostile_run() -> dict[str, Any]:
    """Return a run in which every text is an attack."""

    def attacked(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            named = key in ("parameters", "modules", "gradients", "optimizer state", "bytes", "peak", "ops")
            return {
                (name + EVIL if named and name != "total" else name): attacked(each, name)
                for name, each in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [attacked(each, key) for each in value]
        # States are names of the automaton, not of the user.
        return value + EVIL if isinstance(value, str) and key not in ("severity", "spans", "state") else value

    reported = {
        "frame": [[("31 |", "dim"), (" clip_grad_norm_()", "source")]],
        "some": "only on some paths",
        "lead": "trace",
        "events": [{"place": "train.py:31", "called": " (called from a.py:1)", "text": "clips", "source": "clip()"}],
        "help": [[("help: ", "dim"), ("amp-check explain AMP201", "command")]],
    }
    run: dict[str, Any] = attacked(example_run(findings=[finding(), finding(reported=reported)]))
    return run


def test_text_stays_text() -> None:
    tame, hostile = page(example_run()), page(hostile_run(), title=EVIL)
    plain = [tag for tag, _ in tame.elements]
    # An unknown code has no rule to link to, and no rule text. Each name has its own dtype.
    assert {tag for tag, _ in hostile.elements} <= set(plain)
    assert [tag for tag, _ in hostile.elements].count("script") == plain.count("script")
    assert "img" not in plain
    assert not [name for _, found in hostile.elements for name in found if name.startswith("on")]
    assert not [value for value in hostile.values("href") if not value.startswith("#")]
    shown = hostile.text("run-1")
    assert shown.count("<script>alert(1)</script>") > 20


def test_nothing_is_loaded() -> None:
    source = html.render_report([example_run()])
    found = Page(source)
    assert found.values("src") == []
    assert all(value.startswith("#") for value in found.values("href"))
    assert not {"link", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in found.elements}
    css = source[source.index("<style>") : source.index("</style>")]
    assert not re.search(r"url\(|@import|@font-face|https?:", css)


def test_only_its_own_script_may_run() -> None:
    found = page(example_run())
    policy = next(each["content"] for _, each in found.elements if "http-equiv" in each)
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in found.scripts
    ]
    assert len(hashes) == 1
    assert allowed == {
        "default-src": "'none'",
        "script-src": " ".join(hashes),
        "style-src": "'unsafe-inline'",
        "base-uri": "'none'",
    }


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    html.write_report([example_run(), bare_run()], str(tmp_path / "a.html"))
    html.write_report([example_run(), bare_run()], str(tmp_path / "b.html"))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_long_runs_do_not_make_long_files() -> None:
    run = example_run(steps=20_000)
    moments = [
        {"label": f"step {n}", "bytes": {"parameters": n % 7 * MIB, "activations": n % 11 * MIB}} for n in range(50_000)
    ]
    run["memory"]["timeline"] = moments
    found = page(run)
    for each in found.data.values():
        for drawn in each["panels"]:
            for trace in drawn["data"]:
                assert trace["kind"] in ("states", "points") or len(trace["y"]) <= html.MOST_POINTS
    small, large = len(html.render_report([example_run()])), len(html.render_report([run]))
    assert large - small < 400_000
    # Outliers are kept: the skip at 150 and the highest moment.
    assert panel(found, "run-1-steps", "loss scale")["data"][1]["x"] == [0, 1, 2, 150]
    assert max(panel(found, "run-1-memory")["data"][-1]["y"]) == 16


def test_two_thousand_steps_that_go_up_and_down_are_less_than_a_megabyte_and_a_half() -> None:
    run = example_run(steps=2_000)
    moments = [{"label": f"op {n}", "bytes": dict.fromkeys(figures.CATEGORIES, n * 7919 % 997)} for n in range(2_000)]
    run["memory"]["timeline"] = moments
    for index, step in enumerate(run["steps"]):
        step |= {"loss": 1 / (1 + index * 7919 % 997), "grad_norm": 1 + index * 104729 % 991, "skipped": index % 3 == 0}
        step |= {"scale_before": 2.0 ** (index % 17), "scale_after": 2.0 ** ((index + 1) % 17)}
    run["states"]["optimizers"][0]["spans"] = [[n, n, ["clean", "scaled", "stepped"][n % 2 :]] for n in range(2_000)]
    run["steps"][1234] |= {"loss": 99.0, "grad_norm": 1e6}
    source = html.render_report([run])
    assert len(source.encode()) < 1_500_000
    found = Page(source)
    drawn = found.data["run-1-steps-data"]["panels"]
    # Every skip is kept, and so are outliers.
    assert drawn[0]["data"][1]["x"] == list(range(0, 2_000, 3))
    assert max(drawn[2]["data"][0]["y"]) == 99
    assert max(drawn[3]["data"][0]["y"]) == 1_000_000


def test_large_models_are_cut_and_say_so() -> None:
    run = example_run()
    each = run["numerics"]["parameters"]["head.weight"]
    run["numerics"]["parameters"] = {f"p{number:04}": each | {"lost": number / 1000} for number in range(1000)}
    run["dtypes"]["modules"] = {f"m{number:04}": "float16" for number in range(1000)}
    run["dtypes"]["parameters"] = run["dtypes"]["gradients"] = {}
    run["findings"] = [finding(message=f"mistake {number}.") for number in range(800)]
    shown = page(run).text("run-1")
    assert "p0999" in shown
    assert "p0699" not in shown
    assert "700 more parameters that lose less are not shown." in shown
    assert "m0298" in shown
    assert "m0299" not in shown
    assert "701 more modules are not shown." in shown
    assert "mistake 499." in shown
    assert "mistake 500." not in shown
    assert "300 more findings are not shown." in shown


@given(
    st.lists(st.one_of(st.none(), st.integers(-50, 50)), min_size=1, max_size=400),
    st.integers(8, 100),
)
def test_decimation_keeps_what_stands_out(values: list[int | None], limit: int) -> None:
    kept = figures.decimate(values, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, 1)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    known = [value for value in values if value is not None]
    if known:
        shown = [value for n in kept if (value := values[n]) is not None]
        assert (min(shown), max(shown)) == (min(known), max(known))
    if None in values:
        assert None in [values[n] for n in kept]
    if len(values) <= limit:
        assert kept == list(range(len(values)))


# Reports that cannot be written.


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "file" / "report.html"), "File exists|Not a directory"),
    ):
        sentence = f"^the report cannot be written to {re.escape(path)}: ({reason}): name another file$"
        with pytest.raises(html.ReportUnavailable, match=sentence):
            html.write_report([], path)
    with pytest.raises(html.ReportUnavailable, match=r"it is a folder: name a file in it$"):
        html.check_writable(str(tmp_path))
    html.check_writable(str(tmp_path / "new" / "report.html"))
    assert not (tmp_path / "new").exists()


def test_folders_on_the_way_are_made_and_any_path_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    html.write_report([example_run("caf\udce9.py")], str(path))
    assert "caf\\udce9.py" in path.read_text(encoding="utf-8")


# In a browser.


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    started = Browser(tmp_path_factory.mktemp("profile"))
    try:
        started.start()
        yield started
    finally:
        started.close()


def opened(browser: Browser, page: str, folder: Path, place: str = "") -> None:
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path.as_uri() + place)


def everything() -> str:
    """Return a page with every feature: a complete run, a run beside it, and twelve more."""
    runs = [example_run(), *(bare_run(f"test_{number}", steps=3) for number in range(12))]
    other = example_run(findings=[finding(code="AMP301", name="undivided-loss")], steps=150)
    other["dtypes"]["modules"]["head"] = "float32"
    return html.render_report(runs, others=[other])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of such a page."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(everything(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def report(browser: Browser, written: str) -> Browser:
    """Return a browser with the page open in a narrow window."""
    if browser.opened != written:
        browser.view(360, "dark")
        browser.open(written)
    return browser


def test_the_page_of_a_short_run_fits_two_screens(browser: Browser, tmp_path: Path) -> None:
    run = example_run(steps=6, findings=[], memory=None, headroom=None)
    run["dtypes"]["modules"] = dict.fromkeys(("", "0", "1", "2"), "float16")
    run["dtypes"]["parameters"] = run["dtypes"]["gradients"] = {"0.weight": "float32", "2.weight": "float32"}
    run["dtypes"]["ops"] = None
    browser.view(1920, "light")
    opened(browser, html.render_report([run]), tmp_path, "#run-1")
    browser.until(VISIBLE, ["run-1"])
    assert browser.value("document.documentElement.scrollHeight") <= 2 * 1080


VISIBLE = "[...document.querySelectorAll('main > section')].filter(e => e.checkVisibility()).map(e => e.id)"
#: Visible charts: their ids, and true if a chart has drawn paths no wider than its container.
CHARTS = (
    "[...document.querySelectorAll('.chart')].filter(e => e.checkVisibility()).map(e => [e.id, "
    "e.querySelectorAll('svg g path').length > 0 && "
    "e.querySelector('svg').clientWidth <= e.parentNode.clientWidth])"
)
#: Words below a chart that overlap, or extend beyond the chart.
OVERLAPPING = """[...document.querySelectorAll('.chart')].filter(e => e.checkVisibility()).flatMap(chart => {
    const room = chart.getBoundingClientRect();
    const words = [...chart.querySelectorAll('.tick')].map(e => [e.textContent, e.getBoundingClientRect()]);
    words.sort((a, b) => a[1].left - b[1].left);
    const wrong = words.filter(([, at]) => at.left < room.left - 1 || at.right > room.right + 1);
    const pairs = words.slice(1).filter(([, at], n) => at.left < words[n][1].right + 2);
    return [...wrong, ...pairs].map(([word]) => `${chart.id} ${word}`);
})"""
SIZES = (360, 768, 1280, 1920)
SCHEMES = ("light", "dark")
SECTIONS = {
    "overview": [],
    "run-1": ["run-1-steps", "run-1-gradients", "run-1-memory"],
    "run-2": ["run-2-steps"],
    "compare-1": ["compare-1-steps"],
}


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", SIZES)
def test_a_browser_shows_every_part(report: Browser, width: int, scheme: str) -> None:
    report.view(width, scheme)
    assert report.value("getComputedStyle(document.documentElement).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)"
    )
    for section, charts in SECTIONS.items():
        report.value(f"location.hash = '#{section}'")
        assert report.value(VISIBLE) == [section]
        report.until(CHARTS, [[name, True] for name in charts])
        # Only a table in its own frame scrolls horizontally.
        assert report.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        report.until(OVERLAPPING, [])
    assert report.complaints() == []


def _axe() -> str | None:
    """Return the source of axe-core from the file in AXE_CORE or from npm's folder, or None if not installed."""
    named = os.environ.get("AXE_CORE")
    place = Path(named) if named else Path(__file__).resolve().parents[2] / "node_modules/axe-core/axe.min.js"
    return place.read_text(encoding="utf-8") if place.is_file() else None


#: Rules of WCAG 2.0, 2.1 and 2.2, levels A and AA, and the checker's other recommendations.
CHECKED = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']"
VIOLATIONS = (
    f"axe.run(document, {{runOnly: {CHECKED}}})"
    ".then(found => found.violations.map(rule => [rule.id, rule.nodes.map(node => node.html)]))"
)


@pytest.fixture(scope="module")
def checked(browser: Browser) -> Browser:
    """Return a browser, if the accessibility checker is installed."""
    source = _axe()
    if source is None:
        pytest.skip("axe-core is not installed: npm install --no-save axe-core, or AXE_CORE names its axe.min.js")
    return browser


def violations(browser: Browser) -> Any:
    if browser.value("typeof axe") == "undefined":
        source = _axe()
        assert source is not None
        browser.run(source)
    return browser.run(VIOLATIONS)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", SIZES)
def test_everybody_can_read_it(report: Browser, checked: Browser, width: int, scheme: str) -> None:
    report.view(width, scheme)
    for section in SECTIONS:
        report.value(f"location.hash = '#{section}'")
        report.until(VISIBLE, [section])
        assert violations(checked) == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", SIZES)
def test_everybody_can_read_what_a_check_has_found(
    browser: Browser, checked: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.view(width, scheme)
    opened(browser, checked_source(tmp_path), tmp_path, "#file-1")
    browser.until(VISIBLE, ["file-1"])
    assert browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert violations(checked) == []
    browser.value("location.hash = '#overview'")
    browser.until(VISIBLE, ["overview"])
    assert violations(checked) == []


def checked_source(folder: Path) -> str:
    """Return the page of a check of one of the fixtures."""
    source = folder / "train.py"
    source.write_text((Path(__file__).resolve().parents[2] / "fixtures" / "headline.py").read_text(encoding="utf-8"))
    assert cli.main(["check", "--no-cache", "--quiet", "--report", str(folder / "found.html"), str(source)]) == 1
    return (folder / "found.html").read_text(encoding="utf-8")


def test_charts_follow_a_change_of_the_scheme(report: Browser) -> None:
    report.view(1280, "light")
    report.value("location.hash = '#run-1'")
    line = "getComputedStyle(document.querySelector('#run-1-steps .line')).stroke"
    report.until(line, "rgb(0, 114, 178)")
    report.view(1280, "dark")
    report.until(line, "rgb(86, 180, 233)")
    assert report.complaints() == []


def test_charts_follow_a_change_of_the_width(report: Browser) -> None:
    report.value("location.hash = '#run-1'")
    for width in (1280, 360, 768):
        report.view(width, "light")
        report.until(
            "(({svg, place}) => svg.clientWidth === place.clientWidth)"
            "({svg: document.querySelector('#run-1-steps svg'), place: document.querySelector('#run-1-steps')})",
            True,
        )


def test_the_shares_can_be_shown_linearly(report: Browser) -> None:
    report.view(1280, "light")
    report.value("location.hash = '#run-1'")
    press = (
        "([...document.querySelectorAll('#run-1 .tools button')].find(e => e.textContent.endsWith('shares')).click(),"
        "[...document.querySelectorAll('#run-1-gradients text')].map(e => e.textContent).filter(e => e.endsWith('%')))"
    )
    linear, logarithmic = ["0 %", "5 %", "10 %", "15 %", "20 %"], ["0.01 %", "0.1 %", "1 %", "10 %", "100 %"]
    assert [report.value(press) for _ in range(4)] == [linear, logarithmic] * 2
    assert report.complaints() == []


READING = "document.querySelector('#run-1-steps').nextElementSibling.textContent"


def test_a_chart_is_read_with_the_keys(report: Browser) -> None:
    report.view(1280, "light")
    report.value("location.hash = '#run-1'")
    report.value("document.querySelector('#run-1-steps').focus()")
    report.press("Home")
    report.until(
        READING,
        "step 0; scale 65,536; optimizer skipped: inf or NaN in the gradient, scale 65536 → 32768, train.py:31; "
        "state of the gradients CLEAN → SCALED → STEPPED; AMP201 at train.py:36; loss 2.3; "
        "gradient norm not finite; gradient norm inf",
    )
    report.press("ArrowRight", shift=True)
    report.press("ArrowRight")
    said = (
        "step 11; scale 8,192; state of the gradients CLEAN → SCALED → UNSCALED → STEPPED; loss 2.0045; "
        "gradient norm 1.0833"
    )
    report.until(READING, said)
    report.press("End")
    report.until(f"{READING}.startsWith('step 199; scale 32,768;')", True)
    # Keyboard focus stays in the chart for these keys, and Tab leaves the chart.
    assert report.value("document.activeElement.id") == "run-1-steps"
    report.press("Tab")
    assert report.value("document.activeElement.textContent") == "Zoom in"


def test_a_chart_is_zoomed_with_the_keys_and_shown_in_full_again(report: Browser) -> None:
    report.view(1280, "light")
    report.value("location.hash = '#run-1'")
    ticks = "[...document.querySelectorAll('#run-1-steps .tick')].map(e => e.textContent)"
    everything = report.value(ticks)
    assert (everything[0], everything[-1]) == ("0", "199")
    report.value("document.querySelector('#run-1-steps').focus()")
    report.press("Home")
    for _ in range(3):
        report.press("+")
    report.until(f"{ticks}.at(-1)", "25")
    report.press("-")
    report.until(f"{ticks}.at(-1)", "50")
    report.press("Escape")
    report.until(ticks, everything)
    assert report.complaints() == []


@pytest.mark.parametrize("before", ["overview", "run-1"])
def test_choosing_a_run_on_a_narrow_page_folds_the_list_and_moves_on_to_the_run(report: Browser, before: str) -> None:
    report.view(360, "light")
    report.value(f"location.hash = '#{before}'")
    report.until(VISIBLE, [before])
    report.value("(document.querySelector('.side details').open = true, document.querySelector('#runs a').focus())")
    report.press("Enter")
    report.until(VISIBLE, ["run-1"])
    assert report.value("document.querySelector('.side details').open") is False
    assert report.value("document.activeElement.textContent") == "examples/train.py"
    assert report.complaints() == []


def test_a_chart_can_be_saved_as_a_picture(report: Browser) -> None:
    report.view(1280, "light")
    report.value("location.hash = '#run-1'")
    # Records the saved object instead of a file.
    report.run("URL.createObjectURL = made => { window.saved = made; return '#run-1'; }; true")
    report.run("HTMLAnchorElement.prototype.click = () => {}; true")
    buttons = "[...document.querySelectorAll('#run-1-steps ~ .tools button')]"
    report.value(f"{buttons}.find(e => e.textContent.startsWith('Save')).click()")
    picture = report.run("saved.text()")
    drawn = ET.fromstring(picture)
    colours = {found for each in drawn.iter() for found in re.findall(r"rgb\([\d, ]+\)", each.get("style", ""))}
    # The picture contains the colors themselves, because its target has no style sheet.
    assert "rgb(0, 114, 178)" in colours
    assert "var(" not in picture
    assert report.complaints() == []


def test_runs_are_found_by_their_names(report: Browser) -> None:
    report.view(1280, "light")
    report.value("document.getElementById('filter').focus()")
    report.call("Input.insertText", text="TEST_1")
    shown = "[...document.querySelectorAll('#runs > li')].filter(e => e.checkVisibility()).map(e => e.textContent)"
    assert report.value(shown) == [f"✓no findings: test_{number}" for number in (1, 10, 11)]
    assert report.complaints() == []


def test_a_hostile_run_does_nothing(browser: Browser, tmp_path: Path) -> None:
    browser.view(1280, "light")
    opened(browser, html.render_report([hostile_run()], others=[hostile_run()]), tmp_path, "#run-1")
    names = ["run-1-steps", "run-1-gradients", "run-1-memory"]
    browser.until(CHARTS, [[name, True] for name in names])
    browser.value("document.querySelector('#run-1-steps').focus()")
    browser.press("Home")
    browser.until(f"{READING}.includes('<script>alert(1)</script>')", True)
    assert browser.value("document.querySelectorAll('a:not([href^=\"#\"])[href], img, svg a').length") == 0
    # A dialog of alert() would be an event of the page.
    assert not [event for event in browser.events if event.get("method") == "Page.javascriptDialogOpening"]
    assert browser.complaints() == []
