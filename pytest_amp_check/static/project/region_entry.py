"""Who enters autocast: the functions and classes of a file by which code comes into a region, and what is in one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ...protocol.fast_namedtuple import NamedTuple
from .syntax import bound_by_import, children, tail_name, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

#: What makes a model cast by itself, as autocast does.
POLICIES = frozenset({"MixedPrecision", "MixedPrecisionPolicy"})
#: What computes in float16.
_FLOAT16_NAMES = frozenset({"float16", "HalfTensor", *POLICIES})
_DTYPES = frozenset({"float16", "torch.float16"})
#: What makes tensors of a dtype from then on.
_DEFAULT_SETTERS = frozenset({"set_default_dtype", "set_default_tensor_type"})
#: Products that run in the dtype of a weight that is cast for them.
_PRODUCTS = frozenset({"linear", "matmul", "conv1d", "conv2d", "conv3d"})
_CASTS = frozenset({"to", "type", "type_as", "half"})
#: How functions begin that only ask about autocast.
_QUERY_PREFIXES = ("is_", "get_")
#: Methods by which an object is what its class is, and what runs it; their names say nothing.
_RUNNING_METHODS = frozenset({"__init__", "__call__", "__enter__", "__exit__", "__new__", "__post_init__", "forward"})
#: Parts of the names of what switches gradients off: the wrappers of projects are called after it.
_NO_GRADIENTS = ("no_grad", "inference_mode")


class AutocastEntries(NamedTuple):
    """What enters autocast in some files.

    ``names`` are the functions and classes that do, by themselves or through others of their file; ``modules`` the
    classes that do and have a forward, or the policies that make a model do so; ``within`` is what is called inside of
    regions, "x." for a call of what is found in x. ``everywhere`` says that a region may stand around all that runs.
    """

    names: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    called_in_regions: frozenset[str] = frozenset()
    is_everywhere: bool = False


def enters_autocast(node: ast.AST) -> bool:
    """Whether code mentions autocast other than to switch it off, to ask about it or to import it."""
    return next(_autocast_mentions([node]), None) is not None


def may_use_float16(tree: ast.Module) -> bool:
    """Whether code may compute in float16: it enters autocast, names the dtype or casts to it.

    What it asserts, compares or only imports is not computed, and what its strings tell at length is not either. Nor
    do regions of bfloat16 compute in it, nor does a scaler: it is for what else does.
    """
    ignored_nodes: set[ast.AST] = set()
    aliases: set[str] = set()
    nodes = walk(tree)
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            renamed = (alias for alias in node.names if alias.asname and _is_float16_name(alias.name))
            aliases.update(alias.asname or "" for alias in renamed)
    for node in nodes:
        if node in ignored_nodes:
            continue
        if isinstance(node, (ast.Assert, ast.Compare)):
            ignored_nodes.update(walk(node))
        elif isinstance(node, ast.Call):
            if _is_disabled_call(node) or _is_of_bfloat16(node):
                ignored_nodes.add(node.func)
            if tail_name(node.func) == "half" and not node.args:
                return True
        elif _is_float16_node(node) or tail_name(node) in aliases:
            return True
    return False


def _is_of_bfloat16(call: ast.Call) -> bool:
    """Whether a region of autocast is asked for in bfloat16."""
    if "autocast" not in tail_name(call.func):
        return False
    given = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"] or call.args[1:2]
    return any(tail_name(value) == "bfloat16" for value in given)


def _is_float16_node(node: ast.AST) -> bool:
    """Whether a name, an attribute or a string is what float16 comes into code by."""
    if isinstance(node, ast.Constant):
        return node.value in _DTYPES
    name = tail_name(node)
    if name == "half":
        return isinstance(node, ast.Attribute) and tail_name(node.value) == "torch"
    return _is_float16_name(name)


def _is_float16_name(name: str) -> bool:
    return name in _FLOAT16_NAMES or ("autocast" in name and not name.startswith(_QUERY_PREFIXES))


def find_autocast_entries(tree: ast.Module) -> AutocastEntries:
    """What enters autocast in a file."""
    direct: set[str] = set()
    names_by_owner: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    called_in_regions: set[str] = set()
    nodes = walk(tree)
    others = _autocast_aliases(nodes)
    for node in nodes:
        if _is_function(node):
            if node.name not in _RUNNING_METHODS and not _without_gradients(node):
                named = names_by_owner.setdefault(node.name, set())
                named |= _names_below([node])
                if enters_autocast(node) or named & others:
                    direct.add(node.name)
        elif isinstance(node, ast.ClassDef):
            named = names_by_owner.setdefault(node.name, set())
            own = [
                part for part in node.body if getattr(part, "name", "") in _RUNNING_METHODS or not _is_function(part)
            ]
            named |= _names_below([*own, *node.decorator_list, *node.bases])
            if any(map(_is_forward, node.body)):
                modules[node.name] = named
                named |= _names_below([node])
            if (
                named & others
                or _casts_weights(node)
                or (enters_autocast(node) if node.name in modules else any(map(enters_autocast, own)))
            ):
                direct.add(node.name)
        elif isinstance(node, (ast.With, ast.AsyncWith)) and any(
            enters_autocast(item.context_expr) or _names_below([item.context_expr]) & others for item in node.items
        ):
            called_in_regions |= _called_names(node.body)
    found = set(direct)
    grown = True
    while grown:
        more = {name for name, named in names_by_owner.items() if name not in found and named & found}
        grown = bool(more)
        found |= more
    casting = (found & modules.keys()) | POLICIES.intersection(map(tail_name, nodes))
    if any(map(_sets_float16_default, nodes)):
        # Whatever is made there, and what it is made of.
        casting.add("")
    return AutocastEntries(
        frozenset(found), frozenset(casting), frozenset(called_in_regions), _enters_globally(tree, nodes)
    )


def _autocast_aliases(nodes: list[ast.AST]) -> set[str]:
    """Names that a file, given by its nodes, gives autocast, or what it makes of it."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and enters_autocast(node.value):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(name for name, meant in bound_by_import(node) if "autocast" in meant)
    # What is called after it is recognised wherever it stands, and is none where it is switched off.
    return {name for name in found if "autocast" not in name}


def _is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _is_forward(node: ast.AST) -> bool:
    """Whether a part of a class is the forward of a module that may train: that of an autograd.Function is static."""
    if not _is_function(node) or node.name != "forward" or _without_gradients(node):
        return False
    return all(tail_name(decorator) != "staticmethod" for decorator in node.decorator_list)


def _without_gradients(node: ast.AST) -> bool:
    """Whether code runs without gradients, so that no loss comes of it: it is decorated so, or is such a ``with``."""
    if _is_function(node):
        marks = node.decorator_list
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        marks = [item.context_expr for item in node.items]
    else:
        return False
    named = (tail_name(mark.func if isinstance(mark, ast.Call) else mark) for mark in marks)
    return any(part in name for name in named for part in _NO_GRADIENTS)


def _enters_globally(tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Whether a file calls autocast outside of functions and classes, and of a ``with``: it may stay entered.

    Apex patches the functions of torch, or casts the model, so that all runs in low precision that runs after it; so
    it does where tensors are made in float16 by default, or layers cast their weights.
    """
    loose = [node for node in tree.body if isinstance(node, ast.Expr)]
    return next(_autocast_mentions(loose), None) is not None or any(map(_affects_all_code, nodes))


def _affects_all_code(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return _casts_weights(node)
    return _is_apex(node) or _sets_float16_default(node)


def _sets_float16_default(node: ast.AST) -> bool:
    """Whether a call makes float16 the dtype of what is made after it."""
    if not isinstance(node, ast.Call) or tail_name(node.func) not in _DEFAULT_SETTERS:
        return False
    return any(tail_name(given) == "half" or _is_float16_node(given) for given in node.args)


def _casts_weights(cls: ast.ClassDef) -> bool:
    """Whether a layer casts its own weight for the product that it computes, which is mixed precision by hand."""
    forward = next((part for part in cls.body if _is_forward(part)), None)
    if forward is None:
        return False
    # One that does so for TorchScript alone, as timm's does, relies on autocast otherwise.
    products = [n for n in walk(forward) if isinstance(n, ast.Call) and tail_name(n.func) in _PRODUCTS]
    return bool(products) and all(any(map(_is_cast_weight, product.args)) for product in products)


def _is_cast_weight(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=cast, value=ast.Attribute(value=ast.Name("self"), attr="weight"))):
            return cast in _CASTS
    return False


def _is_apex(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="initialize", value=owner)):
            return tail_name(owner) == "amp"
    return False


def _autocast_mentions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names by which autocast is mentioned where it may be entered and a loss may come of it."""
    off: set[ast.AST] = set()
    for root in nodes:
        for node in _with_gradients(root):
            if isinstance(node, ast.Call) and _is_disabled_call(node):
                off.add(node.func)
            name = tail_name(node)
            if node in off or not name or name.startswith(_QUERY_PREFIXES):
                continue
            if "autocast" in name or name in POLICIES:
                yield name


def _with_gradients(root: ast.AST) -> list[ast.AST]:
    """A node and all below it, but for what runs without gradients."""
    found = [] if _without_gradients(root) else [root]
    for node in found:
        found.extend(below for below in children(node) if not _without_gradients(below))
    return found


def _is_disabled_call(call: ast.Call) -> bool:
    """Whether what is called is told to be switched off."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "enabled"] or call.args[:1]
    return any(isinstance(value, ast.Constant) and value.value is False for value in given)


def _called_names(nodes: Iterable[ast.AST]) -> set[str]:
    """What is called, by its last name, and with a dot behind it what that is looked up in."""
    calls = [node.func for root in nodes for node in walk(root) if isinstance(node, ast.Call)]
    return {tail_name(func) for func in calls} | {
        f"{tail_name(f.value)}." for f in calls if isinstance(f, ast.Attribute)
    }


def _names_below(nodes: Iterable[ast.AST]) -> set[str]:
    return {name for root in nodes for node in walk(root) if (name := tail_name(node))}
