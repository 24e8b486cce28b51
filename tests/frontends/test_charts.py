"""Charts of a run in the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_amp_check.frontends import charts, output

GIB, MIB = 2**30, 2**20


def step(index: int, before: float | None, after: float | None, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "optimizer": "optimizer",
        "scaler": None if before is None else "scaler",
        "loss": 1.0,
        "scale_before": before,
        "scale_after": after,
        "growth_tracker": 0,
        "skipped": False,
        "found_inf": False,
        "grad_norm": None,
        "site": "train.py:31",
    } | more


def run(steps: Sequence[dict[str, Any]] = (), **parts: Any) -> dict[str, Any]:
    return {
        "title": "train.py",
        "torch": "2.13.0",
        "device": "cpu",
        "platform": "Linux",
        "steps": list(steps),
        "steps_total": len(steps),
        "skipped_total": sum(each["skipped"] for each in steps),
        "scale_history": [],
        "numerics": None,
        "memory": None,
        "dtypes": None,
        "findings": [],
    } | parts


def drawn(run: dict[str, Any], width: int = 80, encoding: str | None = "utf-8") -> list[str]:
    return [line.rstrip("\n") for line in output.render_plain(charts.render_charts(run, width, encoding))]


#: Two skips halve the scale, which then grows again.
SKIPPING = [
    step(0, 1024.0, 512.0, skipped=True, found_inf=True),
    step(1, 512.0, 256.0, skipped=True, found_inf=True),
    step(2, 256.0, 256.0),
    step(3, 256.0, 512.0),
    step(4, 512.0, 512.0),
]


def test_the_scale_and_its_skips() -> None:
    assert drawn(run(SKIPPING)) == [
        "scale     1024 █▅▁▁▅ 512, 2 of 5 steps skipped",
        "               xx",
    ]


def test_ascii_where_the_output_has_no_blocks() -> None:
    expected = ["scale     1024 #=__= 512, 2 of 5 steps skipped", "               xx"]
    for encoding in ("ascii", "latin-1", "cp1252", None, "no-such-encoding"):
        assert drawn(run(SKIPPING), encoding=encoding) == expected


def test_a_scale_that_never_moves_is_a_line_in_the_middle() -> None:
    steps = [step(index, 65536.0, 65536.0) for index in range(4)]
    assert drawn(run(steps)) == ["scale     65536 ▄▄▄▄ 65536, 0 of 4 steps skipped"]


def test_many_steps_share_cells_and_no_skip_is_lost() -> None:
    steps = [step(index, 2.0**20 if index < 500 else 2.0**13, 2.0**13) for index in range(1000)]
    steps[499] |= {"skipped": True}
    shown = drawn(run(steps), width=65)
    # 18 columns before and 31 after leave 16 of 65.
    assert shown == [
        "scale     1048576 ████████▁▁▁▁▁▁▁▁ 8192, 1 of 1,000 steps skipped",
        "                         x",
    ]


def test_no_line_is_wider_than_asked_for() -> None:
    steps = [step(index, 1024.0, 1024.0) for index in range(1000)]
    for width in (60, 80, 120):
        (line,) = drawn(run(steps), width)
        assert len(line) <= width


def test_scalers_have_lines_of_their_own() -> None:
    steps = [
        step(0, 1024.0, 512.0, scaler="scaler_d", skipped=True),
        step(1, 8.0, 8.0, scaler="scaler_g"),
        step(2, 512.0, 512.0, scaler="scaler_d"),
    ]
    assert drawn(run(steps)) == [
        "scale     scaler_d: 1024 █▁ 512, 1 of 2 steps skipped",
        "                         x",
        "scale     scaler_g: 8 ▄ 8, 0 of 1 step skipped",
    ]


def test_dropped_steps_leave_their_changes_of_the_scale() -> None:
    kept = [step(1000, 256.0, 256.0), step(1001, 256.0, 256.0)]
    whole = run(kept, steps_total=1002, skipped_total=2, scale_history=[[0, 1024.0], [1, 512.0], [2, 256.0]])
    assert charts.collect_scales(whole) == {
        "scaler": [(0, 1024.0), (1, 512.0), (2, 256.0), (1000, 256.0), (1001, 256.0), (1002, 256.0)]
    }
    assert drawn(whole) == ["scale     1024 █▅▁▁▁ 256, 2 of 1,002 steps skipped"]


def test_without_a_scaler_or_a_step() -> None:
    assert drawn(run([step(0, None, None), step(1, None, None)])) == ["scale     no step was scaled, 2 steps"]
    assert drawn(run()) == ["scale     no optimizer step was recorded"]


@pytest.mark.parametrize(
    ("scale", "shown"),
    [
        (65536.0, "65536"),
        (2.0**40, "2^40"),
        (2.0**127, "2^127"),
        (0.5, "0.5"),
        (1e9, "1e+09"),
        (3.0, "3"),
        (0.0, "0"),
        (-1.5, "-1.5"),
    ],
)
def test_scales_are_short(scale: float, shown: str) -> None:
    assert charts.format_scale(scale) == shown


def test_scales_that_are_not_finite() -> None:
    steps = [step(0, float("inf"), float("nan"))]
    assert drawn(run(steps)) == ["scale     inf ▄ nan, 0 of 1 step skipped"]


MEMORY: dict[str, Any] = {
    "how": "storages of tensors",
    "device": "cpu",
    "peak": {"parameters": 256 * MIB, "activations": 512 * MIB, "inputs": 1 * MIB, "total": 769 * MIB},
    "timeline": [],
    "budget": None,
}


def test_memory_by_category() -> None:
    assert drawn(run(memory=MEMORY), width=60)[1:] == [
        "memory    769.00 MiB at the peak  cpu, storages of tensors",
        "          activations 512.00 MiB ██████████████████",
        "          parameters  256.00 MiB █████████",
        "          inputs        1.00 MiB █",
    ]


def test_memory_against_a_budget() -> None:
    assert drawn(run(memory=MEMORY | {"budget": GIB}), width=60, encoding="ascii")[1:] == [
        "memory    769.00 MiB of 1.00 GiB (75.1 %)  cpu, storages of tensors",
        "          activations 512.00 MiB ##############.............",
        "          parameters  256.00 MiB #######....................",
        "          inputs        1.00 MiB #..........................",
    ]


def test_memory_over_its_budget_says_by_how_much_and_stands_out() -> None:
    shown = charts.render_charts(run(memory=MEMORY | {"budget": 768 * MIB}), 80)[1]
    assert shown[1] == ("769.00 MiB of 768.00 MiB (100.1 %, 1.00 MiB over)", "error")
    assert charts.render_charts(run(memory=MEMORY | {"budget": 769 * MIB}), 80)[1][1] == (
        "769.00 MiB of 769.00 MiB (100.0 %)",
        "good",
    )


def counts(lost: float) -> dict[str, int]:
    """Return counts of 100,000 values with a share lost in float16, half of the lost values flushed before counting."""
    number = round(lost * 100_000)
    normal = 100_000 - number
    return {"lost": number - number // 2, "flushed": number // 2, "subnormal": 0, "normal": normal, "above": 0}


def numerics(lost: dict[str, float], share: float = 0.0, samples: int = 1, after: float = 0.0) -> dict[str, Any]:
    each = {name: {"before": counts(part), "after": counts(part * after), "lost": part} for name, part in lost.items()}
    return {"parameters": each, "lost_without_scaling": share, "samples": samples}


def test_the_five_worst_modules_by_underflow() -> None:
    lost = {"a.w": 0.25, "b.w": 1.0, "c.w": 0.0, "d.w": 0.0001, "e.w": 0.5, "f.w": 0.25, "g.w": 0.99999, "weight": 0.6}
    # All parameters of a module count together.
    lost |= {"b.in.weight": 0.8, "b.in.bias": 0.6}
    assert drawn(run(numerics=numerics(lost, 0.123, after=0.1)))[1:] == [
        "underflow 12.3 % of non-zero gradient values would be zero in float16 without scaling",
        "             100 %  b  (10.0 % with it)",
        "           >99.9 %  g  (10.0 % with it)",
        "            70.0 %  b.in  (7.0 % with it)",
        "            60.0 %  the model  (6.0 % with it)",
        "            50.0 %  e  (5.0 % with it)",
    ]
    assert drawn(run(numerics=numerics({"a.w": 0.25})))[2:] == ["            25.0 %  a"]


def test_underflow_with_nothing_lost_or_nothing_seen() -> None:
    assert drawn(run(numerics=numerics({"weight": 0.0})))[1:] == [
        "underflow 0 % of non-zero gradient values would be zero in float16 without scaling"
    ]
    assert drawn(run(numerics=numerics({}, samples=0)))[1:] == ["underflow no gradient was seen"]


def test_the_modules_that_come_nearest_to_the_end_of_float16() -> None:
    outputs = {"layers.3": 30000.0, "layers.2": 65504.0, "layers.1": 5.0, "head": 1023.0, "": 1e6, "x": 2e4}
    products = {"layers.3.attention: matmul": float("inf"), "small": 1024.0}
    assert drawn(run(headroom={"outputs": outputs, "products": products}))[1:] == [
        "headroom  float16 maximum of 65504, as a multiple of the largest value",
        "              <0.1  layers.3.attention: matmul",
        "              <0.1  the model",
        "               1.0  layers.2",
        "               2.1  layers.3",
        "               3.2  x",
    ]


def test_only_values_beyond_float16_are_errors() -> None:
    outputs = {"beyond": 65505.0, "largest": 65504.0, "below": 65503.0}
    _, _, *rows = charts.render_charts(run(headroom={"outputs": outputs, "products": {}}), 80, "utf-8")
    assert [(row[2][0], row[1][1]) for row in rows] == [
        ("beyond", "error"),
        ("largest", "warning"),
        ("below", "warning"),
    ]


def test_a_headroom_of_six_powers_of_two_is_nothing_to_tell() -> None:
    assert drawn(run(headroom={"outputs": {"a": 1023.0}, "products": {}}))[1:] == []
    assert len(drawn(run(headroom={"outputs": {"a": 1024.0}, "products": {}}))[1:]) == 2


def test_what_an_output_is_encoded_in(monkeypatch: pytest.MonkeyPatch) -> None:
    utf8 = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setenv("TERM", "xterm")
    assert charts.find_encoding(utf8) == "utf-8"
    assert charts.find_encoding(None) is None
    monkeypatch.setenv("TERM", "dumb")
    assert charts.find_encoding(utf8) is None


def test_a_long_name_keeps_its_end() -> None:
    name = "encoder.layers.11.attention.query.weight"
    assert drawn(run(numerics=numerics({name: 0.5})), width=44)[2] == "            50.0 %  ...rs.11.attention.query"


def test_dtypes_in_a_line() -> None:
    dtypes = {
        "modules": {"": "float16", "0": "float16", "1": "float16, float32"},
        "parameters": {"0.weight": "float32", "0.bias": "float32"},
        "gradients": {"0.weight": "float32", "0.bias": "float32"},
        "loss": "float32",
        "optimizer state": {},
        "ops": None,
    }
    assert drawn(run(dtypes=dtypes), width=120)[1:] == [
        "dtypes    outputs float16 3, float32 1; parameters float32 2; gradients float32 2; loss float32"
    ]
    assert drawn(run(dtypes=dtypes), width=60)[1:] == [
        "dtypes    outputs float16 3, float32 1; parameters float32 2",
        "          gradients float32 2; loss float32",
    ]
    empty: dict[str, Any] = {
        "modules": {},
        "parameters": {},
        "gradients": {},
        "loss": None,
        "optimizer state": {},
        "ops": None,
    }
    assert drawn(run(dtypes=empty))[1:] == ["dtypes    no module was called"]


def test_names_cannot_move_the_cursor() -> None:
    evil = "\x1b[2J\n"
    shown = drawn(
        run(
            [step(0, 2.0, 2.0, scaler=evil), step(1, 2.0, 2.0, scaler="other")],
            numerics=numerics({evil: 0.5}),
            memory=MEMORY | {"how": evil, "device": evil},
        )
    )
    assert all(line.isprintable() for line in shown)


def test_colour_changes_no_character() -> None:
    whole = run(
        SKIPPING,
        memory=MEMORY | {"budget": GIB},
        numerics=numerics({"weight": 0.5}, 0.5),
        dtypes={
            "modules": {"": "float16"},
            "parameters": {},
            "gradients": {},
            "loss": None,
            "optimizer state": {},
            "ops": None,
        },
    )
    lines = charts.render_charts(whole, 80)
    plain, coloured = io.StringIO(), io.StringIO()
    output.write_lines(lines, plain, use_color=False)
    output.write_lines(lines, coloured, use_color=True)
    assert "\x1b[" in coloured.getvalue()
    from rich.text import Text

    assert Text.from_ansi(coloured.getvalue()).plain.rstrip("\n") == plain.getvalue().rstrip("\n")
