"""Marimo notebooks: cells that marimo runs in the order of their names, in all forms in which a cell is written."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

#: Cells: the parameters, the statements, and the returned names.
Cell = tuple[str, str, str]
SETUP: Cell = ("", "import torch\nfrom torch import nn", "nn, torch")
MODEL: Cell = (
    "nn, torch",
    "model = nn.Linear(8, 1)\nopt = torch.optim.SGD(model.parameters())\nscaler = torch.amp.GradScaler('cuda')",
    "model, opt, scaler",
)
BACKWARD: Cell = (
    "model, nn, opt, scaler, torch",
    (
        "opt.zero_grad()\nwith torch.autocast('cuda'):\n    loss = nn.functional.mse_loss(model(x), y)\n"
        "scaled = scaler.scale(loss)\nscaled.backward()"
    ),
    "scaled",
)
CLIP: Cell = ("model, nn, scaled", "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "norm")
STEP: Cell = ("norm, opt, scaler", "scaler.step(opt)\nscaler.update()", "")
UNSCALE: Cell = ("opt, scaled, scaler", "scaler.unscale_(opt)\nunscaled = True", "unscaled")
CLIP_UNSCALED: Cell = (CLIP[0] + ", unscaled", *CLIP[1:])
WRONG = [SETUP, MODEL, BACKWARD, CLIP, STEP]
RIGHT = [SETUP, MODEL, BACKWARD, UNSCALE, CLIP_UNSCALED, STEP]


def notebook(
    cells: list[Cell], decorator: str = "app.cell", define: str = "def", made: str = "app = marimo.App()"
) -> str:
    lines = ["import marimo", "", made]
    for parameters, statements, returned in cells:
        body = [*statements.split("\n"), f"return {returned}" if returned else "return"]
        lines += ["", f"@{decorator}", f"{define} _({parameters}):", *(f"    {line}" for line in body)]
    return "\n".join([*lines, "", 'if __name__ == "__main__":', "    app.run()", ""])


def found(source: str) -> list[tuple[str, str]]:
    """Return code and source line of each finding."""
    rows = source.split("\n")
    return [(finding.code, rows[finding.line - 1].strip()) for finding in check_source(source)]


CLIPPED = [("AMP201", CLIP[1])]
#: The function alone returns a loss that is still scaled.
RETURNED = [("AMP202", "scaled.backward()")]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (3, 0, 4, 2, 1), (1, 4, 0, 3, 2)])
def test_cells_run_in_the_order_of_their_names(order: tuple[int, ...]) -> None:
    assert found(notebook([WRONG[number] for number in order])) == CLIPPED


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (4, 3, 0, 5, 1, 2)])
def test_a_cell_in_between_unscales(order: tuple[int, ...]) -> None:
    assert found(notebook([RIGHT[number] for number in order])) == []


@pytest.mark.parametrize(
    ("decorator", "define", "made", "expected"),
    [
        ("app.cell()", "def", "app = marimo.App()", CLIPPED),
        ("app.cell(hide_code=True)", "def", "app = marimo.App(width='full')", CLIPPED),
        ("app.cell", "async def", "app = marimo.App()", CLIPPED),
        ("notebook.cell", "def", "notebook = marimo.App()", CLIPPED),
        ("app.cell", "def", "app = other = marimo.App()", CLIPPED),
        # No cells of marimo: functions that nobody calls.
        ("app.route", "def", "app = marimo.App()", RETURNED),
        ("app.cell", "def", "app = server.Application()", RETURNED),
        ("other.cell", "def", "app = marimo.App()", RETURNED),
        ("cell", "def", "app = marimo.App()", RETURNED),
    ],
)
def test_how_a_cell_is_written(decorator: str, define: str, made: str, expected: list[tuple[str, str]]) -> None:
    assert found(notebook(WRONG[::-1], decorator, define, made)) == expected


def test_without_marimo_a_function_is_a_function() -> None:
    assert found(notebook(WRONG).replace("marimo", "tasks")) == RETURNED


def test_cells_in_a_circle_stay_in_their_order() -> None:
    first: Cell = (WRONG[3][0] + ", late", *WRONG[3][1:])
    second: Cell = ("norm", "late = norm", "late")
    assert found(notebook([*WRONG[:3], first, second, WRONG[4]])) == CLIPPED


@pytest.mark.parametrize("decorator", ["app.function", "app.function(hide_code=True)"])
def test_an_exported_function_is_called(decorator: str) -> None:
    function = (
        f"\n@{decorator}\ndef clip(nn, model):\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n\n@app.cell\n"
    )
    cells = [*WRONG[:3], (CLIP[0], "norm = clip(nn, model)", "norm"), STEP]
    source = notebook(cells).replace("\n@app.cell\n", function, 1)
    assert found(source) == [("AMP201", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)")]
