"""Rewriting of programs as syntax trees whose nodes keep their lines, and mapping of findings to these lines."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable
from typing import Any

import torch
from marks import MISTAKES, Places, shown

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.project.syntax import walk
from pytest_amp_check.static.settings import Settings

#: Settings with all rules, because the marks include rules that are off by default.
EVERYTHING = Settings(select=MISTAKES)

#: Attribute names that torch gives a meaning on any object.
TORCH_NAMES = frozenset(
    name
    for cls in (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, torch.amp.GradScaler, torch.device)
    for name in dir(cls)
) | {"forward", "setup_context", "main", "self", "cls", "args", "kwargs"}
NEW = -1
#: Contexts and operators, of which Python has one for all trees. Before Python 3.11 the recorder's library for columns
#: leaves attributes in them that lead to a whole tree.
SHARED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)


# From a tree back to a text, and from the findings back to the original lines.


def written(tree: ast.Module) -> tuple[str, dict[tuple[int, int], int]]:
    """Return a program as text, and the original line of each (line, column) at which a node begins."""
    ast.fix_missing_locations(tree)
    text = ast.unparse(tree) + "\n"
    origin: dict[tuple[int, int], int] = {}
    rows = text.split("\n")
    for old, new in zip(walk(tree), walk(ast.parse(text)), strict=True):
        assert type(old) is type(new), f"{ast.dump(old)} was written as {ast.dump(new)}"
        line = getattr(old, "lineno", NEW)
        if line != NEW and isinstance(new, (ast.expr, ast.stmt)):
            row, column = rows[new.lineno - 1], new.col_offset
            origin[new.lineno, column if row.isascii() else len(row.encode()[:column].decode())] = line
    return text, origin


def found_in(tree: ast.Module) -> tuple[Places, str]:
    """Return the findings in a rewritten program by original line, and a text that shows findings and program."""
    text, origin = written(tree)
    findings = _read(text)
    found: Places = set()
    for finding in findings:
        spot = (finding.line, finding.site.column)
        found.add((origin.get(spot, NEW), finding.code))
    return found, f"{shown(findings)}\n{text}"


@functools.cache
def _read(text: str) -> list[Finding]:
    """Return the findings in a text. The cache helps because many rewritings do not change a program."""
    return check_source(text, "rewritten.py", EVERYTHING)


def copied(tree: Any, twins: dict[int, Any] | None = None) -> Any:
    """Copy a tree deeply. ``twins`` maps the id of each node and list to its copy. ``copy.deepcopy`` is slow."""
    made: Any
    if isinstance(tree, SHARED):
        return tree
    if isinstance(tree, ast.AST):
        # Python 3.13 warns about a node that is created without its fields.
        made = type(tree).__new__(type(tree))
        fields = made.__dict__
        for name, value in tree.__dict__.items():
            fields[name] = copied(value, twins) if isinstance(value, (ast.AST, list)) else value
    elif isinstance(tree, list):
        made = [copied(part, twins) for part in tree]
    else:
        return tree
    if twins is not None:
        twins[id(tree)] = made
    return made


def fresh(code: str) -> list[ast.stmt]:
    """Parse statements that the original program does not have: their lines are ``NEW``."""
    body = ast.parse(code).body
    for statement in body:
        for node in walk(statement):
            if hasattr(node, "lineno"):
                node.lineno = NEW
    return body


def like(node: ast.AST, code: str, **parts: ast.expr) -> list[ast.stmt]:
    """Parse statements with the location of ``node``. Names are replaced by ``parts``."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return parts.get(name.id, name)

    body = ast.parse(code).body
    for statement in body:
        for inner in walk(statement):
            if hasattr(inner, "lineno"):
                ast.copy_location(inner, node)
    return [Fill().visit(statement) for statement in body]


def prologue(tree: ast.Module) -> int:
    """Return the number of statements that must stay on top: the docstring and imports."""
    count = 0
    for statement in tree.body:
        doc = count == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not doc and not isinstance(statement, (ast.Import, ast.ImportFrom)):
            break
        count += 1
    return count


class Blocks(ast.NodeTransformer):
    """Rewriter of each list of statements inside functions and at module level."""

    def __init__(self, rewrite: Callable[[list[ast.stmt]], list[ast.stmt]]) -> None:
        self.rewrite = rewrite

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and not isinstance(node, ast.ClassDef):
                setattr(node, field, self.rewrite(block))
        return node


# Names.


class Names(ast.NodeVisitor):
    """Visitor that collects the names a program defines: variables, parameters, functions, classes and attributes."""

    def __init__(self, tree: ast.Module) -> None:
        self.variables: set[str] = set()
        self.attributes: set[str] = set()
        self.callables: set[str] = set()
        self.fixed: set[str] = set()
        self.visit(tree)
        imported = {
            (alias.asname or alias.name).split(".")[0]
            for node in walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        # Attributes of modules keep their names: torch.save, if the program has a method of that name.
        self.fixed |= {
            node.attr
            for node in walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
        }
        self.variables -= imported | set(dir(builtins)) | self.fixed
        self.attributes -= self.fixed

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.variables.add(node.id)

    def visit_arg(self, node: ast.arg) -> None:
        self.variables.add(node.arg)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self":
            self.attributes.add(node.attr)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.variables.add(node.name)
        self.callables.add(node.name)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.variables.add(node.name)
        self.callables.add(node.name)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                self.attributes.add(statement.name)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            self.attributes.update(target.id for target in targets if isinstance(target, ast.Name))
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.variables.add(node.name)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # The string may name an attribute or a keyword: getattr(self, "scaler"), TrainState(**{"lr": 1}).
        if isinstance(node.value, str) and node.value.isidentifier():
            self.fixed.add(node.value)


class Rename(ast.NodeTransformer):
    def __init__(self, tree: ast.Module, prefix: str) -> None:
        names = Names(tree)
        self.callables = names.callables
        # The prefix test_ marks a function as a test.
        fixed = TORCH_NAMES | {n for n in names.variables | names.attributes if n.startswith(("__", "test_"))}
        self.variables = names.variables - fixed
        # A variable with the name of a torch attribute can be renamed freely.
        self.variables |= names.variables & (TORCH_NAMES - names.attributes - names.callables)
        self.attributes = names.attributes - fixed
        every = sorted(self.variables | self.attributes)
        self.mapping = {name: f"{prefix}{i}" for i, name in enumerate(every)}

    def variable(self, name: str) -> str:
        return self.mapping[name] if name in self.variables else name

    def attribute(self, name: str) -> str:
        return self.mapping[name] if name in self.attributes else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.variable(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.variable(node.arg)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self.attribute(node.attr)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.name = self.variable(node.name)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                back = {new: old for old, new in self.mapping.items()}
                statement.name = self.attribute(back.get(statement.name, statement.name))
        node.name = self.variable(node.name)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if node.name:
            node.name = self.variable(node.name)
        return self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> ast.AST:
        node.names = [self.variable(name) for name in node.names]
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [self.variable(name) for name in node.names]
        return node

    def visit_MatchAs(self, node: ast.MatchAs) -> ast.AST:
        if node.name:
            node.name = self.variable(node.name)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        callee = node.func
        if isinstance(callee, ast.Name) and callee.id == "partial" and node.args:
            callee = node.args[0]
        name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
        # A called variable may hold a function of the program.
        own = name in self.callables or (isinstance(callee, ast.Name) and name in self.variables)
        self.generic_visit(node)
        for keyword in node.keywords:
            if own and keyword.arg:
                keyword.arg = self.variable(keyword.arg)
        return node


def rename(tree: ast.Module, prefix: str = "v") -> ast.Module:
    """Rename every name of the program to a meaningless name: v0, v1, v2."""
    renamed = Rename(tree, prefix).visit(tree)
    assert isinstance(renamed, ast.Module)
    return renamed


def misname(tree: ast.Module) -> ast.Module:
    """Give misleading names: the scaler loses its name, and the counter and the model get scaler-like names."""
    renamer = Rename(tree, "v")
    words = ["scaler", "optimizer", "model", "loss", "grad", "amp", "scale", "scheduler", "unscaled", "half"]
    pool = [f"{word}_{n}" for n in range(1 + len(renamer.mapping) // len(words)) for word in words]
    renamer.mapping = dict(zip(renamer.mapping, pool, strict=False))
    misnamed = renamer.visit(tree)
    assert isinstance(misnamed, ast.Module)
    return misnamed
