"""Runs of consecutive statements that can become functions, with the names that they read and set."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from landmarks import FUNCTIONS, autocast_of, body_of, inside, is_scaler, last, regions, scaler_call, spots_of

from pytest_amp_check.static.project.syntax import children, walk

JUMPS = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete)
Function = ast.FunctionDef
#: Nodes that prevent moving a statement into a function.
FIXED = (*JUMPS, Function, ast.ClassDef, ast.Import, ast.ImportFrom, ast.NamedExpr)


# Names that a run of statements needs, and names that it sets.


class Needs(ast.NodeVisitor):
    """Visitor that collects the names that statements read before setting, and the names that statements set."""

    def __init__(self, statements: Sequence[ast.stmt]) -> None:
        self.read: set[str] = set()
        self.stored: set[str] = set()
        #: Names set on every path.
        self.sure: set[str] = set()
        self.hidden: list[set[str]] = []
        for statement in statements:
            self.visit(statement)

    def visit_Name(self, node: ast.Name) -> None:
        if any(node.id in names for names in self.hidden):
            return
        if isinstance(node.ctx, ast.Load):
            if node.id not in self.sure:
                self.read.add(node.id)
        else:
            self.stored.add(node.id)
            self.sure.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self.sure:
            self.read.add(node.target.id)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        self.visit(node.target)

    def branch(self, *blocks: Sequence[ast.AST]) -> None:
        before, ends = set(self.sure), []
        for block in blocks:
            self.sure = set(before)
            for node in block:
                self.visit(node)
            ends.append(self.sure)
        self.sure = set.intersection(*ends)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.branch(node.body, node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self.branch(node.body, [])
        self.branch(node.orelse, [])

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self.branch([node.target, *node.body], [])
        self.branch(node.orelse, [])

    def visit_Try(self, node: ast.Try) -> None:
        self.branch(node.body, [], *(handler.body for handler in node.handlers))
        for statement in node.finalbody:
            self.visit(statement)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        names = {
            part.id for generator in node.generators for part in walk(generator.target) if isinstance(part, ast.Name)
        }
        self.visit(node.generators[0].iter)
        self.hidden.append(names)
        self.generic_visit(node)
        self.hidden.pop()

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = comprehension  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.hidden.append({arg.arg for arg in walk(node.args) if isinstance(arg, ast.arg)})
        self.visit(node.body)
        self.hidden.pop()


def own_names(scope: ast.AST) -> set[str]:
    """Return the variables of a function: parameters and assigned names."""
    names = {node.id for node in inside(*body_of(scope)) if isinstance(node, ast.Name) and not is_load(node)}
    names |= {node.name for node in body_of(scope) if isinstance(node, (Function, ast.ClassDef))}
    if isinstance(scope, FUNCTIONS):
        names |= {arg.arg for arg in walk(scope.args) if isinstance(arg, ast.arg)}
    return names


def is_load(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def imports_of(tree: ast.Module) -> list[ast.stmt]:
    return [statement for statement in tree.body if isinstance(statement, (ast.Import, ast.ImportFrom))]


def imported(tree: ast.Module) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for statement in imports_of(tree)
        if isinstance(statement, (ast.Import, ast.ImportFrom))
        for alias in statement.names
    }


def scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Yield the functions of a module and the module, each with the enclosing functions."""

    def below(node: ast.AST, around: list[ast.AST]) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
        for child in children(node):
            if isinstance(child, Function):
                yield child, around
                yield from below(child, [*around, child])
            elif not isinstance(child, FUNCTIONS):
                yield from below(child, around)

    yield from below(tree, [])
    yield tree, []


# Runs of statements that can become a function.


class Run(NamedTuple):
    """Consecutive statements, with the names of arguments and of return values."""

    scope: ast.AST
    block: list[ast.stmt]
    start: int
    end: int
    given: list[str]
    returned: list[str]

    @property
    def statements(self) -> list[ast.stmt]:
        return self.block[self.start : self.end]


def run_of(
    tree: ast.Module, scope: ast.AST, around: list[ast.AST], block: list[ast.stmt], start: int, end: int
) -> Run | None:
    """Return the statements as a run, or None if they cannot be moved into a function."""
    statements = block[start:end]
    for node in inside(*statements):
        own = isinstance(node, (ast.Break, ast.Continue)) and in_own_loop(statements, node)
        if isinstance(node, FIXED) and not own:
            return None
    names = own_names(scope)
    for outer in around:
        names |= own_names(outer)
    if scope is tree:
        names -= {node.name for node in tree.body if isinstance(node, (Function, ast.ClassDef))}
    declared = {name for node in walk(scope) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    names -= imported(tree)
    needs = Needs(statements)
    if needs.stored & declared:
        return None
    moved = set(map(id, walk(ast.Module(body=list(statements), type_ignores=[]))))
    inner = of_comprehensions(scope)
    elsewhere = {
        node.id
        for node in walk(scope)
        if isinstance(node, ast.Name) and is_load(node) and id(node) not in moved | inner
    }
    # In a loop, the next iteration reads the values that this iteration leaves.
    loop_state = needs.read & needs.stored
    returned = needs.stored & (elsewhere | loop_state)
    before = {
        node.id
        for node in walk(scope)
        if isinstance(node, ast.Name) and not is_load(node) and early(node, statements) and id(node) not in inner
    }
    if isinstance(scope, FUNCTIONS):
        before |= {arg.arg for arg in walk(scope.args) if isinstance(arg, ast.arg)}
    unsure = returned - needs.sure
    if not unsure <= before:
        return None
    given = (needs.read & names) | unsure
    return Run(scope, block, start, end, sorted(given), sorted(returned))


def of_comprehensions(scope: ast.AST) -> set[int]:
    """Return the ids of the name nodes that are variables of comprehensions."""
    found: set[int] = set()
    for node in walk(scope):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            targets = [part for generator in node.generators for part in walk(generator.target)]
            own = {part.id for part in targets if isinstance(part, ast.Name)}
            found |= {id(part) for part in walk(node) if isinstance(part, ast.Name) and part.id in own}
    return found


def early(node: ast.Name, statements: Sequence[ast.stmt]) -> bool:
    first = min((s.lineno for s in statements if s.lineno > 0), default=0)
    return 0 < node.lineno < first


def in_own_loop(statements: Sequence[ast.stmt], jump: ast.AST) -> bool:
    return any(
        isinstance(node, (ast.For, ast.While)) and any(part is jump for part in inside(*node.body))
        for node in inside(*statements)
    )


def steps(node: ast.AST) -> bool:
    return any(
        (scaler_call(part, "step"))
        or (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr == "step"
            and "opt" in last(part.func.value)
        )
        for part in inside(node)
    )


def backs(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "backward"
        for part in inside(node)
    )


def ends_step(statement: ast.stmt) -> bool:
    """Return True if a statement still belongs to the preceding step."""
    return isinstance(statement, ast.Expr) and any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in ("update", "zero_grad")
        and (is_scaler(part.func.value) or part.func.attr == "zero_grad")
        for part in inside(statement.value)
    )


def blocks_of(scope: ast.AST) -> list[list[ast.stmt]]:
    """Return the blocks of a function, inner blocks before outer blocks."""
    found: list[list[ast.stmt]] = []
    for spot in spots_of(scope):
        if not any(block is spot.block for block in found):
            found.append(spot.block)
    return found[::-1]


def step_runs(tree: ast.Module, scope: ast.AST, around: list[ast.AST]) -> Iterator[Run]:
    """Yield runs from backward to update and zero_grad."""
    for block in blocks_of(scope):
        start = next(
            (i for i, statement in enumerate(block) if backs(statement) and not compound(statement, steps)), None
        )
        if start is None:
            continue
        end = next((i + 1 for i in range(start, len(block)) if steps(block[i])), None)
        if end is None:
            continue
        while end < len(block) and ends_step(block[end]):
            end += 1
        run = run_of(tree, scope, around, block, start, end)
        if run is not None:
            yield run


def compound(statement: ast.stmt, what: Callable[[ast.AST], bool]) -> bool:
    """Return True if a statement contains the whole step in a block of its own."""
    return what(statement) and backs(statement)


def end_runs(tree: ast.Module, scope: ast.AST, around: list[ast.AST]) -> Iterator[Run]:
    """Yield runs of the statements after backward: from unscale_ and clip to update."""
    for block in blocks_of(scope):
        end = next((i + 1 for i, statement in enumerate(block) if steps(statement) and not backs(statement)), None)
        if end is None:
            continue
        start = end - 1
        while start and not backs(block[start - 1]) and touches_gradients(block[start - 1]):
            start -= 1
        while end < len(block) and ends_step(block[end]):
            end += 1
        run = run_of(tree, scope, around, block, start, end)
        if run is not None and end - start > 1:
            yield run


def touches_gradients(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call) and (last(node.func).startswith("clip_grad") or scaler_call(node, "unscale_"))
        for node in inside(statement)
    )


def loop_body_runs(tree: ast.Module, scope: ast.AST, around: list[ast.AST]) -> Iterator[Run]:
    """Yield the whole body of each loop that steps."""
    for loop in inside(*body_of(scope)):
        if not isinstance(loop, (ast.For, ast.While)) or not steps(loop) or not backs(loop):
            continue
        if any(
            isinstance(node, (ast.For, ast.While)) and node is not loop and steps(node) for node in inside(*loop.body)
        ):
            continue
        run = run_of(tree, scope, around, loop.body, 0, len(loop.body))
        if run is not None:
            yield run


def loss_runs(tree: ast.Module, scope: ast.AST, around: list[ast.AST]) -> Iterator[Run]:
    """Yield each autocast block alone."""
    names = regions(tree)
    for spot in spots_of(scope):
        if autocast_of(spot.statement, names) is not None:
            run = run_of(tree, scope, around, spot.block, spot.at, spot.at + 1)
            if run is not None and run.returned:
                yield run


Runs = Callable[[ast.Module, ast.AST, list[ast.AST]], Iterator[Run]]


def chosen(tree: ast.Module, runs: Runs) -> list[Run]:
    """Return all runs of a kind that do not overlap."""
    taken: list[Run] = []
    used: set[int] = set()
    for scope, around in scopes(tree):
        for run in runs(tree, scope, around):
            nodes = {id(node) for statement in run.statements for node in walk(statement)}
            if not nodes & used:
                used |= nodes
                taken.append(run)
    return taken
