"""Findings about products of coordinates that an autocast region of the project rounds to low precision."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from ..protocol import events as e
from ..protocol.event_graph import Program
from ..protocol.finding import Finding
from ..protocol.findings_builder import check_event
from ..protocol.severities import INFO
from ..protocol.sites import Site, is_test_file
from ..protocol.source_text import SourceText
from .product_flow import ARRAY_PACKAGES, ProductFlow, ProductUse
from .project.import_reach import is_near_region
from .project.module import Function, Module
from .project.project import Project
from .project.region_entry import SETUP_METHODS, collect_region_users, enters_autocast, walk_regions
from .project.region_users import is_used_in_region
from .project.syntax import tail_name
from .sources.patterns import product_lines

#: Attributes of tensors that arrays of NumPy lack.
_TENSOR_METHODS = frozenset(("mT", "unsqueeze", "permute", "bmm", "cuda", "detach"))


def find_coordinate_products(module: Module, project: Project, known: Iterable[Finding]) -> list[Finding]:
    """Return the findings about products of data, in code that a region may be around, whose digits a use needs."""
    if is_test_file(module.path):
        return []
    lines = product_lines(module.text.encode())
    candidates = [each for each in module.functions.values() if _may_multiply_tensors(each, lines)]
    found_first = {function: ProductFlow(module, function).find_uses() for function in candidates}
    uses = [
        (function, use)
        for function, found in found_first.items()
        if found
        for use in _find_uses_by_callers(module, function)
    ]
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
                finding.condition = "if the code runs in an autocast region"
                found.setdefault(finding.site.line, finding)
    return list(found.values())


def _find_uses_by_callers(module: Module, function: Function) -> list[ProductUse]:
    """Return the uses in a function to which no caller in the file gives the output of a layer."""
    layers: set[str] = set()
    parameters = [each.arg for each in function.parameters() if each.arg not in ("self", "cls")]
    for caller in module.functions.values():
        if caller is not function and function.name in {tail_name(call.func) for call in caller.find_nodes(ast.Call)}:
            flow = ProductFlow(module, caller)
            flow.find_uses()
            for place in flow.layer_arguments.get(function.name, ()):
                if isinstance(place, str):
                    layers.add(place)
                elif place < len(parameters):
                    layers.add(parameters[place])
    return ProductFlow(module, function, layers).find_uses()


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
    users = {user.name: user for user in collect_region_users(module.tree)}
    inside: set[Function] = set()
    for function in functions:
        if function.name in named and function.name not in callers:
            continue  # All calls are in code that disables autocast.
        reached, todo = {function}, [function]
        while todo:
            current = todo.pop()
            for caller in callers.get(current.name, set()) - reached:
                reached.add(caller)
                todo.append(caller)
        used = {each for each in reached if each.cls is None or not _runs_before_training(each, users)}
        names = {each.name if each.cls is None else each.cls.name for each in used}
        own = [users[name] for name in names if name in users]
        if any(map(_enters_region, used)) or is_used_in_region(project, module.path, names, own):
            inside.add(function)
    return inside


def _enters_region(function: Function) -> bool:
    return function.cls is None and enters_autocast(function.node)


def _runs_before_training(method: Function, users: Collection[str]) -> bool:
    """Return True for a method of a data set, and for a method that prepares its object."""
    return method.cls is None or method.cls.name not in users or method.name in SETUP_METHODS


def _site_of(module: Module, function: Function, node: ast.expr) -> Site:
    line, end_line = node.lineno, node.end_lineno or node.lineno
    column, end_column = node.col_offset, node.end_col_offset or node.col_offset
    if not module.is_ascii:
        column, end_column = module.character_column(line, column), module.character_column(end_line, end_column)
    return Site(module.path, line, column, end_line, end_column, function.qualified_name)
