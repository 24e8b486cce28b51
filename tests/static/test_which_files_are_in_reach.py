"""Files that decide about a finding of another file: importers, imports, and neighbors."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import write

from pytest_amp_check import check_paths

FILL = """\
import torch
{imports}

def weights(q, k, mask):
    return torch.matmul(q, k).masked_fill(mask, -1e9)
"""
LOW = "import torch\n\ndef run(x):\n    with torch.autocast('cuda', dtype=torch.float16):\n        return x\n"


def is_filled(root: Path, tree: str, *, at: str = "model.py", imports: str = "") -> bool:
    """Check a tree with a file that fills in -1e9. Return True if the fill is reported: float16 may reach the file."""
    write(root, tree)
    path = root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILL.format(imports=imports), encoding="utf-8")
    found = [Path(f.filename) for f in check_paths([str(root)]).findings if f.code == "AMP506"]
    assert found in ([], [path])
    return bool(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = x.half()", True),
        ("x = x.half(2)", False),
        ("half = 0.5", False),
        ("x = x.to(torch.half)", True),
        ("x = x.to(lib.half)", False),
        ("x = x.to(torch.float16)", True),
        ("x = x.to(dtype='float16')", True),
        ("x = x.to(dtype='torch.float16')", True),
        ("x = x.to(dtype='it is float16')", False),
        ("x = x.to(torch.float32)", False),
        ("x = x.type(torch.HalfTensor)  # float16", True),
        ("x = wrap(x, MixedPrecision())", True),
        # Asserted or compared dtypes are not computed.
        ("assert x.dtype == torch.float16", False),
        ("assert isinstance(x, torch.HalfTensor)  # float16", False),
        ("if x.dtype == torch.float16:\n    pass", False),
        ("if x.dtype == torch.float16:\n    y = x.half()", True),
        ("if x.dtype is y:\n    y = torch.float16", True),
        # Regions.
        ("with torch.autocast('cuda'):\n    pass", True),
        ("with torch.autocast('cuda', dtype=torch.float16):\n    pass", True),
        ("with torch.autocast('cuda', dtype=torch.bfloat16):\n    pass", False),
        ("with torch.autocast('cuda', torch.bfloat16):\n    pass", False),
        ("with torch.autocast('cuda', torch.float16):\n    pass", True),
        ("with torch.autocast('cuda', enabled=torch.bfloat16):\n    pass", True),
        ("with torch.autocast('cuda', dtype=x):\n    pass", True),
        ("with torch.autocast('cuda', enabled=False):\n    pass", False),
        ("with torch.autocast('cuda', enabled=True):\n    pass", True),
        ("with torch.autocast('cuda', enabled=x):\n    pass", True),
        ("with torch.autocast('cuda', enabled=0):\n    pass", True),
        ("with torch.cuda.amp.autocast(False):\n    pass", False),
        ("with torch.cuda.amp.autocast(True):\n    pass", True),
        ("print(torch.is_autocast_enabled())", False),
        ("print(torch.get_autocast_dtype('cuda'))", False),
        ("from torch import autocast", False),
        ("from torch import autocast as cast", False),
        ("from torch import autocast as cast\nwith cast('cuda'):\n    pass", True),
        ("from torch import float16 as low\nx.to(low)", True),
        ("from torch import float32 as low, float16\nx.to(low)", False),
    ],
)
def test_what_may_compute_in_float16(tmp_path: Path, text: str, *, expected: bool) -> None:
    assert is_filled(tmp_path, f"=== train.py\nimport torch\nimport model\n{text}\n") is expected


@pytest.mark.parametrize(
    ("at", "imports", "files", "expected"),
    [
        # Direct and indirect importers of the file, and their imports.
        ("model.py", "", {"train.py": "import model\n" + LOW}, True),
        ("model.py", "", {"train.py": "from model import weights\n" + LOW}, True),
        ("model.py", "", {"train.py": "from model import *\n" + LOW}, True),
        ("model.py", "", {"train.py": "import mid\n" + LOW, "mid.py": "import model\n"}, True),
        ("model.py", "", {"train.py": "import model\nimport low\n", "low.py": LOW}, True),
        ("model.py", "", {"train.py": "import model\nimport mid\n", "mid.py": "import low\n", "low.py": LOW}, True),
        ("model.py", "import low", {"low.py": LOW}, True),
        ("model.py", "import mid", {"mid.py": "import low\n", "low.py": LOW}, True),
        # Unrelated files.
        ("model.py", "", {"train.py": "import model\n", "low.py": LOW}, False),
        ("model.py", "import mid", {"mid.py": "\n", "low.py": LOW}, True),
        ("model.py", "import mid", {"mid.py": "\n", "low/low.py": LOW}, False),
        ("model.py", "", {"train.py": "import model\nimport low\n", "low.py": "x = 'float16 '\n"}, False),
        ("model.py", "", {"one.py": "import model\n", "two.py": "import other\n" + LOW, "other.py": "\n"}, False),
        # Without an importer, neighboring files may import the file.
        ("model.py", "", {"low.py": LOW}, True),
        ("model.py", "", {"other/low.py": LOW}, False),
        ("pkg/model.py", "", {"pkg/low.py": LOW}, True),
        ("pkg/model.py", "", {"low.py": LOW}, False),
        # A package that only re-exports the file does not use it.
        ("pkg/model.py", "", {"pkg/__init__.py": "from .model import weights\n", "pkg/low.py": LOW}, True),
        ("pkg/model.py", "", {"pkg/__init__.py": "from .model import weights\n", "low.py": "import pkg\n" + LOW}, True),
        (
            "pkg/model.py",
            "",
            {"pkg/__init__.py": "from .model import weights\nfrom .low import run\n", "pkg/low.py": LOW},
            True,
        ),
        (
            "pkg/model.py",
            "",
            {"pkg/__init__.py": "from .model import weights\nfrom .sub import low\n", "pkg/sub/low.py": LOW},
            False,
        ),
        (
            "pkg/model.py",
            "",
            {
                "pkg/__init__.py": "from .model import weights\nfrom .sub import low\ndef f():\n    pass\n",
                "pkg/sub/low.py": LOW,
            },
            True,
        ),
        (
            "pkg/model.py",
            "",
            {
                "pkg/__init__.py": "from .model import weights\nfrom .sub import low\n",
                "pkg/sub/low.py": LOW,
                "train.py": "import pkg\nprint(pkg)\n",
            },
            True,
        ),
        # An import by a dynamic name: any file, or any file of the package.
        ("model.py", "", {"train.py": "import model\nimport_module(x)\n", "low/low.py": LOW}, True),
        ("model.py", "", {"train.py": "import model\n__import__(x)\n", "low/low.py": LOW}, True),
        ("model.py", "", {"train.py": "import model\ninstantiate(x)\n", "low/low.py": LOW}, True),
        ("model.py", "", {"train.py": "import model\nx = {'_target_': y}\n", "low/low.py": LOW}, True),
        ("model.py", "", {"train.py": "import model\nhydra.utils.instantiate(x)\n", "low/low.py": LOW}, True),
        ("model.py", "", {"train.py": "import model\nx = dict(_target_=y)\n", "low/low.py": LOW}, True),
        ("model.py", "", {"train.py": "import model\nimports(x)\n", "low/low.py": LOW}, False),
        # Longer names with these words import nothing.
        ("model.py", "", {"train.py": "import model\nx = _target_rows[y]\n", "low/low.py": LOW}, False),
        ("model.py", "", {"train.py": "import model\nx.new_target_ = y\n", "low/low.py": LOW}, False),
        ("model.py", "", {"train.py": "import model\nreinstantiate(x)\n", "low/low.py": LOW}, False),
        ("model.py", "", {"train.py": "import model\nmy__import__(x)\n", "low/low.py": LOW}, False),
        (
            "pkg/model.py",
            "",
            {"pkg/__init__.py": "", "pkg/train.py": "from . import model\nimport_module(x)\n", "pkg/sub/low.py": LOW},
            True,
        ),
        (
            "pkg/model.py",
            "",
            {"pkg/__init__.py": "", "pkg/train.py": "from . import model\nimport_module(x)\n", "other/low.py": LOW},
            True,
        ),
        (
            "a/pkg/model.py",
            "",
            {
                "a/pkg/__init__.py": "",
                "a/pkg/train.py": "from . import model\nimport_module(x)\n",
                "other/low.py": LOW,
            },
            False,
        ),
        # A file that does not parse may compute in any dtype.
        ("model.py", "", {"train.py": "import model\nx = (\nfloat16\n"}, True),
        ("model.py", "", {"train.py": "import model\nx = (\nfloat32\n"}, False),
    ],
)
def test_whose_float16_counts(tmp_path: Path, at: str, imports: str, files: dict[str, str], *, expected: bool) -> None:
    tree = "".join(f"=== {name}\n{text}" for name, text in files.items())
    assert is_filled(tmp_path, tree, at=at, imports=imports) is expected


TRAIN = """\
import torch
{imports}

def train(model, criterion, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("imports", "files", "expected"),
    [
        ("", {}, True),
        # A region around the training, in an importing file.
        ("", {"main.py": "import torch, train\nwith torch.autocast('cuda'):\n    train.train()\n"}, False),
        ("", {"main.py": "import torch, train\nwith torch.autocast('cuda'):\n    print()\ntrain.train()\n"}, True),
        ("", {"main.py": "import torch, train\nwith torch.no_grad():\n    train.train()\n"}, True),
        (
            "",
            {"main.py": "import torch, train\nwith torch.autocast('cuda', enabled=False):\n    train.train()\n"},
            True,
        ),
        ("", {"main.py": "import torch, train\nwith open('x'), torch.autocast('cuda'):\n    train.train()\n"}, False),
        ("", {"main.py": "import torch, train\nac = torch.autocast('cuda')\nwith ac:\n    train.train()\n"}, False),
        ("", {"main.py": "import torch, train\nac = torch.no_grad()\nwith ac:\n    train.train()\n"}, True),
        ("", {"main.py": "import torch, train\nx.ac = torch.autocast('cuda')\nwith ac:\n    train.train()\n"}, True),
        (
            "",
            {"main.py": "import torch, train\nwith torch.autocast('cuda'):\n    x = [train.train() for y in z]\n"},
            False,
        ),
        (
            "",
            {"main.py": "import train\nasync def f():\n    async with autocast():\n        train.train()\n"},
            False,
        ),
        (
            "",
            {"main.py": "import torch, mid\nwith torch.autocast('cuda'):\n    mid.run()\n", "mid.py": "import train\n"},
            True,
        ),
        # A region in an unrelated file.
        ("", {"main.py": "import torch\nwith torch.autocast('cuda'):\n    train()\n"}, True),
        # A region entered for all later code, by an imported or importing file.
        ("", {"main.py": "import torch, train\ntorch.autocast('cuda').__enter__()\n"}, False),
        ("", {"main.py": "import torch\ntorch.autocast('cuda').__enter__()\n"}, True),
        ("import low", {"low.py": "import torch\ntorch.autocast('cuda').__enter__()\n"}, False),
        (
            "import mid",
            {"mid.py": "import low\n", "low.py": "import torch\ntorch.autocast('cuda').__enter__()\n"},
            False,
        ),
        ("import low", {"low.py": "import torch\ndef f():\n    torch.autocast('cuda').__enter__()\n"}, True),
        ("import low", {"low.py": "import torch\nprint(torch.is_autocast_enabled())\n"}, True),
        # A model may be of any class that any file defines.
        (
            "",
            {"low.py": "import torch\nclass A(torch.nn.Module):\n    def forward(self):\n        autocast()\n"},
            False,
        ),
        ("", {"low.py": "import torch\nclass A(torch.nn.Module):\n    def forward(self):\n        no_grad()\n"}, True),
        # A function enters a region for its importers.
        ("import low", {"low.py": "import torch\ndef criterion():\n    autocast()\n"}, False),
        ("import low", {"low.py": "import torch\ndef other():\n    autocast()\n"}, True),
        ("import low", {"low.py": "def other():\n    autocast()\ndef criterion():\n    other()\n"}, False),
        ("import low", {"low.py": "def other():\n    autocast()\ndef criterion():\n    third()\n"}, True),
        ("import low", {"low.py": "import torch\nclass criterion:\n    def run(self):\n        autocast()\n"}, True),
        (
            "import low",
            {"low.py": "import torch\nclass criterion:\n    def __call__(self):\n        autocast()\n"},
            False,
        ),
        ("import low", {"low.py": "import torch\nclass criterion(f(autocast)):\n    pass\n"}, True),
        ("import low", {"low.py": "import torch\nclass criterion:\n    ac = autocast()\n"}, False),
        ("", {"low.py": "import torch\ndef criterion():\n    autocast()\n"}, True),
        # Files that import each other.
        (
            "import a",
            {"a.py": "import b\n", "b.py": "import a, low\n", "low.py": "def criterion():\n    autocast()\n"},
            False,
        ),
        (
            "import a",
            {"a.py": "import b\n", "b.py": "import a, low\n", "low.py": "def other():\n    autocast()\n"},
            True,
        ),
    ],
)
def test_regions_that_other_files_enter(tmp_path: Path, imports: str, files: dict[str, str], *, expected: bool) -> None:
    tree = "".join(f"=== {name}\n{text}" for name, text in files.items())
    write(tmp_path, tree)
    (tmp_path / "train.py").write_text(TRAIN.format(imports=imports), encoding="utf-8")
    found = {f.code for f in check_paths([str(tmp_path)]).findings if Path(f.filename).name == "train.py"}
    assert found == ({"AMP110"} if expected else set())
    if "main.py" not in files:
        # For a file checked by name, its imports and its neighbors count.
        found = {f.code for f in check_paths([str(tmp_path / "train.py")]).findings}
        assert found == ({"AMP110"} if expected else set())


HOOKED = """\
from torch.nn.utils import clip_grad_norm_
from lightning import LightningModule


class Net(LightningModule):
    def training_step(self, batch, i):
        return self(batch).mean()

    def {hook}(self):
        clip_grad_norm_(self.parameters(), 1.0)
"""


@pytest.mark.parametrize(
    ("hook", "precision", "expected"),
    [
        ("on_after_backward", "16-mixed", True),
        ("on_after_backward", "bf16-mixed", False),
        ("on_before_zero_grad", "16-mixed", False),
    ],
)
@pytest.mark.parametrize("mark", ["", "setup.py"])
def test_a_trainer_in_another_file_decides_about_a_hook(
    tmp_path: Path, hook: str, precision: str, mark: str, *, expected: bool
) -> None:
    (tmp_path / "net.py").write_text(HOOKED.format(hook=hook), encoding="utf-8")
    main = f"from lightning import Trainer\nimport net\n\nTrainer(precision='{precision}').fit(net.Net())\n"
    (tmp_path / "main.py").write_text(main, encoding="utf-8")
    if mark:
        (tmp_path / mark).touch()
    for named in (tmp_path, tmp_path / "net.py"):
        found = [(Path(f.filename).name, f.code) for f in check_paths([str(named)]).findings]
        assert found == ([("net.py", "AMP201")] if expected else [])


@pytest.mark.parametrize(("low", "expected"), [("float16", True), ("float32", False)])
def test_a_file_in_no_known_encoding_is_asked_all_the_same(tmp_path: Path, low: str, *, expected: bool) -> None:
    (tmp_path / "train.py").write_bytes(f"import model\nfrom model import é\nx = {low}\n".encode("latin-1"))
    assert is_filled(tmp_path, "") is expected


INHERITED = """
    === kit/__init__.py
    from .core import Brain

    === kit/core.py
    import torch

    class Brain:
        def __init__(self, net, optimizer):
            self.net, self.optimizer = net, optimizer
            self.scaler = torch.amp.GradScaler("cuda")

        def fit(self, batches):
            for batch in batches:
                self.fit_batch(batch)

        def step(self):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()

    === recipes/train.py
    import {imported}

    class Separation({base}):
        def fit_batch(self, batch):
            loss = self.net(batch).mean()
            {backward}
            self.step()

    def main(net, optimizer, batches):
        Separation(net, optimizer).fit(batches)
"""


@pytest.mark.parametrize(("imported", "base"), [("kit", "kit.Brain"), ("kit.core as core", "core.Brain")])
@pytest.mark.parametrize("backward", ["loss.backward()", "self.backward(loss)"])
def test_a_file_checked_by_its_name_is_analyzed_with_the_training_that_it_inherits(
    backward: str, imported: str, base: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    write(tmp_path, INHERITED.format(imported=imported, base=base, backward=backward))
    codes = [finding.code for finding in check_paths([str(tmp_path / "recipes" / "train.py")]).findings]
    assert codes == (["AMP203"] if backward == "loss.backward()" else [])
    assert codes == [finding.code for finding in check_paths([str(tmp_path)]).findings if finding.code == "AMP203"]
