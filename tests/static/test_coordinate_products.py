"""Products of data that autocast rounds, whatever the dtype of their operands, and uses that need their digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"
PROGRAM = (
    HEAD
    + """\
{defined}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.turn = nn.Parameter(torch.eye(3))

    def forward(self, batch):
        points, pose, K, image = batch["points"], batch["pose"], batch["K"], batch["image"]
        feat = self.encoder(points)
        {body}


def train(loader):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
)
WRONG = {
    "perspective": "p = points @ K.mT\n        return p[..., :2] / p[..., 2:]",
    "perspective, float32": "p = points.float() @ K.float().transpose(1, 2)\n        return p[..., :2] / p[..., 2:]",
    "perspective, clamped": "p = torch.bmm(points, K)\n        return p[..., :2] / p[..., 2:].clamp(min=1e-6)",
    "perspective, names": "x, y, z = torch.matmul(points, K).unbind(-1)\n        return x / z, y / z",
    "perspective, rows": "p = K.bmm(points)\n        return p[:, :2] / (p[:, 2:3] + 1e-8)",
    "two products": "p = (points @ pose) @ K\n        return p[..., :2] / p[..., 2:]",
    "angle": "d = pose @ points[..., None]\n        return torch.acos(d[..., 1, 0])",
    "angles": "d = torch.einsum('bij,bj->bi', pose, points)\n        return torch.atan2(d[:, 1], d[:, 0])",
    "arc": "d = torch.matmul(pose.float(), points.float())\n        return d.clamp(-1, 1).arccos()",
    "cells": "cell = (points @ pose).floor()\n        return image[cell.long()]",
    "cells, rounded": "return image[torch.round(torch.mm(points, pose) / 0.05).to(torch.int64)]",
    "grid": "grid = points @ pose.mT\n        return F.grid_sample(image, grid[:, None])",
    "grid, keyword": "return F.grid_sample(image, grid=torch.stack([points @ pose, points], 1), align_corners=True)",
    "inverse": "return torch.inverse((K @ pose).float())",
    "inverse, covariance": "m = pose @ K @ pose.mT\n        return torch.linalg.inv(m.to(torch.float32))",
    "shifts": (
        "v = points[batch['i']] - points[batch['j']]\n        v += torch.bmm(K, pose)\n        return v.norm(dim=-1)"
    ),
    "shifts, squares": "q = points + pose.bmm(K)\n        return ((points[:1] - q) ** 2).sum(-1)",
    "shifts, linalg": (
        "v = points[1:] - points[:-1] + torch.einsum('ij,ijk->ik', pose, K)\n"
        "        return torch.linalg.norm(v, dim=-1)"
    ),
    "entries": (
        "batch['points'] = batch['points'] + torch.bmm(batch['points'], pose)\n"
        "        return (batch['points'][1:] - batch['points'][:-1]).norm(dim=-1)"
    ),
    "distances": "return torch.cdist(points @ pose, image)",
    "chain": "return pose @ K @ pose @ K @ points",
    "chain of calls": "return torch.mm(torch.mm(torch.mm(pose, K), pose.mT), points).square()",
    "branch": "if pose is not None:\n            points = points @ pose\n        return torch.cdist(points, points)",
}
RIGHT = {
    "not used": "return points @ K.mT",
    "of a layer": "p = feat @ K.mT\n        return p[..., :2] / p[..., 2:]",
    "of a layer, later": "h = torch.relu(feat + points)\n        return torch.acos(h @ K)",
    "of a parameter": "p = points @ self.turn\n        return p[..., :2] / p[..., 2:]",
    "elementwise": "p = (points[..., None, :] * K).sum(-1)\n        return p[..., :2] / p[..., 2:]",
    "disabled": (
        'with torch.autocast("cuda", enabled=False):\n            p = points @ K.mT\n'
        "        return p[..., :2] / p[..., 2:]"
    ),
    "float64": "p = points.double() @ K.double()\n        return p[..., :2] / p[..., 2:]",
    "another divisor": "p = points @ K.mT\n        return p[..., :2] / points[..., 2:]",
    "attention": "s = torch.softmax(points @ pose.mT, -1)\n        return torch.matmul(s, K).norm(dim=-1)",
    "threshold": "return (points @ pose.mT > 0.5).long()",
    "length": "return (points @ pose).norm(dim=-1)",
    "loss": "return torch.norm(points - image @ K)",
    "gram": "return torch.norm(torch.eye(3) - pose @ pose.transpose(1, 2), dim=(1, 2))",
    "places": "return image[(points @ pose.mT).argmax(-1).long()]",
    "recurrence": (
        "state = pose\n        for i in range(4):\n            state = state + points[i] @ (K @ state)\n"
        "        return state @ K @ points"
    ),
    "gram of names": "t = pose.transpose(1, 2)\n        return (torch.bmm(pose, t) - torch.eye(3)).norm(dim=-1)",
    "no kernel": "return torch.linalg.inv(pose @ K)",
    "selected by a matrix": "return torch.bmm(pose.float(), batch['kinds'].float()).long()",
    "iteration": (
        "for i in range(9):\n            points = K @ (pose @ (K @ points))\n            points /= points.norm()\n"
        "        return points @ K @ pose"
    ),
    "counts": "n = torch.bmm(pose, K)\n        return torch.floor(image * n / n.sum() * 9)",
    "factor": "v = points[1:] - points[:-1] * torch.matmul(pose, K)\n        return v.norm(dim=-1)",
    "own length": "t = (pose @ K)[:, :3, 3]\n        return t / torch.norm(t, dim=-1)[..., None]",
    "numerator of attention": (
        "return self.attend(feat, feat, feat)\n\n    def attend(self, q, k, v):\n"
        "        h = torch.matmul(torch.matmul(v, k.mT), q)\n        return h[:, :-1] / (h[:, -1:] + 1e-6)"
    ),
    "disabled by the caller": (
        'with torch.autocast("cuda", enabled=False):\n            return self.see(points, K)\n\n'
        "    def see(self, points, K):\n        p = torch.matmul(points, K)\n        return p[..., :2] / p[..., 2:]"
    ),
    "two projections": "return (points @ K) @ pose",
    "model": "return torch.acos(batch['model'].encode(points) @ K)",
}


def lines(source: str, path: str = "train.py") -> list[int]:
    return sorted(finding.line for finding in check_source(source, path) if finding.code == "AMP509")


@pytest.mark.parametrize("name", WRONG)
def test_a_use_that_needs_the_digits(name: str) -> None:
    findings = [f for f in check_source(PROGRAM.format(defined="", body=WRONG[name])) if f.code == "AMP509"]
    assert findings
    assert {(finding.severity, finding.certain) for finding in findings} == {("info", False)}


@pytest.mark.parametrize("name", RIGHT)
def test_no_digits_that_count(name: str) -> None:
    assert lines(PROGRAM.format(defined="", body=RIGHT[name])) == []


PROJECT = "def project(points, K):\n    p = points @ K.transpose(-1, -2)\n    return p[..., :2] / p[..., 2:]\n\n\n"


@pytest.mark.parametrize(
    ("defined", "found"),
    [
        (PROJECT, [6]),
        (PROJECT.replace("def project", "def apply(points, K):\n    return project(points, K)\n\ndef project"), [9]),
        ("@torch.autocast('cuda', enabled=False)\n" + PROJECT, []),
        ("@torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)\n" + PROJECT, []),
    ],
)
def test_a_function_that_the_forward_calls(defined: str, found: list[int]) -> None:
    defined = defined.replace("points @", "points.cuda() @")
    name = "apply" if "apply" in defined else "project"
    assert lines(PROGRAM.format(defined=defined, body=f"return {name}(points, K)")) == found
    # Nothing in a region calls the function.
    assert lines(PROGRAM.format(defined=defined, body="return feat")) == []


def test_without_a_region() -> None:
    source = PROGRAM.format(defined="", body=WRONG["angle"])
    assert lines(source.replace('with torch.autocast("cuda", dtype=torch.float16):', "if True:")) == []


def test_a_cache_that_is_cleared() -> None:
    source = PROGRAM.format(defined="", body=WRONG["angle"])
    region = 'with torch.autocast("cuda", dtype=torch.float16):'
    assert lines(source.replace(region, "torch.clear_autocast_cache()\n        if True:")) == []


def test_a_data_set() -> None:
    method = (
        "def __getitem__(self, i):\n        p = torch.matmul(self.points[i], self.K)\n        return p[:2] / p[2:]\n"
    )
    defined = f"class Views(torch.utils.data.Dataset):\n    {method}\n\n"
    assert lines(PROGRAM.format(defined=defined, body="return feat")) == []


GEOMETRY = HEAD + PROJECT.replace("points @", "torch.as_tensor(points) @")
BASE = (
    "from torch import nn\n\n\nclass Base(nn.Module):\n    def forward(self, batch):\n        return self.see(batch)\n"
)
MIXIN = "from geometry import project\n\n\nclass Mixin:\n    def see(self, batch):\n        return project(*batch)\n"
TRAINED = (
    "import torch\nfrom net import Net\n\n\ndef step(net, batch):\n"
    "    with torch.autocast('cuda', dtype=torch.{dtype}):\n        return net(batch).mean()\n"
)
NETS = {
    "net": HEAD
    + "import geometry\n\n\nclass Net(nn.Module):\n    def forward(self, b):\n        return geometry.project(*b)\n",
    "inherited": (
        "from base import Base\nfrom geometry import project\n\n\n"
        "class Net(Base):\n    def see(self, batch):\n        return project(*batch)\n"
    ),
    "mixed in": (
        "from torch import nn\nfrom mixin import Mixin\n\n\n"
        "class Net(Mixin, nn.Module):\n    def forward(self, batch):\n        return self.see(batch)\n"
    ),
}


def in_files(root: Path, net: str, trained: str) -> list[tuple[str, int]]:
    files = {"geometry": GEOMETRY, "base": BASE, "mixin": MIXIN, "net": net, "train": trained}
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    findings = check_paths([str(root)]).findings
    return [(Path(finding.filename).stem, finding.line) for finding in findings if finding.code == "AMP509"]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_across_files(tmp_path: Path, net: str, dtype: str) -> None:
    assert in_files(tmp_path, NETS[net], TRAINED.format(dtype=dtype)) == [("geometry", 6)]


def test_across_files_without_a_use_in_a_region(tmp_path: Path) -> None:
    data = "from geometry import project\n\nclass Views:\n    def __getitem__(self, i):\n        return project(i)\n"
    assert in_files(tmp_path, data, TRAINED.format(dtype="float16")) == []


def test_across_files_with_a_region_of_another_model(tmp_path: Path) -> None:
    region = "import torch\n\n\nclass Other(torch.nn.Module):\n    def forward(self, x):\n"
    region += "        with torch.autocast('cuda'):\n            return self.part(x)\n"
    assert in_files(tmp_path, NETS["net"], region) == []


def test_across_files_without_a_region(tmp_path: Path) -> None:
    trained = TRAINED.replace("torch.autocast('cuda', dtype=torch.{dtype})", "torch.no_grad()")
    assert in_files(tmp_path, NETS["net"], trained) == []
