"""Fixes of deprecated names: the calls with their arguments bound anew, and the imports that all of them go by."""

from __future__ import annotations

import ast
import re

from ...protocol import surface
from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .edits import shrunk
from .layout import FUNCTIONS, Layout, Unfit
from .queries import Mended, binders, bindings, means_one_thing, method
from .rebuilt import Change, Rebuilt

#: Where the old names of AMP are imported from, and where the new ones are.
OLD_HOMES = [
    f"torch.{device}.amp{module}" for device in ("cuda", "cpu") for module in ("", ".autocast_mode", ".grad_scaler")
]
NEW_HOME = "torch.amp"
#: Old names that are torch's own functions, and the device that their successors are given.
ACCESSORS = {
    "get_autocast_gpu_dtype": ("get_autocast_dtype", "cuda"),
    "set_autocast_gpu_dtype": ("set_autocast_dtype", "cuda"),
    "get_autocast_cpu_dtype": ("get_autocast_dtype", "cpu"),
    "set_autocast_cpu_dtype": ("set_autocast_dtype", "cpu"),
    "is_autocast_cpu_enabled": ("is_autocast_enabled", "cpu"),
    "set_autocast_cpu_enabled": ("set_autocast_enabled", "cpu"),
}
CLIP = "clip_grad_norm"


def replace_deprecated(layout: Layout, finding: Finding) -> Mended:
    old = finding.names.get("old", "")
    node = layout.at(finding.site, ast.expr)
    called = node.func if isinstance(node, ast.Call) else node
    name = chain(called) or ""
    top = name.partition(".")[0]
    if not means_one_thing(layout, top):
        raise Unfit
    new = surface.DEPRECATED[old].partition("(")[0]
    if old.endswith(f".{CLIP}") and "." in name:
        return f"Use `{new}`", [_call(layout, node, old, f"{name}_")]
    if top == "torch" and surface.canonical(name) == old and _imports_torch(layout):
        # Written out: nothing but the call changes.
        return f"Use `{new}`", [_call(layout, node, old, new)]
    for statement in binders(layout, top):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                if (alias.asname or alias.name) == top:
                    return f"Use `{new}`", _by_import(layout, statement, top)
    raise Unfit


def _imports_torch(layout: Layout) -> bool:
    return any(
        isinstance(node, ast.Import) and any(a.name.partition(".")[0] == "torch" and not a.asname for a in node.names)
        for node in binders(layout, "torch")
    )


# One import, and all that goes by it.


def _by_import(layout: Layout, statement: ast.Import | ast.ImportFrom, name: str) -> list[Change]:
    """The changes of an import and of all that uses what it binds, if one name can be moved, and what else can."""
    question = (_moving, statement)
    if question not in layout.known:
        layout.known[question] = _moving(layout, statement)
    found: tuple[set[str], list[Change]] = layout.known[question]  # type: ignore[assignment]
    if name not in found[0]:
        raise Unfit
    return found[1]


def _moving(layout: Layout, statement: ast.Import | ast.ImportFrom) -> tuple[set[str], list[Change]]:
    """The names of an import that can be moved, and the changes that move them."""
    parent = layout.parent(statement)
    if not isinstance(parent, (ast.Module, *FUNCTIONS)) or not layout.alone(statement):
        return set(), []
    exported = _exported(layout)
    if "*" in exported:
        return set(), []
    moved: list[ast.alias] = []
    edits: list[Change] = []
    for alias in statement.names:
        origin = f"{statement.module}.{alias.name}" if isinstance(statement, ast.ImportFrom) else alias.name
        name = alias.asname or alias.name
        try:
            if (
                bindings(layout, name) != 1
                or name in exported
                or (isinstance(statement, ast.ImportFrom) and statement.level)
            ):
                raise Unfit
            made = [edit for use in _uses(layout, name) for edit in _use(layout, use, origin)]
        except Unfit:
            continue
        if origin in OLD_HOMES or origin.rpartition(".")[0] in OLD_HOMES or origin == f"torch.nn.utils.{CLIP}":
            moved.append(alias)
            edits += made
    try:
        return {alias.asname or alias.name for alias in moved}, [*edits, _moved(layout, statement, moved)]
    except Unfit:
        return set(), []


def _uses(layout: Layout, name: str) -> list[ast.Name]:
    found = [node for node in layout.on(name) if isinstance(node, ast.Name) and node.id == name]
    return [node for node in found if isinstance(node.ctx, ast.Load)]


def _exported(layout: Layout) -> set[str]:
    """Names that a module lists as what it gives to others, and those that others take from it."""
    found: set[str] = set(layout.surroundings.taken(layout.path))
    for node in layout.on("__all__"):
        if isinstance(node, ast.Assign) and any(chain(target) == "__all__" for target in node.targets):
            listed = [each.value for each in layout.within(node.value) if isinstance(each, ast.Constant)]
            found |= {each for each in listed if isinstance(each, str)}
    return found


def _use(layout: Layout, use: ast.Name, origin: str) -> list[Change]:
    """The changes that one use of an imported name needs; none where it means the same by its new name."""
    node: ast.expr = use
    dotted = origin
    if origin in OLD_HOMES:
        # The module is imported: what counts is the attribute.
        parent = layout.parent(use)
        if not isinstance(parent, ast.Attribute):
            raise Unfit
        node, dotted = parent, f"{origin}.{parent.attr}"
    old = surface.canonical(dotted)
    if old not in surface.DEPRECATED:
        raise Unfit
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
    if old.endswith("GradScaler") and _names_type(layout, node):
        return []
    raise Unfit


def _names_type(layout: Layout, node: ast.expr) -> bool:
    """Whether an expression stands in an annotation, or says what an object is an instance of."""
    inner: ast.AST = node
    for each in layout.around(node):
        if isinstance(each, ast.AnnAssign):
            return inner is each.annotation
        if isinstance(each, ast.arg):
            return True
        if isinstance(each, FUNCTIONS):
            return inner is each.returns
        if isinstance(each, ast.Call):
            return chain(each.func) == "isinstance" and len(each.args) == 2 and inner is each.args[1]
        if isinstance(each, ast.stmt):
            return False
        inner = each
    return False


def _moved(layout: Layout, statement: ast.Import | ast.ImportFrom, moved: list[ast.alias]) -> Edit:
    """The import with those names from their new place, and the others from where they were."""
    if not moved:
        raise Unfit
    source = layout.source(statement)
    whole = len(moved) == len(statement.names)
    span = layout.span(statement)
    first = moved[0]
    if isinstance(statement, ast.Import):
        if not whole or len(moved) != 1:
            raise Unfit
        return shrunk(*span[:2], source, source.replace(first.name, NEW_HOME, 1))
    module = statement.module or ""
    if module == "torch.nn.utils" or module.startswith("torch.nn.utils."):
        changed = re.sub(rf"\b{CLIP}\b", f"{CLIP}_", source)
        return shrunk(*span[:2], source, changed)
    home = NEW_HOME if module in OLD_HOMES else "torch"
    if whole:
        return shrunk(*span[:2], source, re.sub(r"(from\s+)[\w.]+", rf"\g<1>{home}", source, count=1))
    if "\n" in source or "(" in source:
        raise Unfit
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
    quoted = f'"{device}"' if _quote(layout) == '"' else f"'{device}'"
    if not isinstance(node, ast.Call):
        if last not in ("custom_fwd", "custom_bwd"):
            raise Unfit
        source = layout.source(node)
        return shrunk(*layout.span(node)[:2], source, f"{function}(device_type={quoted})")
    if last == "autocast":
        first = [quoted]
        if device == "cuda" and _inherits(layout, node):
            first.append("dtype=torch.float16")
        return Rebuilt(layout, node, function=function, first=first, names=("enabled", "dtype", "cache_enabled"))
    if last == "GradScaler":
        return Rebuilt(layout, node, function=function, first=[quoted])
    if last in ("custom_fwd", "custom_bwd"):
        if node.args:
            return Rebuilt(layout, node, function=function, last=[("device_type", quoted)])
        return Rebuilt(layout, node, function=function, first=[f"device_type={quoted}"])
    if last in ACCESSORS:
        _, device = ACCESSORS[last]
        return Rebuilt(layout, node, function=function, first=[f'"{device}"' if quoted[0] == '"' else f"'{device}'"])
    if last == CLIP:
        return Rebuilt(layout, node, function=function)
    raise Unfit


def _quote(layout: Layout) -> str:
    """The quotation mark that a file uses for most of its strings."""
    return "'" if layout.text.count("'") > layout.text.count('"') else '"'


def _inherits(layout: Layout, call: ast.Call) -> bool:
    """Whether the new autocast may take its dtype from a region around it, where the old one meant float16.

    What runs backward is no part of a forward pass, and enters its regions from none.
    """
    given = {keyword.arg for keyword in call.keywords}
    if "dtype" in given or len(call.args) > 1:
        return False
    enabled = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "enabled"), None)
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return False
    parent = layout.parent(call)
    decorates = isinstance(parent, FUNCTIONS)
    if (
        not decorates
        and _drives(layout, layout.scope(call))
        and not any(_may_enter(layout, w, call) for w in layout.around(call))
    ):
        return False
    if not _imports_torch(layout) or not means_one_thing(layout, "torch"):
        raise Unfit
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
