"""Fixes of deprecated names: the calls with their arguments bound anew, and the imports that all of them go by."""

from __future__ import annotations

import ast
import re

from ...protocol import surface
from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.named import NamedTuple
from ...protocol.words import chain
from ..project.surroundings import Version
from .edits import shrunk
from .form import Form
from .layout import FUNCTIONS, Layout
from .matchers import Unfit, argument, assignments, expect, first, imports_of_torch, method, of_kind, require
from .queries import Mended, binders, bindings, means_one_thing
from .rebuilt import Change, Rebuilt

#: Where the old names of AMP are imported from, and where the new ones are.
OLD_HOMES = [
    f"torch.{device}.amp{module}" for device in ("cuda", "cpu") for module in ("", ".autocast_mode", ".grad_scaler")
]
NEW_HOME = "torch.amp"
DECORATORS = ("custom_fwd", "custom_bwd")
CLIP = "clip_grad_norm"
OLD_CLIP = f"torch.nn.utils.{CLIP}"


def replace_deprecated(layout: Layout, finding: Finding) -> Mended:
    old = finding.names.get("old", "")
    node = layout.at(finding.site, ast.expr)
    called = node.func if isinstance(node, ast.Call) else node
    name = chain(called) or ""
    top = name.partition(".")[0]
    require(means_one_thing(layout, top))
    new = surface.DEPRECATED[old].partition("(")[0]
    if old.endswith(f".{CLIP}") and "." in name:
        return f"Use `{new}`", [_call(layout, node, old, f"{name}_")]
    if _is_written_out(layout, name, old):
        # Nothing but the call changes.
        return f"Use `{new}`", [_call(layout, node, old, new)]
    found = _by_import(layout, top)
    require(top in found.names)
    return f"Use `{new}`", found.changes


def needed(layout: Layout, finding: Finding) -> Version:
    """The oldest torch that has all that the fix of a deprecated name writes."""
    old = finding.names.get("old", "")
    node = layout.at(finding.site, ast.expr)
    name = chain(node.func if isinstance(node, ast.Call) else node) or ""
    if (old.endswith(f".{CLIP}") and "." in name) or _is_written_out(layout, name, old):
        return surface.replaced_in(old)
    return _by_import(layout, name.partition(".")[0]).needs


def _is_written_out(layout: Layout, name: str, old: str) -> bool:
    """Whether a name is written from torch on, and torch is what that is."""
    if not name.startswith("torch.") or surface.canonical(name) != old:
        return False
    return bool(imports_of_torch(binders(layout, "torch")))


# One import, and all that goes by it.


class _Moving(NamedTuple):
    """The names of an import that can be moved, the changes that move them, and the torch that these need."""

    names: set[str]
    changes: list[Change]
    needs: Version


def _by_import(layout: Layout, name: str) -> _Moving:
    """What can be moved of the import that binds a name, with all that uses it."""
    statements = [each for each in binders(layout, name) if isinstance(each, (ast.Import, ast.ImportFrom))]
    statement = first(each for each in statements for alias in each.names if (alias.asname or alias.name) == name)
    question = (_moving, statement)
    if question not in layout.known:
        layout.known[question] = _moving(layout, statement)
    found: _Moving = layout.known[question]  # type: ignore[assignment]
    return found


def _moving(layout: Layout, statement: ast.Import | ast.ImportFrom) -> _Moving:
    parent = layout.parent(statement)
    nothing = _Moving(set(), [], (0, 0))
    if not isinstance(parent, (ast.Module, *FUNCTIONS)) or not layout.alone(statement):
        return nothing
    exported = _exported(layout)
    if "*" in exported:
        return nothing
    moved: list[ast.alias] = []
    edits: list[Change] = []
    for alias in statement.names:
        origin = _origin(statement, alias)
        name = alias.asname or alias.name
        if name in exported or not (
            origin in OLD_HOMES or origin.rpartition(".")[0] in OLD_HOMES or origin == OLD_CLIP
        ):
            continue
        try:
            edits += _renamed(layout, statement, name, origin)
        except Unfit:
            continue
        moved.append(alias)
    names = {alias.asname or alias.name: _origin(statement, alias) for alias in moved}
    versions = [surface.replaced_in(old) for name, origin in names.items() for old in _olds(layout, name, origin)]
    try:
        changes = [*edits, _moved(layout, statement, moved)]
    except Unfit:
        return nothing
    return _Moving(set(names), changes, max(versions, default=(0, 0)))


def _origin(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return f"{statement.module}.{alias.name}" if isinstance(statement, ast.ImportFrom) else alias.name


def _olds(layout: Layout, name: str, origin: str) -> list[str]:
    """The deprecated names that what goes by an imported name stands for."""
    if origin not in OLD_HOMES:
        return [surface.canonical(origin)]
    used = (layout.parent(node) for node in of_kind(layout.on(name), ast.Name) if node.id == name)
    return [surface.canonical(f"{origin}.{node.attr}") for node in used if isinstance(node, ast.Attribute)]


def _is_old(origin: str) -> bool:
    """Whether what is imported is an old home of AMP, or anything in one, or the old clip."""
    return origin in OLD_HOMES or origin.rpartition(".")[0] in OLD_HOMES or origin == OLD_CLIP


def _renamed(layout: Layout, statement: ast.Import | ast.ImportFrom, name: str, origin: str) -> list[Change]:
    """The changes of all that goes by a name, which one import alone binds."""
    require(bindings(layout, name) == 1 and not getattr(statement, "level", 0))
    uses = [node for node in of_kind(layout.on(name), ast.Name) if node.id == name and isinstance(node.ctx, ast.Load)]
    return [edit for use in uses for edit in _use(layout, use, origin)]


def _exported(layout: Layout) -> set[str]:
    """Names that a module lists as what it gives to others, and those that others take from it."""
    found: set[str] = set(layout.surroundings.taken(layout.path))
    for node in assignments(layout.on("__all__"), "__all__"):
        listed = [each.value for each in of_kind(layout.within(node.value), ast.Constant)]
        found |= {each for each in listed if isinstance(each, str)}
    return found


def _use(layout: Layout, use: ast.Name, origin: str) -> list[Change]:
    """The changes that one use of an imported name needs; none where it means the same by its new name."""
    node: ast.expr = use
    dotted = origin
    if origin in OLD_HOMES:
        # The module is imported: what counts is the attribute.
        node = expect(layout.parent(use), ast.Attribute)
        dotted = f"{origin}.{node.attr}"
    old = surface.canonical(dotted)
    require(old in surface.DEPRECATED)
    parent = layout.parent(node)
    # A renaming import keeps what is written here.
    written = layout.source(node)
    if old.endswith(f".{CLIP}"):
        renamed = written if use.id != CLIP else written + "_"
        return [Edit(*layout.span(node), renamed)] if renamed != written else []
    if isinstance(parent, ast.Call) and parent.func is node:
        return [_call(layout, parent, old, written)]
    if isinstance(parent, FUNCTIONS) and node in parent.decorator_list:
        return [_call(layout, node, old, written)]
    require(old.endswith("GradScaler") and _names_type(layout, node))
    return []


def _names_type(layout: Layout, node: ast.expr) -> bool:
    """Whether an expression stands in an annotation, or says what an object is an instance of."""
    inner: ast.AST = node
    for each in layout.around(node):
        match each:
            case ast.AnnAssign(annotation=place) | ast.FunctionDef(returns=place) | ast.AsyncFunctionDef(returns=place):
                return inner is place
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, place]):
                return inner is place
            case ast.arg():
                return True
            case ast.Call() | ast.stmt():
                return False
        inner = each
    return False


def _moved(layout: Layout, statement: ast.Import | ast.ImportFrom, moved: list[ast.alias]) -> Edit:
    """The import with those names from their new place, and the others from where they were."""
    require(moved)
    source = layout.source(statement)
    whole = len(moved) == len(statement.names)
    span = layout.span(statement)
    first = moved[0]
    if isinstance(statement, ast.Import):
        require(whole and len(moved) == 1)
        return shrunk(*span[:2], source, source.replace(first.name, NEW_HOME, 1))
    module = statement.module or ""
    if module == "torch.nn.utils" or module.startswith("torch.nn.utils."):
        changed = re.sub(rf"\b{CLIP}\b", f"{CLIP}_", source)
        return shrunk(*span[:2], source, changed)
    home = NEW_HOME if module in OLD_HOMES else "torch"
    if whole:
        return shrunk(*span[:2], source, re.sub(r"(from\s+)[\w.]+", rf"\g<1>{home}", source, count=1))
    require("\n" not in source and "(" not in source)
    kept = [alias for alias in statement.names if alias not in moved]
    rows = [f"from {module} import {_aliases(kept)}", f"from {home} import {_aliases(moved)}"]
    return Edit(*span, f"\n{layout.indent(statement)}".join(rows))


def _aliases(names: list[ast.alias]) -> str:
    return ", ".join(f"{each.name} as {each.asname}" if each.asname else each.name for each in names)


# One call.


def _call(layout: Layout, node: ast.expr, old: str, function: str) -> Change:
    """The change that binds the arguments of a deprecated call anew. ``node`` may be a decorator that is not called."""
    last = old.rpartition(".")[2]
    device = "cpu" if ".cpu." in old or "_cpu_" in old else "cuda"
    # As most strings of the file are quoted.
    quote = "'" if layout.text.count("'") > layout.text.count('"') else '"'
    quoted = f"{quote}{device}{quote}"
    if not isinstance(node, ast.Call):
        require(last in DECORATORS)
        return shrunk(*layout.span(node)[:2], layout.source(node), f"{function}(device_type={quoted})")
    if last == CLIP:
        return Rebuilt(layout, node, Form(function=function))
    if last in DECORATORS and node.args:
        return Rebuilt(layout, node, Form(function=function, last=[("device_type", quoted)]))
    if last in DECORATORS:
        return Rebuilt(layout, node, Form(function=function, first=[f"device_type={quoted}"]))
    if last != "autocast":
        return Rebuilt(layout, node, Form(function=function, first=[quoted]))
    given = [quoted, "dtype=torch.float16"] if device == "cuda" and _inherits(layout, node) else [quoted]
    return Rebuilt(layout, node, Form(function=function, first=given, names=("enabled", "dtype", "cache_enabled")))


def _inherits(layout: Layout, call: ast.Call) -> bool:
    """Whether the new autocast may take its dtype from a region around it, where the old one meant float16.

    What runs backward is no part of a forward pass, and enters its regions from none.
    """
    if argument(call, "dtype") is not None or len(call.args) > 1:
        return False
    enabled = call.args[0] if call.args else argument(call, "enabled")
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return False
    decorates = isinstance(layout.parent(call), FUNCTIONS)
    within = any(_may_enter(layout, each, call) for each in layout.around(call))
    if not decorates and not within and _drives(layout, layout.scope(call)):
        return False
    require(imports_of_torch(binders(layout, "torch")) and means_one_thing(layout, "torch"))
    return True


def _drives(layout: Layout, scope: ast.AST) -> bool:
    """Whether code runs passes rather than being a part of one: it is a script, runs backward, or sets the mode."""
    if isinstance(scope, ast.Module):
        return True
    return isinstance(scope, FUNCTIONS) and any(
        method(call, name) is not None for name in ("backward", "train", "eval") for call in layout.calls(scope, name)
    )


def _may_enter(layout: Layout, around: ast.AST, call: ast.Call) -> bool:
    """Whether a ``with`` around a region may be one, too: it says so, or does not say what it is."""
    if not isinstance(around, (ast.With, ast.AsyncWith)):
        return False
    items = [item.context_expr for item in around.items]
    if any(call is node for item in items for node in layout.within(item)):
        return False
    return any(not isinstance(item, ast.Call) or "autocast" in layout.source(item) for item in items)
