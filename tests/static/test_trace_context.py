"""Events of traces without which a message cannot be believed."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

HEAD = """\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""


def traced(body: str, code: str, head: str = HEAD) -> list[str]:
    """Return the source lines of the trace of the only finding of a rule."""
    text = head + body
    (finding,) = (finding for finding in check_source(text) if finding.code == code)
    rows = text.splitlines()
    return [rows[step.site.line - 1].strip() for step in finding.trace]


@pytest.mark.parametrize("name", ["loss", "scaled"])
def test_the_line_that_scales_a_loss_is_shown_if_backward_stands_elsewhere(name: str) -> None:
    body = f"""
for x in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    {name} = scaler.scale(loss)
    {name}.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert traced(body, "AMP204") == [f"{name} = scaler.scale(loss)", f"{name}.backward()", "optimizer.step()"]


def test_a_loss_that_is_scaled_in_the_line_of_its_backward_is_shown_once() -> None:
    body = """
for x in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert traced(body, "AMP204") == ["scaler.scale(loss).backward()", "optimizer.step()"]


def test_a_loss_outside_shows_the_region_of_the_forward() -> None:
    body = """
for x, y in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(x)
    with torch.autocast("cuda", dtype=torch.float16):
        other = y * 2
    loss = nn.functional.cross_entropy(output, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    shown = traced(body, "AMP104")
    assert shown[0] == 'with torch.autocast("cuda", dtype=torch.float16):'
    assert shown[1:] == ["output = model(x)", "loss = nn.functional.cross_entropy(output, y)"]


def test_a_clip_in_a_window_shows_its_step() -> None:
    body = """
for i, x in enumerate(batches):
    loss = model(x).mean() / 4
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert traced(body, "AMP304")[-1] == "optimizer.step()"


def test_uncleared_gradients_show_the_step_before() -> None:
    body = """
for x in batches:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    loss.backward()
    optimizer.step()
"""
    assert traced(body, "AMP215", HEAD.replace("scaler", "unused")) == ["optimizer.step()", "loss.backward()"]


def test_a_checkpoint_without_its_scaler_shows_where_the_scaler_is_constructed() -> None:
    body = """
for x in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
torch.save({"optimizer": optimizer.state_dict()}, "last.pt")
"""
    assert traced(body, "AMP401") == [
        'scaler = torch.amp.GradScaler("cuda")',
        'torch.save({"optimizer": optimizer.state_dict()}, "last.pt")',
    ]


FRAMEWORKS = {
    "Fabric": (
        "AMP213",
        """
from lightning.fabric import Fabric

def main(batches, model):
    fabric = Fabric(precision="16-mixed")
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x in batches:
        fabric.backward(model(x).mean())
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
        'fabric = Fabric(precision="16-mixed")',
    ),
    "accelerate": (
        "AMP201",
        """
from accelerate import Accelerator

def main(batches, model, optimizer):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer = accelerator.prepare(model, optimizer)
    for x in batches:
        accelerator.backward(model(x).mean())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
        'accelerator = Accelerator(mixed_precision="fp16")',
    ),
    "apex": (
        "AMP201",
        """
from apex import amp

def main(batches):
    net = nn.Linear(8, 2)
    adam = torch.optim.Adam(net.parameters())
    net, adam = amp.initialize(net, adam, opt_level="O2")
    for x in batches:
        with amp.scale_loss(net(x).mean(), adam) as scaled:
            scaled.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
""",
        'net, adam = amp.initialize(net, adam, opt_level="O2")',
    ),
    "FSDP": (
        "AMP603",
        """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

net = FSDP(model)
adam = torch.optim.Adam(net.parameters())
for x in batches:
    net(x).mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    adam.step()
    adam.zero_grad()
""",
        "net = FSDP(model)",
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_construction_of_a_framework_begins_the_trace(framework: str) -> None:
    code, body, line = FRAMEWORKS[framework]
    assert traced(body, code)[0] == line


LOW = "weights = torch.bfloat16\n"


@pytest.mark.parametrize(
    ("before", "cast", "shown"),
    [
        (LOW, "model.to(weights)", [LOW.strip()]),
        (LOW, "model.to(dtype=weights)", [LOW.strip()]),
        ("weights = torch.float32\n" + LOW, "model.to(weights)", [LOW.strip()]),
        ("", "model.to(torch.bfloat16)", []),
        ("", "model.bfloat16()", []),
    ],
)
def test_a_cast_shows_where_its_dtype_is_chosen_and_the_optimizer(before: str, cast: str, shown: list[str]) -> None:
    body = f"""
{before}{cast}
for x in batches:
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert traced(body, "AMP501") == [*shown, "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"]


def test_the_shown_assignment_is_that_of_the_dtype_that_the_message_names() -> None:
    body = """
weights = torch.float32
if args.precision == "fp16":
    weights = torch.float16
elif args.precision == "bf16":
    weights = torch.bfloat16
model.to(weights)
for x in batches:
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    shown = traced(body, "AMP501")
    assert "weights = torch.float16" in shown
    assert "weights = torch.bfloat16" not in shown


def test_a_backward_without_a_scaler_shows_its_region() -> None:
    body = """
for x in batches:
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        model(x)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    head = HEAD.replace('scaler = torch.amp.GradScaler("cuda")\n', "")
    assert traced(body, "AMP502", head) == ['with torch.autocast("cuda", dtype=torch.float16):']


def test_a_useless_scaler_shows_its_construction_and_the_region() -> None:
    body = """
for x in batches:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    region = 'with torch.autocast("cuda", dtype=torch.bfloat16):'
    assert traced(body, "AMP503") == ['scaler = torch.amp.GradScaler("cuda")', region]


def test_a_low_expression_shows_the_region_around() -> None:
    body = """
with torch.autocast("cuda", dtype=torch.float16):
    odds = model(batch)
    likelihood = torch.log(torch.softmax(odds.half(), dim=-1))
    energy = (odds * odds).mean()
"""
    (region,) = set(traced(body, "AMP507"))
    assert region == 'with torch.autocast("cuda", dtype=torch.float16):'


def test_the_deciding_conditions_stand_in_the_order_of_the_path() -> None:
    body = """
def train(batches, fp16, limit):
    for x in batches:
        if fp16:
            loss = scaler.scale(model(x).mean())
        else:
            loss = model(x).mean()
        loss.backward()
        if limit is not None:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        if fp16:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
"""
    shown = traced(body, "AMP201")
    assert shown[-4:-1] == [
        "loss.backward()",
        "if limit is not None:",
        "nn.utils.clip_grad_norm_(model.parameters(), limit)",
    ]


def test_a_condition_stands_at_its_last_question_before_the_event() -> None:
    body = """
def main(batches, clip):
    if clip:
        print("clips")
    for x in batches:
        scaler.scale(model(x).mean()).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    (finding,) = (finding for finding in check_source(HEAD + body) if finding.code == "AMP201")
    (line,) = (step.site.line for step in finding.trace if step.text == "`clip` is true")
    assert line == finding.line - 1


def test_the_end_of_a_program_has_no_line() -> None:
    body = """
def step_once(x):
    mine = torch.amp.GradScaler("cuda")
    mine.scale(model(x).mean()).backward()
    mine.step(optimizer)


def unrelated():
    return 1
"""
    assert traced(body, "AMP206") == ["mine.step(optimizer)"]


ASSUMED = {
    "a fill": (
        "AMP506",
        """
class Attention(nn.Module):
    def forward(self, query, key, mask):
        scores = torch.matmul(query, key)
        return scores.masked_fill(mask, -1e9).softmax(-1)


def train(batches, net):
    with torch.autocast("cuda", dtype=torch.float16):
        return net(batches)
""",
        "if `scores` is float16, as in a float16 autocast region of the caller",
    ),
    "an unknown optimizer": (
        "AMP501",
        """
from foreign import Fancy

net = nn.Linear(4, 4).bfloat16()
fancy = Fancy(net.parameters())
for x in batches:
    net(x).mean().backward()
    fancy.step()
    fancy.zero_grad()
""",
        "if the optimizer keeps no float32 copies of these parameters",
    ),
}


@pytest.mark.parametrize("case", ASSUMED)
def test_a_possible_finding_names_what_is_not_known(case: str) -> None:
    code, body, condition = ASSUMED[case]
    (finding,) = (finding for finding in check_source(HEAD + body, "train.py") if finding.code == code)
    assert not finding.certain and finding.condition == condition
