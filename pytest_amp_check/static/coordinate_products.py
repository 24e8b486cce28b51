"""Findings about products of coordinates that an autocast region of the project rounds to low precision."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from ..protocol import events as e
from ..protocol.event_graph import Program
from ..protocol.finding import Finding
from ..protocol.findings_builder import check_event
from ..protocol.severities import INFO
from ..protocol.sites import Site, is_test_file
from ..protocol.source_text import SourceText
from .product_flow import ARRAY_PACKAGES, ProductFlow, ProductUse, find_layer_functions
from .project.import_reach import is_near_region
from .project.module import Function, Module
from .project.project import Project
from .project.region_entry import SETUP_METHODS, collect_region_users, enters_autocast, walk_regions
from .project.region_users import is_used_in_region
from .project.syntax import tail_name
from .sources.patterns.fragile_math import product_lines

#: Attributes of tensors that arrays of NumPy lack.
_TENSOR_METHODS = frozenset(("mT", "unsqueeze", "permute", "bmm", "cuda", "detach"))


def find_coordinate_products(module: Module, project: Project, known: Iterable[Finding]) -> list[Finding]:
    """Return the findings about products of data, in code that a region may be around, whose digits a use needs."""
    if is_test_file(module.path):
        return []
    lines = product_lines(module.text.encode())
    candidates = [each for each in module.functions.values() if _may_multiply_tensors(each, lines)]
    if not candidates:
        return []
    layer_functions = find_layer_functions(module)
    found_first = [each for each in candidates if ProductFlow(each, layer_functions).find_uses()]
    uses = list(_find_uses_by_callers(module, found_first, layer_functions))
    if not uses:
        return []
    if not (project.assumed_dtype or is_near_region(project, module.path, module.tree)):
        return []
    inside = _find_functions_in_region(module, project, {function for function, _ in uses})
    uses = [(function, use) for function, use in uses if function in inside]
    reported = {(finding.site.line, finding.code) for finding in known if finding.site.path == module.path}
    found: dict[int, Finding] = {}
    program = Program()
    for function, (product, use) in uses:
        how = "chain" if use is product else "product"
        event = e.LowPositions(_site_of(module, function, product), how=how)
        event.dtype, event.guessed = "half", True
        event.names = {"call": SourceText(product), "use": SourceText(use)}
        for finding in check_event(event, program):
            if (finding.site.line, finding.code) not in reported:
                finding.certain, finding.severity = False, INFO
                called = f"`{function.name}` is called" if function.name else "this runs"
                finding.condition = f"if {called} in a `torch.autocast` region"
                found.setdefault(finding.site.line, finding)
    return list(found.values())


def _find_uses_by_callers(
    module: Module, functions: list[Function], layer_functions: Collection[Function]
) -> Iterator[tuple[Function, ProductUse]]:
    """Yield the uses in functions to which no caller in the file gives the output of a layer."""
    called = {function.name for function in functions}
    #: Name of a function -> the arguments that callers give the output of a layer.
    layer_arguments: dict[str, set[int | str]] = {}
    for caller in module.functions.values():
        names = {tail_name(call.func) for call in caller.find_nodes(ast.Call)} - {caller.name}
        if not called.isdisjoint(names):
            flow = ProductFlow(caller, layer_functions)
            flow.find_uses()
            for name in called & names & flow.layer_arguments.keys():
                layer_arguments.setdefault(name, set()).update(flow.layer_arguments[name])
    for function in functions:
        parameters = [each.arg for each in function.parameters() if each.arg not in ("self", "cls")]
        layers = {
            place if isinstance(place, str) else parameters[place]
            for place in layer_arguments.get(function.name, ())
            if isinstance(place, str) or place < len(parameters)
        }
        for use in ProductFlow(function, layer_functions, layers).find_uses():
            yield function, use


def _may_multiply_tensors(function: Function, lines: list[int]) -> bool:
    """Return True if a function holds one of the lines, and computes with tensors."""
    node = function.node
    if isinstance(node, ast.Lambda) or not any(node.lineno <= line <= (node.end_lineno or 0) for line in lines):
        return False
    packages = {name: imported.module.partition(".")[0] for name, imported in function.module.imports.items()}
    used = {packages.get(part.id) for part in function.nodes if isinstance(part, ast.Name)}
    if "torch" in used or (function.cls is not None and used.isdisjoint(ARRAY_PACKAGES)):
        return True
    return not _TENSOR_METHODS.isdisjoint(function.attributes_used())


def _find_functions_in_region(module: Module, project: Project, functions: set[Function]) -> set[Function]:
    """Return the functions that a forward, or code in a region, may call."""
    callers: dict[str, set[Function]] = {}
    for other in module.functions.values():
        for name in set(map(tail_name, walk_regions(other.node))):
            callers.setdefault(name, set()).add(other)
    named = {tail_name(call.func) for other in module.functions.values() for call in other.find_nodes(ast.Call)}
    # Otherwise all calls are in code that disables autocast.
    called = {each for each in functions if each.name not in named or each.name in callers}
    callees: dict[Function, list[Function]] = {}
    todo, reached = list(called), set(called)
    while todo:
        current = todo.pop()
        for caller in callers.get(current.name, ()):
            callees.setdefault(caller, []).append(current)
            if caller not in reached:
                reached.add(caller)
                todo.append(caller)
    users = {user.name: user for user in collect_region_users(module.tree)}
    used_names: dict[str, bool] = {}

    def is_used(function: Function) -> bool:
        name = function.name if function.cls is None else function.cls.name
        if name not in used_names:
            own = [users[name]] if name in users else []
            used_names[name] = is_used_in_region(project, module.path, {name}, own)
        return used_names[name]

    todo = [
        each for each in reached if not _runs_before_training(each, users) and (_enters_region(each) or is_used(each))
    ]
    inside = set(todo)
    while todo:
        for callee in callees.get(todo.pop(), ()):
            if callee not in inside:
                inside.add(callee)
                todo.append(callee)
    return inside & called


def _enters_region(function: Function) -> bool:
    return function.cls is None and enters_autocast(function.node)


def _runs_before_training(method: Function, users: Collection[str]) -> bool:
    """Return True for a method of a data set, and for a method that prepares its object."""
    return method.cls is not None and (method.cls.name not in users or method.name in SETUP_METHODS)


def _site_of(module: Module, function: Function, node: ast.expr) -> Site:
    line, end_line = node.lineno, node.end_lineno or node.lineno
    column, end_column = node.col_offset, node.end_col_offset or node.col_offset
    if not module.is_ascii:
        column, end_column = module.character_column(line, column), module.character_column(end_line, end_column)
    return Site(module.path, line, column, end_line, end_column, function.qualified_name)
