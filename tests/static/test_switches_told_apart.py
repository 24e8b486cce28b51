"""Disabled flags of the code itself, and similar values that are no flags."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

TRAINING = """\
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    if {test}:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
    scaler.step(optimizer)
    scaler.update()
"""


def _training(test: str, indentation: str, switch: bool) -> str:
    """Return a training whose guarded code is reported if the condition is a disabled flag."""
    return indent(TRAINING.format(test=test, mark="  # AMP201" if switch else ""), indentation)


PROGRAMS: dict[str, str] = {}
for name, first, test, switch, last in (
    ("a name", "clip = False", "clip", True, ""),
    ("a name that is on", "clip = True", "not clip", False, ""),
    ("a number", "clip = 0", "clip", False, ""),
    ("a name that is bound once more", "clip = False", "clip", False, "clip = True"),
    ("a name that a loop binds", "for _ in range(3):\n    clip = False", "clip", False, ""),
    ("a name that a loop gives values", "clip = False", "clip", False, "for clip in loader:\n    print(clip)"),
    (
        "a name that a function within binds too",
        "clip = False\ndef inner():\n    clip = 3\n    return clip",
        "clip",
        False,
        "",
    ),
    ("a name beside others", "clip = False\nother = 3\nthird = other", "clip", True, ""),
    ("a name of a name", "first = False\nclip = first", "clip", True, ""),
    ("an entry", 'held = {"clip": False, "lr": 0.1}', 'held["clip"]', True, ""),
    ("an entry by its name", "held = dict(clip=False, lr=0.1)", 'held["clip"]', True, ""),
    ("an entry that is on", 'held = {"clip": True, "other": False}', 'not held["clip"]', False, ""),
    ("an entry that is stored", 'held = {"clip": False}', 'held["clip"]', False, 'held["clip"] = True'),
    ("an entry that is added to", 'held = {"clip": False}', 'held["clip"]', False, "held['clip'] |= True"),
    ("an entry that is compared", 'held = {"clip": False}', 'held["clip"]', True, 'print(held["clip"] == True)'),
    ("an entry of a name that is bound twice", 'held = {"clip": False}', 'held["clip"]', False, "held = {}"),
    (
        "an entry beside one that is stored",
        'held = {"clip": False, "first": False}',
        'held["clip"]',
        True,
        'held["first"] = True',
    ),
):
    PROGRAMS[name] = (
        "import torch\n\ndef train(model, loader, optimizer):\n"
        f"{indent(first, '    ')}\n{_training(test, '    ', switch)}{indent(last, '    ')}\n"
    )
PROGRAMS["a name of the module"] = (
    f"import torch\n\nCLIP = False\n\ndef train(model, loader, optimizer):\n{_training('CLIP', '    ', True)}"
)
CALL = "train(make(), load(), build())\n"
for name, default, switch, calls in (
    ("a default that the only call leaves", "False", True, CALL),
    ("a default that two calls leave", "False", True, CALL * 2),
    ("a default that is no flag", "''", True, CALL),
):
    PROGRAMS[name] = (
        f"import torch\n\ndef train(model, loader, optimizer, clip={default}):\n"
        f"{_training('clip', '    ', switch)}\n{calls}"
    )
for name, init, test, switch in (
    ("an attribute", "self.clip = False", "self.clip", True),
    ("an attribute that is on", "self.clip = True", "not self.clip", False),
    ("an attribute that is stored twice", "self.clip = False\nself.clip = False", "self.clip", False),
    ("an attribute that is compared", "self.clip = False\nprint(self.clip == True)", "self.clip", True),
    ("an attribute that begins as another one does", "self.clip = False\nself.clip_norm = 1.0", "self.clip", True),
):
    PROGRAMS[name] = (
        f"import torch\n\nclass Trainer:\n    def __init__(self):\n{indent(init, '        ')}\n\n"
        f"    def train(self, model, loader, optimizer):\n{_training(test, '        ', switch)}\nTrainer().{CALL}"
    )


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_switch_guards_is_read_and_what_else_is_off_is_not(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)
