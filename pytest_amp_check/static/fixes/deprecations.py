"""Fixes for deprecated names: calls with newly bound arguments, and the imports of the names."""

from __future__ import annotations

import ast
import re

from ...protocol import torch_api
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.source_text import access_text
from ..project.project_context import Version
from .edits import make_minimal_edit
from .layout import FUNCTIONS, ProgramLayout
from .matchers import (
    NotFixable,
    count_torch_imports,
    filter_nodes,
    find_assignments,
    find_keyword,
    find_receiver,
    require,
    require_first,
    require_type,
)
from .pending_rewrites import Change, PendingRewrite
from .queries import Mended, count_bindings, find_binders, is_bound_once
from .rewrite_spec import RewriteSpec

#: Modules of the old AMP names, and module of the new names.
OLD_HOMES = [
    f"torch.{device}.amp{module}" for device in ("cuda", "cpu") for module in ("", ".autocast_mode", ".grad_scaler")
]
NEW_HOME = "torch.amp"
DECORATORS = ("custom_fwd", "custom_bwd")
CLIP = "clip_grad_norm"
OLD_CLIP = f"torch.nn.utils.{CLIP}"


def replace_deprecated(layout: ProgramLayout, finding: Finding) -> Mended:
    old = finding.names.get("old", "")
    node = layout.find_expression(finding.site, ast.expr)
    called = node.func if isinstance(node, ast.Call) else node
    name = access_text(called)
    top = name.partition(".")[0]
    require(is_bound_once(layout, top))
    new = torch_api.DEPRECATED[old].partition("(")[0]
    if old.endswith(f".{CLIP}") and "." in name:
        return f"Use `{new}`", [_rewrite_call(layout, node, old, f"{name}_")]
    if _is_full_name(layout, name, old):
        # Only the call changes.
        return f"Use `{new}`", [_rewrite_call(layout, node, old, new)]
    found = _find_moved_import(layout, top)
    require(top in found.names)
    return f"Use `{new}`", found.changes


def find_required_version(layout: ProgramLayout, finding: Finding) -> Version:
    """Return the oldest torch version with all names in the fix of a deprecated name."""
    old = finding.names.get("old", "")
    node = layout.find_expression(finding.site, ast.expr)
    name = access_text(node.func if isinstance(node, ast.Call) else node)
    if (old.endswith(f".{CLIP}") and "." in name) or _is_full_name(layout, name, old):
        return torch_api.replacement_version(old)
    return _find_moved_import(layout, name.partition(".")[0]).required_version


def _is_full_name(layout: ProgramLayout, name: str, old: str) -> bool:
    """Return True if a name is written in full, beginning with an imported ``torch``."""
    if not name.startswith("torch.") or torch_api.canonical_name(name) != old:
        return False
    return bool(count_torch_imports(find_binders(layout, "torch")))


# One import, and all uses of its names.


class _MovedImport(NamedTuple):
    """The movable names of an import, the necessary changes, and the required torch version."""

    names: set[str]
    changes: list[Change]
    required_version: Version


def _find_moved_import(layout: ProgramLayout, name: str) -> _MovedImport:
    """Return the movable part of the import of a name, with all uses."""
    statements = [each for each in find_binders(layout, name) if isinstance(each, (ast.Import, ast.ImportFrom))]
    statement = require_first(
        each for each in statements for alias in each.names if (alias.asname or alias.name) == name
    )
    question = (_move_import, statement)
    if question not in layout.memo:
        layout.memo[question] = _move_import(layout, statement)
    found: _MovedImport = layout.memo[question]  # type: ignore[assignment]
    return found


def _move_import(layout: ProgramLayout, statement: ast.Import | ast.ImportFrom) -> _MovedImport:
    parent = layout.parent_of(statement)
    nothing = _MovedImport(set(), [], (0, 0))
    if not isinstance(parent, (ast.Module, *FUNCTIONS)) or not layout.has_own_lines(statement):
        return nothing
    exported = _find_exported_names(layout)
    if "*" in exported:
        return nothing
    moved_aliases: list[ast.alias] = []
    edits: list[Change] = []
    for alias in statement.names:
        origin = _imported_name(statement, alias)
        name = alias.asname or alias.name
        if name in exported or not (
            origin in OLD_HOMES or origin.rpartition(".")[0] in OLD_HOMES or origin == OLD_CLIP
        ):
            continue
        try:
            edits += _rename_uses(layout, statement, name, origin)
        except NotFixable:
            continue
        moved_aliases.append(alias)
    names = {alias.asname or alias.name: _imported_name(statement, alias) for alias in moved_aliases}
    versions = [
        torch_api.replacement_version(old)
        for name, origin in names.items()
        for old in _find_deprecated_names(layout, name, origin)
    ]
    try:
        changes = [*edits, _rewrite_import(layout, statement, moved_aliases)]
    except NotFixable:
        return nothing
    return _MovedImport(set(names), changes, max(versions, default=(0, 0)))


def _imported_name(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return f"{statement.module}.{alias.name}" if isinstance(statement, ast.ImportFrom) else alias.name


def _find_deprecated_names(layout: ProgramLayout, name: str, origin: str) -> list[str]:
    """Return the deprecated names that the uses of an imported name refer to."""
    if origin not in OLD_HOMES:
        return [torch_api.canonical_name(origin)]
    used = (layout.parent_of(node) for node in filter_nodes(layout.nodes_on_lines(name), ast.Name) if node.id == name)
    return [torch_api.canonical_name(f"{origin}.{node.attr}") for node in used if isinstance(node, ast.Attribute)]


def _rename_uses(layout: ProgramLayout, statement: ast.Import | ast.ImportFrom, name: str, origin: str) -> list[Change]:
    """Return the changes of all uses of a name that a single import binds."""
    require(count_bindings(layout, name) == 1 and not getattr(statement, "level", 0))
    uses = [
        node
        for node in filter_nodes(layout.nodes_on_lines(name), ast.Name)
        if node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return [edit for use in uses for edit in _rename_use(layout, use, origin)]


def _find_exported_names(layout: ProgramLayout) -> set[str]:
    """Return the names in ``__all__``, and the names that other modules import."""
    found: set[str] = set(layout.surroundings.imported_names(layout.path))
    for node in find_assignments(layout.nodes_on_lines("__all__"), "__all__"):
        listed = [each.value for each in filter_nodes(layout.nodes_in(node.value), ast.Constant)]
        found |= {each for each in listed if isinstance(each, str)}
    return found


def _rename_use(layout: ProgramLayout, use: ast.Name, origin: str) -> list[Change]:
    """Return the changes for one use of an imported name, empty if the use stays valid with the new import."""
    node: ast.expr = use
    dotted = origin
    if origin in OLD_HOMES:
        # The module is imported, so the attribute is the deprecated name.
        node = require_type(layout.parent_of(use), ast.Attribute)
        dotted = f"{origin}.{node.attr}"
    old = torch_api.canonical_name(dotted)
    require(old in torch_api.DEPRECATED)
    parent = layout.parent_of(node)
    # An import with `as` keeps the name at the use.
    written = layout.source_of(node)
    if old.endswith(f".{CLIP}"):
        renamed = written if use.id != CLIP else written + "_"
        return [Edit(*layout.span_of(node), renamed)] if renamed != written else []
    if isinstance(parent, ast.Call) and parent.func is node:
        return [_rewrite_call(layout, parent, old, written)]
    if isinstance(parent, FUNCTIONS) and node in parent.decorator_list:
        return [_rewrite_call(layout, node, old, written)]
    require(old.endswith("GradScaler") and _is_type_use(layout, node))
    return []


def _is_type_use(layout: ProgramLayout, node: ast.expr) -> bool:
    """Return True if an expression is in an annotation, or is the class argument of ``isinstance``."""
    inner: ast.AST = node
    for each in layout.ancestors_of(node):
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


def _rewrite_import(
    layout: ProgramLayout, statement: ast.Import | ast.ImportFrom, moved_aliases: list[ast.alias]
) -> Edit:
    """Return the edit that imports the moved names from the new module, and the other names from the old module."""
    require(moved_aliases)
    source = layout.source_of(statement)
    whole = len(moved_aliases) == len(statement.names)
    span = layout.span_of(statement)
    first = moved_aliases[0]
    if isinstance(statement, ast.Import):
        require(whole and len(moved_aliases) == 1)
        return make_minimal_edit(*span[:2], source, source.replace(first.name, NEW_HOME, 1))
    module = statement.module or ""
    if module == "torch.nn.utils" or module.startswith("torch.nn.utils."):
        changed = re.sub(rf"\b{CLIP}\b", f"{CLIP}_", source)
        return make_minimal_edit(*span[:2], source, changed)
    home = NEW_HOME if module in OLD_HOMES else "torch"
    if whole:
        return make_minimal_edit(*span[:2], source, re.sub(r"(from\s+)[\w.]+", rf"\g<1>{home}", source, count=1))
    require("\n" not in source and "(" not in source)
    kept = [alias for alias in statement.names if alias not in moved_aliases]
    rows = [f"from {module} import {_format_aliases(kept)}", f"from {home} import {_format_aliases(moved_aliases)}"]
    return Edit(*span, f"\n{layout.indent_of(statement)}".join(rows))


def _format_aliases(names: list[ast.alias]) -> str:
    return ", ".join(f"{each.name} as {each.asname}" if each.asname else each.name for each in names)


# One call.


def _rewrite_call(layout: ProgramLayout, node: ast.expr, old: str, function: str) -> Change:
    """Return the change that binds the arguments of a deprecated call again.

    ``node`` may be a decorator without call.
    """
    last = old.rpartition(".")[2]
    device = "cpu" if ".cpu." in old or "_cpu_" in old else "cuda"
    # The most frequent quote of the file.
    quote = "'" if layout.text.count("'") > layout.text.count('"') else '"'
    quoted = f"{quote}{device}{quote}"
    if not isinstance(node, ast.Call):
        require(last in DECORATORS)
        return make_minimal_edit(*layout.span_of(node)[:2], layout.source_of(node), f"{function}(device_type={quoted})")
    if last == CLIP:
        return PendingRewrite(layout, node, RewriteSpec(new_function=function))
    if last in DECORATORS and node.args:
        return PendingRewrite(
            layout, node, RewriteSpec(new_function=function, last_arguments=[("device_type", quoted)])
        )
    if last in DECORATORS:
        return PendingRewrite(
            layout, node, RewriteSpec(new_function=function, first_arguments=[f"device_type={quoted}"])
        )
    if last != "autocast":
        return PendingRewrite(layout, node, RewriteSpec(new_function=function, first_arguments=[quoted]))
    given = [quoted, "dtype=torch.float16"] if device == "cuda" and _may_inherit_dtype(layout, node) else [quoted]
    return PendingRewrite(
        layout,
        node,
        RewriteSpec(new_function=function, first_arguments=given, argument_names=("enabled", "dtype", "cache_enabled")),
    )


def _may_inherit_dtype(layout: ProgramLayout, call: ast.Call) -> bool:
    """Return True if the new autocast may inherit the dtype of an enclosing region; the old autocast meant float16.

    Code that runs backward is not part of a forward pass, and so is not called inside a region.
    """
    if find_keyword(call, "dtype") is not None or len(call.args) > 1:
        return False
    enabled = call.args[0] if call.args else find_keyword(call, "enabled")
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return False
    decorates = isinstance(layout.parent_of(call), FUNCTIONS)
    within = any(_may_be_region(layout, each, call) for each in layout.ancestors_of(call))
    if not decorates and not within and _runs_passes(layout, layout.scope_of(call)):
        return False
    require(count_torch_imports(find_binders(layout, "torch")) and is_bound_once(layout, "torch"))
    return True


def _runs_passes(layout: ProgramLayout, scope: ast.AST) -> bool:
    """Return True if code runs passes and is no part of a pass.

    Such code is a script, runs backward, or sets the mode.
    """
    if isinstance(scope, ast.Module):
        return True
    return isinstance(scope, FUNCTIONS) and any(
        find_receiver(call, name) is not None
        for name in ("backward", "train", "eval")
        for call in layout.find_calls(scope, name)
    )


def _may_be_region(layout: ProgramLayout, parent: ast.AST, call: ast.Call) -> bool:
    """Return True if an enclosing ``with`` may be a region: by name, or because the context is unknown."""
    if not isinstance(parent, (ast.With, ast.AsyncWith)):
        return False
    items = [item.context_expr for item in parent.items]
    if any(call is node for item in items for node in layout.nodes_in(item)):
        return False
    return any(not isinstance(item, ast.Call) or "autocast" in layout.source_of(item) for item in items)
