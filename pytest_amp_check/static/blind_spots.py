"""Blind spots: calls of the protocol that a text holds and that no path of any file has reached, or understood."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from ..protocol.events import Site
from ..protocol.finding import Finding
from ..protocol.named import NamedTuple
from ..protocol.report import make_finding
from ..protocol.words import Words, chain
from .interpreter.passed import Span, span_of
from .project.module import Module
from .project.relevance import may_train

NOT_REACHED, NOT_KNOWN = "call:not-reached", "call:not-known"
#: Methods of a scaler.
OF_SCALER = frozenset({"scale", "unscale_", "step", "update"})


class Spot(NamedTuple):
    """A call that the text of a file holds. ``writes`` says that to have come by is all that there is to judge."""

    site: Site
    call: str
    writes: bool


def census(module: Module) -> list[Spot]:
    """The calls of the protocol in a file, by the words of the code alone.

    What a file saves that does no part of a training is no checkpoint of one.
    """
    functions = {id(node): name for name, node in _functions(module)}
    spots = _spots(module, module.tree, "<module>", functions)
    return [spot for spot in spots if not spot.writes or may_train(module)]


def _functions(module: Module) -> Iterator[tuple[str, ast.AST]]:
    for function in module.functions.values():
        yield function.qualified_name, function.node


def _spots(module: Module, node: ast.AST, within: str, functions: Mapping[int, str]) -> Iterator[Spot]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            spot = _spot(module, child, within)
            if spot is not None:
                yield spot
        yield from _spots(module, child, functions.get(id(child), within), functions)


def _spot(module: Module, call: ast.Call, within: str) -> Spot | None:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else chain(func) or ""
    receiver = chain(func.value) or "" if isinstance(func, ast.Attribute) else ""
    if not (name == "save" and receiver == "torch") and not _matters(name, receiver, call):
        return None
    site = Site(
        module.path,
        call.lineno,
        module.column(call.lineno, call.col_offset),
        call.end_lineno,
        module.column(call.end_lineno or call.lineno, call.end_col_offset or 0),
        within,
    )
    return Spot(site, f"{Words(func)}(...)", writes=name == "save")


def _matters(name: str, receiver: str, call: ast.Call) -> bool:
    last = receiver.rpartition(".")[2].lower()
    if name in OF_SCALER and last.endswith("scaler"):
        return True
    if name == "step":
        return not call.args and last.startswith("opt")
    return name in ("backward", "zero_grad") or name.startswith("clip_grad_")


def unjudged(spots: Iterable[Spot], passed: Mapping[Span, bool]) -> Iterator[Finding]:
    """A finding for each call that nothing has judged."""
    for spot in spots:
        judged = passed.get(span_of(spot.site))
        if judged or (judged is not None and spot.writes):
            continue
        label = NOT_REACHED if judged is None else NOT_KNOWN
        yield make_finding(label, spot.site, [], {"call": spot.call}, ())
