"""Help that can be typed: names that are valid at the edit, and locations of what the edited function does not show."""

from __future__ import annotations

import json

import pytest

from pytest_amp_check import check_source
from pytest_amp_check.protocol import events
from pytest_amp_check.protocol.edit_places import FindingContext, find_edit_places
from pytest_amp_check.protocol.event_graph import Predicate, Program
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.message_templates import fill_message
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.protocol.source_text import (
    find_counter,
    find_expm1_call,
    find_loop_size,
    find_wide_call,
    find_window_size,
    parenthesize,
)
from pytest_amp_check.static.results import AnalysisResult, decode_results, encode_results

HEAD = """\
import torch
from torch import nn

"""


def find(body: str, code: str) -> Finding:
    (finding,) = (finding for finding in check_source(HEAD + body) if finding.code == code)
    return finding


def list_places(body: str, finding: Finding) -> list[tuple[str, str]]:
    """Return the text of each place that a remedy needs, with its source line."""
    rows = (HEAD + body).splitlines()
    return [(step.text, rows[step.site.line - 1].strip()) for step in finding.edit_places]


# Names.

OF_A_CLASS = """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.SCALER = torch.amp.GradScaler("cuda")
        self.OPTIMIZER = torch.optim.SGD(model.parameters(), lr=0.1)

    def norm(self):
        return torch.stack([p.grad.norm() for p in self.model.parameters()]).norm()

    def fit(self, batches):
        for x in batches:
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            backward(self.SCALER, loss)
            print(self.norm())
            self.SCALER.step(self.OPTIMIZER)
            self.SCALER.update()
            self.OPTIMIZER.zero_grad()


def backward(s, value):
    s.scale(value).backward()


Trainer(nn.Linear(8, 2)).fit(batches)
"""


@pytest.mark.parametrize("scaler", ["scaler", "amp_scaler"])
@pytest.mark.parametrize("optimizer", ["optimizer", "opt"])
def test_a_name_of_a_helper_is_replaced_by_the_name_at_the_edit(scaler: str, optimizer: str) -> None:
    body = OF_A_CLASS.replace("SCALER", scaler).replace("OPTIMIZER", optimizer)
    finding = find(body, "AMP202")
    assert finding.problem.startswith(f"Gradients of `self.{optimizer}` are read")
    assert f"write `self.{scaler}.unscale_(self.{optimizer})` before" in finding.remedy
    assert finding.edit_places == ()


def test_the_variable_of_the_edited_function_is_preferred() -> None:
    body = """
model = nn.Linear(8, 2)


def clip_all(amp, params):
    torch.nn.utils.clip_grad_norm_(params, 1.0)


def main():
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    grad_scaler = torch.amp.GradScaler("cuda")
    for x in batches:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        grad_scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grad_scaler.step(opt)
        grad_scaler.update()
        opt.zero_grad()


main()
"""
    finding = find(body, "AMP201")
    assert finding.remedy == "write `grad_scaler.unscale_(opt)` in the line before it"
    assert finding.edit_places == ()


SAVED_ELSEWHERE = """
model = nn.Linear(8, 2)


def save(optimizer, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def resume(optimizer, path):
    held = torch.load(path)
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])


def main(path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    resume(optimizer, path)
    for x in batches:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    save(optimizer, path)


main("a")
"""


LOADED = 'write `if "scaler" in held: scaler.load_state_dict(held["scaler"])` after this line'


def test_a_scaler_that_the_saving_function_does_not_have_is_located() -> None:
    finding = find(SAVED_ELSEWHERE, "AMP401")
    assert finding.remedy.startswith('add `scaler.state_dict()` to it, under the key `"scaler"`')
    assert list_places(SAVED_ELSEWHERE, finding) == [
        (f"{LOADED}, with `scaler` as a new parameter of `resume`", 'optimizer.load_state_dict(held["optimizer"])'),
        ("pass `scaler` in this call, as a new parameter of `save`", "save(optimizer, path)"),
    ]


SCALER_OF_A_METHOD = """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def save(self, path):
        torch.save({"optimizer": self.optimizer.state_dict()}, path)

    def load(self, path):
        held = torch.load(path)
        self.optimizer.load_state_dict(held["optimizer"])

    def train_epoch(self, batches):
        grad_scaler = MADE
        for x in batches:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            grad_scaler.scale(loss).backward()
            grad_scaler.step(self.optimizer)
            grad_scaler.update()
        self.save("last.pt")
"""


def test_a_scaler_that_one_method_has_becomes_an_attribute() -> None:
    made = 'torch.amp.GradScaler("cuda")'
    body = SCALER_OF_A_METHOD.replace("MADE", made)
    finding = find(body, "AMP401")
    assert "but not of `grad_scaler`" in finding.message
    assert finding.remedy.startswith('add `self.grad_scaler.state_dict()` to it, under the key `"scaler"`, and')
    written = 'write `if "scaler" in held: self.grad_scaler.load_state_dict(held["scaler"])` after this line'
    assert list_places(body, finding) == [
        (written, 'self.optimizer.load_state_dict(held["optimizer"])'),
        ("move this to `Trainer.__init__`, as `self.grad_scaler`, and use that here", f"grad_scaler = {made}"),
    ]


@pytest.mark.parametrize(
    "held", ["made if self.amp else None", "None\n        if self.amp:\n            grad_scaler = made"]
)
def test_the_state_of_a_scaler_that_may_be_none_is_asked_for(held: str) -> None:
    body = SCALER_OF_A_METHOD.replace("MADE", held.replace("made", 'torch.amp.GradScaler("cuda")'))
    finding = find(body, "AMP401")
    assert 'under the key `"scaler"` if the scaler is not None' in finding.remedy
    asked = 'write `if self.grad_scaler is not None and held.get("scaler"): self.grad_scaler.load_state_dict'
    assert finding.edit_places[0].text.startswith(asked)


def test_a_scaler_that_the_saving_function_has_is_not_located() -> None:
    saving = '    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)\n'
    body = SAVED_ELSEWHERE.replace(f"def save(optimizer, path):\n{saving}", "").replace(
        "    save(optimizer, path)\n", saving
    )
    finding = find(body, "AMP401")
    assert [text for text, _ in list_places(body, finding)] == [
        f"{LOADED}, with `scaler` as a new parameter of `resume`"
    ]


def test_a_scaler_of_the_module_is_visible_in_its_functions() -> None:
    body = SAVED_ELSEWHERE.replace('    scaler = torch.amp.GradScaler("cuda")\n', "").replace(
        "\ndef save(", '\nscaler = torch.amp.GradScaler("cuda")\n\n\ndef save('
    )
    finding = find(body, "AMP401")
    assert [text for text, _ in list_places(body, finding)] == [LOADED]


# Places of edits.


def test_the_step_before_which_a_call_belongs_is_located() -> None:
    body = """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, x in enumerate(batches):
    with torch.autocast("cuda"):
        loss = model(x).mean() / 4
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    print(i)
    print(x)
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    finding = find(body, "AMP303")
    assert list_places(body, finding) == [("move it here, before this step", "scaler.step(optimizer)")]
    near = body.replace("    print(i)\n    print(x)\n    if", "    if").replace(
        "if (i + 1) % 4 == 0:\n        scaler.step", "if (i + 1) % 4 == 0: scaler.step"
    )
    near = near.replace(
        "\n        scaler.update()\n        optimizer.zero_grad()\n", "; scaler.update(); optimizer.zero_grad()\n"
    )
    assert find(near, "AMP303").edit_places == ()


IN_REGION = """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def go_back(loss):
    loss.backward()


def main():
    for x in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            go_back(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()


main()
"""


def test_the_call_in_a_region_that_leads_to_a_helper_is_located() -> None:
    body = IN_REGION.replace(
        "    loss.backward()", "    for p in model.parameters():\n        p.data = loss.data"
    ).replace("        optimizer.step()", "            model(x)\n        optimizer.step()")
    finding = find(body, "AMP101")
    assert list_places(body, finding) == [
        ("or write `torch.clear_autocast_cache()` after this call", "go_back(model(x).mean())")
    ]
    # The backward itself may leave the region where it stands.
    assert find(IN_REGION, "AMP103").edit_places == ()


NEW_SCALER = """
def train(model, batches):
MADE
    for epoch in range(3):
        for x in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).mean()
            loss.backward()
            print(epoch)
CLIP
            OPT.step()
            OPT.zero_grad()


train(nn.Linear(8, 2), [])
"""
MADE = "    {} = torch.optim.SGD(model.parameters(), lr=0.1)"


@pytest.mark.parametrize("name", ["optimizer", "opt"])
def test_a_new_scaler_stands_beside_the_optimizer_and_unscales_before_a_clip(name: str) -> None:
    clip = "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    body = NEW_SCALER.replace("MADE", MADE.format(name)).replace("CLIP", clip).replace("OPT", name)
    finding = find(body, "AMP502")
    assert list_places(body, finding) == [
        ('write `scaler = torch.amp.GradScaler("cuda")` after this statement', MADE.format(name).strip()),
        (f"write `scaler.unscale_({name})` before this clip", clip.strip()),
        (f"write `scaler.step({name})` and then `scaler.update()` in its place", f"{name}.step()"),
    ]
    without = find(body.replace(clip, ""), "AMP502")
    assert [text for text, _ in list_places(body, without)] == [
        'write `scaler = torch.amp.GradScaler("cuda")` after this statement',
        f"write `scaler.step({name})` and then `scaler.update()` in its place",
    ]


def test_a_new_scaler_for_an_optimizer_from_elsewhere_stands_before_the_outermost_loop() -> None:
    body = NEW_SCALER.replace("MADE", "    optimizer = build(model)").replace("CLIP", "").replace("OPT", "optimizer")
    body = body.replace(
        "def train(", "def build(model):\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n\n\ndef train("
    )
    finding = find(body, "AMP502")
    assert list_places(body, finding)[0] == (
        'write `scaler = torch.amp.GradScaler("cuda")` before this loop',
        "for epoch in range(3):",
    )


OF_SELF = """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.OPT = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, batches):
        for x in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(x).mean()
            loss.backward()
            self.OPT.step()
            self.OPT.zero_grad()


Trainer(nn.Linear(8, 2)).fit(batches)
"""


@pytest.mark.parametrize("name", ["optimizer", "opt"])
def test_a_new_scaler_of_an_object_is_an_attribute(name: str) -> None:
    body = OF_SELF.replace("OPT", name)
    finding = find(body, "AMP502")
    assert "write `self.scaler.scale(loss).backward()` here" in finding.remedy
    assert [text for text, _ in list_places(body, finding)] == [
        'write `self.scaler = torch.amp.GradScaler("cuda")` after this statement',
        f"write `self.scaler.step(self.{name})` and then `self.scaler.update()` in its place",
    ]


@pytest.mark.parametrize("chosen", ["torch.bfloat16 if args.bf16 else torch.float16", "choose(args)"])
def test_a_new_scaler_is_enabled_by_the_dtype_of_the_region_if_the_program_chooses(chosen: str) -> None:
    body = NEW_SCALER.replace("MADE", MADE.format("optimizer") + f"\n    kind = {chosen}").replace("CLIP", "")
    body = (
        body.replace("OPT", "optimizer")
        .replace("dtype=torch.float16", "dtype=kind")
        .replace(
            "def train(", "def choose(args):\n    return torch.bfloat16 if args.bf16 else torch.float16\n\n\ndef train("
        )
    )
    finding = find(body, "AMP502")
    said = 'torch.amp.GradScaler("cuda", enabled=kind == torch.float16)'
    assert said in finding.remedy
    assert said in finding.edit_places[0].text


def test_a_new_scaler_of_shards_is_sharded_and_is_for_float16_only() -> None:
    body = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(args, batches):
    models = {"small": nn.Linear(8, 2), "large": nn.Linear(80, 2)}
    model = FSDP(models[args.size])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        regions = {"fp16": torch.autocast("cuda", torch.float16), "bf16": torch.autocast("cuda", torch.bfloat16)}
        with regions[args.precision]:
            loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    finding = find(body, "AMP502")
    sharded = 'scaler = torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler("cuda")'
    assert f"construct `{sharded}` once, enabled for float16 only, and write" in finding.remedy
    assert finding.edit_places[0].text == f"write `{sharded}` after this statement"


def test_a_new_scaler_is_for_the_device_of_the_region() -> None:
    body = NEW_SCALER.replace("MADE", MADE.format("optimizer")).replace("CLIP", "").replace("OPT", "optimizer")
    finding = find(body.replace('torch.autocast("cuda"', 'torch.autocast("xpu"'), "AMP502")
    assert 'torch.amp.GradScaler("xpu")' in finding.remedy
    assert finding.edit_places[0].text.startswith('write `scaler = torch.amp.GradScaler("xpu")`')


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("", "pass `enabled=(kind == torch.float16)`"),
        (", enabled=args.amp", "let `enabled` also require `kind == torch.float16`"),
    ],
)
def test_a_condition_of_a_scaler_is_kept_where_bfloat16_disables_it(given: str, advice: str) -> None:
    body = f"""
def train(args, model, batches):
    kind = torch.bfloat16 if args.bf16 else torch.float16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda"{given})
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", kind{given}):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    assert find(body, "AMP503").remedy == advice


def test_a_scaler_made_in_a_loop_moves_before_the_outermost_loop_with_its_optimizer_outside() -> None:
    body = """
def main(batches, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        print(epoch)
        for x in batches:
            one_step(x, model, optimizer)


def one_step(x, model, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


main([], nn.Linear(8, 2))
"""
    text = "move the construction here, before this loop, and pass it on to `one_step`"
    assert list_places(body, find(body, "AMP208")) == [(text, "for epoch in range(3):")]
    # A loop that constructs the optimizer begins a training, which needs a scaler of its own.
    optimizer = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    folds = body.replace(optimizer, "").replace("        print(epoch)\n", f"    {optimizer}")
    assert list_places(folds, find(folds, "AMP208")) == [(text, "for x in batches:")]


@pytest.mark.parametrize("step", ["optimizer.step()", "scaler.step(optimizer); scaler.update()"])
def test_gradients_are_cleared_after_the_step(step: str) -> None:
    body = f"""
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in batches:
    with torch.autocast("cuda"):
        loss = model(x).mean()
    {"scaler.scale(loss)" if "scaler" in step else "loss"}.backward()
    {step}
"""
    assert list_places(body, find(body, "AMP215")) == [("write `optimizer.zero_grad()` after this step", step)]


def test_the_construction_of_a_scaler_moves_before_the_load_of_its_state() -> None:
    resume = SAVED_ELSEWHERE[SAVED_ELSEWHERE.index("def resume") : SAVED_ELSEWHERE.index("def main")]
    body = SAVED_ELSEWHERE.replace(resume, "").replace(
        "    resume(optimizer, path)\n",
        "    held = torch.load(path)\n    optimizer.load_state_dict(held['optimizer'])\n",
    )
    made = '    scaler = torch.amp.GradScaler("cuda")\n'
    body = body.replace(made, "").replace("    for x in batches", f"{made}    for x in batches")
    line = (HEAD + body).splitlines().index('    scaler = torch.amp.GradScaler("cuda")') + 1
    said = f"{LOADED}, and move the construction of `scaler` in line {line} to before it"
    assert list_places(body, find(body, "AMP401"))[0] == (said, "optimizer.load_state_dict(held['optimizer'])")


UNKNOWN_LOAD = 'scaler.load_state_dict(checkpoint["scaler"])'


@pytest.mark.parametrize("given", ["pick(held)", "**held"])
@pytest.mark.parametrize("name", ["optimizer", "opts[0]"])
def test_a_state_of_unknown_origin_is_loaded_where_the_text_says_so(given: str, name: str) -> None:
    body = SAVED_ELSEWHERE.replace(
        '    optimizer.load_state_dict(held["optimizer"])', f"    {name}.load_state_dict({given})"
    )
    places = list_places(body, find(body, "AMP401"))
    assert places[-1] == (f"write `{UNKNOWN_LOAD}` after this line", f"{name}.load_state_dict({given})")


def test_a_file_that_loads_no_optimizer_is_said_to_load_none() -> None:
    body = SAVED_ELSEWHERE.replace(
        '    optimizer.load_state_dict(held["optimizer"])\n', "    # optimizer.load_state_dict()\n"
    )
    text = f"no code of this file loads the state of `optimizer`: write `{UNKNOWN_LOAD}` where a run resumes"
    assert [said for said, _ in list_places(body, find(body, "AMP401"))][-1] == text


def test_a_scaler_reaches_the_writer_through_the_calls_between() -> None:
    body = SAVED_ELSEWHERE.replace("    save(optimizer, path)\n", "    finish(optimizer, path)\n").replace(
        "def main(", "def finish(optimizer, path):\n    save(optimizer, path)\n\n\ndef main("
    )
    assert list_places(body, find(body, "AMP401"))[-1] == (
        "pass `scaler` in this call, as a new parameter of `finish` and on to `save`",
        "finish(optimizer, path)",
    )


@pytest.mark.parametrize("known", [True, False])
def test_an_optimizer_that_an_engine_does_not_wrap_is_wrapped_after_its_construction(known: bool) -> None:
    made = "opt = torch.optim.SGD(model.parameters(), lr=0.1)"
    body = f"""
from accelerate import Accelerator


def train(model, batches):
    acc = Accelerator(mixed_precision="fp16")
    {made}
    model = acc.prepare(model)
    for x in batches:
        loss = model(x).mean()
        acc.backward(loss)
        opt.step()
        opt.zero_grad()
"""
    if not known:
        # The wrapped optimizer is known, and what it holds is not.
        body = body.replace("model = acc.prepare(model)", "opt = acc.prepare(opt)").replace(
            "opt.step", "opt.optimizer.step"
        )
    places = list_places(body, find(body, "AMP204"))
    assert places == ([("write `opt = acc.prepare(opt)` after this line", made)] if known else [])


TRAINER = """
from transformers import Trainer


class Own(Trainer):
INIT
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(inputs).mean()
"""


@pytest.mark.parametrize(
    ("init", "row", "text"),
    [
        (
            "    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n        self.k = 1\n",
            "super().__init__(*args, **kwargs)",
            "write `self.model_accepts_loss_kwargs = False` after this call",
        ),
        (
            "    def __init__(self, model):\n        Trainer.__init__(self, model)\n",
            "Trainer.__init__(self, model)",
            "write `self.model_accepts_loss_kwargs = False` after this call",
        ),
        (
            "",
            "class Own(Trainer):",
            (
                "add to this class: `def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs); "
                "self.model_accepts_loss_kwargs = False`"
            ),
        ),
    ],
)
def test_the_advice_for_a_trainer_is_to_divide_in_its_constructor(init: str, row: str, text: str) -> None:
    body = TRAINER.replace("INIT\n", init)
    assert list_places(body, find(body, "AMP301")) == [(text, row)]


@pytest.mark.parametrize(("limit", "said"), [("1.0", "1.0"), ("max_norm=args.clip", "args.clip")])
def test_a_clip_of_shards_is_written_out(limit: str, said: str) -> None:
    body = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

net = FSDP(nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in batches:
    net(x).mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), {limit})
    optimizer.step()
    optimizer.zero_grad()
"""
    assert find(body, "AMP603").remedy.startswith(f"write `net.clip_grad_norm_({said})` in its place")
    unknown = body.replace("clip_grad_norm_(net.parameters()", "clip_grad_norm_([*net.parameters()]")
    assert all("net.clip" not in each.remedy for each in check_source(HEAD + unknown) if each.code == "AMP603")


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_the_forward_of_a_low_model_is_located_unless_it_has_a_region(low: str) -> None:
    body = f"""
model = nn.Linear(8, 2).to(torch.{low})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches:
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    finding = find(body, "AMP501")
    said = 'torch.autocast("cuda", dtype=torch.bfloat16)'
    assert said in finding.remedy
    assert list_places(body, finding) == [(f"run this forward in `with {said}:`", "loss = model(x).mean()")]
    region = body.replace(
        "    loss = model(x)", '    with torch.autocast("cuda", dtype=torch.bfloat16): loss = model(x)'
    )
    assert find(region, "AMP501").edit_places == ()


@pytest.mark.parametrize("clips", [True, False])
def test_an_unscale_that_comes_too_late_moves(clips: bool) -> None:
    late = "    scaler.unscale_(optimizer)\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    body = f"""
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in batches:
    with torch.autocast("cuda"):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    print(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
{late if clips else ""}    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    finding = find(body, "AMP202")
    text = f"move this call to before line {finding.line}, because a second one would raise"
    assert list_places(body, finding) == ([(text, "scaler.unscale_(optimizer)")] if clips else [])


def test_a_scaler_of_bfloat16_is_disabled_where_it_is_constructed() -> None:
    body = OF_A_CLASS.replace("SCALER", "scaler").replace("OPTIMIZER", "optimizer")
    body = body.replace('torch.autocast("cuda")', 'torch.autocast("cuda", dtype=torch.bfloat16)')
    finding = find(body, "AMP503")
    assert list_places(body, finding) == [
        ("pass `enabled=False` in this call", 'self.scaler = torch.amp.GradScaler("cuda")')
    ]
    given = body.replace("def __init__(self, model)", "def __init__(self, model, scaler)").replace(
        'self.scaler = torch.amp.GradScaler("cuda")', "self.scaler = scaler"
    )
    assert all(each.edit_places == () for each in check_source(HEAD + given) if each.code == "AMP503")


def test_a_forward_outside_of_regions_is_located() -> None:
    body = """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in batches:
    output = model(x)
    loss = nn.functional.mse_loss(output, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    assert list_places(body, find(body, "AMP110")) == [
        ('begin `with torch.autocast("cuda"):` before this line, and end it before backward', "output = model(x)")
    ]


def test_a_clip_after_an_early_unscale_moves_with_it() -> None:
    body = """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def accumulate(x):
    with torch.autocast("cuda"):
        loss = model(x).mean() / 4
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    CLIP


for i, x in enumerate(batches):
    accumulate(x)
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    clipping = body.replace("CLIP", clip)
    line = (HEAD + clipping).splitlines().index(f"    {clip}") + 1
    said = "move it here, before this step"
    assert list_places(clipping, find(clipping, "AMP303")) == [
        (f"{said}, with the clip in line {line}", "scaler.step(optimizer)")
    ]
    plain = body.replace("CLIP", "print(i)")
    assert list_places(plain, find(plain, "AMP303")) == [(said, "scaler.step(optimizer)")]


@pytest.mark.parametrize(("line", "is_shown"), [(8, True), (3, False)])
def test_the_backward_of_an_unscaled_loss_is_located_from_another_line(line: int, is_shown: bool) -> None:
    program = Program()
    optimizer = program.add_object("optimizer", "optimizer")
    backward = events.Backward(Site("a.py", line, function="back"), feeds={optimizer.key}, names={"loss": "loss"})
    unscale = events.Unscale(Site("a.py", 9, function="step"), None, optimizer.key)
    context = FindingContext(program, [backward, unscale])
    places = find_edit_places("step@raw", unscale.site, [unscale, backward], context, {})
    said = [(step.text, step.site.line) for step in places.steps]
    assert said == ([] if is_shown else [("write it here, in place of this call", line)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("scaler.unscale_(optimizer)", ""),
        ("print(x)", ", after a new line `scaler.unscale_(optimizer)`"),
        (
            "if limit: scaler.unscale_(optimizer)",
            ", after `scaler.unscale_(optimizer)`, which is then to run in every case",
        ),
    ],
)
@pytest.mark.parametrize(("watched", "module"), [("net", "net"), ("models=[net]", "model")])
def test_gradients_are_logged_before_the_step(before: str, after: str, watched: str, module: str) -> None:
    body = f"""
import wandb

net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
wandb.watch({watched})
for x in batches:
    with torch.autocast("cuda"):
        loss = net(x).mean()
    scaler.scale(loss).backward()
    {before}
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    log = f"wandb.log({{n: p.grad.norm() for n, p in {module}.named_parameters() if p.grad is not None}})"
    places = list_places(body, find(body, "AMP202"))
    assert places == [(f"before this step{after}, write `{log}`", "scaler.step(optimizer)")]


def test_a_clip_of_another_branch_is_located() -> None:
    body = """
def train(model, optimizer, batches, amp):
    scaler = torch.amp.GradScaler("cuda") if amp else None
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=amp):
            loss = model(x).mean()
        if amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
"""
    assert list_places(body, find(body, "AMP201")) == [
        ("copy this clip", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    ]


def test_an_attribute_of_another_class_may_be_inherited() -> None:
    body = """
class Base:
    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)


class Own(Base):
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, batches):
        for x in batches:
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        self.save("a")


Own(nn.Linear(8, 2)).fit(batches)
"""
    unless = "if `Base` is no base class of `Own`, pass `self.scaler`"
    assert list_places(body, find(body, "AMP401"))[:-1] == [
        (f"{unless} in this call, as a new parameter of `save`", 'self.save("a")')
    ]
    alone = body.replace('        self.save("a")\n', "")
    assert list_places(alone, find(alone, "AMP401"))[:-1] == [
        (f"{unless}, which is constructed here, to `save`", 'self.scaler = torch.amp.GradScaler("cuda")')
    ]


@pytest.mark.parametrize("written", ["torch.clear_autocast_cache()", "print(x)"])
def test_the_cache_is_cleared_by_the_line_that_the_help_writes(written: str) -> None:
    body = """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cuda", dtype=torch.bfloat16):
    for x in batches:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert "`torch.clear_autocast_cache()`" in find(body, "AMP101").remedy
    edited = body.replace("optimizer.step()", f"optimizer.step()\n        {written}")
    codes = {finding.code for finding in check_source(HEAD + edited)}
    assert ("AMP101" in codes) is written.startswith("print")


def test_the_edits_of_a_new_scaler_fix_the_program() -> None:
    clip = "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    body = NEW_SCALER.replace("MADE", MADE.format("opt")).replace("CLIP", clip).replace("OPT", "opt")
    edited = body.replace("loss.backward()", "scaler.scale(loss).backward()")
    edited = edited.replace(clip, f"            scaler.unscale_(opt)\n{clip}")
    edited = edited.replace("opt.step()", "scaler.step(opt)\n            scaler.update()")
    made = MADE.format("opt")
    edited = edited.replace(made, f'{made}\n    scaler = torch.amp.GradScaler("cuda")')
    assert [finding.code for finding in check_source(HEAD + body)] == ["AMP502"]
    assert check_source(HEAD + edited) == []


@pytest.mark.parametrize(("numbers", "size"), [("range(4)", "4"), ("range(args.k)", "args.k"), ("range(1, k)", "")])
def test_a_loss_is_divided_by_the_number_of_iterations(numbers: str, size: str) -> None:
    body = f"""
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    optimizer.zero_grad()
    for _ in {numbers}:
        x = next(batch)
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
    optimizer.step()
"""
    remedy = find(body, "AMP301").remedy
    assert (f"write `(loss / {size})` for `loss`" in remedy) is bool(size)
    assert ("by the number of iterations of" in remedy) is not bool(size)


# Windows.

WINDOW = """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, x in enumerate(batches):
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), x)
    scaler.scale(LOSS).backward()
    if (i + 1) % SIZE == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "size", "said"),
    [
        ("loss", "4", "`(loss / 4)`"),
        ("loss", "config.k", "`(loss / config.k)`"),
        ("loss + loss", "k", "`((loss + loss) / k)`"),
        ("loss", "(2 * k)", "`(loss / (2 * k))`"),
    ],
)
def test_a_loss_is_divided_by_the_number_in_the_condition_of_the_step(loss: str, size: str, said: str) -> None:
    finding = find(WINDOW.replace("LOSS", loss).replace("SIZE", size), "AMP301")
    assert (
        finding.remedy
        == f"divide it before backward (write {said} for `{loss}` in this line), and retune the learning rate"
    )


@pytest.mark.parametrize("head", ["for part in batch.chunk(4)", "for part in batch.split(8)"])
def test_a_window_without_a_condition_is_its_loop(head: str) -> None:
    body = f"""
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    optimizer.zero_grad()
    {head}:
        loss = nn.functional.mse_loss(model(batch.x), batch.y)
        loss.backward()
    optimizer.step()
"""
    finding = find(body, "AMP301")
    assert f"by the number of iterations of `{head}`, and" in finding.remedy
    rows = (HEAD + body).splitlines()
    assert rows[finding.trace[0].site.line - 1].strip() == f"{head}:"
    assert not finding.trace[0].is_event


@pytest.mark.parametrize("outer", ["i >= k", "not i < k"])
def test_of_two_conditions_the_window_is_that_with_the_number(outer: str) -> None:
    body = f"""
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(batches):
    loss = nn.functional.mse_loss(model(x), x)
    loss.backward()
    if {outer}:
        if i % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    finding = find(body, "AMP301")
    assert "(write `(loss / k)` for `loss` in this line)" in finding.remedy
    assert finding.trace[-1].text.endswith("by `i % k == 0`")


@pytest.mark.parametrize("name", ["optimizer", "opt"])
def test_an_optimizer_that_only_the_step_before_names_is_named(name: str) -> None:
    body = f"""
model = nn.Linear(2, 2)
{name} = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    model(batch).sum().backward()
    {name}.step()
"""
    finding = find(body, "AMP215")
    assert finding.message.startswith(f"Gradients of `{name}` are not cleared")
    assert finding.remedy.startswith(f"write `{name}.zero_grad()` after the step")


@pytest.mark.parametrize(
    ("window", "size"),
    [
        ("(i + 1) % 4 == 0", "4"),
        ("(i + 1) % args.k == 0 or last", "args.k"),
        ("i % k == k - 1", "k"),
        ("i % k == 0 and i % j == 0", ""),
        ("count == k", "k"),
        ("self.count >= self.args.k", "self.args.k"),
        ("count == 8", ""),
        ("batch_index == len(loader) - 1", ""),
        ("(i + 1) % some_long_na...", ""),
    ],
)
def test_the_size_of_a_window_is_the_divisor_of_the_remainder_or_the_last_count(window: str, size: str) -> None:
    assert find_window_size(window) == size


@pytest.mark.parametrize(
    ("window", "counter"),
    [("(i + 1) % 4 == 0", "i + 1"), ("step % args.k == 0", "step"), ("i % 4 == 0 or last", ""), ("count == k", "")],
)
def test_the_counter_of_a_window_is_what_is_divided(window: str, counter: str) -> None:
    assert find_counter(window) == counter


@pytest.mark.parametrize(
    ("head", "size"),
    [("for i in range(4)", "4"), ("for _ in range(self.k)", "self.k"), ("for i in range(1, k)", ""), ("while ok", "")],
)
def test_the_size_of_a_loop_is_that_of_its_range(head: str, size: str) -> None:
    assert find_loop_size(head) == size


@pytest.mark.parametrize(
    ("call", "wide"),
    [
        ("torch.einsum('i,j->ij', t, self.freq)", "`torch.einsum('i,j->ij', t.float(), self.freq.float())`"),
        ("einsum('i,j->ij', t + 1, freq[0])", "`einsum('i,j->ij', (t + 1).float(), freq[0].float())`"),
        ("x.mm(y.t())", "`x.float().mm(y.t().float())`"),
        ("a @ b", "`a.float() @ b.float()`"),
        ("t[:, None] * freq", "`t[:, None].float() * freq.float()`"),
        ("torch.matmul(a, b, out=c)", ""),
        ("torch.einsum('i,j->ij', [t, freq])", ""),
        ("torch.addmm(a, b, c)", ""),
        ("torch.outer(some_long_na...", ""),
    ],
)
def test_a_product_is_written_out_with_wide_operands(call: str, wide: str) -> None:
    assert find_wide_call(call) == wide


@pytest.mark.parametrize(
    ("call", "written"),
    [
        ("1 - torch.exp(-delta * s)", "`-torch.expm1(-delta * s)`"),
        ("torch.exp(s) - 1.0", "`torch.expm1(s)`"),
        ("1 - (a + b).exp()", "`-torch.expm1(a + b)`"),
        ("2 - torch.exp(s)", ""),
        ("1 - torch.exp(s, out=t)", ""),
        ("1 - math.exp(s)", ""),
        ("1 - torch.exp(some_long_na...", ""),
    ],
)
def test_an_exponential_less_one_is_written_out(call: str, written: str) -> None:
    assert find_expm1_call(call) == written


def test_a_window_that_leaves_micro_batches_over_is_written_out() -> None:
    body = """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):
    loss = nn.functional.mse_loss(model(x), y) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert find(body, "AMP304").remedy.startswith("write `(i + 1) % 4 == 0 or i + 1 == 10` in its place")


@pytest.mark.parametrize(
    ("text", "whole"),
    [("a", "a"), ("a.b[0](c)", "a.b[0](c)"), ("a - b", "(a - b)"), ("-a", "(-a)"), ("a + b...", "a + b...")],
)
def test_an_operation_gets_parentheses(text: str, whole: str) -> None:
    assert parenthesize(text) == whole


def test_an_attribute_of_an_operation_gets_parentheses_in_code_only() -> None:
    template = "`{call}` is wide. {output} is low: pass `{output}.float()`, not `{output}`"
    assert fill_message(template, {"call": "f", "output": "a * b"})[0] == (
        "`f` is wide. a * b is low: pass `(a * b).float()`, not `a * b`"
    )


# Where the dtype comes from.


@pytest.mark.parametrize(
    ("before", "given", "shown"),
    [
        ("    kind = torch.bfloat16\n    other = torch.float32\n", "reduce_dtype=kind", "kind = torch.bfloat16"),
        ("    first = kind = torch.bfloat16\n", "param_dtype=kind, reduce_dtype=kind", "first = kind = torch.bfloat16"),
    ],
)
def test_the_dtype_of_a_reduction_shows_where_it_is_chosen(before: str, given: str, shown: str) -> None:
    body = f"""
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision


def wrap(model):
{before}    policy = MixedPrecision({given})
    return FullyShardedDataParallel(model, mixed_precision=policy)
"""
    finding = find(body, "AMP508")
    rows = (HEAD + body).splitlines()
    assert rows[finding.trace[0].site.line - 1].strip() == shown


def test_a_dtype_that_is_a_parameter_shows_the_call() -> None:
    body = """
def main():
    model = nn.Linear(8, 2)
    cast_it(model, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def cast_it(model, weight_dtype):
    model.to("cuda", dtype=weight_dtype)


main()
"""
    finding = find(body, "AMP501")
    rows = (HEAD + body).splitlines()
    shown = [(step.text, rows[step.site.line - 1].strip()) for step in finding.trace]
    assert ("the call decides `weight_dtype`", "cast_it(model, torch.bfloat16)") in shown


@pytest.mark.parametrize("name", ["scores", "attn"])
def test_a_fill_shows_where_the_filled_tensor_is_computed(name: str) -> None:
    body = f"""
class Attention(nn.Module):
    def forward(self, q, k, mask):
        {name} = torch.bmm(q, k)
        print(mask)
        {name} = {name}.view(2, 2)
        {name} = {name}.masked_fill(mask, -1e9)
        return {name}


def train(model, x):
    with torch.autocast("cuda"):
        model(x)
"""
    finding = find(body, "AMP506")
    rows = (HEAD + body).splitlines()
    assert [rows[step.site.line - 1].strip() for step in finding.trace] == [f"{name} = torch.bmm(q, k)"]


def test_a_loss_module_shows_its_construction() -> None:
    body = """
model = nn.Linear(8, 2)
criterion = nn.BCELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches:
    with torch.autocast("cuda"):
        loss = criterion(model(x).sigmoid(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    finding = find(body, "AMP504")
    rows = (HEAD + body).splitlines()
    assert rows[finding.trace[0].site.line - 1].strip() == "criterion = nn.BCELoss()"
    assert "`model(x).sigmoid().float()`" in finding.remedy


# Conditions.


def test_a_condition_stands_at_a_location_of_the_path() -> None:
    event = Site("a.py", 30, function="norm")
    first, other_branch = Site("a.py", 5, function="f"), Site("a.py", 20, function="norm")
    elsewhere = Site("a.py", 9, function="g")
    predicate = Predicate(0, "wrapped is None", first)
    predicate.site_guards = ((),)
    predicate.add_site(other_branch, ((7, True),))
    predicate.add_site(elsewhere, ())
    assert predicate.find_site(event, {7: True}) is other_branch
    assert predicate.find_site(event, {}) is other_branch
    assert predicate.find_site(event, {7: False}) is first
    # Guards of an earlier iteration say nothing.
    alone = Predicate(1, "late", other_branch)
    alone.site_guards = (((7, True),),)
    assert alone.find_site(event, {7: False}) is other_branch


@pytest.mark.parametrize("flag", ["limit", "settings"])
def test_a_condition_on_the_class_of_a_value_is_quoted_as_a_whole(flag: str) -> None:
    body = f"""
def train(model, batches, {flag}, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x in batches:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if not isinstance({flag}, bool):
            scaler.unscale_(optimizer)
        print(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    assert find(body, "AMP202").condition == f"when `isinstance({flag}, bool)` is true"


def test_a_cache_keeps_the_places_of_a_remedy() -> None:
    found = find(SAVED_ELSEWHERE, "AMP401")
    written = json.loads(json.dumps(encode_results([AnalysisResult("<string>", [found], {})], str)))
    (read,) = decode_results("<string>", written, str)[0].findings
    assert read.as_dict() == found.as_dict()
    assert [step["text"] for step in read.as_dict()["edit_places"]] == [step.text for step in found.edit_places]


@pytest.mark.parametrize("model", ["model", "wrapped"])
def test_a_loss_of_a_low_model_shows_what_makes_the_model_low(model: str) -> None:
    body = f"""
{model} = nn.Linear(8, 2).cuda()
{model} = {model}.half()
criterion = nn.CrossEntropyLoss()
for x, y in batches:
    out = {model}(x)
    loss = criterion(out, y)
    print(loss)
"""
    finding = find(body, "AMP507")
    rows = (HEAD + body).splitlines()
    shown = [(step.text, rows[step.site.line - 1]) for step in finding.trace]
    assert ("the model is stored in float16", f"{model} = {model}.half()") in shown
    assert finding.remedy == "pass `out.float()` in its place, at twice the memory of the logits"
