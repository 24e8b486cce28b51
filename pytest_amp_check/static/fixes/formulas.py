"""Fixes for expressions that low precision cannot represent."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.source_text import access_text
from ..project.syntax import bound_by_import
from .layout import ProgramLayout
from .matchers import (
    NotFixable,
    all_arguments,
    count_torch_imports,
    find_assignments,
    find_keyword,
    require,
    require_first,
    require_only,
    require_type,
)
from .pending_rewrites import Change, PendingRewrite
from .queries import Mended, is_bound_once, require_name
from .rewrite_spec import RewriteSpec

#: Functions that write a value into a tensor, with the position of the value in the arguments of the method.
WRITERS = {
    **dict.fromkeys(("masked_fill", "masked_fill_", "where"), 1),
    **dict.fromkeys(("index_fill", "index_fill_"), 2),
    **dict.fromkeys(("fill_", "full_like"), 0),
}
#: Parameter names of the value, if not ``value``.
VALUES = {"where": "other", "full_like": "fill_value"}
#: Smallest (most negative) float16 number.
SMALLEST = -65504


def smallest_of_dtype(layout: ProgramLayout, finding: Finding) -> Mended:
    """Replace a number below the float16 range by the smallest number of the tensor's dtype."""
    call = layout.find_expression(finding.site, ast.Call)
    func = require_type(call.func, ast.Attribute)
    require(func.attr in WRITERS)
    tensor, at = _find_written_tensor(layout, call, func)
    name = require_name(layout, tensor)
    value = VALUES.get(func.attr, "value")
    given = find_keyword(call, value) or require_first(call.args[at:])
    number = _number_of(given)
    require(number is not None and float("-inf") != number < SMALLEST)
    require(count_torch_imports(layout.tree.body))
    require(not any(keyword.arg in ("dtype", "out", None) for keyword in call.keywords))
    smallest = f"torch.finfo({name}.dtype).min"
    return f"Write `{smallest}`", [PendingRewrite(layout, call, RewriteSpec(new_value=(at, value, smallest)))]


def _find_written_tensor(layout: ProgramLayout, call: ast.Call, func: ast.Attribute) -> tuple[ast.expr, int]:
    """Return the tensor that a value is written into, and the position of the value in the arguments."""
    at = WRITERS[func.attr]
    if require_name(layout, func.value) != "torch":
        require(func.attr != "full_like")
        return func.value, at
    if func.attr != "where":
        return require_first(call.args), at + 1
    # The branch that is a number is written into the tensor of the other branch.
    require(len(call.args) == 3)
    at = require_first(each for each in (1, 2) if _number_of(call.args[each]) is not None)
    return call.args[3 - at], at


def _number_of(node: ast.expr) -> float | None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _number_of(operand)
            return -number if number is not None else None
        case (
            ast.Constant(value=int() | float() | str() as value)
            | ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=int() | float() | str() as value)])
        ):
            try:
                return float(value)
            except (ValueError, OverflowError):
                return None
    return None


#: Functions inside a logarithm, with the function that computes both.
STABLE = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}
#: Module of the tensor functions.
FUNCTIONAL = "torch.nn.functional"


def stable_logarithm(layout: ProgramLayout, finding: Finding) -> Mended:
    """Replace a logarithm and the inner function by the single function for both."""
    outer = layout.find_expression(finding.site, ast.Call)
    require(finding.label in ("fragile:log-softmax", "fragile:log-sigmoid") and not outer.keywords)
    match outer:
        case ast.Call(func=ast.Attribute(attr="log", value=ast.Call() as inner), args=[]):
            pass
        case ast.Call(func=ast.Attribute(attr="log", value=ast.Name(id="torch")), args=[ast.Call() as inner]):
            pass
        case _:
            raise NotFixable
    require("#" not in layout.source_of(outer).replace(layout.source_of(inner), "", 1))
    function, change = _make_stable_call(layout, outer, inner)
    return f"Use `{function}`", [change]


def _make_stable_call(layout: ProgramLayout, outer: ast.Call, inner: ast.Call) -> tuple[str, Change]:
    """Return the function for both, and the change that converts a softmax or sigmoid call."""
    require(not any(keyword.arg in ("out", None) for keyword in inner.keywords))
    homes = _find_torch_imports(layout)
    match inner.func:
        case ast.Name(id=name):
            # The function is imported by name; the combined function may not be imported.
            require(homes.get(name) in (f"{FUNCTIONAL}.{name}", f"torch.{name}"))
            function = f"{_find_functional_name(homes)}.{STABLE.get(name, '')}"
            return function, PendingRewrite(layout, inner, RewriteSpec(new_function=function), replaced_node=outer)
        case ast.Attribute(attr=name) as func if name in STABLE and not access_text(func).startswith("self."):
            return _rewrite_attribute_call(layout, outer, inner, func, homes)
        case ast.Attribute():
            return _rewrite_module_call(layout, outer, inner, homes)
    raise NotFixable


def _rewrite_attribute_call(
    layout: ProgramLayout, outer: ast.Call, inner: ast.Call, func: ast.Attribute, homes: dict[str, str]
) -> tuple[str, Change]:
    """Convert a function of an imported module, or a method of a tensor, to the combined function."""
    owner, softmax = _resolve_name(homes, func.value), func.attr == "softmax"
    function = f"{layout.source_of(func.value)}.{STABLE[func.attr]}"
    if owner not in (FUNCTIONAL, "torch"):
        # The method of a tensor has only a dimension argument.
        require(all(map(_is_plain, inner.args)) and softmax == bool(inner.args or inner.keywords))
    if owner != FUNCTIONAL and not softmax:
        function = f"{_find_functional_name(homes)}.logsigmoid"
        if owner != "torch":
            return function, Edit(*layout.span_of(outer), f"{function}({layout.source_of(func.value)})")
    return function, PendingRewrite(layout, inner, RewriteSpec(new_function=function), replaced_node=outer)


def _rewrite_module_call(
    layout: ProgramLayout, outer: ast.Call, inner: ast.Call, homes: dict[str, str]
) -> tuple[str, Change]:
    """Convert the call of a module attribute to a function call."""
    name = access_text(inner.func)
    require(name.startswith("self.") and not inner.keywords)
    value = require_only(inner.args)
    require(not isinstance(value, ast.Starred))
    cls = require_type(layout.find_enclosing(inner, ast.ClassDef), ast.ClassDef)
    constructor = require_type(require_only(find_assignments(layout.nodes_in(cls), name)).value, ast.Call)
    kind = _resolve_name(homes, constructor.func).rpartition(".")[2]
    require(kind in ("Softmax", "Sigmoid"))
    given = all_arguments(constructor)
    require(len(given) == (kind == "Softmax") and all(map(_is_plain, given)))
    shown = [layout.source_of(value), *(f"dim={layout.source_of(each)}" for each in given)]
    function = f"{_find_functional_name(homes)}.{STABLE[kind.lower()]}"
    return function, Edit(*layout.span_of(outer), f"{function}({', '.join(shown)})")


def _is_plain(node: ast.expr) -> bool:
    """Return True if an expression has the same meaning at any location: a number or a string."""
    return isinstance(node, (ast.Constant, ast.UnaryOp))


def _resolve_name(homes: dict[str, str], node: ast.expr) -> str:
    """Return the full dotted name of an expression."""
    top, _, rest = access_text(node).partition(".")
    return f"{homes.get(top, '')}.{rest}".rstrip(".")


def _find_torch_imports(layout: ProgramLayout) -> dict[str, str]:
    """Return the top-level imports from torch whose names are bound nowhere else in the file."""
    found: dict[str, str] = {}
    for node in layout.tree.body:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            found.update(bound_by_import(node))
    return {name: home for name, home in found.items() if home.startswith("torch") and is_bound_once(layout, name)}


def _find_functional_name(homes: dict[str, str]) -> str:
    """Return the name of ``torch.nn.functional`` in a file."""
    prefixes = ((FUNCTIONAL, ""), ("torch.nn", ".functional"), ("torch", ".nn.functional"))
    return require_first(name + rest for home, rest in prefixes for name, known in homes.items() if known == home)
