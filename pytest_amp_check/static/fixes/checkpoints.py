"""Fixes of what a checkpoint holds."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .layout import FUNCTIONS, Layout, Unfit
from .queries import Mended, guards, may_be_none, method, named
from .rebuilt import Change, Rebuilt

#: What functions are called that read a checkpoint.
LOADING = ("load", "resume", "restore")


def save_scaler(layout: Layout, finding: Finding) -> Mended:
    """Puts the scaler's state beside the optimizer's, and where that is loaded in the same file loads it again."""
    scaler = finding.names.get("scaler", "")
    state = layout.at(finding.site, ast.Call)
    saved = method(state, "state_dict")
    if saved is None or not _is_name(scaler):
        raise Unfit
    optimizer = named(layout, saved)
    mapping, key = _entry(layout, state)
    scope = layout.scope(state)
    _there(layout, scope, scaler, state.lineno)
    name = _key_of_scaler(key)
    if f'"{name}"' in layout.text or f"'{name}'" in layout.text:
        raise Unfit
    quoted = name
    if isinstance(mapping, ast.Dict):
        at = next(number for number, value in enumerate(mapping.values) if value is state)
        written = layout.source(mapping.keys[at] or state)
        quoted = f"{written[0]}{name}{written[0]}"
        if written[0] not in "'\"":
            raise Unfit
    edits: list[Change] = [Rebuilt(layout, mapping, last=[(quoted, f"{scaler}.state_dict()")])]
    for load in layout.calls(layout.tree, "load_state_dict"):
        on = method(load, "load_state_dict")
        if on is None or layout.source(on) != optimizer:
            continue
        edits.append(_loaded(layout, load, key, name, scaler))
    if edits[1:]:
        return "Save the scaler's state with the optimizer's, and load it where that is loaded", edits
    if any(chain(load.func) == "torch.load" for load in layout.calls(layout.tree, "load")) or any(
        isinstance(node, ast.Call)
        and any(word in (chain(node.func) or "").rpartition(".")[2] for word in LOADING)
        and any(chain(given) == optimizer for given in [*node.args, *(k.value for k in node.keywords)])
        for node in layout.on(*LOADING)
    ):
        # Somebody is given the checkpoint who would not load it: then the finding would be gone, and the mistake not.
        raise Unfit
    return "Save the scaler's state with the optimizer's; load it where a run is resumed", edits


def _is_name(text: str) -> bool:
    return all(map(str.isidentifier, text.split(".")))


def _entry(layout: Layout, state: ast.Call) -> tuple[ast.Dict | ast.Call, str]:
    """The literal dictionary whose value a state is, and its key there."""
    parent = layout.parent(state)
    if isinstance(parent, ast.Dict):
        for key, value in zip(parent.keys, parent.values, strict=True):
            if value is state and isinstance(key, ast.Constant) and isinstance(key.value, str):
                return parent, key.value
    if isinstance(parent, ast.keyword):
        call = layout.parent(parent)
        if isinstance(call, ast.Call) and chain(call.func) == "dict" and parent.arg:
            return call, parent.arg
    raise Unfit


def _key_of_scaler(key: str) -> str:
    for word in ("optimizer", "optim", "opt"):
        if key in (word, f"{word}_state", f"{word}_state_dict"):
            return key.replace(word, "scaler", 1)
    return "scaler"


def _there(layout: Layout, scope: ast.AST, scaler: str, line: int, *, loaded: bool = False) -> None:
    """Raises where the scaler need not exist, or not under this name.

    Its state is saved when it has been used; it may be ``loaded`` before that.
    """
    if may_be_none(layout, scope, scaler):
        raise Unfit
    top, _, attribute = scaler.partition(".")
    if attribute:
        # An attribute is there if the class, or whoever made the object, has put a scaler in.
        owner = next((each for each in layout.around(scope) if isinstance(each, ast.ClassDef)), None)
        if top != "self" or not isinstance(scope, FUNCTIONS) or owner is None:
            raise Unfit
        made = [
            n for n in layout.within(owner) if isinstance(n, ast.Assign) and any(chain(t) == scaler for t in n.targets)
        ]
        if not made or not all(isinstance(n.value, ast.Call) for n in made):
            raise Unfit
        if loaded:
            _before(layout, owner, scope, made[0], line)
        return
    if isinstance(scope, FUNCTIONS):
        arguments = scope.args
        given = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
        if top in given:
            return
    stored = [
        n
        for n in layout.within(scope)
        if isinstance(n, ast.Assign) and any(chain(t) == scaler for t in n.targets) and layout.scope(n) is scope
    ]
    if not stored and isinstance(scope, FUNCTIONS):
        # A global one, made before anything is called.
        stored = [
            n for n in layout.tree.body if isinstance(n, ast.Assign) and any(chain(t) == scaler for t in n.targets)
        ]
        if len(stored) == 1 and isinstance(stored[0].value, ast.Call):
            return
        raise Unfit
    if not stored or stored[0].lineno > line or not all(isinstance(n.value, ast.Call) for n in stored):
        raise Unfit
    if len(stored) > 1 or any(not isinstance(g, (ast.Module, *FUNCTIONS)) for g, _ in guards(layout, stored[0])):
        raise Unfit


def _before(
    layout: Layout, owner: ast.ClassDef, scope: ast.FunctionDef | ast.AsyncFunctionDef, made: ast.Assign, line: int
) -> None:
    """Raises where an attribute need not be made yet in a method: another one makes it that may come later."""
    maker = layout.scope(made)
    if maker is scope:
        if made.lineno > line:
            raise Unfit
        return
    if not isinstance(maker, FUNCTIONS) or maker.name != "__init__":
        raise Unfit
    methods = {each.name: each for each in owner.body if isinstance(each, FUNCTIONS)}
    # What the constructor comes by before.
    early = [node for node in layout.within(maker) if getattr(node, "lineno", made.lineno) < made.lineno]
    seen: set[str] = set()
    for node in early:
        name = node.attr if isinstance(node, ast.Attribute) and chain(node.value) == "self" else ""
        if name in methods and name not in seen:
            seen.add(name)
            early += layout.within(methods[name])
    if scope.name in seen:
        raise Unfit


def _loaded(layout: Layout, load: ast.Call, key: str, name: str, scaler: str) -> Edit:
    """Loads the scaler's state after the optimizer's, from checkpoints that have one."""
    statement = layout.statement(load)
    given = load.args[0] if len(load.args) == 1 and not load.keywords else None
    if not isinstance(given, ast.Subscript) or not isinstance(statement, ast.Expr) or statement.value is not load:
        raise Unfit
    if not isinstance(given.slice, ast.Constant) or given.slice.value != key or chain(given.value) is None:
        raise Unfit
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
