"""Importing files that may compute in float16, by the words in the file: then the imported file may, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths

MASK = "import torch\n\n\ndef scores(q, k, m):\n    return torch.matmul(q, k).masked_fill(m, -1e9)\n"


@pytest.mark.parametrize(
    ("text", "low"),
    [
        ("", False),
        ("dtype = torch.float16", True),
        ("dtype = torch.half", True),
        ("dtype = half", False),
        ("dtype = other.half\nx = 'float16 is not used'", False),
        ("dtype = 'float16'", True),
        ("dtype = 'torch.float16'", True),
        ("dtype = 'float16 or so'", False),
        ("dtype = torch.bfloat16", False),
        ("torch.set_default_tensor_type(torch.cuda.HalfTensor)  # float16", True),
        ("policy = MixedPrecision(param_dtype=torch.bfloat16)", True),
        ("def f(x):\n    return x.half()", True),
        ("def f(x):\n    return x.half(2)  # float16", False),
        ("def f(x):\n    return half(x)  # float16", False),
        ("def f(x):\n    return x.type(torch.HalfTensor)  # float16", True),
        ("def f(g):\n    with torch.autocast('cuda'):\n        g()", True),
        ("def f(g):\n    with torch.autocast('cuda', torch.float16):\n        g()", True),
        ("def f(g):\n    with torch.autocast('cuda', torch.bfloat16):\n        g()", False),
        ("def f(g):\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n        g()", False),
        ("def f(g):\n    with torch.autocast('cuda', enabled=False):\n        g()", False),
        ("def f(g):\n    with torch.autocast('cuda', enabled=True):\n        g()", True),
        ("def f(g):\n    return torch.is_autocast_enabled()", False),
        ("def f(g):\n    return torch.get_autocast_dtype('cuda')", False),
        ("def f(x):\n    assert x.dtype != torch.float16", False),
        ("def f(x):\n    assert x.dtype in (torch.float16, torch.float32)", False),
        ("def f(x):\n    return x.dtype == torch.float16", False),
        ("def f(x):\n    return x.to(torch.float16) == x", False),
        ("from torch import float16", False),
        ("from torch import float16 as low", False),
        ("from torch import float16 as low\n\n\ndef f(x):\n    return x.to(low)", True),
        ("from torch import float16 as low\n\n\ndef f(x):\n    return x.to(high)", False),
        ("from torch import float32 as low  # float16\n\n\ndef f(x):\n    return x.to(low)", False),
        ("from torch import float16\n\n\ndef f(x):\n    return x.to(float16)", True),
        ("scaler = torch.amp.GradScaler('cuda')", False),
        ("x = (", False),
        ("dtype = torch.float16\nx = (", True),
    ],
)
def test_a_file_that_uses_another(tmp_path: Path, text: str, *, low: bool) -> None:
    (tmp_path / "mask.py").write_text(MASK, encoding="utf-8")
    (tmp_path / "use.py").write_text(f"import torch\nimport mask\n\n{text}\n", encoding="utf-8")
    findings = check_paths([str(tmp_path)]).findings
    assert [(f.code, f.line) for f in findings if f.code == "AMP506"] == ([("AMP506", 5)] if low else [])
