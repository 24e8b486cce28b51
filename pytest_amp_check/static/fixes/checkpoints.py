"""Fixes of what a checkpoint holds."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .form import Form
from .layout import FUNCTIONS, Layout
from .matchers import (
    Unfit,
    arguments,
    assignments,
    expect,
    first,
    last_name,
    method,
    of_kind,
    only,
    require,
)
from .queries import Mended, call_statement, guards, may_be_none, owner
from .rebuilt import Change, Rebuilt

#: What functions are called that read a checkpoint.
LOADING = ("load", "resume", "restore")


def save_scaler(layout: Layout, finding: Finding) -> Mended:
    """Puts the scaler's state beside the optimizer's, and where that is loaded in the same file loads it again."""
    scaler = finding.names.get("scaler", "")
    state = layout.at(finding.site, ast.Call)
    require(_is_name(scaler))
    optimizer = owner(layout, state, "state_dict")
    mapping, key = _entry(layout, state)
    _there(layout, layout.scope(state), scaler, state.lineno)
    name = _key_of_scaler(key)
    require(f'"{name}"' not in layout.text and f"'{name}'" not in layout.text)
    quoted = name
    if isinstance(mapping, ast.Dict):
        at = next(number for number, value in enumerate(mapping.values) if value is state)
        quote = layout.source(mapping.keys[at] or state)[0]
        require(quote in "'\"")
        quoted = f"{quote}{name}{quote}"
    saved = Rebuilt(layout, mapping, Form(last=[(quoted, f"{scaler}.state_dict()")]))
    loads = [
        load
        for load in layout.calls(layout.tree, "load_state_dict")
        if (on := method(load, "load_state_dict")) is not None and layout.source(on) == optimizer
    ]
    if loads:
        edits: list[Change] = [saved, *(_loaded(layout, load, key, name, scaler) for load in loads)]
        return "Save the scaler's state with the optimizer's, and load it where that is loaded", edits
    require(not _is_loaded_elsewhere(layout, optimizer))
    return "Save the scaler's state with the optimizer's; load it where a run is resumed", [saved]


def _is_loaded_elsewhere(layout: Layout, optimizer: str) -> bool:
    """Whether somebody is given the checkpoint who would not load it: the finding would be gone, the mistake not."""
    return any(chain(load.func) == "torch.load" for load in layout.calls(layout.tree, "load")) or any(
        any(word in last_name(call.func) for word in LOADING)
        and any(chain(given) == optimizer for given in arguments(call))
        for call in of_kind(layout.on(*LOADING), ast.Call)
    )


def _is_name(text: str) -> bool:
    return all(map(str.isidentifier, text.split(".")))


def _entry(layout: Layout, state: ast.Call) -> tuple[ast.Dict | ast.Call, str]:
    """The literal dictionary whose value a state is, and its key there."""
    parent = layout.parent(state)
    if isinstance(parent, ast.Dict):
        key = first(key for key, value in zip(parent.keys, parent.values, strict=True) if value is state)
        return parent, expect(expect(key, ast.Constant).value, str)
    parent = expect(parent, ast.keyword)
    call = expect(layout.parent(parent), ast.Call)
    require(chain(call.func) == "dict")
    return call, expect(parent.arg, str)


def _key_of_scaler(key: str) -> str:
    for word in ("optimizer", "optim", "opt"):
        if key in (word, f"{word}_state", f"{word}_state_dict"):
            return key.replace(word, "scaler", 1)
    return "scaler"


def _there(layout: Layout, scope: ast.AST, scaler: str, line: int, *, loaded: bool = False) -> None:
    """Raises where the scaler need not exist, or not under this name.

    Its state is saved when it has been used; it may be ``loaded`` before that.
    """
    require(not may_be_none(layout, scope, scaler))
    if "." in scaler:
        made = _attribute(layout, scope, scaler)
        if loaded:
            _before(layout, scope, made, line)
    elif not _is_given(scope, scaler):
        _variable_there(layout, scope, scaler, line)


def _is_given(scope: ast.AST, name: str) -> bool:
    """Whether a function has a parameter of that name, but for those that take whatever is left."""
    if not isinstance(scope, FUNCTIONS):
        return False
    return any(each.arg == name for each in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs))


def _attribute(layout: Layout, scope: ast.AST, scaler: str) -> ast.Assign:
    """Where a class first puts a scaler in: its attribute is there if that, or whoever made the object, did so."""
    require(scaler.startswith("self.") and isinstance(scope, FUNCTIONS))
    cls = expect(layout.enclosing(scope, ast.ClassDef), ast.ClassDef)
    made = assignments(layout.within(cls), scaler)
    require(all(isinstance(each.value, ast.Call) for each in made))
    return first(made)


def _variable_there(layout: Layout, scope: ast.AST, scaler: str, line: int) -> None:
    """Raises where a variable is not made before a line, once, and whatever happens."""
    stored = [each for each in assignments(layout.within(scope), scaler) if layout.scope(each) is scope]
    if not stored and isinstance(scope, FUNCTIONS):
        # A global one, made before anything is called.
        require(isinstance(only(assignments(layout.tree.body, scaler)).value, ast.Call))
        return
    made = only(stored)
    require(made.lineno <= line and isinstance(made.value, ast.Call))
    require(all(isinstance(guard, (ast.Module, *FUNCTIONS)) for guard, _ in guards(layout, made)))


def _before(layout: Layout, scope: ast.AST, made: ast.Assign, line: int) -> None:
    """Raises where an attribute need not be made yet in a method: another one makes it that may come later."""
    maker = layout.scope(made)
    if maker is scope:
        require(made.lineno <= line)
        return
    cls = expect(layout.enclosing(scope, ast.ClassDef), ast.ClassDef)
    if not isinstance(maker, FUNCTIONS) or not isinstance(scope, FUNCTIONS):
        raise Unfit
    require(maker.name == "__init__")
    # What the constructor comes by before.
    early = [node for node in layout.within(maker) if getattr(node, "lineno", made.lineno) < made.lineno]
    require(scope.name not in _methods_named(layout, early, cls))


def _methods_named(layout: Layout, nodes: list[ast.AST], cls: ast.ClassDef) -> set[str]:
    """The methods of a class that nodes name, and that these name in turn."""
    methods = {each.name: each for each in cls.body if isinstance(each, FUNCTIONS)}
    todo, seen = list(nodes), set[str]()
    for node in todo:
        name = node.attr if isinstance(node, ast.Attribute) and chain(node.value) == "self" else ""
        if name in methods and name not in seen:
            seen.add(name)
            todo += layout.within(methods[name])
    return seen


def _loaded(layout: Layout, load: ast.Call, key: str, name: str, scaler: str) -> Edit:
    """Loads the scaler's state after the optimizer's, from checkpoints that have one."""
    statement = call_statement(layout, load)
    require(len(load.args) == 1 and not load.keywords)
    given = expect(load.args[0], ast.Subscript)
    require(expect(given.slice, ast.Constant).value == key and chain(given.value) is not None)
    _there(layout, layout.scope(load), scaler, load.lineno, loaded=True)
    quote = layout.source(given.slice)[0]
    checkpoint = layout.source(given.value)
    step = "\t" if layout.indent(statement).startswith("\t") else "    "
    entry = f"{quote}{name}{quote}"
    return layout.after(
        statement,
        # A scaler that was disabled has saved nothing, which one that is enabled refuses.
        f"if {checkpoint}.get({entry}):\n{step}{scaler}.load_state_dict({checkpoint}[{entry}])",
    )
