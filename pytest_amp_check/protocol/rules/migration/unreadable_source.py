"""AMP903 unreadable-source."""

from __future__ import annotations

from ...rule import ERROR, STATIC, WARNING, Rule, ViolationKind

RULE = Rule(
    "AMP903",
    "unreadable-source",
    ERROR,
    "A file, or a function in it, could not be read, so nothing in it was checked.",
    effect="mistakes in this code are not found",
    detected_by=STATIC,
    violations={
        "source:unreadable": ViolationKind(
            "This source could not be read ({reason}), so nothing in it was checked: repair it, or exclude it"
        ),
        "source:newer-python": ViolationKind(
            "This source needs Python {python}, but amp-check runs on {running}, so nothing in it was checked: run "
            "amp-check with Python {python} or newer",
            WARNING,
        ),
        "source:too-long": ViolationKind(
            "This file takes too long to analyze, so `{function}` and the code after it were not checked: split the "
            "file",
            WARNING,
        ),
    },
    rationale="""\
No finding must mean that the code was analyzed and is correct. Some files cannot be analyzed: they do not parse,
contain bytes that are not text, or need a newer Python than the check runs on. An exit code of 0 would wrongly report
them as checked.
""",
    harm="""\
One conflict marker left in a file switches off every rule for the whole file, and its mistakes are not found.
""",
    bad_example="""\
import torch

model = torch.nn.Linear(8, 2)
scaler = torch.amp.GradScaler("cpu")
<<<<<<< HEAD  # AMP903
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
=======
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
>>>>>>> feature
""",
    good_example="""\
import torch

model = torch.nn.Linear(8, 2)
scaler = torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
    fix_advice=(
        "Repair the syntax, run the check with the Python version of the file, or list the file under `exclude` in "
        "`[tool.amp-check]`. If a file takes too long to analyze, move the training code into a separate file. The "
        "option `--show-blind-spots` of `amp-check check` lists the calls that were not checked."
    ),
    sources=("Python documentation: the ast module, docs.python.org/3/library/ast.html",),
)
