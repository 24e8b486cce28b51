"""Entry into autocast regions: functions and classes of a file that enter a region, and calls inside regions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.frameworks import REGION_DTYPES
from .syntax import bound_by_import, children, tail_name, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

#: FSDP policies that make a model cast by itself, as autocast does.
POLICIES = frozenset({"MixedPrecision", "MixedPrecisionPolicy"})
#: Names of float16 computation.
_FLOAT16_NAMES = frozenset({"float16", "HalfTensor", *POLICIES})
_DTYPES = frozenset({"float16", "torch.float16"})
#: Functions that set the dtype of all later tensors.
_DEFAULT_SETTERS = frozenset({"set_default_dtype", "set_default_tensor_type"})
#: Products whose dtype is the dtype of a weight that the code casts for them.
_PRODUCTS = frozenset({"linear", "matmul", "conv1d", "conv2d", "conv3d"})
_CASTS = frozenset({"to", "type", "type_as", "half"})
#: Prefixes of functions that only query autocast.
_QUERY_PREFIXES = ("is_", "get_")
#: End of names that hold or test the state of autocast, as in ``cast_if_autocast_enabled``. No region has such a name.
_STATE_SUFFIX = "autocast_enabled"
#: Methods that construct and run an object. Their names say nothing about autocast.
RUNNING_METHODS = frozenset({"__init__", "__call__", "__enter__", "__exit__", "__new__", "__post_init__", "forward"})
#: Parts of names that disable gradients; projects name their wrappers after these functions.
_NO_GRADIENTS = ("no_grad", "inference_mode")


#: Methods that the loop of the training calls in a region.
FORWARDS = frozenset(("forward", "training_step"))
#: Methods of a module that compute nothing.
_SETTINGS = frozenset("train eval to cuda cpu half float bfloat16 requires_grad_ parameters state_dict".split())
#: Methods of data sets, whose code runs in workers without a region.
METHODS_OF_DATA = frozenset(("__getitem__", "__iter__", "__next__"))
#: Methods that run before the training.
SETUP_METHODS = frozenset(("__init__", "__post_init__", "reset_parameters", "init_weights", "_init_weights"))


class AutocastEntries(NamedTuple):
    """Autocast entries of some files.

    names               functions and classes that enter autocast, directly or through other functions of the same file
    modules             such classes with a forward, and policies that make a model enter autocast
    called_in_regions   names of calls inside regions; "x." for a call of an attribute of x
    is_everywhere       a region may cover all code
    trains_itself       the file defines modules and runs backward: it is a program of its own
    runs_backward       the file runs backward
    initializes_apex    apex patches the functions of torch, or casts a model, for losses that another file scales
    """

    names: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    called_in_regions: frozenset[str] = frozenset()
    is_everywhere: bool = False
    trains_itself: bool = False
    runs_backward: bool = False
    initializes_apex: bool = False


class RegionUser(NamedTuple):
    """A class or a function of a file, the names in its code, and the last names of the bases of a class."""

    name: str
    names: frozenset[str]
    bases: frozenset[str]
    is_in_region: bool


def enters_autocast(node: ast.AST) -> bool:
    """Return True if code mentions autocast other than to disable, query or import it."""
    # Most code mentions nothing, which the names alone show.
    return any(map(_is_mention, map(tail_name, walk(node)))) and next(_autocast_mentions([node]), None) is not None


def may_use_float16(tree: ast.Module) -> bool:
    """Return True if code may compute in float16: by autocast, apex, a name of the dtype or a cast.

    Asserted, compared and imported names do not count, and neither do names in longer strings. Regions of bfloat16 do
    not count, and a scaler does not count either, because a scaler serves other code that computes in float16.
    """
    ignored_nodes: set[ast.AST] = set()
    aliases: set[str] = set()
    nodes = walk(tree)
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            aliases.update(alias.asname for alias in node.names if alias.asname and _is_float16_name(alias.name))
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
            if tail_name(node.func) == "initialize" and any(_is_apex_level(each) for each in node.keywords):
                return True
            if any(map(_is_float16_option, node.keywords)):
                return True
        elif _is_float16_node(node) or tail_name(node) in aliases:
            return True
    return False


def _is_apex_level(keyword: ast.keyword) -> bool:
    """Return True if an argument of apex' ``initialize`` may choose float16: every level but ``O0`` does."""
    return keyword.arg == "opt_level" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value == "O0")


def _is_float16_option(keyword: ast.keyword) -> bool:
    """Return True for ``mixed_precision="fp16"`` of accelerate, and the like of Lightning and Transformers."""
    match keyword:
        case ast.keyword(arg="fp16", value=ast.Constant(value=True)):
            return True
        case ast.keyword(arg="mixed_precision" | "precision", value=ast.Constant(value=str(precision))):
            # The number 16 is as often a count of digits.
            return REGION_DTYPES.get(precision) == "float16"
    return False


def _is_of_bfloat16(call: ast.Call) -> bool:
    """Return True if a call creates an autocast region of bfloat16."""
    if "autocast" not in tail_name(call.func):
        return False
    given = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"] or call.args[1:2]
    return any(tail_name(value) == "bfloat16" for value in given)


def _is_float16_node(node: ast.AST) -> bool:
    """Return True if a name, an attribute or a string introduces float16."""
    if isinstance(node, ast.Constant):
        return node.value in _DTYPES
    name = tail_name(node)
    if name == "half":
        return isinstance(node, ast.Attribute) and tail_name(node.value) == "torch"
    return _is_float16_name(name)


def _is_float16_name(name: str) -> bool:
    return name in _FLOAT16_NAMES or ("autocast" in name and not name.startswith(_QUERY_PREFIXES))


def find_autocast_entries(tree: ast.Module) -> AutocastEntries:
    """Return the autocast entries of a file."""
    direct: set[str] = set()
    names_by_owner: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    called_in_regions: set[str] = set()
    nodes = walk(tree)
    others = _autocast_aliases(nodes)
    for node in nodes:
        if _is_function(node):
            if node.name not in RUNNING_METHODS and not _without_gradients(node):
                named = names_by_owner.setdefault(node.name, set())
                named |= _names_below([node])
                if enters_autocast(node) or named & others:
                    direct.add(node.name)
        elif isinstance(node, ast.ClassDef):
            named = names_by_owner.setdefault(node.name, set())
            own = [part for part in node.body if not _is_function(part) or part.name in RUNNING_METHODS]
            if any(map(_is_forward, node.body)):
                modules[node.name] = named
                own = _find_code_of_forward(node)
            named |= _names_below([*own, *node.decorator_list, *node.bases])
            if named & others or _casts_weights(node) or any(map(enters_autocast, [*own, *node.decorator_list])):
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
        # Any model created there, and any of its parts.
        casting.add("")
    return AutocastEntries(
        frozenset(found),
        frozenset(casting),
        frozenset(called_in_regions),
        _enters_globally(tree, nodes),
        trains_own_modules(nodes),
        _runs_backward(nodes),
        any(map(_is_apex, nodes)) and not scales_with_apex(nodes),
    )


def _find_code_of_forward(cls: ast.ClassDef) -> list[ast.stmt]:
    """Return the parts of a module's class that may run in the forward: methods that other methods call, and the rest.

    A method that only other code calls, such as a prediction for a caller, says nothing about the forward.
    """
    methods: dict[str, list[ast.stmt]] = {}
    found: list[ast.stmt] = []
    for part in cls.body:
        if _is_function(part) and part.name not in RUNNING_METHODS | FORWARDS:
            methods.setdefault(part.name, []).append(part)
        else:
            found.append(part)
    for part in found:
        named = _names_below([part])
        # A name that is computed may be the name of any method.
        for name in [*methods] if "getattr" in named else named & methods.keys():
            found += methods.pop(name)
    return found


def trains_own_modules(nodes: list[ast.AST]) -> bool:
    """Return True if a file defines modules and runs backward itself. ``nodes`` are all nodes of the file."""
    return any(isinstance(node, ast.FunctionDef) and node.name == "forward" for node in nodes) and _runs_backward(nodes)


def scales_with_apex(nodes: list[ast.AST]) -> bool:
    """Return True if a file scales a loss by apex. A scaler of torch is then an alternative, for models of its own."""
    return any(isinstance(node, ast.Call) and tail_name(node.func) == "scale_loss" for node in nodes)


def _runs_backward(nodes: list[ast.AST]) -> bool:
    return any(isinstance(node, ast.Call) and tail_name(node.func) == "backward" for node in nodes)


def _autocast_aliases(nodes: list[ast.AST]) -> set[str]:
    """Return the names to which a file assigns autocast or a result of autocast.

    ``nodes`` are all nodes of the file.
    """
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and enters_autocast(node.value):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(name for name, meant in bound_by_import(node) if "autocast" in meant)
    # A name with "autocast" in it is recognized everywhere, and does not count for a disabled region.
    return {name for name in found if "autocast" not in name}


def _is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _is_forward(node: ast.AST) -> bool:
    """Return True if a part of a class is the forward of a trainable module.

    An autograd.Function has a static forward.
    """
    if not _is_function(node) or node.name != "forward" or _without_gradients(node):
        return False
    return all(tail_name(decorator) != "staticmethod" for decorator in node.decorator_list)


def _without_gradients(node: ast.AST) -> bool:
    """Return True if a decorator or a ``with`` runs code without gradients, so that the code computes no loss."""
    if _is_function(node):
        marks = node.decorator_list
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        marks = [item.context_expr for item in node.items]
    else:
        return False
    named = (tail_name(mark.func if isinstance(mark, ast.Call) else mark) for mark in marks)
    return any(part in name for name in named for part in _NO_GRADIENTS)


def _enters_globally(tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Return True if a file calls autocast outside functions, classes and ``with``: the region may stay open.

    A float16 default dtype has the same effect, and so have layers that cast their weights.
    """
    loose = [node for node in tree.body if isinstance(node, ast.Expr)]
    return next(_autocast_mentions(loose), None) is not None or any(map(_affects_all_code, nodes))


def _affects_all_code(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return _casts_weights(node)
    return _sets_float16_default(node)


def _sets_float16_default(node: ast.AST) -> bool:
    """Return True if a call makes float16 the dtype of later tensors."""
    if not isinstance(node, ast.Call) or tail_name(node.func) not in _DEFAULT_SETTERS:
        return False
    return any(tail_name(given) == "half" or _is_float16_node(given) for given in node.args)


def _casts_weights(cls: ast.ClassDef) -> bool:
    """Return True if a layer casts its own weight for a product, which is mixed precision without autocast."""
    forward = next((part for part in cls.body if _is_forward(part)), None)
    if forward is None:
        return False
    # A layer that casts only for TorchScript, as timm's does, otherwise relies on autocast.
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
    """Yield the names that mention autocast where code may enter a region and compute a loss."""
    off: set[ast.AST] = set()
    for root in nodes:
        for node in _with_gradients(root):
            if isinstance(node, ast.Call) and _is_disabled_call(node):
                off.add(node.func)
            name = tail_name(node)
            if node in off or not name or name.startswith(_QUERY_PREFIXES) or name.endswith(_STATE_SUFFIX):
                continue
            if _is_mention(name):
                yield name


def has_region(tree: ast.Module) -> bool:
    """Return True if a file mentions autocast other than to disable, query or import it, or to clear its cache."""
    return any(not name.endswith("autocast_cache") for name in _autocast_mentions([tree]))


def _is_mention(name: str) -> bool:
    return "autocast" in name or name in POLICIES


def _with_gradients(root: ast.AST) -> list[ast.AST]:
    """Return a node and all nodes below, except code that runs without gradients."""
    found = [] if _without_gradients(root) else [root]
    for node in found:
        found.extend(below for below in children(node) if not _without_gradients(below))
    return found


def runs_only_without_gradients(nodes: Iterable[ast.AST], attribute: str) -> bool:
    """Return True if methods use a module in an attribute, and only under ``torch.no_grad()`` or the like."""
    is_used = False
    for root in nodes:
        used = [node for node in walk(root) if _runs_attribute(node, attribute)]
        is_used = is_used or bool(used)
        if used and any(_runs_attribute(node, attribute) for node in _with_gradients(root)):
            return False
    return is_used


def _runs_attribute(node: ast.AST, attribute: str) -> bool:
    """Return True for ``self.attribute(...)`` and ``self.attribute.method(...)``, except settings of the module."""
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case ast.Attribute(value=ast.Name(), attr=name):
            return name == attribute
        case ast.Attribute(value=ast.Attribute(value=ast.Name(), attr=name), attr=method):
            return name == attribute and method not in _SETTINGS
    return False


def _is_disabled_call(call: ast.Call) -> bool:
    """Return True if a call passes ``enabled=False``, or False by position.

    ``torch.cuda.amp.autocast`` takes it first, ``torch.autocast`` behind the device and the dtype. The third argument
    of the former is about the cache.
    """
    takes_device = any(_is_device(argument) for argument in call.args[:1])
    place = slice(2, 3) if takes_device else slice(1)
    given = [keyword.value for keyword in call.keywords if keyword.arg == "enabled"] or call.args[place]
    return any(isinstance(value, ast.Constant) and value.value is False for value in given)


def _is_device(argument: ast.expr) -> bool:
    """Return True for an argument that is a text, or that is named as a device."""
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return is_text or "device" in tail_name(argument)


def disables_autocast(node: ast.expr) -> bool:
    """Return True if a decorator, or the context of a ``with``, disables autocast or makes it float32."""
    if not isinstance(node, ast.Call):
        return False
    name, given = tail_name(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
    if name == "custom_fwd":
        return "cast_inputs" in given
    if "autocast" not in name:
        return False
    dtype = given.get("dtype", node.args[1] if len(node.args) > 1 else None)
    return _is_disabled_call(node) or tail_name(dtype or node) in ("float", "float32", "float64", "double")


def _called_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the last names of all callees, and with a trailing dot the last names of their receivers."""
    calls = [node.func for root in nodes for node in walk(root) if isinstance(node, ast.Call)]
    return {tail_name(func) for func in calls} | {
        f"{tail_name(f.value)}." for f in calls if isinstance(f, ast.Attribute)
    }


def _names_below(nodes: Iterable[ast.AST]) -> set[str]:
    return {name for root in nodes for node in walk(root) if (name := tail_name(node))}


def walk_regions(root: ast.AST) -> list[ast.AST]:
    """Return a node and all nodes below, except code for which a decorator or a ``with`` disables autocast."""
    found = [] if _is_disabled(root) else [root]
    for node in found:
        found.extend(below for below in children(node) if not _is_disabled(below))
    return found


def _is_disabled(node: ast.AST) -> bool:
    if _is_function(node):
        return any(map(disables_autocast, node.decorator_list))
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return any(disables_autocast(item.context_expr) for item in node.items)
    return False


def collect_region_users(tree: ast.Module) -> list[RegionUser]:
    """Return the classes and functions of a file, except data sets."""
    found: list[RegionUser] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = frozenset(filter(None, map(tail_name, walk_regions(node))))
            found.append(RegionUser(node.name, names, frozenset(), enters_autocast(node)))
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))]
            own = {method.name for method in methods}
            if own & METHODS_OF_DATA:
                continue
            parts = [part for method in methods if method.name not in SETUP_METHODS for part in walk_regions(method)]
            bases = frozenset(map(tail_name, node.bases))
            is_module = bool(own & FORWARDS) or any(base.endswith("Module") for base in bases)
            found.append(RegionUser(node.name, bases.union(filter(None, map(tail_name, parts))), bases, is_module))
    return found
