"""Models of another file that may enter autocast: evidence in the other file, and the affected code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths

TRAIN = """\
import torch
import models


def train(model, criterion, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
HEAD = "import torch\nfrom torch import nn\n\n\n"
NET = "class Net(nn.Module):\n"
FORWARD = "    def forward(self, x):\n"
RUN = "return self.body(x)\n"
IN = '        with torch.autocast("cuda"):\n            ' + RUN
PLAIN = "        " + RUN

#: Definitions of the models, and True if a forward may enter autocast for a loss.
MODELS = {
    "nothing": (NET + FORWARD + PLAIN, False),
    "a forward": (NET + FORWARD + IN, True),
    "a forward with a flag": (NET + FORWARD + IN.replace('"cuda"', '"cuda", enabled=self.on'), True),
    "a forward that is switched off": (NET + FORWARD + IN.replace('"cuda"', '"cuda", enabled=False'), False),
    "an old one that is switched off": (NET + FORWARD + IN.replace('torch.autocast("cuda")', "autocast(False)"), False),
    "a forward that is switched on": (NET + FORWARD + IN.replace('"cuda"', '"cuda", enabled=True'), True),
    "a decorated forward": (NET + '    @torch.autocast("cuda")\n' + FORWARD + PLAIN, True),
    "a forward that asks": (NET + FORWARD + "        print(torch.is_autocast_enabled())\n" + PLAIN, False),
    "a forward that asks for a dtype": (
        NET + FORWARD + "        print(torch.get_autocast_dtype('cuda'))\n" + PLAIN,
        False,
    ),
    "a method that the forward calls": (
        NET + FORWARD + "        return self.run(x)\n\n    def run(self, x):\n" + IN,
        True,
    ),
    "a method that only callers of the model use": (
        NET + FORWARD + PLAIN + "\n    def predict(self, x):\n" + IN.replace(RUN, "return self(x)\n"),
        False,
    ),
    "a method that a method calls that the forward calls": (
        NET + FORWARD + "        return self.outer(x)\n\n    def outer(self, x):\n        return self.run(x)\n\n"
        "    def run(self, x):\n" + IN,
        True,
    ),
    "a method that the forward finds by a computed name": (
        NET + FORWARD + "        return getattr(self, 'run_' + self.mode)(x)\n\n    def run_fast(self, x):\n" + IN,
        True,
    ),
    "a method that the constructor puts in the place of the forward": (
        NET + "    def __init__(self):\n        self.forward = self.run\n\n" + FORWARD + PLAIN + "\n"
        "    def run(self, x):\n" + IN,
        True,
    ),
    "a function that the forward calls": (
        "def run(body, x):\n    with torch.autocast('cuda'):\n        return body(x)\n\n\n"
        + NET
        + FORWARD
        + "        return run(self.body, x)\n",
        True,
    ),
    "a function that a function calls that the forward calls": (
        "def inner(body, x):\n    with torch.autocast('cuda'):\n        return body(x)\n\n\n"
        "def run(body, x):\n    return inner(body, x)\n\n\n" + NET + FORWARD + "        return run(self.body, x)\n",
        True,
    ),
    "a function that nobody calls": (
        "def run(body, x):\n    with torch.autocast('cuda'):\n        return body(x)\n\n\n" + NET + FORWARD + PLAIN,
        False,
    ),
    "a base class": ("class Base(nn.Module):\n" + FORWARD + IN + "\n\nclass Net(Base):\n    pass\n", True),
    "a part of a module": (
        "class Part(nn.Module):\n"
        + FORWARD
        + IN
        + "\n\n"
        + NET
        + "    def __init__(self):\n        self.body = Part()\n\n"
        + FORWARD
        + PLAIN,
        True,
    ),
    "a class that is no module": (
        "class Other:\n    def compute(self, x):\n" + IN + "\n\n" + NET + FORWARD + PLAIN,
        False,
    ),
    "a region with a name": (
        "region = torch.autocast('cuda')\n\n\n" + NET + FORWARD + IN.replace('torch.autocast("cuda")', "region"),
        True,
    ),
    "a region with a name that is not used": ("region = torch.autocast('cuda')\n\n\n" + NET + FORWARD + PLAIN, False),
    "another import": (
        "from torch import autocast as ac\n\n\n" + NET + FORWARD + IN.replace("torch.autocast", "ac"),
        True,
    ),
    "another import that is not used": ("from torch import autocast as ac\n\n\n" + NET + FORWARD + PLAIN, False),
    "another import of something else": (
        "from torch import no_grad as ac\n\n\n" + NET + FORWARD + IN.replace("torch.autocast", "ac"),
        False,
    ),
    "without gradients": (NET + "    @torch.no_grad()\n" + FORWARD + IN, False),
    "in inference mode": (NET + "    @torch.inference_mode\n" + FORWARD + IN, False),
    "in a block without gradients": (NET + FORWARD + IN.replace("with torch", "with torch.no_grad(), torch"), False),
    "in a block within one without gradients": (
        NET
        + FORWARD
        + "        with torch.no_grad():\n            with torch.autocast('cuda'):\n                self.body(x)\n"
        + PLAIN,
        False,
    ),
    "a function of autograd": (NET + "    @staticmethod\n" + FORWARD + IN, False),
    "what all of the file does": ("torch.autocast('cuda').__enter__()\n\n\n" + NET + FORWARD + PLAIN, True),
    "what all of the file does without it": ("print(torch)\n\n\n" + NET + FORWARD + PLAIN, False),
    "a policy": (
        "from torch.distributed.fsdp import MixedPrecision\n\n\n"
        "def wrap(m):\n    return f(m, MixedPrecision(torch.float16))\n\n\n" + NET + FORWARD + PLAIN,
        True,
    ),
    "a policy of FSDP2": (
        "def wrap(m, fsdp):\n    fsdp.shard(m, fsdp.MixedPrecisionPolicy(torch.float16))\n\n\n" + NET + FORWARD + PLAIN,
        True,
    ),
    "apex": (
        "from apex import amp\n\n\ndef build(m, o):\n    return amp.initialize(m, o)\n\n\n" + NET + FORWARD + PLAIN,
        True,
    ),
    "another initialize": (
        "from autocast import lib\n\n\ndef build(m, o):\n    return lib.initialize(m, o)\n\n\n" + NET + FORWARD + PLAIN,
        False,
    ),
    "float16 by default": ("torch.set_default_dtype(torch.float16)\n\n\n" + NET + FORWARD + PLAIN, True),
    "half by default": ("torch.set_default_dtype(torch.half)\n\n\n" + NET + FORWARD + PLAIN, True),
    "a type by default": ("torch.set_default_tensor_type(torch.HalfTensor)\n\n\n" + NET + FORWARD + PLAIN, True),
    "float64 by default": ("torch.set_default_dtype(torch.float64)\n\n\n" + NET + FORWARD + PLAIN, False),
    "a weight that is cast": (
        NET + FORWARD + "        return nn.functional.linear(x, self.weight.to(x.dtype))\n",
        True,
    ),
    "a weight that is cast otherwise": (
        NET + FORWARD + "        return torch.matmul(x, self.weight.type_as(x))\n",
        True,
    ),
    "one of two weights that is cast": (
        NET + FORWARD + "        y = nn.functional.linear(x, self.weight.t())\n"
        "        return nn.functional.linear(y, self.weight.to(x.dtype))\n",
        False,
    ),
    "a bias that is cast": (
        NET + FORWARD + "        return nn.functional.linear(x, self.weight.t(), self.bias.to(x.dtype))\n",
        False,
    ),
    "what does not parse": (NET + FORWARD + IN + "x = (\n", True),
}


@pytest.mark.parametrize("what", MODELS)
def test_a_model_of_another_file(tmp_path: Path, what: str) -> None:
    models, enters = MODELS[what]
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "models.py").write_text(HEAD + models, encoding="utf-8")
    found = [finding.code for finding in check_paths([str(tmp_path)]).findings if finding.code == "AMP110"]
    assert found == ([] if enters else ["AMP110"])
    # For a file checked by name, its imports count as well.
    found = [finding.code for finding in check_paths([str(tmp_path / "train.py")]).findings]
    assert found == ([] if enters else ["AMP110"])


HELPER = "def run(body, x):\n    with torch.autocast('cuda'):\n        return body(x)\n"
NET_BY_HELPER = NET + "    def __init__(self):\n        self.body = nn.Linear(4, 4)\n\n" + FORWARD
CONSTRUCTED = (
    "\n\nmodel = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "scaler = torch.amp.GradScaler('cuda')\n"
    "for x, y in loader:\n    optimizer.zero_grad()\n    loss = nn.functional.mse_loss(model(x), y)\n"
    "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()\n"
)


@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("", "run(self.body, x)"),
        ("from other import run\n\n\n", "run(self.body, x)"),
        ("from other import run as compute\n\n\n", "compute(self.body, x)"),
        ("import other\n\n\n", "other.run(self.body, x)"),
    ],
)
def test_a_constructed_model_whose_forward_calls_a_function(tmp_path: Path, imported: str, call: str) -> None:
    """A forward that enters autocast in a function needs no region. A forward without this call needs one."""
    (tmp_path / "other.py").write_text("import torch\n\n\n" + HELPER, encoding="utf-8")
    for returned, expected in ((call, []), ("self.body(x)", ["AMP110"])):
        program = HEAD + (imported or HELPER + "\n\n") + NET_BY_HELPER + f"        return {returned}\n" + CONSTRUCTED
        (tmp_path / "train.py").write_text(program, encoding="utf-8")
        assert [finding.code for finding in check_paths([str(tmp_path)]).findings] == expected
