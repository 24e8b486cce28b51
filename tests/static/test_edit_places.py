"""Help that can be typed: names that are valid at the edit, and locations of what the edited function does not show."""

from __future__ import annotations

import json

import pytest

from pytest_amp_check import check_source
from pytest_amp_check.protocol.event_graph import Predicate
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.message_templates import fill_message
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.protocol.source_text import find_window_size, parenthesize
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
    assert f"call `self.{scaler}.unscale_(self.{optimizer})` before" in finding.remedy
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
    assert finding.remedy == "call `grad_scaler.unscale_(opt)` before it"
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


def test_a_scaler_that_the_saving_function_does_not_have_is_located() -> None:
    finding = find(SAVED_ELSEWHERE, "AMP401")
    assert '`"scaler": scaler.state_dict()`' in finding.remedy
    assert list_places(SAVED_ELSEWHERE, finding) == [
        ("the optimizer's state is loaded", 'optimizer.load_state_dict(held["optimizer"])'),
        ("pass `scaler`, which is constructed", 'scaler = torch.amp.GradScaler("cuda")'),
    ]


def test_a_scaler_that_the_saving_function_has_is_not_located() -> None:
    saving = '    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)\n'
    body = SAVED_ELSEWHERE.replace(f"def save(optimizer, path):\n{saving}", "").replace(
        "    save(optimizer, path)\n", saving
    )
    finding = find(body, "AMP401")
    assert [text for text, _ in list_places(body, finding)] == ["the optimizer's state is loaded"]


def test_a_scaler_of_the_module_is_visible_in_its_functions() -> None:
    body = SAVED_ELSEWHERE.replace('    scaler = torch.amp.GradScaler("cuda")\n', "").replace(
        "\ndef save(", '\nscaler = torch.amp.GradScaler("cuda")\n\n\ndef save('
    )
    finding = find(body, "AMP401")
    assert [text for text, _ in list_places(body, finding)] == ["the optimizer's state is loaded"]


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
    assert list_places(body, finding) == [("the scaler steps the optimizer", "scaler.step(optimizer)")]
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
    finding = find(IN_REGION, "AMP103")
    assert list_places(IN_REGION, finding) == [("the region calls this code", "go_back(model(x).mean())")]
    body = IN_REGION.replace("go_back(model(x).mean())", "model(x).mean().backward()")
    assert find(body, "AMP103").edit_places == ()


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
        ("loss", "4", "`loss / 4`"),
        ("loss", "config.k", "`loss / config.k`"),
        ("loss + loss", "k", "`(loss + loss) / k`"),
        ("loss", "(2 * k)", "`loss / (2 * k)`"),
    ],
)
def test_a_loss_is_divided_by_the_number_in_the_condition_of_the_step(loss: str, size: str, said: str) -> None:
    finding = find(WINDOW.replace("LOSS", loss).replace("SIZE", size), "AMP301")
    assert finding.remedy == f"divide it before backward, as in {said}, and retune the learning rate"


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
    assert f"by the number of backward passes in `{head}`, and" in finding.remedy
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
    assert "as in `loss / k`" in finding.remedy
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
    assert f"call `{name}.zero_grad()`" in finding.remedy


@pytest.mark.parametrize(
    ("window", "size"),
    [
        ("(i + 1) % 4 == 0", "4"),
        ("(i + 1) % args.k == 0 or last", "args.k"),
        ("i % k == k - 1", "k"),
        ("i % k == 0 and i % j == 0", ""),
        ("count == k", ""),
        ("(i + 1) % some_long_na...", ""),
    ],
)
def test_the_size_of_a_window_is_the_divisor_of_the_remainder(window: str, size: str) -> None:
    assert find_window_size(window) == size


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
    assert finding.remedy == "pass `out.float()`, at twice the memory of the logits"
