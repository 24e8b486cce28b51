"""Unanalyzed calls (blind spots): protocol calls in a text that no path of any file reached or understood."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from ..protocol.event_graph import Program
from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.finding import Finding
from ..protocol.findings_builder import make_finding
from ..protocol.sites import Site
from ..protocol.source_text import SourceText, access_text
from .interpreter.visited_calls import Span, span_of
from .project.module import Module
from .project.relevance import may_train

NOT_REACHED, NOT_KNOWN, JOINED = "call:not-reached", "call:not-known", "call:joined"
UNFOLLOWED = "call:not-followed"
#: Methods of a scaler.
OF_SCALER = frozenset({"scale", "unscale_", "step", "update"})


class UnanalyzedCall(NamedTuple):
    """Protocol call in the text of a file. ``is_save`` marks a save, for which reaching the call is enough."""

    site: Site
    call_text: str
    is_save: bool


def collect_calls(module: Module) -> list[UnanalyzedCall]:
    """Return the protocol calls in a file, by the source text alone.

    A save in a file without any part of a training is no checkpoint of a training.
    """
    functions = {id(node): name for name, node in _named_functions(module)}
    spots = _calls_below(module, module.tree, "<module>", functions)
    return [spot for spot in spots if not spot.is_save or may_train(module)]


def _named_functions(module: Module) -> Iterator[tuple[str, ast.AST]]:
    for function in module.functions.values():
        yield function.qualified_name, function.node


def _calls_below(
    module: Module, node: ast.AST, function_name: str, functions: Mapping[int, str]
) -> Iterator[UnanalyzedCall]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            spot = _protocol_call(module, child, function_name)
            if spot is not None:
                yield spot
        yield from _calls_below(module, child, functions.get(id(child), function_name), functions)


def _protocol_call(module: Module, call: ast.Call, function_name: str) -> UnanalyzedCall | None:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else access_text(func)
    receiver = access_text(func.value) if isinstance(func, ast.Attribute) else ""
    if not (name == "save" and receiver == "torch") and not _is_protocol_call(name, receiver, call):
        return None
    site = Site(
        module.path,
        call.lineno,
        module.character_column(call.lineno, call.col_offset),
        call.end_lineno,
        module.character_column(call.end_lineno or call.lineno, call.end_col_offset or 0),
        function_name,
    )
    return UnanalyzedCall(site, f"{SourceText(func)}(...)", is_save=name == "save")


def _is_protocol_call(name: str, receiver: str, call: ast.Call) -> bool:
    last = receiver.rpartition(".")[2].lower()
    if name in OF_SCALER and last.endswith("scaler"):
        return True
    if name == "step":
        return not call.args and last.startswith("opt")
    return name in ("backward", "zero_grad") or name.startswith("clip_grad_")


def unanalyzed_findings(calls: Iterable[UnanalyzedCall], visited_calls: Mapping[Span, bool]) -> Iterator[Finding]:
    """Yield a finding for each call that no analysis covered."""
    for spot in calls:
        is_analyzed = visited_calls.get(span_of(spot.site))
        if is_analyzed or (is_analyzed is not None and spot.is_save):
            continue
        label = NOT_REACHED if is_analyzed is None else NOT_KNOWN
        yield make_finding(label, spot.site, [], {"call": spot.call_text}, ())


def find_joined_functions(program: Program) -> list[Site]:
    """Return the functions of a checked program whose states were joined, because they have too many paths."""
    joined = [graph for graph in program.graphs if graph.was_widened]
    # The line of a class stands for a method that the class inherits.
    return [
        Site(graph.entry_point[0], abs(graph.entry_point[1]) or 1, function=graph.name or "<module>")
        for graph in joined
    ]


def joined_findings(sites: Iterable[Site]) -> Iterator[Finding]:
    """Yield a finding for each function whose states were joined."""
    for site in {(each.path, each.line): each for each in sites}.values():
        yield make_finding(JOINED, site, [], {"function": site.function}, ())


def unfollowed_findings(calls: Iterable[tuple[Site, str]]) -> Iterator[Finding]:
    """Yield a finding for each call of a function that a limit kept from being analyzed with its caller."""
    for site, call_text in calls:
        yield make_finding(UNFOLLOWED, site, [], {"call": call_text}, ())
