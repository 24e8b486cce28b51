"""Fixes of expressions that low precision does not bear."""

from __future__ import annotations

import ast

from ...protocol.finding import Finding
from ...protocol.fix import Edit
from ...protocol.words import chain
from .layout import Layout, Unfit
from .queries import Mended, means_one_thing, named
from .rebuilt import Change, Rebuilt

#: What writes a value into a tensor, and the place of the value among the arguments of the method.
WRITERS = {
    **dict.fromkeys(("masked_fill", "masked_fill_", "where"), 1),
    **dict.fromkeys(("index_fill", "index_fill_"), 2),
    **dict.fromkeys(("fill_", "full_like"), 0),
}
#: The smallest number that float16 holds.
SMALLEST = -65504

# AMP506.


def smallest_of_dtype(layout: Layout, finding: Finding) -> Mended:
    """Writes the smallest number of the tensor's dtype in the place of one that is smaller than float16 has."""
    call = layout.at(finding.site, ast.Call)
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in WRITERS:
        raise Unfit
    tensor: ast.expr = call.func.value
    at, value = WRITERS[call.func.attr], "value"
    if named(layout, tensor) == "torch":
        if call.func.attr == "where":
            # The one of the two branches that is a number is written into what the other one is.
            at = next((i for i in (1, 2) if i < len(call.args) and _number(call.args[i]) is not None), 0)
            if len(call.args) != 3 or not at:
                raise Unfit
            tensor = call.args[3 - at]
        elif call.args:
            tensor, at = call.args[0], at + 1
        else:
            raise Unfit
    elif call.func.attr == "full_like":
        raise Unfit
    name = named(layout, tensor)
    value = {"where": "other", "full_like": "fill_value"}.get(call.func.attr, value)
    given = next((k.value for k in call.keywords if k.arg == value), None)
    if given is None:
        if len(call.args) <= at:
            raise Unfit
        given = call.args[at]
    number = _number(given)
    if number is None or number >= SMALLEST or number == float("-inf") or not _is_torch(layout):
        raise Unfit
    if any(keyword.arg in ("dtype", "out", None) for keyword in call.keywords):
        raise Unfit
    smallest = f"torch.finfo({name}.dtype).min"
    return f"Write `{smallest}`", [Rebuilt(layout, call, value=(at, value, smallest))]


def _number(node: ast.expr) -> float | None:
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -sign, node.operand
    if isinstance(node, ast.Call) and chain(node.func) == "float" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
        try:
            return sign * float(node.value)
        except (ValueError, OverflowError):
            return None
    return None


def _is_torch(layout: Layout) -> bool:
    """Whether `torch` is imported for the whole file."""
    return any(
        isinstance(node, ast.Import)
        and any(alias.name.partition(".")[0] == "torch" and not alias.asname for alias in node.names)
        for node in layout.tree.body
    )


# AMP507.

#: What a logarithm is taken of, and what does both.
STABLE = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}
#: Where functions of tensors are imported from.
FUNCTIONAL = "torch.nn.functional"


def stable_logarithm(layout: Layout, finding: Finding) -> Mended:
    """Writes a logarithm and what it is taken of as the one function that does both."""
    outer = layout.at(finding.site, ast.Call)
    if finding.label not in ("fragile:log-softmax", "fragile:log-sigmoid") or outer.keywords:
        raise Unfit
    inner: ast.expr
    if isinstance(outer.func, ast.Attribute) and outer.func.attr == "log" and not outer.args:
        inner = outer.func.value
    elif chain(outer.func) == "torch.log" and len(outer.args) == 1:
        inner = outer.args[0]
    else:
        raise Unfit
    if not isinstance(inner, ast.Call):
        raise Unfit
    whole, source = layout.source(outer), layout.source(inner)
    if "#" in whole.replace(source, "", 1):
        raise Unfit
    function, change = _stable(layout, outer, inner)
    return f"Use `{function}`", [change]


def _stable(layout: Layout, outer: ast.Call, inner: ast.Call) -> tuple[str, Change]:
    """The function that does both, and a call of softmax or sigmoid made one of it."""
    func = inner.func
    if any(keyword.arg in ("out", None) for keyword in inner.keywords):
        raise Unfit
    homes = _homes(layout)
    if isinstance(func, ast.Name):
        # Imported by itself, as its logarithm need not be.
        if homes.get(func.id) != f"{FUNCTIONAL}.{func.id}" and homes.get(func.id) != f"torch.{func.id}":
            raise Unfit
        function = f"{_functional(homes)}.{STABLE.get(func.id, '')}"
        return function, Rebuilt(layout, inner, function=function, place=outer)
    if not isinstance(func, ast.Attribute):
        raise Unfit
    if func.attr not in STABLE or (chain(func) or "").startswith("self."):
        return _by_module(layout, outer, inner, homes)
    top, _, rest = (chain(func.value) or "").partition(".")
    owner = f"{homes.get(top, '')}.{rest}".rstrip(".")
    function = f"{layout.source(func.value)}.{STABLE[func.attr]}"
    if owner == FUNCTIONAL or (owner == "torch" and func.attr == "softmax"):
        return function, Rebuilt(layout, inner, function=function, place=outer)
    if owner == "torch":
        function = f"{_functional(homes)}.logsigmoid"
        return function, Rebuilt(layout, inner, function=function, place=outer)
    # The method of a tensor is given a dimension and nothing else.
    if any(not isinstance(arg, (ast.Constant, ast.UnaryOp)) for arg in inner.args):
        raise Unfit
    if func.attr == "softmax" and (inner.args or inner.keywords):
        return function, Rebuilt(layout, inner, function=function, place=outer)
    if func.attr == "softmax" or inner.args or inner.keywords:
        raise Unfit
    function = f"{_functional(homes)}.logsigmoid"
    return function, Edit(*layout.span(outer), f"{function}({layout.source(func.value)})")


def _by_module(layout: Layout, outer: ast.Call, inner: ast.Call, homes: dict[str, str]) -> tuple[str, Change]:
    """What a module of the class does that is called, as a function."""
    name = chain(inner.func)
    owner = next((each for each in layout.around(inner) if isinstance(each, ast.ClassDef)), None)
    if owner is None or name is None or not name.startswith("self.") or len(inner.args) != 1 or inner.keywords:
        raise Unfit
    made = [
        node.value
        for node in layout.within(owner)
        if isinstance(node, ast.Assign) and any(chain(target) == name for target in node.targets)
    ]
    if len(made) != 1 or not isinstance(made[0], ast.Call):
        raise Unfit
    top, _, rest = (chain(made[0].func) or "").partition(".")
    kind = f"{homes.get(top, '')}.{rest}".rstrip(".").rpartition(".")[2]
    given = [*made[0].args, *(keyword.value for keyword in made[0].keywords)]
    if kind not in ("Softmax", "Sigmoid") or isinstance(inner.args[0], ast.Starred):
        raise Unfit
    if len(given) != (kind == "Softmax") or not all(isinstance(each, (ast.Constant, ast.UnaryOp)) for each in given):
        raise Unfit
    shown = [layout.source(inner.args[0]), *(f"dim={layout.source(each)}" for each in given)]
    function = f"{_functional(homes)}.{STABLE[kind.lower()]}"
    return function, Edit(*layout.span(outer), f"{function}({', '.join(shown)})")


def _homes(layout: Layout) -> dict[str, str]:
    """What the names mean that a file imports at its top and binds nowhere else."""
    found: dict[str, str] = {}
    for node in layout.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name: home for name, home in found.items() if home.startswith("torch") and means_one_thing(layout, name)}


def _functional(homes: dict[str, str]) -> str:
    """How a file reaches the functions of tensors."""
    for home, rest in ((FUNCTIONAL, ""), ("torch.nn", ".functional"), ("torch", ".nn.functional")):
        for name, known in homes.items():
            if known == home:
                return name + rest
    raise Unfit
