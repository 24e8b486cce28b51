"""Facts about calls of libraries, each in a pair of programs: one word decides whether there is a finding."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import itertools

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""


def labels(program: str) -> list[str]:
    return [finding.label for finding in check_source(HEAD + program, "train.py")]


WINDOW = """\
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y, reduction="sum")
    loss = loss{divided}
    scaler.scale(loss).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("divided", "is_divided"),
    [
        (" / 4", True),
        # The mean over the samples of a micro-batch, and then over the window, in any order.
        (" / len(x)", False),
        (" / len(x) / len(x)", False),
        (" / len(x) / 4", True),
        (" / 4 / len(x)", True),
        (" / 4 / len(x) / len(x)", True),
        (" * 0.25 / len(x)", True),
        (" * 2 / len(x)", False),
        (" ** 2 / len(x)", False),
        (".log() / len(x)", False),
    ],
)
def test_a_sum_is_divided_by_the_samples_and_by_the_window(divided: str, is_divided: bool) -> None:
    assert labels(WINDOW.format(divided=divided)) == ["step@undivided"] * (not is_divided)


@pytest.mark.parametrize("wrapper", ["nn.DataParallel", "nn.parallel.DistributedDataParallel"])
@pytest.mark.parametrize("path", ["", ".module"])
def test_the_module_of_a_wrapper_has_the_parameters_of_the_wrapper(wrapper: str, path: str) -> None:
    program = f"""\
net = {wrapper}(nn.Linear(2, 2))
net{path}.{{cast}}()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""
    assert labels(program.format(cast="half")) == ["cast:trained"]
    assert labels(program.format(cast="train")) == []


DEFAULT = """\
torch.set_default_dtype({dtype})
net = nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("dtype", "is_low"),
    [
        ("torch.float16", True),
        ("torch.float32", False),
        # One finding for one call.
        ("torch.float16 if half else torch.bfloat16", True),
        ("torch.bfloat16 if half else torch.float32", True),
    ],
)
def test_a_default_dtype_is_one_mistake(dtype: str, is_low: bool) -> None:
    found = check_source(HEAD + DEFAULT.format(dtype=dtype), "train.py")
    assert [finding.label for finding in found] == ["default:trained"] * is_low


REGION = """\
region = torch.autocast("cuda")
for x, y in loader:
    optimizer.zero_grad()
    {enter}
    loss = F.mse_loss(model(x), y)
    {leave}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
ENTER, LEAVE = "region.__enter__()", "region.__exit__(None, None, None)"
BCE = "loss = loss + F.binary_cross_entropy(torch.sigmoid(y), y)"


@pytest.mark.parametrize(
    ("enter", "leave", "expected"),
    [
        (ENTER, LEAVE, []),
        (f"{ENTER}\n    {BCE}", LEAVE, ["bce@region"]),
        (ENTER, f"{LEAVE}\n    {BCE}", []),
        (ENTER, f"out = model(x)\n    {LEAVE}\n    loss = F.cross_entropy(out, y)", ["loss@outside"]),
        (ENTER, f"out = model(x)\n    loss = F.cross_entropy(out, y)\n    {LEAVE}", []),
        (f"{ENTER}\n    {ENTER}", f"{LEAVE}\n    {LEAVE}", ["enter@entered"]),
        (ENTER, f"{LEAVE}\n    with region:\n        loss = loss + F.mse_loss(model(x), y)", []),
        (ENTER, f"with region:\n        loss = loss + F.mse_loss(model(x), y)\n    {LEAVE}", ["enter@entered"]),
        (ENTER, f"{LEAVE}\n    {ENTER}\n    loss = loss + F.mse_loss(model(x), y)\n    {LEAVE}", []),
    ],
)
def test_a_region_that_is_entered_by_hand_is_open_until_its_exit(enter: str, leave: str, expected: list[str]) -> None:
    assert labels(REGION.format(enter=enter, leave=leave)) == expected


OWN_REGION = """\
class Own(torch.autocast):
    def {method}(self, *args):
        pass

for x, y in loader:
    optimizer.zero_grad()
    with Own("cuda"):
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("method", "is_region"),
    [("__init__", False), ("__enter__", False), ("__exit__", False), ("__call__", True), ("named", True)],
)
def test_a_subclass_of_a_region_that_enters_in_its_own_way_is_none(method: str, is_region: bool) -> None:
    expected = "backward@region" if is_region else "scale@outside-autocast"
    assert labels(OWN_REGION.format(method=method)) == [expected]


SAVED = """\
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process
from threading import Thread

pool = ThreadPoolExecutor(1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
{save}
"""
MODEL, OPTIMIZER, SCALER = (
    '"model": model.state_dict()',
    '"optimizer": optimizer.state_dict()',
    '"s": scaler.state_dict()',
)
DIRECT = ["torch.save({}, path)", "torch.save(obj={}, f=path)", "states = {}\ntorch.save(states, path)"]
BY_OTHERS = [
    "pool.submit(torch.save, {}, path)",
    "pool.submit(write, {}, path)",
    "pool.submit(write, states={})",
    "pool.map(write, [{}])",
    "Thread(target=torch.save, args=({}, path)).start()",
    "Thread(target=write, args=({},)).start()",
    "Thread(target=write, kwargs=dict(states={})).start()",
    "write_checkpoint({}, path)",
]


def saved(way: str, *parts: str) -> list[str]:
    return labels(SAVED.format(save=way.format(f"{{{', '.join(parts)}}}")))


@pytest.mark.parametrize("way", [*DIRECT, *BY_OTHERS])
def test_a_checkpoint_has_all_states_in_whichever_way_it_is_saved(way: str) -> None:
    assert saved(way, MODEL, OPTIMIZER) == ["save:no-scaler"]
    assert saved(way, '"model": model', OPTIMIZER) == ["save:no-scaler"]
    assert saved(way, MODEL, OPTIMIZER, SCALER) == []
    assert saved(way, MODEL) == []


@pytest.mark.parametrize("way", [*DIRECT, *BY_OTHERS])
def test_only_torch_is_known_to_save_whole_objects(way: str) -> None:
    assert saved(way, MODEL, '"optimizer": optimizer') == ["save:no-scaler"] * (way in DIRECT)
    assert saved(way, MODEL, OPTIMIZER, '"s": scaler') == ["save:whole-scaler"] * (way in DIRECT)


SLICES = """\
for x, y in loader:
    optimizer.zero_grad()
    for i in range({bounds}):
        with torch.autocast("cuda"):
            loss = F.mse_loss(model(x[i:i + 2]), y[i:i + 2])
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("bounds", "slices"),
    [("8", False), ("0, 8", False), ("0, 8, 1", False), ("0, 8, 2", True), ("0, 8, 3", True), ("0, 8, n", True)],
)
def test_a_range_with_steps_counts_slices_of_a_batch(bounds: str, slices: bool) -> None:
    assert labels(SLICES.format(bounds=bounds)) == ["step@undivided"] * slices


ENABLED = """\
scaler = torch.amp.GradScaler("cuda", enabled={enabled})
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [
        *((f"dtype == {name}", ["scaler:wrong-dtype"]) for name in ('"bfloat16"', '"bf16"', '"torch.bfloat16"')),
        ("args.dtype == torch.bfloat16", ["scaler:wrong-dtype"]),
        ('"bf16" == dtype', ["scaler:wrong-dtype"]),
        ('dtype == "float16"', []),
        ('dtype != "bfloat16"', []),
        ("True", ["scale:bf16"]),
        ("False", []),
    ],
)
def test_a_scaler_that_is_enabled_for_bfloat16(enabled: str, expected: list[str]) -> None:
    assert labels(ENABLED.format(enabled=enabled)) == expected


TERMS = """\
other = nn.Linear(2, 2)
second = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        one = F.mse_loss({first}(x), y)
        two = F.mse_loss({last}(x), y)
    ({left} + {right}).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("left", "right", "uneven"),
    [
        # By the models of the two terms: the same, another, and one that is not known.
        ("scaler.scale(one)", "two", (True, False, True)),
        ("one", "scaler.scale(two)", (True, False, True)),
        ("scaler.scale(one)", "second.scale(two)", (True, False, False)),
        ("scaler.scale(one)", "scaler.scale(two)", (False, False, False)),
    ],
)
def test_terms_with_two_scales_train_the_same_weights(left: str, right: str, uneven: tuple[bool, ...]) -> None:
    for last, is_uneven in zip(("model", "other", "net"), uneven, strict=True):
        for models in (("model", last), (last, "model")):
            program = TERMS.format(first=models[0], last=models[1], left=left, right=right)
            assert labels(program) == ["backward@uneven"] * is_uneven, models


EACH_LOSS = """\
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda"):
        out = model(x)
        each = F.mse_loss(out, y, reduction="none")
        first, last = F.mse_loss(out, y), F.l1_loss(out, y)
        loss = {loss}
    scaler.scale(loss).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "is_mean"),
    [
        # Means over the samples of a micro-batch are added up over the window.
        *((loss, True) for loss in ("first", "first.mean()", "first.sum()", "first.clone()", "first.float()")),
        *((loss, True) for loss in ("first.clamp(max=1)", "torch.mean(each)", "each.mean()", "each.mean(1).mean()")),
        *((loss, True) for loss in ("each.mean(dim=0).sum()", "each.mean(0).sum()")),
        *((f"each.sum() / {size}", True) for size in ("len(x)", "x.size(0)", "x.shape[0]", "y.numel()")),
        *((f"torch.stack([first, last]).{way}()", True) for way in ("sum", "mean")),
        # Sums over the samples may have been meant, and so may a division of one's own.
        *((loss, False) for loss in ("each.sum()", "each.mean(1).sum()", "each.mean(dim=-1).sum()")),
        *((loss, False) for loss in ("each.sum() / total", "(first + last) / 2", "sum([first, last]) / 2")),
    ],
)
def test_a_mean_over_the_samples_is_not_divided_by_the_window(loss: str, is_mean: bool) -> None:
    assert labels(EACH_LOSS.format(loss=loss)) == ["step@undivided"] * is_mean


#: A step without autocast that a scaler scales.
STEP = """\
for x, y in loader:
    optimizer.zero_grad()
    {before}
        out = model(x)
        loss = F.mse_loss(out, y)
    {backward}
    scaler.step(optimizer)
    scaler.update()
"""
AUTOCAST, SCALED = 'with torch.autocast("cuda"):', "scaler.scale(loss).backward()"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("with torch.cuda.graph(graph):", ["scale@no-autocast"]),
        ("if True:", ["scale@no-autocast"]),
        # It may be a region.
        ("with unknown(graph):", []),
    ],
)
def test_a_captured_graph_is_no_region(before: str, expected: list[str]) -> None:
    assert labels(STEP.format(before=before, backward=SCALED)) == expected


@pytest.mark.parametrize(
    ("backward", "expected"),
    [
        ("loss.backward()", ["step@raw"]),
        # Other classes of optimizers have a method of their own, which may scale.
        ("optimizer.backward(loss)", []),
        ("optimizer.other(loss)", []),
    ],
)
def test_an_optimizer_that_runs_backward_may_scale(backward: str, expected: list[str]) -> None:
    assert labels(STEP.format(before=AUTOCAST, backward=backward)) == expected
    inside = STEP.format(before=AUTOCAST, backward=f"    {backward}").replace(
        "scaler.step(optimizer)", "optimizer.step()"
    )
    is_backward = "backward" in backward
    assert labels(inside.replace("scaler.update()", "")) == ["backward@region"] * is_backward


@pytest.mark.parametrize(
    ("division", "is_divided"),
    [
        ("loss.div_(4)", True),
        ("loss.mul_(0.25)", True),
        ("loss = loss.div(4)", True),
        ("loss = loss.__truediv__(4)", True),
        ("loss.div(4)", False),
        ("loss.__truediv__(4)", False),
    ],
)
def test_only_methods_in_place_divide_the_loss_itself(division: str, is_divided: bool) -> None:
    program = WINDOW.format(divided="").replace(', reduction="sum"', "").replace("    loss = loss", f"    {division}")
    assert labels(program) == ["step@undivided"] * (not is_divided)


LOSSES = "    losses = [F.mse_loss(out, y){}, F.l1_loss(out, y){}]\n    loss = sum(losses)"


@pytest.mark.parametrize(
    ("factors", "is_divided"),
    [((" / 4", " / 4"), True), ((" * a / 4", " * b / 4"), True), ((" / len(x)", " / len(x)"), False)],
)
def test_a_sum_of_a_list_is_divided_as_its_terms_are(factors: tuple[str, str], is_divided: bool) -> None:
    program = WINDOW.replace('loss = F.mse_loss(model(x), y, reduction="sum")', "out = model(x)")
    program = program.replace("    loss = loss{divided}", LOSSES.format(*factors))
    assert labels(program) == ["step@undivided"] * (not is_divided)


OUTPUTS = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        out = self.fc(x)
        loss = compute(out)
        return {returned}

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i, x in enumerate(loader):
    with torch.autocast("cuda"):
        {taken}
    scaler.scale(loss).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("returned", "taken", "expected"),
    [
        ("loss", "loss = net(x)", "step@undivided"),
        # One of several outputs need not be a mean.
        ("loss, out", "loss, _ = net(x)", "step@undivided-vague"),
        ("loss, out", "loss = net(x)[0]", "step@undivided-vague"),
        ('{"loss": loss, "out": out}', 'loss = net(x)["loss"]', "step@undivided-vague"),
    ],
)
def test_a_loss_among_several_outputs_may_be_a_sum(returned: str, taken: str, expected: str) -> None:
    assert labels(OUTPUTS.format(returned=returned, taken=taken)) == [expected]


INNER = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x, y):
        {region}
            return F.binary_cross_entropy(torch.sigmoid(self.fc(x)), y)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    net(x, y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ('with torch.autocast("cuda"):', ["bce@region"]),
        ('with torch.autocast("cuda", enabled=flag):', ["bce@region"]),
        ("with torch.autocast(device):", ["bce@region"]),
        ('with torch.autocast("cpu", dtype=torch.bfloat16):', ["bce@region-cpu"]),
        ('with torch.autocast("cuda", enabled=False):', []),
        ("if True:", []),
    ],
)
def test_a_loss_that_a_region_inside_of_forward_bans(region: str, expected: list[str]) -> None:
    assert labels(INNER.format(region=region)) == expected


OUTSIDE = """\
from other import Net

model = {net}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        out = model(x)
    loss = {loss}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize("net", ["nn.Linear(2, 2)", "Net()"])
@pytest.mark.parametrize(
    ("loss", "is_of_logs"),
    [("F.cross_entropy(out, y)", False), ("F.nll_loss(out, y)", True), ("F.ctc_loss(out, y, a, b)", True)],
)
def test_an_unknown_model_returns_log_probabilities_to_their_loss(net: str, loss: str, is_of_logs: bool) -> None:
    is_silent = is_of_logs and net == "Net()"
    assert labels(OUTSIDE.format(net=net, loss=loss)) == ["loss@outside"] * (not is_silent)


SHARDED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel as DDP

def train(loader):
    model = nn.Linear(4, 4)
    model = {wrapped}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    scaler = ShardedGradScaler()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        {clip}
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        ("FSDP(model)", ["step@shards-fused"]),
        ("model", ["step@shards-fused"]),
        ("DDP(model)", []),
        ("fully_shard(model)", []),
    ],
)
def test_a_fused_optimizer_skips_by_itself(wrapped: str, expected: list[str]) -> None:
    assert labels(SHARDED.format(wrapped=wrapped, clip="")) == expected
    assert labels(SHARDED.format(wrapped=wrapped, clip="").replace(", fused=True", "")) == []


@pytest.mark.parametrize(
    ("condition", "is_local"),
    [("isinstance(model, FSDP)", False), ("isinstance(model, nn.Module)", True), ("kind == 1", True)],
)
def test_a_branch_for_other_classes_has_no_shards(condition: str, is_local: bool) -> None:
    program = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, loader):
    model = FSDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        if {condition}:
            pass
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
    assert labels(program) == ["clip@shards"] * is_local


@pytest.mark.parametrize(
    ("zeros", "is_low"),
    [
        ("other.new_zeros(1, dtype=torch.bfloat16)", True),
        ("torch.zeros(1, dtype=torch.bfloat16)", True),
        ("other.new_zeros(1, dtype=torch.float32)", False),
        ("other.new_zeros(1)", False),
        ("other.new_ones(1, dtype=torch.bfloat16)", False),
    ],
)
@pytest.mark.parametrize(
    ("addition", "is_sum"),
    [
        ("total += y", True),
        ("torch.add(total, y, out=total)", True),
        ("torch.add(total, out=total, other=y)", True),
        ("torch.add(total, y, out=other)", False),
        ("torch.add(total, y)", False),
    ],
)
def test_a_sum_that_begins_with_low_zeros(zeros: str, addition: str, is_low: bool, is_sum: bool) -> None:
    program = f"""\
total = {zeros}
for x in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(x).sum()
    {addition}
"""
    assert labels(program) == ["sum:low"] * (is_low and is_sum)


@pytest.mark.parametrize("place", ["net", "module"])
@pytest.mark.parametrize(
    ("weight", "is_wide"),
    [
        ("torch.ones(4)", True),
        ("torch.randn(4, 4)", True),
        ("torch.tensor([1.0])", True),
        # A tensor without dimensions promotes nothing.
        ("torch.ones(())", False),
        ("torch.ones([])", False),
        ("torch.tensor(1.0)", False),
        ("torch.ones(4, dtype=torch.float16)", False),
    ],
)
def test_a_float32_parameter_with_dimensions_widens_a_product(weight: str, is_wide: bool, place: str) -> None:
    product = f"""\
fc = nn.Linear(4, 4)
weight = nn.Parameter({weight})
with torch.autocast("cuda"):
    out = fc(x) * weight
    out = out.masked_fill(mask, -1e9)
"""
    net = f"""\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.weight = nn.Parameter({weight})

    def forward(self, x, mask):
        out = self.fc(x) * self.weight
        return out.masked_fill(mask, -1e9)

net = Net()
with torch.autocast("cuda"):
    out = net(x, mask)
"""
    assert labels(net if place == "net" else product) == ["fill:overflow"] * (not is_wide)


@pytest.mark.parametrize("values", ["out.sigmoid()", "out"])
@pytest.mark.parametrize(
    ("op", "keeps"),
    [
        ("", True),
        (".abs()", True),
        (".relu()", True),
        (".mean(0)", True),
        (".clamp(min=0.1)", True),
        (".view(-1)", True),
        (" * 0.5", True),
        (".cumsum(0)", False),
    ],
)
def test_squares_of_bounded_values_do_not_overflow(values: str, op: str, keeps: bool) -> None:
    program = f"""\
with torch.autocast("cpu", dtype=torch.float16):
    out = model(x)
    total = ({values}{op}).square().sum()
"""
    assert labels(program) == ["fragile:squares"] * (values == "out" or not keeps)


@pytest.mark.parametrize(
    ("loop", "is_long"),
    [
        ("for x in batch:", True),
        ("for x in range(64):", True),
        ("for x in range(n):", True),
        ("while True:", True),
        # A few terms lose little.
        ("for x in range(63):", False),
        ("for x in (a, b):", False),
        ("for x in [a, b]:", False),
    ],
)
def test_a_sum_of_few_terms_may_be_low(loop: str, is_long: bool) -> None:
    program = f"""\
total = torch.zeros(1, dtype=torch.bfloat16)
{loop}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(x).sum()
    total += y
"""
    assert labels(program) == ["sum:low"] * is_long


PREPARED = """\
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = F.mse_loss(model(x), y)
        accelerator.backward({loss})
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("argument", ["{}", "loss={}"])
@pytest.mark.parametrize(("loss", "is_twice"), [("loss / 4", True), ("loss", False), ("loss / 2", False)])
def test_an_engine_divides_the_loss(argument: str, loss: str, is_twice: bool) -> None:
    assert labels(PREPARED.format(loss=argument.format(loss))) == ["loss:divided-twice"] * is_twice


@pytest.mark.parametrize(("wanted", "is_scaled"), [("True", True), ("False", False), ("None", False), ("scaler", True)])
def test_a_trainer_of_ignite_has_the_scaler_that_it_makes(wanted: str, is_scaled: bool) -> None:
    program = f"""\
from ignite.engine import create_supervised_trainer

trainer = create_supervised_trainer(model, optimizer, F.mse_loss, amp_mode="amp", scaler={wanted})
trainer.run(loader)
torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()%s}}, "last.pt")
"""
    assert labels(program % "") == ["save:no-scaler"] * is_scaled
    saved = "scaler" if wanted == "scaler" else "trainer.state.scaler"
    assert labels(program % f', "scaler": {saved}.state_dict()') == []


@pytest.mark.parametrize(
    ("tensors", "is_raw"),
    [
        *((form.format("scaler.scale(loss)"), False) for form in ("{}", "tensors={}", "[{}]", "tensors=[{}]")),
        *((form.format("loss"), True) for form in ("{}", "tensors={}", "[{}]", "tensors=[{}]")),
        ("scaler.scale(loss) if flag else loss", True),
    ],
)
def test_a_loss_runs_backward_by_a_function(tensors: str, is_raw: bool) -> None:
    backward = f"torch.autograd.backward({tensors})"
    assert labels(STEP.format(before=AUTOCAST, backward=backward)) == ["step@raw"] * is_raw


BRANCHES = """\
from other import A, B, C

for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y)
    if isinstance(x, {first}):
        loss.backward()
    else:
        scaler.scale(loss).backward()
    if isinstance(x, {second}):
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("A", "A", True),
        ("(A, B)", "(A, B)", True),
        ("(dict, list)", "(dict, list)", True),
        ("kinds", "kinds", True),
        ("A", "B", False),
        ("(A, B)", "(A, C)", False),
        # The call may return another class.
        ("(A, find())", "(A, find())", False),
    ],
)
def test_a_question_about_the_same_classes_has_the_same_answer(first: str, second: str, is_same: bool) -> None:
    expected = [] if is_same else ["step@raw", "plain-step@scaled"]
    assert labels(BRANCHES.format(first=first, second=second)) == expected


LOADS = """\
checkpoint = torch.load("last.pt")
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
{load}
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
states = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}}
torch.save(states, "last.pt")
"""


@pytest.mark.parametrize("argument", ["{}", "state_dict={}"])
@pytest.mark.parametrize(
    ("owner", "state", "may_be_scaler"),
    [
        ("scaler", 'checkpoint["scaler"]', True),
        ("other", 'checkpoint["scaler"]', True),
        ("other", "checkpoint[key]", True),
        ("other", "state", True),
        ("amp", 'checkpoint["x"]', True),
        ("other", 'checkpoint["average"]', False),
    ],
)
def test_an_object_with_another_entry_is_no_scaler(owner: str, state: str, may_be_scaler: bool, argument: str) -> None:
    load = f"{owner}.load_state_dict({argument.format(state)})"
    assert labels(LOADS.format(load=load)) == ["load:no-scaler"] * (not may_be_scaler)


@pytest.mark.parametrize(("write", "is_written"), [("p.data = other", True), ("p.name = other", False)])
def test_an_assignment_of_data_in_a_region(write: str, is_written: bool) -> None:
    program = f"""\
with torch.autocast("cuda"):
    model(x)
    for p in model.parameters():
        {write}
    model(x)
"""
    assert labels(program) == ["write@region-then-forward"] * is_written
