"""AMP903 unreadable-source."""

from __future__ import annotations

from ...rule import ERROR, STATIC, WARNING, Rule, ViolationKind

RULE = Rule(
    "AMP903",
    "unreadable-source",
    ERROR,
    "A file, or a function in it, could not be read, so nothing in it was checked.",
    detected_by=STATIC,
    violations={
        "source:unreadable": ViolationKind(
            "This source could not be read ({reason}), so nothing in it was checked: repair it, or exclude it"
        ),
        "source:newer-python": ViolationKind(
            "This source needs Python {python}, and amp-check runs on {running}, so nothing in it was checked: run "
            "amp-check with Python {python} or newer",
            WARNING,
        ),
        "source:too-long": ViolationKind(
            "This file takes too long to follow, and `{function}` and what comes after it was not read: split the file",
            WARNING,
        ),
    },
    rationale="""\
Silence must mean that the code was read and is clean. A file that does not parse, has bytes that are not text, or is
written for a newer Python than the one that runs the check was not read, and an exit code of 0 would claim that it
was.
""",
    harm="""\
One conflict marker left in a file switches off every rule for all of it, and the mistakes inside stay unseen.
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
    fix_advice="Repair the syntax, run the check with the Python version the file is written for, or list the "
    "file under"
    " `exclude` in `[tool.amp-check]`. Of a file that takes too long to follow, move what trains into one of"
    " its own: `amp-check check --show-blind-spots` lists what was not judged.",
    sources=("Python documentation: the ast module, docs.python.org/3/library/ast.html",),
)
