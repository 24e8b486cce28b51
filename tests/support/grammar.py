"""Training programs from a grammar of AMP events: correct programs, with edits that may make them wrong.

A program is a list of statements in the order of one iteration. The list is edited (statements dropped, doubled,
swapped, put under a condition), shaped (a script, functions, a class; windows of micro-batches), and written as source.
Every program ends within a second or raises an exception of torch.
"""

from __future__ import annotations

import re
from textwrap import indent

from hypothesis import assume
from hypothesis import strategies as st

SETUP = """\
import contextlib
import io

import torch
from torch import nn

torch.manual_seed(0)
"""
#: Conditions that are true in some iterations only. The source does not show in which.
FLAGS = ("odd", "late")
#: Conditions that are constants.
CONSTANTS = {"CLIPS": True, "LOGS": False}
#: Constants of the setup, each with its possible values.
SETTINGS = {"AMP": ("True", "True", "False"), "DTYPE": ("torch.float16", "torch.float16", "torch.bfloat16")}
#: Micro-batches in a window. More than two, so that two consecutive iterations can both lie inside a window.
K = 3
#: Values of the variable that holds a program's context manager.
CONTEXTS = (
    'torch.autocast("cpu", dtype=torch.float16)',
    'torch.autocast("cpu", dtype=DTYPE)',
    'torch.autocast("cpu", dtype=torch.float16, enabled=AMP)',
    'torch.autocast("cpu", dtype=torch.float16) if AMP else contextlib.nullcontext()',
)


class Cycle:
    """Names for the training of one set of parameters, and the statements of one iteration."""

    def __init__(self, model: str, optimizer: str, scaler: str, loss: str, value: str) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.loss = loss
        self.value = value


#: A statement, possibly of several lines, and the part of the iteration that contains the statement.
Statement = tuple[str, str]
FORWARD, BACKWARD, FINISH = "forward", "backward", "finish"


def _forward(draw: st.DrawFn, cycle: Cycle, *, divided: bool) -> str:
    value = f"{cycle.value} / {K}" if divided else cycle.value
    place = draw(st.sampled_from(["in", "in", "in", "in", "outside", "none", "bf16", "ctx", "DTYPE"]))
    if place == "none":
        return f"{cycle.loss} = {value}"
    if place == "outside":
        output = cycle.value.partition("(")[2].rpartition(", y)")[0]
        if cycle.value.startswith("nn.functional") and output:
            inner = f'with torch.autocast("cpu", dtype=torch.float16):\n    output = {output}\n'
            return inner + f"{cycle.loss} = " + value.replace(output, "output.float()")
    if place == "ctx":
        return f"with ctx:\n    {cycle.loss} = {value}"
    dtype = {"bf16": "torch.bfloat16", "DTYPE": "DTYPE"}.get(place, "torch.float16")
    return f'with torch.autocast("cpu", dtype={dtype}):\n    {cycle.loss} = {value}'


def _backward(draw: st.DrawFn, cycle: Cycle) -> str:
    loss, scaler = cycle.loss, cycle.scaler
    return draw(
        st.sampled_from(
            [
                *[f"{scaler}.scale({loss}).backward()"] * 6,
                f"scaled = {scaler}.scale({loss})\nscaled.backward()",
                f"torch.autograd.backward({scaler}.scale({loss}))",
                f"{loss}.backward()",
                f"{scaler}.scale({scaler}.scale({loss})).backward()",
                f"({scaler}.scale({loss}) + 0.1 * {cycle.value}).backward()",
                f"({scaler}.scale({loss}) + 0.1 * {scaler}.scale({cycle.value})).backward()",
                f"{scaler}.scale({loss} + 0.1 * {cycle.value}).backward()",
                f"""\
{_penalty(cycle, divided=False)}
{scaler}.scale({loss} + 0.1 * penalty).backward()""",
                f"""\
{_penalty(cycle, divided=True)}
{scaler}.scale({loss} + 0.1 * penalty).backward()""",
            ]
        )
    )


def _penalty(cycle: Cycle, *, divided: bool) -> str:
    inverse = f" / {cycle.scaler}.get_scale()" if divided else ""
    return f"""\
grads = torch.autograd.grad({cycle.scaler}.scale({cycle.loss}), list({cycle.model}.parameters()), create_graph=True)
penalty = sum((g{inverse}).square().sum() for g in grads)"""


def _finish(draw: st.DrawFn, cycle: Cycle) -> list[str]:
    """Draw the statements between backward and the next iteration."""
    model, optimizer, scaler = cycle.model, cycle.optimizer, cycle.scaler
    clip = draw(
        st.sampled_from(
            [
                "",
                f"torch.nn.utils.clip_grad_norm_({model}.parameters(), 1.0)",
                f"norm = torch.nn.utils.clip_grad_norm_({model}.parameters(), 1.0)",
                f"nn.utils.clip_grad_norm_({model}.parameters(), 1.0, error_if_nonfinite=True)",
                f"nn.utils.clip_grad_value_({model}.parameters(), 1.0)",
                f"norm = nn.utils.get_total_norm([p.grad for p in {model}.parameters()])",
                f"for p in {model}.parameters():\n    p.grad.add_(p.detach(), alpha=1e-3)",
                f"for p in {model}.parameters():\n    p.grad.clamp_(-1.0, 1.0)",
                f"for p in {model}.parameters():\n    p.grad.div_({scaler}.get_scale())",
            ]
        )
    )
    unscale = f"{scaler}.unscale_({optimizer})" if clip and draw(st.integers(0, 3)) else ""
    plain = [f"{optimizer}.step()"]
    if clip.startswith("norm"):
        plain.append(f"if torch.isfinite(norm):\n    {optimizer}.step()")
    step = draw(st.sampled_from([f"{scaler}.step({optimizer})"] * 7 + plain))
    return [part for part in (unscale, clip, step, f"{scaler}.update()") if part]


def _zero(draw: st.DrawFn, cycle: Cycle) -> str:
    return draw(
        st.sampled_from(
            [
                *[f"{cycle.optimizer}.zero_grad()"] * 3,
                f"{cycle.optimizer}.zero_grad(set_to_none=False)",
                f"{cycle.model}.zero_grad()",
                f"for p in {cycle.model}.parameters():\n    p.grad = None",
            ]
        )
    )


def _edit(draw: st.DrawFn, body: list[Statement]) -> list[Statement]:
    """Apply one edit: drop or double a statement, swap neighbors, or put a statement under a condition."""
    kind = draw(st.sampled_from(["drop", "double", "swap", "flag", "constant", "twin"]))
    at = draw(st.integers(0, len(body) - 1))
    text, part = body[at]
    # No rule reports an optimizer that is never stepped.
    stays = part == FORWARD or ".step(" in text
    if kind == "drop" and not stays:
        return body[:at] + body[at + 1 :]
    # Two divisions by the scale are one mistake at two locations, and so are two steps of the learning rate.
    if kind == "double" and part != BACKWARD and "div_(" not in text and "scheduler" not in text:
        return [*body[: at + 1], body[at], *body[at + 1 :]]
    if kind == "swap" and at + 1 < len(body):
        other = body[at + 1]
        if not (part == FORWARD and other[1] == BACKWARD):
            return [*body[:at], other, body[at], *body[at + 2 :]]
    if (kind == "flag" and part != FORWARD) or (kind == "constant" and not stays):
        test = draw(st.sampled_from(FLAGS if kind == "flag" else tuple(CONSTANTS)))
        return [*body[:at], (f"if {test}:\n{indent(text, '    ')}", part), *body[at + 1 :]]
    if kind == "twin" and part == FINISH:
        test = draw(st.sampled_from(FLAGS))
        last = draw(st.integers(at, len(body) - 1))
        return [
            *body[:at],
            *((f"if {test}:\n{indent(line, '    ')}", p) for line, p in body[at : last + 1] if p == FINISH),
            *(pair for pair in body[at : last + 1] if pair[1] != FINISH),
            *body[last + 1 :],
        ]
    return body


def _cycles(draw: st.DrawFn) -> tuple[str, list[Cycle]]:
    """Draw the setup before the loop, and the cycles of an iteration."""
    optimizer = draw(st.sampled_from(["SGD", "AdamW"]))
    kind = draw(st.sampled_from(["one", "one", "one", "separate", "gan", "two scalers"]))
    # Twelve skips in a row do not reduce the scale to 1, with which nothing would be divided.
    scale = draw(st.sampled_from(["2.0**14", "2.0**16"]))
    enabled = draw(st.sampled_from([""] * 6 + [", enabled=AMP", ", enabled=False", ", enabled=DTYPE == torch.float16"]))
    scaler = f'scaler = torch.amp.GradScaler("cpu", init_scale={scale}{enabled})\n'
    if kind == "one":
        lines = "model = nn.Linear(4, 1)\n"
        cycles = [Cycle("model", "optimizer", "scaler", "loss", "nn.functional.mse_loss(model(x), y)")]
    elif kind == "gan":
        lines = "model = nn.Linear(4, 4)\nother = nn.Linear(4, 1)\n"
        cycles = [
            Cycle("other", "second", "scaler", "loss", "nn.functional.mse_loss(other(model(x).detach()), y)"),
            Cycle("model", "optimizer", "scaler", "loss", "nn.functional.l1_loss(other(model(x)), y)"),
        ]
    else:
        lines = "model = nn.Linear(4, 1)\nother = nn.Linear(4, 1)\n"
        other = "scaler" if kind == "separate" else "scaler2"
        cycles = [
            Cycle("model", "optimizer", "scaler", "loss", "nn.functional.mse_loss(model(x), y)"),
            Cycle("other", "second", other, "loss", "nn.functional.l1_loss(other(x), y)"),
        ]
        if kind == "two scalers":
            scaler += 'scaler2 = torch.amp.GradScaler("cpu", init_scale=2.0**15)\n'
    for cycle in cycles:
        lines += f"{cycle.optimizer} = torch.optim.{optimizer}({cycle.model}.parameters(), lr=1e-3)\n"
    return lines + scaler, cycles


def _iteration(draw: st.DrawFn, cycles: list[Cycle], *, divided: bool) -> list[Statement]:
    """Draw the statements of one iteration. Several cycles follow one another, or share one update at the end."""
    last_update = len({c.scaler for c in cycles}) == 1 and len(cycles) > 1 and draw(st.booleans())
    body: list[Statement] = []
    for number, cycle in enumerate(cycles):
        finish = _finish(draw, cycle)
        if last_update and number + 1 < len(cycles):
            finish.pop()
        part: list[Statement] = [
            (_forward(draw, cycle, divided=divided), FORWARD),
            (_backward(draw, cycle), BACKWARD),
            *((text, FINISH) for text in finish),
        ]
        zero = (_zero(draw, cycle), FINISH)
        if divided or draw(st.booleans()):
            part.append(zero)
        else:
            part.insert(draw(st.integers(0, 1)), zero)
        body += part
    return body


def _windowed(draw: st.DrawFn, body: list[Statement], boundary: str) -> str:
    """Put the statements after backward under the condition that ends a window."""
    lines: list[str] = []
    held: list[str] = []
    for text, part in body:
        if part == FINISH:
            held.append(text)
            continue
        if held:
            lines.append(f"if {boundary}:\n{indent(chr(10).join(held), '    ')}")
            held = []
        lines.append(text)
    if held:
        early = draw(st.integers(0, len(held))) if not draw(st.integers(0, 3)) else 0
        lines += held[:early]
        if held[early:]:
            lines.append(f"if {boundary}:\n{indent(chr(10).join(held[early:]), '    ')}")
    return "\n".join(lines)


def _names(text: str, names: list[str]) -> list[str]:
    return [name for name in names if re.search(rf"\b{name}\b", text)]


def _in_functions(text: str, draw: st.DrawFn, names: list[str], owner: str = "") -> tuple[str, str]:
    """Move some lines of a body to a function or method. Return the function and the rest of the body."""
    blocks = re.split(r"\n(?! )", text)
    first = draw(st.integers(0, len(blocks) - 1))
    last = draw(st.integers(first, len(blocks) - 1))
    moved = "\n".join(blocks[first : last + 1])
    after = "\n".join(blocks[last + 1 :])
    back = [x for x in LOCALS if re.search(rf"^ *{x} = ", moved, re.MULTILINE) and _names(after, [x])]
    given = _names(moved, [*names, "i", *FLAGS])
    given += [x for x in _names(moved, ["x", "y"]) if " x, y = " not in moved]
    before = "\n".join(blocks[:first])
    given += [x for x in LOCALS if _names(moved, [x]) and re.search(rf"^ *{x} = ", before, re.MULTILINE)]
    arguments = ", ".join(given)
    ending = f"\n    return {', '.join(back)}" if back else ""
    function = f"def work({', '.join(['self', *given] if owner else given)}):\n{indent(moved, '    ')}{ending}\n\n\n"
    call = f"{owner}work({arguments})"
    call = f"{', '.join(back)} = {call}" if back else call
    return function, "\n".join(part for part in (before, call, after) if part)


def _saved(draw: st.DrawFn, names: list[str]) -> tuple[str, str]:
    """Draw the code that writes a checkpoint and the code that reads the checkpoint; each is empty if absent."""
    save = draw(st.sampled_from(["", "", "", "save", "save all", "load", "load all", "load some"]))
    if not save:
        return "", ""
    states = ["model", "optimizer"]
    scalers = [name for name in names if name.startswith("scaler")]
    if save != "save":
        states += scalers
    entries = ", ".join(f'"{name}": {name}.state_dict()' for name in states)
    restored = ["model", "optimizer"] if save == "load some" else states
    loads = "".join(f'{name}.load_state_dict(state["{name}"])\n' for name in restored)
    writing = f"checkpoint.seek(0)\ncheckpoint.truncate()\ntorch.save({{{entries}}}, checkpoint)\n"
    return writing, f"checkpoint.seek(0)\nstate = torch.load(checkpoint)\n{loads}" if save.startswith("load") else ""


def _own(text: str, names: list[str]) -> str:
    """Turn names in a text into attributes of ``self``."""
    return re.sub(rf"(?<![\w.\"])({'|'.join(names)})\b(?!\")", r"self.\1", text)


def _scheduled(draw: st.DrawFn, body: list[Statement]) -> list[Statement]:
    """Add a learning-rate scheduler step to an iteration."""
    kind = draw(st.sampled_from(["each", "scale"]))
    if kind == "each":
        return [*body, ("scheduler.step()", FINISH if draw(st.booleans()) else BACKWARD)]
    made: list[Statement] = []
    for text, part in body:
        if text == "scaler.update()":
            made.append(("before = scaler.get_scale()", FINISH))
        made.append((text, part))
    return [*made, ("if scaler.get_scale() >= before:\n    scheduler.step()", FINISH)]


#: Local variables that later statements of an iteration may use.
LOCALS = ("loss", "norm", "before", "scaled", "grads", "penalty")
#: Names of the objects created before the loop.
BUILT = ("model", "other", "optimizer", "second", "scaler", "scaler2", "ctx", "scheduler")


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Draw the source of a program."""
    setup, cycles = _cycles(draw)
    shape = draw(st.sampled_from(["plain", "plain", "modulo", "inner"]))
    divided = shape != "plain" and bool(draw(st.integers(0, 3)))
    body = _iteration(draw, cycles, divided=divided or shape != "plain")
    if shape != "plain" and not divided:
        body = [(text.replace(f" / {K}", ""), part) for text, part in body]
    if not draw(st.integers(0, 5)):
        setup += f"scheduler = torch.optim.lr_scheduler.StepLR(optimizer, {draw(st.sampled_from([2, 12]))})\n"
        body = _scheduled(draw, body)
    for _ in range(draw(st.integers(0, 2))):
        body = _edit(draw, body)
    overflows = draw(st.integers(0, 4)) == 0

    if shape == "plain":
        text = "\n".join(line for line, _ in body)
    elif shape == "modulo":
        text = _windowed(draw, body, "(i + 1) % K == 0")
    else:
        text = _inner(body)
    if _names(text, ["ctx"]):
        setup += f"ctx = {draw(st.sampled_from(CONTEXTS))}\n"
    names = [name for name in BUILT if f"{name} = " in setup]
    # The recorder ignores gradients that are read in a function that also reads the scale.
    assume(not ("get_total_norm" in text and "get_scale" in text))
    # The analyzer trusts a check of gradients, even if the checked value is left over from an earlier iteration.
    assume(not ("isfinite" in text and re.search(r"^ *if \w+:\n +norm = ", text, re.MULTILINE)))
    writing, reading = _saved(draw, names)
    flags = "".join(f"{flag} = y[{n}].item() > 0\n" for n, flag in enumerate(FLAGS) if _names(text, [flag]))
    if shape == "inner":
        flags = flags.replace("y[", "batch[1][")
    factor = " * (1e30 if i == 3 else 1.0)" if overflows else ""
    setup += "checkpoint = io.BytesIO()\n" if writing else ""
    data = (
        "signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).repeat(3, 4).unsqueeze(-1)\n"
        f"batches = [(torch.randn(8, 4), signs[i] * torch.rand(8, 1){factor}) for i in range({6 if reading else 12})]\n"
    )
    head = "for i, batch in enumerate(batches):" if shape == "inner" else "for i, (x, y) in enumerate(batches):"
    form = draw(st.sampled_from(["script", "function", "class"]))
    moves = bool(text) and draw(st.booleans())
    if form == "class":
        main = _class(draw, setup, names, head, flags, text, writing, reading, data, moves=moves)
    else:
        functions = ""
        if moves:
            functions, text = _in_functions(text, draw, [*names, *(["batch"] if shape == "inner" else [])])
        loop = f"{head}\n{indent(flags + text, '    ')}\n"
        if reading:
            loop = f"for _ in range(2):\n{indent(loop + writing + reading, '    ')}\n"
        ending = "" if reading else writing
        given = [*names, "batches", *(["checkpoint"] if writing else [])]
        if form == "function":
            train = f"def train({', '.join(given)}):\n{indent(loop + ending, '    ')}\n\n"
            main = f"{functions}{train}{setup}{data}train({', '.join(given)})\n"
        else:
            main = functions + setup + data + loop + ending
    constants = "".join(f"{name} = {value}\n" for name, value in CONSTANTS.items() if _names(main, [name]))
    for name, values in SETTINGS.items():
        if _names(main, [name]):
            constants += f"{name} = {draw(st.sampled_from(values))}\n"
    constants += f"K = {K}\n" if _names(main, ["K"]) else ""
    start = SETUP if "contextlib" in main else SETUP.replace("import contextlib\n", "")
    return f"{start}\n{constants}\n{main}"


def _inner(body: list[Statement]) -> str:
    """Return an iteration that loops over the micro-batches of a batch before the finishing statements."""
    first = next(n for n, (_, part) in enumerate(body) if part != FINISH)
    last = next(n for n in range(len(body) - 1, -1, -1) if body[n][1] != FINISH)
    repeated = "\n".join(text for text, part in body[first : last + 1] if part != FINISH)
    held = [text for text, part in body[first : last + 1] if part == FINISH]
    lines = [text for text, _ in body[:first]]
    lines.append(f"for j in range(K):\n    x, y = batch[0][j::K], batch[1][j::K]\n{indent(repeated, '    ')}")
    return "\n".join([*lines, *held, *(text for text, _ in body[last + 1 :])])


def _class(
    draw: st.DrawFn,
    setup: str,
    names: list[str],
    head: str,
    flags: str,
    text: str,
    writing: str,
    reading: str,
    data: str,
    *,
    moves: bool,
) -> str:
    """Return a program that trains in the methods of a class. The class creates or receives the trained objects."""
    text = _own(text, names)
    taken = _names(flags + text, ["batch", "i", "x", "y"])
    methods = ""
    if moves:
        moved, text = _in_functions(text, draw, ["batch"], owner="self.")
        methods = moved.replace("\n\n\n", "\n\n")
    if draw(st.booleans()):
        methods += f"def train_step({', '.join(['self', *taken])}):\n{indent(flags + text, '    ')}\n\n"
        flags, text = "", f"self.train_step({', '.join(taken)})"
    loop = f"{head}\n{indent(flags + text, '    ')}\n"
    methods += f"def train(self, batches):\n{indent(loop, '    ')}\n"
    for name, lines in (("save", writing), ("load", reading)):
        if lines:
            methods += f"def {name}(self, checkpoint):\n{indent(_own(lines, names), '    ')}\n"
    built = setup.replace("checkpoint = io.BytesIO()\n", "")
    if draw(st.booleans()):
        made, start, given = "self", _own(built, names), ""
    else:
        given = ", ".join(names)
        made = f"self, {given}"
        start = "".join(f"self.{name} = {name}\n" for name in names)
    init = f"def __init__({made}):\n{indent(start, '    ')}\n"
    lines = f"class Trainer:\n{indent(init + methods, '    ')}\n\n"
    if given:
        lines += built
    lines += f"{data}trainer = Trainer({given})\n"
    uses = "trainer.train(batches)\n"
    if writing:
        lines += "checkpoint = io.BytesIO()\n"
        uses += "trainer.save(checkpoint)\n"
    if reading:
        uses = f"for _ in range(2):\n{indent(f'{uses}trainer.load(checkpoint)', '    ')}\n"
    return lines + uses
