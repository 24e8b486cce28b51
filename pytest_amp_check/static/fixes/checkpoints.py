"""Fixes for the content of checkpoints."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.source_text import find_access_path
from .layout import FUNCTIONS, ProgramLayout
from .matchers import (
    NotFixable,
    all_arguments,
    filter_nodes,
    find_assignments,
    find_receiver,
    last_name,
    require,
    require_first,
    require_only,
    require_type,
)
from .pending_rewrites import Change, PendingRewrite
from .queries import Mended, call_statement, find_guards, may_be_none, require_owner
from .rewrite_spec import RewriteSpec

#: Words in the names of functions that load a checkpoint.
LOADING = ("load", "resume", "restore")


def save_scaler(layout: ProgramLayout, finding: Finding) -> Mended:
    """Save the scaler's state beside the optimizer's state.

    If the same file loads the optimizer's state, the file also loads the scaler's state.
    """
    scaler = finding.names.get("scaler", "")
    state = layout.find_expression(finding.site, ast.Call)
    require(_is_dotted_name(scaler))
    optimizer = require_owner(layout, state, "state_dict")
    mapping, key = _find_state_entry(layout, state)
    _require_scaler(layout, layout.scope_of(state), scaler, state.lineno)
    name = _make_scaler_key(key)
    require(f'"{name}"' not in layout.text and f"'{name}'" not in layout.text)
    quoted = name
    if isinstance(mapping, ast.Dict):
        at = next(number for number, value in enumerate(mapping.values) if value is state)
        quote = layout.source_of(mapping.keys[at] or state)[0]
        require(quote in "'\"")
        quoted = f"{quote}{name}{quote}"
    saved = PendingRewrite(layout, mapping, RewriteSpec(last_arguments=[(quoted, f"{scaler}.state_dict()")]))
    loads = [
        load
        for load in layout.find_calls(layout.tree, "load_state_dict")
        if (on := find_receiver(load, "load_state_dict")) is not None and layout.source_of(on) == optimizer
    ]
    if loads:
        edits: list[Change] = [saved, *(_load_scaler_state(layout, load, key, name, scaler) for load in loads)]
        return "Save the scaler's state with the optimizer's state, and load both", edits
    require(not _is_loaded_elsewhere(layout, optimizer))
    return "Save the scaler's state with the optimizer's state; load it when a run is resumed", [saved]


def _is_loaded_elsewhere(layout: ProgramLayout, optimizer: str) -> bool:
    """Return True if code that would not load the new entry receives the checkpoint.

    The finding would go, not the mistake.
    """
    return any(find_access_path(load.func) == "torch.load" for load in layout.find_calls(layout.tree, "load")) or any(
        any(word in last_name(call.func) for word in LOADING)
        and any(find_access_path(given) == optimizer for given in all_arguments(call))
        for call in filter_nodes(layout.nodes_on_lines(*LOADING), ast.Call)
    )


def _is_dotted_name(text: str) -> bool:
    return all(map(str.isidentifier, text.split(".")))


def _find_state_entry(layout: ProgramLayout, state: ast.Call) -> tuple[ast.Dict | ast.Call, str]:
    """Return the dict display or ``dict`` call that contains a state, and the key of the state."""
    parent = layout.parent_of(state)
    if isinstance(parent, ast.Dict):
        key = require_first(key for key, value in zip(parent.keys, parent.values, strict=True) if value is state)
        return parent, require_type(require_type(key, ast.Constant).value, str)
    parent = require_type(parent, ast.keyword)
    call = require_type(layout.parent_of(parent), ast.Call)
    require(find_access_path(call.func) == "dict")
    return call, require_type(parent.arg, str)


def _make_scaler_key(key: str) -> str:
    for word in ("optimizer", "optim", "opt"):
        if key in (word, f"{word}_state", f"{word}_state_dict"):
            return key.replace(word, "scaler", 1)
    return "scaler"


def _require_scaler(layout: ProgramLayout, scope: ast.AST, scaler: str, line: int, *, is_load: bool = False) -> None:
    """Raise NotFixable if the scaler may not exist, or not under this name.

    The state is saved after the scaler was used. With ``is_load``, the state may be loaded before.
    """
    require(not may_be_none(layout, scope, scaler))
    if "." in scaler:
        made = _find_first_assignment(layout, scope, scaler)
        if is_load:
            _require_assigned_before(layout, scope, made, line)
    elif not _has_parameter(scope, scaler):
        _require_variable(layout, scope, scaler, line)


def _has_parameter(scope: ast.AST, name: str) -> bool:
    """Return True if a function has a parameter of this name, other than ``*args`` and ``**kwargs``."""
    if not isinstance(scope, FUNCTIONS):
        return False
    return any(each.arg == name for each in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs))


def _find_first_assignment(layout: ProgramLayout, scope: ast.AST, scaler: str) -> ast.Assign:
    """Return the first assignment of a scaler attribute in a class. All assignments must be calls."""
    require(scaler.startswith("self.") and isinstance(scope, FUNCTIONS))
    cls = require_type(layout.find_enclosing(scope, ast.ClassDef), ast.ClassDef)
    made = find_assignments(layout.nodes_in(cls), scaler)
    require(all(isinstance(each.value, ast.Call) for each in made))
    return require_first(made)


def _require_variable(layout: ProgramLayout, scope: ast.AST, scaler: str, line: int) -> None:
    """Raise NotFixable if a variable is not assigned before a line, exactly once, and unconditionally."""
    stored = [each for each in find_assignments(layout.nodes_in(scope), scaler) if layout.scope_of(each) is scope]
    if not stored and isinstance(scope, FUNCTIONS):
        # A global variable, assigned before any function is called.
        require(isinstance(require_only(find_assignments(layout.tree.body, scaler)).value, ast.Call))
        return
    made = require_only(stored)
    require(made.lineno <= line and isinstance(made.value, ast.Call))
    require(all(isinstance(guard, (ast.Module, *FUNCTIONS)) for guard, _ in find_guards(layout, made)))


def _require_assigned_before(layout: ProgramLayout, scope: ast.AST, made: ast.Assign, line: int) -> None:
    """Raise NotFixable if a method may run before another method assigns the attribute."""
    maker = layout.scope_of(made)
    if maker is scope:
        require(made.lineno <= line)
        return
    cls = require_type(layout.find_enclosing(scope, ast.ClassDef), ast.ClassDef)
    if not isinstance(maker, FUNCTIONS) or not isinstance(scope, FUNCTIONS):
        raise NotFixable
    require(maker.name == "__init__")
    # Code of the constructor before the assignment.
    early = [node for node in layout.nodes_in(maker) if getattr(node, "lineno", made.lineno) < made.lineno]
    require(scope.name not in _find_named_methods(layout, early, cls))


def _find_named_methods(layout: ProgramLayout, nodes: list[ast.AST], cls: ast.ClassDef) -> set[str]:
    """Return the methods of a class that nodes mention, directly or through other methods."""
    methods = {each.name: each for each in cls.body if isinstance(each, FUNCTIONS)}
    todo, seen = list(nodes), set[str]()
    for node in todo:
        name = node.attr if isinstance(node, ast.Attribute) and find_access_path(node.value) == "self" else ""
        if name in methods and name not in seen:
            seen.add(name)
            todo += layout.nodes_in(methods[name])
    return seen


def _load_scaler_state(layout: ProgramLayout, load: ast.Call, key: str, name: str, scaler: str) -> Edit:
    """Load the scaler's state after the optimizer's state, from checkpoints with such an entry."""
    statement = call_statement(layout, load)
    require(len(load.args) == 1 and not load.keywords)
    given = require_type(load.args[0], ast.Subscript)
    require(require_type(given.slice, ast.Constant).value == key and find_access_path(given.value) is not None)
    _require_scaler(layout, layout.scope_of(load), scaler, load.lineno, is_load=True)
    quote = layout.source_of(given.slice)[0]
    checkpoint = layout.source_of(given.value)
    step = "\t" if layout.indent_of(statement).startswith("\t") else "    "
    entry = f"{quote}{name}{quote}"
    return layout.insert_after(
        statement,
        # A disabled scaler saves an empty state, which an enabled scaler rejects.
        f"if {checkpoint}.get({entry}):\n{step}{scaler}.load_state_dict({checkpoint}[{entry}])",
    )
