"""Values that a path sets before it leaves a block by `break`, `continue`, `return` or an exception."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from trees import found, marks

#: Ways to choose a scaler: each leaves ``scaler`` either None or a GradScaler.
CHOICES = {
    "break": """
        scaler = None
        for name in names:
            if name == "amp":
                scaler = torch.amp.GradScaler("cuda")
                break
        """,
    "break without a condition": """
        scaler = None
        for name in names:
            scaler = torch.amp.GradScaler("cuda")
            break
        """,
    "break out of two loops": """
        scaler = None
        for group in names:
            for name in group:
                if name:
                    scaler = torch.amp.GradScaler("cuda")
                    break
            else:
                continue
            break
        """,
    "continue": """
        scaler = None
        for name in names:
            if name == "amp":
                scaler = torch.amp.GradScaler("cuda")
                continue
            print(name)
        """,
    "break out of while": """
        scaler = None
        while names:
            if names.pop() == "amp":
                scaler = torch.amp.GradScaler("cuda")
                break
        """,
    "in a handler": """
        scaler = None
        try:
            names.check()
        except ValueError:
            scaler = torch.amp.GradScaler("cuda")
        """,
    "before an exception": """
        scaler = None
        try:
            scaler = torch.amp.GradScaler("cuda")
            names.check()
        except ValueError:
            print("no names")
        """,
    "before a raise": """
        scaler = None
        try:
            if "amp" in names:
                scaler = torch.amp.GradScaler("cuda")
                raise ValueError(names)
            scaler = None
        except ValueError:
            print("with a scaler")
        """,
    "an attribute before a raise": """
        args.scaler = None
        try:
            if "amp" in names:
                args.scaler = torch.amp.GradScaler("cuda")
                raise ValueError(names)
        except ValueError:
            print("with a scaler")
        scaler = args.scaler
        """,
    "a raise before the value": """
        try:
            scaler = None
            if "amp" not in names:
                raise ValueError(names)
            scaler = torch.amp.GradScaler("cuda")
        except ValueError:
            print("without a scaler")
        """,
    "undone in a handler": """
        try:
            scaler = torch.amp.GradScaler("cuda")
        except RuntimeError:
            scaler = None
        """,
    "return in a loop": """
        def choose():
            for name in names:
                if name == "amp":
                    return torch.amp.GradScaler("cuda")
            return None

        scaler = choose()
        """,
    "an attribute before break": """
        args.scaler = None
        for name in names:
            if name == "amp":
                args.scaler = torch.amp.GradScaler("cuda")
                break
        scaler = args.scaler
        """,
    "a flag before break": """
        wanted = False
        for name in names:
            if name == "amp":
                wanted = True
                break
        scaler = torch.amp.GradScaler("cuda") if wanted else None
        """,
}
TRAINING = """\
import torch

def train(net, batches, names, args):
{choice}
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for images in batches:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=scaler is not None):
            loss = net(images).mean()
        if scaler is not None:
            scaler.scale(loss).backward()
            {unscale}
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0){mark}
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
"""


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_scaler_that_one_path_constructs_is_known_after_the_paths_join(choice: str, tmp_path: Path) -> None:
    body = textwrap.indent(textwrap.dedent(choice).strip("\n"), "    ")
    program = TRAINING.replace("{choice}", body)
    (tmp_path / "wrong.py").write_text(
        program.replace("{unscale}", "pass").replace("{mark}", "  # AMP201"), encoding="utf-8"
    )
    (tmp_path / "right.py").write_text(
        program.replace("{unscale}", "scaler.unscale_(opt)").replace("{mark}", ""), encoding="utf-8"
    )
    assert marks(tmp_path)
    assert found(tmp_path) == marks(tmp_path)


def test_a_fallback_for_another_version_does_not_change_the_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """\
try:
    from torch.amp import GradScaler
    is_old = False
except ImportError:
    from torch.cuda.amp import GradScaler
    is_old = True

scaler = GradScaler("cuda") if not is_old else GradScaler()
""",
        encoding="utf-8",
    )
    assert {code for _, _, code in found(tmp_path)} <= {"AMP901"}
