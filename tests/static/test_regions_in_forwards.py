"""Models whose forward enters autocast itself, and what their training needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

CASES: dict[str, str] = {}
MODEL = """
        import torch
        from torch import nn
        from torch.cuda.amp import autocast

        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 8)

            {decorator}
            def forward(self, x):
                {context}
                    return self.fc(x).float()
        """
TRAIN = """
        def fit(loader):
            encoder = Encoder().cuda()
            opt = torch.optim.AdamW(encoder.parameters())
            {scaler}
            for x, y in loader:
                loss = nn.functional.mse_loss(encoder(x), y)
                opt.zero_grad(set_to_none=True)
                {backward}
        """
PLAIN = ("pass", "loss.backward(){mark}\n                opt.step()")
SCALED = (
    'sc = torch.amp.GradScaler("cuda")',
    "sc.scale(loss).backward()\n                sc.step(opt)\n                sc.update()",
)
REGIONS = {
    "a decorator": ('@torch.autocast("cuda")', "if True:", True),
    "a decorator with a dtype": ('@torch.autocast("cuda", dtype=torch.float16)', "if True:", True),
    "a statement": ("", 'with torch.autocast("cuda", torch.half):', True),
    "a statement with a switch that is on": ("", 'with torch.autocast("cuda", enabled=True):', True),
    "bfloat16": ('@torch.autocast("cuda", dtype=torch.bfloat16)', "if True:", False),
    "the CPU": ('@torch.autocast("cpu")', "if True:", False),
    "a switch": ("", 'with torch.autocast("cuda", enabled=self.training):', False),
    "an island": ("", 'with torch.autocast("cuda", enabled=False):', False),
    "a condition": (
        "",
        'if self.training:\n                  with torch.autocast("cuda"): pass\n                if True:',
        False,
    ),
}
for _name, (_decorator, _context, _is_float16) in REGIONS.items():
    _model = MODEL.format(decorator=_decorator, context=_context)
    for _scaler, _backward in (PLAIN, SCALED) if _is_float16 else (PLAIN,):
        _mark = "  # AMP502" if _is_float16 and _scaler == "pass" else ""
        _train = TRAIN.format(scaler=_scaler, backward=_backward.replace("{mark}", _mark))
        CASES[f"{_name}, {_scaler}"] = f"""
        === fit.py
        {_model}
        {_train}
        """
        CASES[f"{_name} in another file, {_scaler}"] = f"""
        === model.py
        {_model}
        === fit.py
        import torch
        from torch import nn

        from model import Encoder

        {_train}
        """
#: Only what no gradients flow through computes in float16.
CASES["a teacher without gradients"] = """
        === distill.py
        import torch
        from torch import nn

        def main(teacher, loader):
            teacher, student = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
            opt = torch.optim.SGD(student.parameters(), lr=0.1)
            for x in loader:
                with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                    target = teacher(x)
                opt.zero_grad()
                loss = nn.functional.mse_loss(student(x), target.float())
                loss.backward()
                opt.step()
        """


@pytest.mark.parametrize("name", CASES)
def test_forward_with_a_region(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    codes = {each for each in found(tmp_path) if each[2] != "AMP901"}
    assert codes == marks(tmp_path), CASES[name]
