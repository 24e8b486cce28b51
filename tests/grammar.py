"""Training programs from a grammar of AMP events: what is right, with edits that may make it wrong.

A program is a list of statements in the order of one iteration. It is edited (dropped, doubled, swapped, put under a
condition), put into a shape (a script, functions, a class; windows of micro-batches), and written as source. Every
program ends in a second or raises what torch raises.
"""

from __future__ import annotations

import re
from textwrap import indent

from hypothesis import assume
from hypothesis import strategies as st

SETUP = """\
import io

import torch
from torch import nn

torch.manual_seed(0)
"""
#: Conditions that hold in some iterations only, and of which the source does not tell in which.
FLAGS = ("odd", "late")
#: Conditions that are constants.
CONSTANTS = {"CLIPS": True, "LOGS": False}
#: More than two, so that two iterations in a row may both lie inside a window.
K = 3


class Cycle:
    """What trains one set of parameters: names, and the statements of one iteration in their places."""

    def __init__(self, model: str, optimizer: str, scaler: str, loss: str, value: str) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.loss = loss
        self.value = value


#: A statement, which may hold several lines, and the part of the iteration that it belongs to.
Statement = tuple[str, str]
FORWARD, BACKWARD, FINISH = "forward", "backward", "finish"


def _forward(draw: st.DrawFn, cycle: Cycle, *, divided: bool) -> str:
    value = f"{cycle.value} / {K}" if divided else cycle.value
    place = draw(st.sampled_from(["in", "in", "in", "in", "outside", "none", "bf16"]))
    if place == "none":
        return f"{cycle.loss} = {value}"
    if place == "outside":
        output = cycle.value.partition("(")[2].rpartition(", y)")[0]
        if cycle.value.startswith("nn.functional") and output:
            inner = f'with torch.autocast("cpu", dtype=torch.float16):\n    output = {output}\n'
            return inner + f"{cycle.loss} = " + value.replace(output, "output.float()")
    dtype = "bfloat16" if place == "bf16" else "float16"
    return f'with torch.autocast("cpu", dtype=torch.{dtype}):\n    {cycle.loss} = {value}'


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
    """What stands between backward and the next iteration."""
    model, optimizer, scaler = cycle.model, cycle.optimizer, cycle.scaler
    clip = draw(
        st.sampled_from(
            [
                "",
                f"torch.nn.utils.clip_grad_norm_({model}.parameters(), 1.0)",
                f"nn.utils.clip_grad_value_({model}.parameters(), 1.0)",
                f"norm = nn.utils.get_total_norm([p.grad for p in {model}.parameters()])",
                f"for p in {model}.parameters():\n    p.grad.add_(p.detach(), alpha=1e-3)",
                f"for p in {model}.parameters():\n    p.grad.clamp_(-1.0, 1.0)",
                f"for p in {model}.parameters():\n    p.grad.div_({scaler}.get_scale())",
            ]
        )
    )
    unscale = f"{scaler}.unscale_({optimizer})" if clip and draw(st.integers(0, 3)) else ""
    step = draw(st.sampled_from([f"{scaler}.step({optimizer})"] * 7 + [f"{optimizer}.step()"]))
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
    """One edit: a statement is dropped, doubled, moved to its neighbour's place or put under a condition."""
    kind = draw(st.sampled_from(["drop", "double", "swap", "flag", "constant", "twin"]))
    at = draw(st.integers(0, len(body) - 1))
    text, part = body[at]
    # That an optimizer is never stepped is no rule's matter.
    stays = part == FORWARD or ".step(" in text
    if kind == "drop" and not stays:
        return body[:at] + body[at + 1 :]
    # Two divisions by the scale are one mistake at two places.
    if kind == "double" and part != BACKWARD and "div_(" not in text:
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
    """What is built before the loop, and the cycles of an iteration."""
    optimizer = draw(st.sampled_from(["SGD", "AdamW"]))
    kind = draw(st.sampled_from(["one", "one", "one", "separate", "gan", "two scalers"]))
    # Twelve skips in a row do not make it one, by which nothing is divided.
    scale = draw(st.sampled_from(["2.0**14", "2.0**16"]))
    scaler = f'scaler = torch.amp.GradScaler("cpu", init_scale={scale})\n'
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
    """The statements of one iteration; of several cycles one after the other, or with one update at the end."""
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
    """An iteration of which what follows backward stands under the condition that ends a window."""
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


def _in_functions(text: str, draw: st.DrawFn, names: list[str]) -> tuple[str, str]:
    """Some lines of a body moved to a function: the function, and what is left of the body."""
    blocks = re.split(r"\n(?! )", text)
    first = draw(st.integers(0, len(blocks) - 1))
    last = draw(st.integers(first, len(blocks) - 1))
    moved = "\n".join(blocks[first : last + 1])
    after = "\n".join(blocks[last + 1 :])
    back = ["loss"] if re.search(r"^ *loss = ", moved, re.MULTILINE) and _names(after, ["loss"]) else []
    given = _names(moved, [*names, "x", "y", "i", *FLAGS])
    before = "\n".join(blocks[:first])
    if re.search(r"\bloss\b", moved) and re.search(r"^ *loss = ", before, re.MULTILINE):
        given.append("loss")
    arguments = ", ".join(given)
    ending = f"\n    return {', '.join(back)}" if back else ""
    function = f"def work({arguments}):\n{indent(moved, '    ')}{ending}\n\n\n"
    call = f"{', '.join(back)} = work({arguments})" if back else f"work({arguments})"
    return function, "\n".join(part for part in (before, call, after) if part)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The source of a program."""
    setup, cycles = _cycles(draw)
    shape = draw(st.sampled_from(["plain", "plain", "modulo"]))
    divided = shape != "plain" and bool(draw(st.integers(0, 3)))
    body = _iteration(draw, cycles, divided=divided or shape != "plain")
    if shape != "plain" and not divided:
        body = [(text.replace(f" / {K}", ""), part) for text, part in body]
    for _ in range(draw(st.integers(0, 2))):
        body = _edit(draw, body)
    spoilt = draw(st.integers(0, 4)) == 0
    save = draw(st.sampled_from(["", "", "save", "save all"]))
    names = [name for name in ("model", "other", "optimizer", "second", "scaler", "scaler2") if f"{name} = " in setup]

    boundary = "(i + 1) % K == 0"
    text = "\n".join(line for line, _ in body) if shape == "plain" else _windowed(draw, body, boundary)
    # A run leaves alone what is read from gradients in a function that asks for the scale.
    assume(not ("get_total_norm" in text and "get_scale" in text))
    flags = "".join(f"{flag} = y[{n}].item() > 0\n" for n, flag in enumerate(FLAGS) if _names(text, [flag]))
    functions = ""
    if draw(st.booleans()) and text:
        functions, text = _in_functions(text, draw, names)
    loop = f"for i, (x, y) in enumerate(batches):\n{indent(flags + text, '    ')}\n"
    ending = ""
    if save:
        states = {"model": "model", "optimizer": "optimizer"}
        if save == "save all":
            states.update({name: name for name in names if name.startswith("scaler")})
        entries = ", ".join(f'"{key}": {name}.state_dict()' for key, name in states.items())
        ending = f"torch.save({{{entries}}}, io.BytesIO())\n"
    constants = "".join(f"{name} = {value}\n" for name, value in CONSTANTS.items() if name in functions + loop)
    constants += f"K = {K}\n" if re.search(r"\bK\b", functions + loop) else ""
    factor = " * (1e30 if i == 3 else 1.0)" if spoilt else ""
    data = (
        "signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).repeat(3, 4).unsqueeze(-1)\n"
        f"batches = [(torch.randn(8, 4), signs[i] * torch.rand(8, 1){factor}) for i in range(12)]\n"
    )
    if draw(st.booleans()):
        given = ", ".join([*names, "batches"])
        main = f"def train({given}):\n{indent(loop + ending, '    ')}\n\n{setup}{data}train({given})\n"
    else:
        main = setup + data + loop + ending
    return f"{SETUP}\n{constants}\n{functions}{main}"
