"""Rewritings that restructure programs as real code does: the same calls in the same order, in helpers, classes, files.

Each variant takes a tree and returns trees by file name, or None if the variant does not apply. Statements keep their
original line numbers.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from landmarks import body_of, inside, is_scaler, last, scaler_call
from rewriting import fresh, like, misname, prologue, rename
from runs import (
    Function,
    Needs,
    Run,
    Runs,
    backs,
    chosen,
    end_runs,
    imported,
    imports_of,
    is_load,
    loop_body_runs,
    loss_runs,
    own_names,
    scopes,
    step_runs,
    steps,
)
from transformations import bound_methods, rewriting, tried

from pytest_amp_check.static.project.syntax import walk

Trees = dict[str, ast.Module]
Variant = Callable[[ast.Module], "Trees | None"]

MAIN = "train.py"
STEPS = "steps.py"


# Forms of a call to a function of the program.


class Replaced(ast.NodeTransformer):
    """Rewriter that replaces names by other expressions."""

    def __init__(self, make: Callable[[ast.Name], ast.expr]) -> None:
        self.make = make

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.make(node)


def renamed_names(statements: list[ast.stmt], names: dict[str, str]) -> list[ast.stmt]:
    for statement in statements:
        for node in walk(statement):
            if isinstance(node, ast.Name):
                node.id = names.get(node.id, node.id)
    return statements


def called_with(run: Run, call: str) -> list[ast.stmt]:
    """Return the call that replaces a run. Its line number is the negated first line of the run."""
    target = f"{', '.join(run.returned)} = " if run.returned else ""
    made = fresh(f"{target}{call}")
    first = run.statements[0].lineno
    for node in walk(made[0]):
        if hasattr(node, "lineno"):
            node.lineno = -abs(first)
    return made


def returning(body: list[ast.stmt], names: Sequence[str]) -> list[ast.stmt]:
    return [*body, *fresh(f"return {', '.join(names)}")] if names else body


def function_of(head: str, body: list[ast.stmt]) -> ast.stmt:
    """Return a definition with a body. The last line of ``head`` is the head of the function that gets the body."""
    final = head.rpartition("\n")[2]
    (made,) = fresh(f"{head}\n{' ' * (len(final) - len(final.lstrip()) + 4)}pass")
    place: ast.AST = made
    while isinstance(body_of(place)[-1], (Function, ast.ClassDef)):
        place = body_of(place)[-1]
    assert isinstance(place, Function)
    place.body = body
    return made


class Made(NamedTuple):
    """A definition, and the statements that call the defined code in place of the run."""

    definition: ast.stmt
    call: list[ast.stmt]


def receivers(run: Run) -> dict[str, str]:
    return {"self": "trainer"} if "self" in run.given else {}


def by_position(run: Run, number: int) -> Made:
    """Make a function with one positional parameter for each name."""
    names = receivers(run)
    body = renamed_names(run.statements, names)
    parameters = ", ".join(names.get(name, name) for name in run.given)
    head = f"def step_{number}({parameters}):"
    return Made(
        function_of(head, returning(body, run.returned)), called_with(run, f"step_{number}({', '.join(run.given)})")
    )


def by_keyword(run: Run, number: int) -> Made:
    """Make a function that takes the values by keyword, under new parameter names."""
    names = {name: f"{name.strip('_')}_given" for name in run.given}
    body = renamed_names(run.statements, names)
    head = f"def step_{number}(*, {', '.join(names.values())}):" if names else f"def step_{number}():"
    call = f"step_{number}({', '.join(f'{new}={old}' for old, new in names.items())})"
    return Made(
        function_of(head, returning(body, [names.get(name, name) for name in run.returned])), called_with(run, call)
    )


def in_mapping(run: Run, number: int) -> Made:
    """Make a function that takes one dict."""
    return in_one(run, number, lambda name: f"state[{name!r}]", lambda names: f"dict({assigned(names)})")


def in_namespace(run: Run, number: int) -> Made:
    """Make a function that takes one object with attributes."""
    return in_one(run, number, lambda name: f"state.{name}", lambda names: f"types.SimpleNamespace({assigned(names)})")


def assigned(names: Sequence[str]) -> str:
    return ", ".join(f"{'trainer' if name == 'self' else name}={name}" for name in names)


def in_one(run: Run, number: int, spell: Callable[[str], str], pack: Callable[[Sequence[str]], str]) -> Made:
    names = set(run.given)
    stored = Needs(run.statements).stored

    def make(node: ast.Name) -> ast.expr:
        if node.id not in names - stored or not is_load(node):
            return node
        expression = ast.parse(spell("trainer" if node.id == "self" else node.id), mode="eval").body
        for part in walk(expression):
            ast.copy_location(part, node)
        return expression

    body = [Replaced(make).visit(statement) for statement in run.statements]
    kept = [line for name in sorted(names & stored) for line in fresh(f"{name} = {spell(name)}")]
    call = f"step_{number}({pack(run.given)})"
    return Made(
        function_of(f"def step_{number}(state):", returning([*kept, *body], run.returned)), called_with(run, call)
    )


def as_object(run: Run, number: int) -> Made:
    """Make a callable object that holds scaler and optimizer and takes the other values as arguments."""
    stored = Needs(run.statements).stored
    held = [name for name in run.given if name not in stored and ("scaler" in name or "opt" in name)] or run.given[:1]
    held = [name for name in held if name not in stored]
    names = receivers(run)

    def make(node: ast.Name) -> ast.expr:
        if node.id not in held:
            node.id = names.get(node.id, node.id)
            return node
        holder = ast.copy_location(ast.Name(id="self", ctx=ast.Load()), node)
        return ast.copy_location(ast.Attribute(value=holder, attr=names.get(node.id, node.id), ctx=node.ctx), node)

    body = [Replaced(make).visit(statement) for statement in run.statements]
    rest = [name for name in run.given if name not in held]
    kept = [names.get(name, name) for name in held]
    lines = [f"class Stepper{number}:", f"    def __init__({', '.join(['self', *kept])}):"]
    lines += [f"        self.{name} = {name}" for name in kept] or ["        pass"]
    lines += [f"    def __call__({', '.join(['self', *(names.get(name, name) for name in rest)])}):"]
    call = f"Stepper{number}({', '.join(held)})({', '.join(rest)})"
    return Made(function_of("\n".join(lines), returning(body, run.returned)), called_with(run, call))


def extracted(runs: Runs, make: Callable[[Run, int], Made]) -> Variant:
    """Return a variant that extracts each run of a kind as a function at the top of the file."""

    def variant(tree: ast.Module) -> Trees | None:
        made = take_out(tree, runs, make)
        if not made:
            return None
        top = prologue(tree)
        tree.body[top:top] = [*fresh("import types"), *made]
        return {MAIN: tree}

    variant.__doc__ = make.__doc__
    return variant


def take_out(tree: ast.Module, runs: Runs, make: Callable[[Run, int], Made]) -> list[ast.stmt]:
    """Replace runs by calls. Return the definitions that the calls need."""
    made: list[ast.stmt] = []
    # Runs are replaced from last to first, so that the indices of earlier runs stay valid.
    for number, run in enumerate(sorted(chosen(tree, runs), key=lambda run: -run.start)):
        definition, call = make(run, number)
        run.block[run.start : run.end] = call
        made.append(definition)
    return made


def as_method(runs: Runs) -> Variant:
    """Return a variant that extracts each run in a method as a method of the same class."""

    def variant(tree: ast.Module) -> Trees | None:
        owners = {method: cls for cls in walk(tree) if isinstance(cls, ast.ClassDef) for method in cls.body}
        taken = [run for run in chosen(tree, runs) if run.scope in owners and "self" in run.given]
        for number, run in enumerate(sorted(taken, key=lambda run: -run.start)):
            rest = [name for name in run.given if name != "self"]
            head = f"def step_{number}({', '.join(['self', *rest])}):"
            body = returning(run.statements, run.returned)
            owners[run.scope].body.append(function_of(head, body))  # type: ignore[index]
            run.block[run.start : run.end] = called_with(run, f"self.step_{number}({', '.join(rest)})")
        return {MAIN: tree} if taken else None

    return variant


def as_closure(tree: ast.Module) -> Trees | None:
    """Turn the step into an inner function that uses the variables of the enclosing function."""
    found = False
    for run in sorted(chosen(tree, step_runs), key=lambda run: -run.start):
        if not isinstance(run.scope, Function) or set(run.given) & set(run.returned):
            continue
        definition = function_of("def run_step():", returning(run.statements, run.returned))
        run.block[run.start : run.end] = [definition, *called_with(run, "run_step()")]
        found = True
    return {MAIN: tree} if found else None


# Other files.


def in_another_file(runs: Runs) -> Variant:
    """Return a variant that extracts each run as a function in another file."""

    def variant(tree: ast.Module) -> Trees | None:
        functions = {node.name for node in tree.body if isinstance(node, (Function, ast.ClassDef))}
        constants = own_names(tree) - imported(tree)
        fitting = [
            run
            for run in chosen(tree, runs)
            if not (
                {node.id for node in inside(*run.statements) if isinstance(node, ast.Name)}
                - set(run.given)
                - Needs(run.statements).stored
            )
            & (functions | constants)
        ]
        if not fitting:
            return None
        keep = {id(run.statements[0]) for run in fitting}

        def only(tree: ast.Module, scope: ast.AST, around: list[ast.AST]) -> Iterator[Run]:
            return (run for run in runs(tree, scope, around) if id(run.statements[0]) in keep)

        made = take_out(tree, only, by_position)
        names = ", ".join(node.name for node in made if isinstance(node, Function))
        steps_file = ast.Module(body=[*copy.deepcopy(imports_of(tree)), *made], type_ignores=[])
        top = prologue(tree)
        tree.body[top:top] = fresh(f"from {STEPS.removesuffix('.py')} import {names}")
        return {MAIN: tree, STEPS: steps_file}

    return variant


def definitions_in_another_file(tree: ast.Module) -> Trees | None:
    """Move functions, classes and constants to another file. The main function or script stays."""
    top = prologue(tree)
    entry = {
        node.func.id
        for statement in tree.body
        if isinstance(statement, (ast.If, ast.Expr))
        for node in walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    defined = [
        node
        for node in tree.body
        if isinstance(node, (Function, ast.ClassDef)) and node.name not in entry and not node.name.startswith("test")
    ]
    constants = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, (ast.Constant, ast.BinOp))
    ]
    moved = [*constants, *defined]
    names = {node.name for node in defined} | {last(target) for node in constants for target in node.targets}
    known = names | imported(tree) | set(dir(builtins)) | {"__name__"}
    for node in defined:
        inner = {part.id for part in walk(node) if isinstance(part, ast.Name)}
        local = {part.arg for part in walk(node) if isinstance(part, ast.arg)}
        local |= {part.id for part in walk(node) if isinstance(part, ast.Name) and not is_load(part)}
        local |= {
            part.name
            for part in walk(node)
            if isinstance(part, (Function, ast.ClassDef, ast.ExceptHandler)) and part.name
        }
        if inner - local - known or any(isinstance(part, ast.Global) for part in walk(node)):
            return None
    if not any(steps(part) or backs(part) for node in defined for part in walk(node)):
        return None
    used = {
        part.id for node in tree.body[top:] if node not in moved for part in walk(node) if isinstance(part, ast.Name)
    }
    wanted = sorted(names & used)
    if not wanted:
        return None
    steps_file = ast.Module(body=[*copy.deepcopy(imports_of(tree)), *moved], type_ignores=[])
    tree.body = [node for node in tree.body if node not in moved]
    tree.body[top:top] = fresh(f"from {STEPS.removesuffix('.py')} import {', '.join(wanted)}")
    return {MAIN: tree, STEPS: steps_file}


# A class that contains a training function.


def in_trainer_class(tree: ast.Module) -> Trees | None:
    """Turn a training function into a class: parameters and setup become attributes, the loop becomes a method."""
    fitting = [node for node in tree.body if isinstance(node, Function) and becomes_trainer(tree, node)]
    for function in fitting:
        names = [arg.arg for arg in function.args.args]
        loop = next(
            (i for i, s in enumerate(function.body) if isinstance(s, (ast.For, ast.While)) and (backs(s) or steps(s))),
            None,
        )
        if loop is None:
            loop = 0
        setup = function.body[:loop]
        if any(isinstance(node, (ast.Return, ast.Yield)) for node in inside(*setup)):
            setup, loop = [], 0
        attributes = set(names) | {
            target.id
            for s in setup
            if isinstance(s, ast.Assign)
            for target in s.targets
            if isinstance(target, ast.Name)
        }

        def make(node: ast.Name, attributes: set[str] = attributes) -> ast.expr:
            if node.id not in attributes:
                return node
            owner = ast.copy_location(ast.Name(id="self", ctx=ast.Load()), node)
            return ast.copy_location(ast.Attribute(value=owner, attr=node.id, ctx=node.ctx), node)

        doc = function.body[:1] if ast.get_docstring(function) else []
        setup = setup[len(doc) :]
        loop = max(loop, len(doc))
        local = {n.id for n in inside(*setup) if isinstance(n, ast.Name) and not is_load(n)} - attributes
        later = {n.id for n in inside(*function.body[loop:]) if isinstance(n, ast.Name)}
        if local & later:
            setup, loop, attributes = [], len(doc), set(names)
        arguments = ast.unparse(function.args)
        name = "".join(part.title() for part in function.name.split("_")) + "Trainer"
        shell = fresh(
            f"class {name}:\n    def __init__(self, {arguments}):\n        pass\n    def run(self):\n        pass"
        )[0]
        assert isinstance(shell, ast.ClassDef)
        start, run = shell.body
        assert isinstance(start, Function) and isinstance(run, Function)
        bound = fresh("\n".join(f"self.{each} = {each}" for each in names)) if names else []
        body = [Replaced(make).visit(s) for s in function.body[loop:]]
        start.body = [*bound, *(Replaced(make).visit(s) for s in setup)] or start.body
        run.body = body
        tree.body[tree.body.index(function)] = shell
        for node in walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.name:
                inner = copy.copy(node)
                inner.func = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node)
                node.func = ast.copy_location(ast.Attribute(value=inner, attr="run", ctx=ast.Load()), node)
                node.args, node.keywords = [], []
    return {MAIN: tree} if fitting else None


def becomes_trainer(tree: ast.Module, function: ast.FunctionDef) -> bool:
    spec = function.args
    if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs or function.decorator_list:
        return False
    if not any(isinstance(node, ast.Call) and scaler_call(node, "step") for node in inside(*function.body)):
        return False
    if any(
        isinstance(node, (ast.FunctionDef, ast.Lambda, ast.Global, ast.Yield, *COMPREHENSIONS))
        for s in function.body
        for node in walk(s)
        if not own_comprehension(node, spec)
    ):
        return False
    uses = [node for node in walk(tree) if isinstance(node, ast.Name) and node.id == function.name]
    calls = [node.func for node in walk(tree) if isinstance(node, ast.Call)]
    return all(any(use is call for call in calls) for use in uses)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def own_comprehension(node: ast.AST, spec: ast.arguments) -> bool:
    """Return True if no target of a comprehension is a parameter name."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    names = {part.id for generator in node.generators for part in walk(generator.target) if isinstance(part, ast.Name)}
    return not names & {arg.arg for arg in spec.args}


# The same calls in other syntax.


def guarded(node: ast.stmt, number: int) -> list[ast.stmt] | None:
    """Guard every call of a scaler by a condition that the scaler exists."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return None
    call = node.value
    (otherwise,) = fresh("pass")
    if scaler_call(call, "unscale_", "step", "update"):
        assert isinstance(call.func, ast.Attribute)
        scaler = call.func.value
        if call.func.attr == "step" and len(call.args) == 1 and not call.keywords:
            (otherwise,) = fresh(f"{ast.unparse(call.args[0])}.step()")
    elif (
        isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and scaler_call(call.func.value, "scale")
    ):
        inner = call.func.value
        assert isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
        scaler = inner.func.value
        (otherwise,) = fresh(f"({ast.unparse(inner.args[0])}).backward()")
    else:
        return None
    made = like(node, "if SCALER is not None:\n    pass", SCALER=copy.deepcopy(scaler))
    test = made[0]
    assert isinstance(test, ast.If)
    test.body, test.orelse = [node], [otherwise]
    return made


def aliased(tree: ast.Module) -> Trees | None:
    """Assign the methods of the scaler to names once before the loop."""
    found = False
    for scope, _ in scopes(tree):
        for index, statement in reversed(list(enumerate(body_of(scope)))):
            if not isinstance(statement, (ast.For, ast.While)) or not steps(statement):
                continue
            named: dict[str, str] = {}
            stored = {ast.unparse(n) for n in inside(statement) if isinstance(getattr(n, "ctx", None), ast.Store)}
            for node in inside(statement):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                text = ast.unparse(node.func.value)
                if (
                    is_scaler(node.func.value)
                    and node.func.attr in ("scale", "step", "unscale_", "update")
                    and text not in stored
                ):
                    name = named.setdefault(ast.unparse(node.func), f"call_{node.func.attr}_{len(named)}")
                    node.func = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node.func)
            if named and "is not None" not in ast.unparse(statement):
                body_of(scope)[index:index] = fresh("\n".join(f"{new} = {old}" for old, new in named.items()))
                found = True
            elif named:
                return None
    return {MAIN: tree} if found else None


def with_progress_bars(tree: ast.Module) -> ast.Module:
    """Put a progress bar around the iterable of every loop."""
    bars = fresh("from tqdm import tqdm")
    for loop in [node for node in ast.walk(tree) if isinstance(node, ast.For)]:
        (shown,) = fresh("tqdm(ITEMS, desc='train')")
        assert isinstance(shown, ast.Expr) and isinstance(shown.value, ast.Call)
        shown.value.args = [loop.iter]
        loop.iter = ast.copy_location(shown.value, loop.iter)
    first = next((n for n, node in enumerate(tree.body) if isinstance(node, (ast.Import, ast.ImportFrom))), 0)
    if any(isinstance(node, ast.For) for node in ast.walk(tree)):
        # ``from __future__`` comes before every other import.
        after = first + 1 if "__future__" in ast.unparse(tree.body[first]) else first
        tree.body[after:after] = bars
    return tree


def same(rewrite: Callable[[ast.Module], ast.Module]) -> Variant:
    """Return a variant from a rewriting of the whole tree. The variant returns None if the tree does not change."""

    def variant(tree: ast.Module) -> Trees | None:
        before = ast.dump(tree)
        made = rewrite(tree)
        return {MAIN: made} if ast.dump(made) != before else None

    return variant


VARIANTS: dict[str, Variant] = {
    "as it is": lambda tree: {MAIN: tree},
    "step in a helper": extracted(step_runs, by_position),
    "step in a helper, by keyword": extracted(step_runs, by_keyword),
    "step in a helper, by dict": extracted(step_runs, in_mapping),
    "step in a helper, by namespace": extracted(step_runs, in_namespace),
    "step in an object": extracted(step_runs, as_object),
    "step in a method": as_method(step_runs),
    "step in a closure": as_closure,
    "end of the step in a helper": extracted(end_runs, by_position),
    "end of the step in an object": extracted(end_runs, as_object),
    "forward in a helper": extracted(loss_runs, by_position),
    "loop body in a helper": extracted(loop_body_runs, by_position),
    "loop body in an object": extracted(loop_body_runs, as_object),
    "loop body in a method": as_method(loop_body_runs),
    "loop in a trainer class": in_trainer_class,
    "renamed": same(rename),
    "misnamed": same(misname),
    "aliased methods": aliased,
    "bound methods": same(rewriting(bound_methods)),
    "guarded by is not None": same(rewriting(guarded)),
    "tried": same(tried),
    "progress bars": same(with_progress_bars),
}

#: Variants of two files. Only an analyzer that follows imports can check these equally.
ACROSS_FILES: dict[str, Variant] = {
    "step in another file": in_another_file(step_runs),
    "end of the step in another file": in_another_file(end_runs),
    "loop body in another file": in_another_file(loop_body_runs),
    "forward in another file": in_another_file(loss_runs),
    "definitions in another file": definitions_in_another_file,
}
