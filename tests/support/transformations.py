"""Rewritings of programs that preserve behavior."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from itertools import count

import torch
from rewriting import Blocks, fresh, like, misname, prologue, rename

from pytest_amp_check.static.project.syntax import walk

# Imports.


class Imports(ast.NodeTransformer):
    """Rewriter that changes the spelling of every name imported from torch."""

    def __init__(self, tree: ast.Module, style: str) -> None:
        self.style = style
        self.known: dict[str, str] = {}
        self.lines: list[str] = []
        self.aliases: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] in ("torch", "contextlib"):
                        self.known[alias.asname or alias.name.split(".")[0]] = (
                            alias.name if alias.asname else alias.name.split(".")[0]
                        )
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "contextlib"):
                for alias in node.names:
                    self.known[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def path(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Attribute):
            head = self.path(node.value)
            return None if head is None else f"{head}.{node.attr}"
        return self.known.get(node.id) if isinstance(node, ast.Name) else None

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        path = self.path(node)
        return self.generic_visit(node) if path is None else self.spelled(path, node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        path = self.path(node)
        return node if path is None else self.spelled(path, node)

    def bound(self, line: str, name: str) -> str:
        if line not in self.lines:
            self.lines.append(line)
        return name

    def spelled(self, path: str, node: ast.expr) -> ast.expr:
        head, modules, rest = self.split(path)
        deepest = ".".join(modules)
        if self.style == "in full":
            name = self.bound(f"import {deepest}", path)
        elif self.style == "one letter":
            name = self.bound(f"import {head} as {head[0]}_", ".".join([f"{head[0]}_", *path.split(".")[1:]]))
        elif not rest or len(path.split(".")) == 1:
            name = self.bound(f"import {head} as {head}_x", ".".join([f"{head}_x", *path.split(".")[1:]]))
        elif self.style == "module alias":
            alias = self.aliases.setdefault(deepest, f"M{len(self.aliases)}")
            name = self.bound(f"import {deepest} as {alias}", ".".join([alias, *rest]))
        elif self.style == "from parent" and len(modules) > 1:
            alias = self.aliases.setdefault(deepest, f"P{len(self.aliases)}")
            line = f"from {'.'.join(modules[:-1])} import {modules[-1]} as {alias}"
            name = self.bound(line, ".".join([alias, *rest]))
        else:
            alias = self.aliases.setdefault(f"{deepest}.{rest[0]}", f"n{len(self.aliases)}")
            name = self.bound(f"from {deepest} import {rest[0]} as {alias}", ".".join([alias, *rest[1:]]))
        made = ast.parse(name, mode="eval").body
        for inner in walk(made):
            if hasattr(inner, "lineno"):
                ast.copy_location(inner, node)
        return made

    @staticmethod
    def split(path: str) -> tuple[str, list[str], list[str]]:
        """Split a dotted path into the package, its importable modules, and the names inside."""
        words = path.split(".")
        modules = [words[0]]
        if words[0] == "torch":
            value: object = torch
            for word in words[1:]:
                value = getattr(value, word, None)
                if type(value).__name__ != "module":
                    break
                modules.append(word)
        return words[0], modules, words[len(modules) :]


def spell_imports(style: str) -> Callable[[ast.Module], ast.Module]:
    def rewrite(tree: ast.Module) -> ast.Module:
        names = {node.id for node in walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names |= {node.arg for node in walk(tree) if isinstance(node, ast.arg)}
        speller = Imports(tree, style)
        if names & set(speller.known):
            # Some variable hides an import.
            return tree
        body: list[ast.stmt] = []
        at = None
        for statement in tree.body:
            package = ""
            if isinstance(statement, ast.Import):
                package = statement.names[0].name.split(".")[0]
            elif isinstance(statement, ast.ImportFrom):
                package = (statement.module or "").split(".")[0]
            if package in ("torch", "contextlib"):
                at = len(body) if at is None else at
                if isinstance(statement, ast.Import) and len(statement.names) > 1:
                    rest = [a for a in statement.names if a.name.split(".")[0] not in ("torch", "contextlib")]
                    if rest:
                        statement.names = rest
                        body.append(statement)
                continue
            visited = speller.visit(statement)
            assert isinstance(visited, ast.stmt)
            body.append(visited)
        tree.body = body
        if at is not None:
            tree.body[at:at] = fresh("\n".join(speller.lines))
        return tree

    return rewrite


# Position of the code.


def bound_at_top(body: Sequence[ast.stmt]) -> set[str]:
    return {
        node.id
        for statement in body
        for node in walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


class Enclose(ast.NodeTransformer):
    """Rewriter that makes globals of the module local names of the enclosing function."""

    def __init__(self, bound: set[str]) -> None:
        self.bound = bound

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        if set(node.names) <= self.bound:
            return ast.copy_location(ast.Nonlocal(names=node.names), node)
        return node


def in_a_function(tree: ast.Module) -> ast.Module:
    """Move the whole script into a function that is called at the end."""
    top = prologue(tree)
    body = tree.body[top:]
    enclosed = [Enclose(bound_at_top(body)).visit(statement) for statement in body]
    (shell,) = fresh("def whole_script():\n    pass")
    assert isinstance(shell, ast.FunctionDef)
    shell.body = enclosed or shell.body
    tree.body = [*tree.body[:top], shell, *fresh("whole_script()")]
    return tree


def in_a_method(tree: ast.Module) -> ast.Module:
    """Move the whole script into a method of a class that is used at the end."""
    top = prologue(tree)
    body = tree.body[top:]
    enclosed = [Enclose(bound_at_top(body)).visit(statement) for statement in body]
    (shell,) = fresh("class WholeScript:\n    def run(self):\n        pass")
    assert isinstance(shell, ast.ClassDef)
    method = shell.body[0]
    assert isinstance(method, ast.FunctionDef)
    method.body = enclosed or method.body
    tree.body = [*tree.body[:top], shell, *fresh("WholeScript().run()")]
    return tree


class ToAttributes(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        receiver = ast.copy_location(ast.Name(id="this", ctx=ast.Load()), node)
        return ast.copy_location(ast.Attribute(value=receiver, attr=node.id, ctx=node.ctx), node)


def in_attributes(tree: ast.Module) -> ast.Module:
    """Store the variables of the script in attributes of an object."""
    top = prologue(tree)
    body = tree.body[top:]
    assigned = {
        target.id
        for statement in body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    other: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.arg):
            other.add(node.arg)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            other.update(node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            other.add(node.name)
            if isinstance(node, ast.ClassDef):
                other.update(bound_at_top(node.body))
            else:
                other.update(bound_at_top(node.body))
        elif isinstance(node, (ast.NamedExpr, ast.comprehension, ast.For)):
            target = node.target
            other.update(x.id for x in walk(target) if isinstance(x, ast.Name))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            other.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            other.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    mover = ToAttributes(assigned - other)
    moved = [mover.visit(statement) for statement in body]
    (shell,) = fresh("class Holder:\n    def run(this):\n        pass")
    assert isinstance(shell, ast.ClassDef)
    method = shell.body[0]
    assert isinstance(method, ast.FunctionDef)
    method.body = [Enclose(bound_at_top(body)).visit(statement) for statement in moved] or method.body
    tree.body = [*tree.body[:top], shell, *fresh("Holder().run()")]
    return tree


def after_unrelated_code(tree: ast.Module) -> ast.Module:
    """Insert unrelated functions and classes before and after the script."""
    before = fresh(
        """
def unrelated_sum(values):
    total = 0
    for value in values:
        if value > 0:
            total += value
    return total

class UnrelatedQueue:
    def __init__(self):
        self.items = []

    def step(self, item=None):
        self.items.append(item)
        return self

    def update(self):
        self.items.clear()
"""
    )
    after = fresh("def unrelated_last(queue):\n    queue.step(1)\n    queue.update()\n    return unrelated_sum([1, 2])")
    top = prologue(tree)
    tree.body = [*tree.body[:top], *before, *tree.body[top:], *after]
    return tree


# Statements without effect.

NOISE = (
    "print('step')",
    "pass",
    "noise = 0",
    "noise = 1 + 2 * 3",
    "noise_list = [n * n for n in range(3)]",
    "import logging\nlogging.getLogger('train').info('here')",
    "import time\nnoise_time = time.time()",
    "assert True",
    "if len('abc') > 2:\n    print('long')\nelse:\n    print('short')",
    "for noise_index in range(2):\n    print(noise_index)",
    "try:\n    float('1')\nexcept ValueError:\n    print('no number')",
    "def noise_function():\n    return None\nnoise_function()",
    "noise_lambda = lambda n: n + 1\nnoise_lambda(1)",
    "while len('a') > 1:\n    break",
    "noise_text = f'{1 + 1} steps'",
    "import contextlib\nwith contextlib.suppress(KeyError):\n    print('quiet')",
)


def noisy(tree: ast.Module, pick: Callable[[], int | None]) -> ast.Module:
    """Insert statements without effect between the others. ``pick`` returns an index of ``NOISE``, or None to skip."""

    def rewrite(block: list[ast.stmt]) -> list[ast.stmt]:
        body: list[ast.stmt] = []
        for n, statement in enumerate(block):
            doc = n == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            choice = None if doc or future else pick()
            if choice is not None:
                body.extend(fresh(NOISE[choice % len(NOISE)]))
            body.append(statement)
        return body

    changed = Blocks(rewrite).visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


def with_noise(tree: ast.Module) -> ast.Module:
    """Insert the statements of ``NOISE`` in rotation, at two of three positions."""
    places = count()
    return noisy(tree, lambda: None if (n := next(places)) % 3 == 0 else n)


def printing_everywhere(tree: ast.Module) -> ast.Module:
    """Insert a call between all statements."""
    return noisy(tree, lambda: 0)


# The same step in other syntax.


def annotated(tree: ast.Module) -> ast.Module:
    """Annotate parameters, results and variables."""
    declared = {name for node in walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}

    class Annotate(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            self.generic_visit(node)
            for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                if arg.arg not in ("self", "cls") and arg.annotation is None:
                    arg.annotation = ast.copy_location(ast.Constant(value="Any"), node)
            if node.returns is None:
                node.returns = ast.copy_location(ast.Constant(value="Any"), node)
            return node

        def visit_Assign(self, node: ast.Assign) -> ast.AST:
            target = node.targets[0]
            if len(node.targets) > 1 or not isinstance(target, (ast.Name, ast.Attribute)):
                return node
            if isinstance(target, ast.Name) and target.id in declared:
                return node
            hint = ast.copy_location(ast.Constant(value="Any"), node)
            simple = int(isinstance(target, ast.Name))
            made = ast.AnnAssign(target=target, annotation=hint, value=node.value, simple=simple)
            return ast.copy_location(made, node)

    changed = Annotate().visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


class Statements(ast.NodeTransformer):
    """Rewriter that replaces statements by equivalent statements. ``number`` makes new names unique."""

    def __init__(self, replace: Callable[[ast.stmt, int], list[ast.stmt] | None]) -> None:
        self.replace = replace
        self.number = 0

    def replaced(self, node: ast.stmt) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        self.number += 1
        made = self.replace(node, self.number)
        return node if made is None else made

    visit_Expr = visit_With = visit_If = visit_While = visit_Assign = replaced  # noqa: N815


def rewriting(replace: Callable[[ast.stmt, int], list[ast.stmt] | None]) -> Callable[[ast.Module], ast.Module]:
    def rewrite(tree: ast.Module) -> ast.Module:
        changed = Statements(replace).visit(tree)
        assert isinstance(changed, ast.Module)
        return changed

    rewrite.__doc__ = replace.__doc__
    return rewrite


def method_call(node: ast.stmt) -> tuple[ast.Call, ast.expr, str] | None:
    """Return call, receiver and method name of a statement that is one method call, else None."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        return node.value, node.value.func.value, node.value.func.attr
    return None


def backward_in_two(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Name the scaled loss before the call of backward."""
    call = method_call(node)
    if call is None or call[2] != "backward" or not isinstance(call[1], ast.Call):
        return None
    made = like(node, f"scaled_{number} = VALUE\nscaled_{number}.backward()", VALUE=call[1])
    inner = made[1]
    assert isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call)
    inner.value.args, inner.value.keywords = call[0].args, call[0].keywords
    return made


def backward_by_autograd(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Write ``loss.backward()`` as ``torch.autograd.backward(loss)``."""
    call = method_call(node)
    if call is None or call[2] != "backward" or call[0].args or call[0].keywords:
        return None
    return like(node, "import torch.autograd as engine\nengine.backward(VALUE)", VALUE=call[1])


def bound_methods(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Assign methods of the protocol to a name before the call."""
    call = method_call(node)
    if call is None or call[2] not in ("step", "update", "unscale_", "zero_grad", "backward"):
        return None
    made = like(node, f"bound_{number} = VALUE\nbound_{number}()", VALUE=call[0].func)
    last = made[1]
    assert isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)
    last.value.args, last.value.keywords = call[0].args, call[0].keywords
    return made


def by_keyword(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Pass the optimizer by keyword."""
    call = method_call(node)
    if call is None or call[2] not in ("step", "unscale_") or len(call[0].args) != 1 or call[0].keywords:
        return None
    call[0].keywords = [ast.copy_location(ast.keyword(arg="optimizer", value=call[0].args[0]), node)]
    call[0].args = []
    return [node]


def through_functions(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Move each call of the protocol into a function."""
    call = method_call(node)
    if call is None or call[2] not in ("step", "update", "unscale_", "zero_grad") or call[0].keywords:
        return None
    if len(call[0].args) > 1 or not isinstance(call[1], (ast.Name, ast.Attribute)):
        return None
    if call[0].args:
        code = f"def helper_{number}(one, two):\n    one.{call[2]}(two)\nhelper_{number}(ONE, TWO)"
        return like(node, code, ONE=call[1], TWO=call[0].args[0])
    return like(node, f"def helper_{number}(one):\n    one.{call[2]}()\nhelper_{number}(ONE)", ONE=call[1])


def through_lambdas(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Move each call of the protocol into a lambda that is called immediately."""
    call = method_call(node)
    if call is None or call[2] not in ("step", "update", "unscale_") or call[0].keywords or len(call[0].args) > 1:
        return None
    if call[0].args:
        return like(node, f"(lambda one, two: one.{call[2]}(two))(ONE, TWO)", ONE=call[1], TWO=call[0].args[0])
    return like(node, f"(lambda one: one.{call[2]}())(ONE)", ONE=call[1])


def contexts_in_names(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Assign a context manager to a name before the ``with`` statement."""
    if not isinstance(node, ast.With) or len(node.items) != 1 or not isinstance(node.items[0].context_expr, ast.Call):
        return None
    context = node.items[0].context_expr
    made = like(context, f"context_{number} = VALUE", VALUE=context)
    name = ast.copy_location(ast.Name(id=f"context_{number}", ctx=ast.Load()), context)
    node.items[0].context_expr = name
    return [*made, node]


def contexts_on_a_stack(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Enter a context manager on an ExitStack."""
    if not isinstance(node, ast.With) or len(node.items) != 1 or node.items[0].optional_vars is not None:
        return None
    context = node.items[0].context_expr
    code = f"import contextlib\nwith contextlib.ExitStack() as stack_{number}:\n    stack_{number}.enter_context(VALUE)"
    made = like(context, code, VALUE=context)
    block = made[1]
    assert isinstance(block, ast.With)
    block.body.extend(node.body)
    return made


def parameters_in_a_list(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Assign the clipped parameters to a name as a list."""
    call = method_call(node)
    if call is None or not call[2].startswith("clip_grad") or not call[0].args:
        return None
    made = like(node, f"parameters_{number} = list(VALUE)", VALUE=call[0].args[0])
    call[0].args[0] = ast.copy_location(ast.Name(id=f"parameters_{number}", ctx=ast.Load()), node)
    return [*made, node]


def swapped_branches(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Negate the condition of an ``if`` and swap the branches."""
    if not isinstance(node, ast.If):
        return None
    node.test = ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=node.test), node.test)
    filler = ast.copy_location(ast.Pass(), node)
    node.body, node.orelse = node.orelse or [filler], node.body
    return [node]


def named_tests(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Assign the condition of an ``if`` to a name before the ``if``."""
    if not isinstance(node, ast.If) or any(isinstance(x, ast.NamedExpr) for x in walk(node.test)):
        return None
    made = like(node.test, f"test_{number} = VALUE", VALUE=node.test)
    node.test = ast.copy_location(ast.Name(id=f"test_{number}", ctx=ast.Load()), node.test)
    return [*made, node]


def endless_while(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Write ``while test:`` as ``while True:`` with a break."""
    if not isinstance(node, ast.While) or node.orelse:
        return None
    leave = like(node.test, "if not TEST:\n    break", TEST=node.test)
    node.body = [*leave, *node.body]
    node.test = ast.copy_location(ast.Constant(value=True), node)
    return [node]


def tried(tree: ast.Module) -> ast.Module:
    """Wrap the bodies of loops and functions in try/finally."""

    class Try(ast.NodeTransformer):
        def around(self, node: ast.For | ast.FunctionDef) -> ast.AST:
            self.generic_visit(node)
            doc = ast.get_docstring(node) is not None if isinstance(node, ast.FunctionDef) else False
            head, body = (node.body[:1], node.body[1:]) if doc else ([], node.body)
            if body:
                (made,) = fresh("try:\n    pass\nfinally:\n    print('done')")
                assert isinstance(made, ast.Try)
                made.body = body
                node.body = [*head, made]
            return node

        visit_For = visit_FunctionDef = around  # noqa: N815

    changed = Try().visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


TRANSFORMATIONS: dict[str, Callable[[ast.Module], ast.Module]] = {
    "written again": lambda tree: tree,
    "renamed": rename,
    "misnamed": misname,
    "imports in full": spell_imports("in full"),
    "imports in one letter": spell_imports("one letter"),
    "imports by module": spell_imports("module alias"),
    "imports from parents": spell_imports("from parent"),
    "imports by name": spell_imports("by name"),
    "in a function": in_a_function,
    "in a method": in_a_method,
    "in attributes": in_attributes,
    "after unrelated code": after_unrelated_code,
    "printing everywhere": printing_everywhere,
    "with noise": with_noise,
    "annotated": annotated,
    "backward in two": rewriting(backward_in_two),
    "backward by autograd": rewriting(backward_by_autograd),
    "bound methods": rewriting(bound_methods),
    "by keyword": rewriting(by_keyword),
    "through functions": rewriting(through_functions),
    "through lambdas": rewriting(through_lambdas),
    "contexts in names": rewriting(contexts_in_names),
    "contexts on a stack": rewriting(contexts_on_a_stack),
    "parameters in a list": rewriting(parameters_in_a_list),
    "swapped branches": rewriting(swapped_branches),
    "named tests": rewriting(named_tests),
    "endless while": rewriting(endless_while),
    "tried": tried,
}
