"""Weights in low precision that a larger model, an engine or peft holds (AMP501)."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import lightning as L
import torch
from lightning.fabric import Fabric
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModel


"""
TRAINING = """

def main(loader):
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for x in loader:
        model(x).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
ENCODE = """return self.head(self.encode(x))

    @torch.no_grad()
    def encode(self, x):
        return self.backbone(x)"""
GENERATE = """return self.head(self.backbone(x))

    @torch.no_grad()
    def generate(self, x):
        return self.backbone.generate(x)"""
LOAD = 'AutoModel.from_pretrained("x", torch_dtype=torch.bfloat16)'


def found(source: str) -> list[tuple[str, str]]:
    """Label and line text of each AMP501."""
    lines = source.splitlines()
    return [(f.label, lines[f.line - 1].strip()) for f in check_source(source) if f.code == "AMP501"]


def net(*body: str, forward: str = "return self.head(self.backbone(x))") -> str:
    """A program that trains a class with a pretrained part."""
    lines = "".join(f"        {line}\n" for line in body)
    return (
        f"{HEAD}class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{lines}"
        f"        self.head = nn.Linear(8, 8)\n\n    def forward(self, x):\n        {forward}\n{TRAINING}"
    )


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ((f"self.backbone = {LOAD}",), 0),
        ((f"backbone = {LOAD}", "self.backbone = backbone"), 0),
        ((f"self.backbone = {LOAD}", "self.backbone.gradient_checkpointing_enable()"), 0),
        # Only the embeddings are frozen.
        ((f"self.backbone = {LOAD}", "self.backbone.embeddings.requires_grad_(False)"), 0),
        (
            (
                f"backbone = {LOAD}",
                "self.backbone = get_peft_model(backbone, LoraConfig(r=8), autocast_adapter_dtype=False)",
            ),
            1,
        ),
    ],
)
def test_a_low_part_is_trained_with_the_model(body: tuple[str, ...], place: int) -> None:
    assert found(net(*body)) == [("cast:trained", body[place])]


@pytest.mark.parametrize(
    "body",
    [
        ('self.backbone = AutoModel.from_pretrained("x")',),
        ('self.backbone = AutoModel.from_pretrained("x", torch_dtype=torch.float32)',),
        (f"self.backbone = {LOAD}", "self.backbone.requires_grad_(False)"),
        (f"self.backbone = {LOAD}.requires_grad_(False)",),
        (f"self.backbone = {LOAD}", "for p in self.backbone.parameters():", "    p.requires_grad = False"),
        (f"self.backbone = {LOAD}", "for p in self.backbone.parameters():", "    p.requires_grad_(False)"),
        (f"self.backbone = {LOAD}", "for _, p in self.backbone.named_parameters():", "    p.requires_grad = False"),
        (f"self.backbone = {LOAD}", "self.backbone.float()"),
        # peft makes the adapters of a low model in float32.
        (f"self.backbone = get_peft_model({LOAD}, LoraConfig(r=8))",),
        (f"self.backbone = get_peft_model({LOAD}, LoraConfig(r=8), autocast_adapter_dtype=True)",),
    ],
)
def test_a_part_that_is_frozen_or_float32(body: tuple[str, ...]) -> None:
    assert found(net(*body)) == []


@pytest.mark.parametrize(
    ("forward", "is_trained"),
    [
        ("with torch.no_grad():\n            h = self.backbone(x)\n        return self.head(h)", False),
        (
            "with torch.inference_mode():\n            h = self.backbone.encode(x)\n        return self.head(h)",
            False,
        ),
        (ENCODE, False),
        (GENERATE, True),
    ],
)
def test_a_part_that_runs_without_gradients_is_not_trained(forward: str, is_trained: bool) -> None:
    place = f"self.backbone = {LOAD}"
    assert found(net(place, forward=forward)) == ([("cast:trained", place)] if is_trained else [])


def test_the_optimizer_has_the_head_alone() -> None:
    source = net(f"self.backbone = {LOAD}").replace("AdamW(model.parameters()", "AdamW(model.head.parameters()")
    assert found(source) == []


FABRIC = """\
def main():
    fabric = {made}
    model = nn.Linear(8, 8)
    {setup}
    for x in fabric.setup_dataloaders(load()):
        fabric.backward(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()
"""
BOTH = "model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))"
SEPARATELY = (
    "model = fabric.setup_module(model)\n    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))"
)


@pytest.mark.parametrize("setup", [BOTH, SEPARATELY, SEPARATELY.replace("setup_module", "setup")])
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ('L.Fabric(devices=2, precision="bf16-true")', 'precision="bf16-mixed"'),
        ('Fabric("cuda", "auto", 1, 1, "16-true")', 'precision="16-mixed"'),
        ('L.Fabric(precision="bf16-mixed")', ""),
        ("L.Fabric(devices=2)", ""),
    ],
)
def test_fabric_stores_the_model_in_its_precision(made: str, expected: str, setup: str) -> None:
    findings = [f for f in check_source(HEAD + FABRIC.format(made=made, setup=setup)) if f.code == "AMP501"]
    assert [f.label for f in findings] == (["trainer:trained"] if expected else [])
    for finding in findings:
        assert f"write `{expected}`" in finding.remedy
        assert made in (HEAD + FABRIC.format(made=made, setup=setup)).splitlines()[finding.line - 1]


def test_fabric_of_another_function() -> None:
    source = FABRIC.format(made='L.Fabric(precision="bf16-true")', setup=BOTH)
    first, made, *rest = source.splitlines()
    program = "\n".join([first.replace("()", "(fabric)"), *rest, "", "", "def run():", made, "    main(fabric)"])
    assert found(HEAD + program) == [("trainer:trained", made.strip())]


def test_adapters_in_fabric_are_trained_alone() -> None:
    setup = f"model = get_peft_model(model, LoraConfig(r=8))\n    {BOTH}"
    assert found(HEAD + FABRIC.format(made='L.Fabric(precision="bf16-true")', setup=setup)) == []


def test_a_flag_of_a_part_in_the_constructor_is_no_setting() -> None:
    """`p.requires_grad = False` freezes; only an attribute of the object itself is a setting that may be turned on."""
    body = (f"self.backbone = {LOAD}", "self.backbone.config.use_cache = False", "self.debug = False")
    assert found(net(*body)) == [("cast:trained", body[0])]


HELD = """\
import torch
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, draft):
        super().__init__()
        self.draft = draft
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        {region}
            h = self.draft(x)
        return self.head(h)


def main(args, loader):
    draft = nn.Linear(4, 4).cuda().to(torch.bfloat16)
    {then}
    model = Wrapper(draft).cuda()
    optimizer = torch.optim.AdamW({trained}, lr=args.lr)
    for data in loader:
        optimizer.zero_grad()
        loss = model(data).mean()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, True),
        ({"trained": "filter(lambda p: p.requires_grad, model.parameters())"}, True),
        ({"trained": "[p for p in model.parameters() if p.requires_grad]"}, True),
        ({"trained": "model.head.parameters()"}, False),
        ({"then": "draft.requires_grad_(False)"}, False),
        ({"then": "for p in draft.parameters(): p.requires_grad = False"}, False),
        ({"then": "draft.float()"}, False),
        ({"region": "with torch.no_grad():"}, False),
    ],
)
def test_a_low_part_is_trained_with_the_whole(changed: dict[str, str], found: bool) -> None:
    filled = {"region": "if True:", "then": "pass", "trained": "model.parameters()", **changed}
    findings = [each for each in check_source(HELD.format(**filled), "train.py") if each.code == "AMP501"]
    assert [each.line for each in findings] == [18] * found
    assert all(any("AdamW" in step.text or step.site.line == 21 for step in each.trace) for each in findings)
