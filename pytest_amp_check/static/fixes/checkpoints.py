"""Fixes of what a checkpoint holds."""

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

#: What functions are called that read a checkpoint.
LOADING = ("load", "resume", "restore")


def save_scaler(layout: ProgramLayout, finding: Finding) -> Mended:
    """Puts the scaler's state beside the optimizer's, and where that is loaded in the same file loads it again."""
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
    """Whether somebody is given the checkpoint who would not load it: the finding would be gone, the mistake not."""
    return any(find_access_path(load.func) == "torch.load" for load in layout.find_calls(layout.tree, "load")) or any(
        any(word in last_name(call.func) for word in LOADING)
        and any(find_access_path(given) == optimizer for given in all_arguments(call))
        for call in filter_nodes(layout.nodes_on_lines(*LOADING), ast.Call)
    )


def _is_dotted_name(text: str) -> bool:
    return all(map(str.isidentifier, text.split(".")))


def _find_state_entry(layout: ProgramLayout, state: ast.Call) -> tuple[ast.Dict | ast.Call, str]:
    """The literal dictionary whose value a state is, and its key there."""
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
    """Raises where the scaler need not exist, or not under this name.

    Its state is saved when it has been used; it may be ``loaded`` before that.
    """
    require(not may_be_none(layout, scope, scaler))
    if "." in scaler:
        made = _find_first_assignment(layout, scope, scaler)
        if is_load:
            _require_assigned_before(layout, scope, made, line)
    elif not _has_parameter(scope, scaler):
        _require_variable(layout, scope, scaler, line)


def _has_parameter(scope: ast.AST, name: str) -> bool:
    """Whether a function has a parameter of that name, but for those that take whatever is left."""
    if not isinstance(scope, FUNCTIONS):
        return False
    return any(each.arg == name for each in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs))


def _find_first_assignment(layout: ProgramLayout, scope: ast.AST, scaler: str) -> ast.Assign:
    """Where a class first puts a scaler in: its attribute is there if that, or whoever made the object, did so."""
    require(scaler.startswith("self.") and isinstance(scope, FUNCTIONS))
    cls = require_type(layout.find_enclosing(scope, ast.ClassDef), ast.ClassDef)
    made = find_assignments(layout.nodes_in(cls), scaler)
    require(all(isinstance(each.value, ast.Call) for each in made))
    return require_first(made)


def _require_variable(layout: ProgramLayout, scope: ast.AST, scaler: str, line: int) -> None:
    """Raises where a variable is not made before a line, once, and whatever happens."""
    stored = [each for each in find_assignments(layout.nodes_in(scope), scaler) if layout.scope_of(each) is scope]
    if not stored and isinstance(scope, FUNCTIONS):
        # A global one, made before anything is called.
        require(isinstance(require_only(find_assignments(layout.tree.body, scaler)).value, ast.Call))
        return
    made = require_only(stored)
    require(made.lineno <= line and isinstance(made.value, ast.Call))
    require(all(isinstance(guard, (ast.Module, *FUNCTIONS)) for guard, _ in find_guards(layout, made)))


def _require_assigned_before(layout: ProgramLayout, scope: ast.AST, made: ast.Assign, line: int) -> None:
    """Raises where an attribute need not be made yet in a method: another one makes it that may come later."""
    maker = layout.scope_of(made)
    if maker is scope:
        require(made.lineno <= line)
        return
    cls = require_type(layout.find_enclosing(scope, ast.ClassDef), ast.ClassDef)
    if not isinstance(maker, FUNCTIONS) or not isinstance(scope, FUNCTIONS):
        raise NotFixable
    require(maker.name == "__init__")
    # What the constructor comes by before.
    early = [node for node in layout.nodes_in(maker) if getattr(node, "lineno", made.lineno) < made.lineno]
    require(scope.name not in _find_named_methods(layout, early, cls))


def _find_named_methods(layout: ProgramLayout, nodes: list[ast.AST], cls: ast.ClassDef) -> set[str]:
    """The methods of a class that nodes name, and that these name in turn."""
    methods = {each.name: each for each in cls.body if isinstance(each, FUNCTIONS)}
    todo, seen = list(nodes), set[str]()
    for node in todo:
        name = node.attr if isinstance(node, ast.Attribute) and find_access_path(node.value) == "self" else ""
        if name in methods and name not in seen:
            seen.add(name)
            todo += layout.nodes_in(methods[name])
    return seen


def _load_scaler_state(layout: ProgramLayout, load: ast.Call, key: str, name: str, scaler: str) -> Edit:
    """Loads the scaler's state after the optimizer's, from checkpoints that have one."""
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
        # A scaler that was disabled has saved nothing, which one that is enabled refuses.
        f"if {checkpoint}.get({entry}):\n{step}{scaler}.load_state_dict({checkpoint}[{entry}])",
    )
