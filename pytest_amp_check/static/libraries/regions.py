"""Models of autocast regions: construction, and use as a decorator."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks, torch_api
from ...protocol.events import UNKNOWN, Symbol
from ...protocol.source_text import SourceText, access_text
from ..interpreter.classes.lineage import role_of
from ..interpreter.conditions import Formula
from ..interpreter.contexts import close_context, enter_context, exit_context
from ..interpreter.formulas import truth_of
from ..interpreter.functions import has_unknown_arguments
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text, short_text
from ..interpreter.unanalyzed_code import call_unknown
from ..interpreter.values.contexts import Float8Context
from ..interpreter.values.definitions import Args, ExternalName, FunctionValue, Keywords
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.value import Const, Value
from ..project.module import Class
from .arguments import bind_arguments, keyword_text, literal_value, make_object, to_attribute_value
from .device_comparisons import comparison_texts, find_failed_comparison
from .devices import device_types_of
from .flags import is_flag, note_switch
from .syntax_queries import constant_of_node, find_nodes, keywords_of


def make_autocast(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    if entry.name == "torch.autocast" and args and isinstance(args[0], FunctionValue):
        # @torch.autocast without parentheses: torch takes the function as the device type.
        bound = {"device_type": ExternalName("function")}
    # Of a choice of several dtypes, no single one is the argument.
    decided = {name: value for name, value in bound.items() if name != "dtype" or not _is_choice(value)}
    arguments = {name: to_attribute_value(interp, value) for name, value in decided.items()}
    if arguments.get("device_type") is UNKNOWN and _gets_device_of_input(interp, node):
        arguments["device_type"] = Symbol("torch.device()")
    open_ended = "**" in bound or has_unknown_arguments(interp, node)
    if not open_ended:
        names = {"context": expression_text(node), "call": expression_text(node)}
        excess = max(0, len(args) - len(entry.parameters))
        failed = find_failed_comparison(interp, bound, node)
        interp.emit(
            e.AutocastNew,
            node,
            callable=entry.name,
            arguments=arguments,
            excess=excess,
            failed_comparison=None if failed is None else comparison_texts(*failed),
            flag_as_dtype=_find_flag_as_dtype(interp, entry, bound.get("dtype"), node),
            names=names,
        )
    enabled = enabled_condition(interp, bound, node, open_ended=open_ended)
    types = device_types_of(bound.get("device_type"))
    used = interp.project.devices
    # The configuration decides between device types that the text leaves open.
    types = [each for each in types if each in used] or types or (list(used) if len(used) == 1 else [])
    # A device chosen by availability means CUDA, because AMP is not worth the effort without CUDA.
    device = entry.attributes.get("device") or ("cuda" if "cuda" in types else types[0] if types else "")
    # Several entries may be called at one location, so the key contains the name.
    tracked_object = make_object(interp, "autocast", node, entry.name)
    dtype = _find_region_dtype(bound.get("dtype"), device, open_ended)
    region = tracked_object.attributes
    region.device, region.dtype = device, dtype
    chosen = _find_chosen_dtypes(bound.get("dtype"), device)
    region.may_choose_float16 = _may_choose_float16(chosen, node)
    written = _find_dtype_argument(entry, node)
    if region.may_choose_float16 and "bfloat16" in chosen and written is not None:
        region.low_choice = str(short_text(written))
    region.cache = _caches_weights(interp, entry, bound.get("cache_enabled"))
    return ObjectRef(tracked_object, enabled)


def _find_flag_as_dtype(interp: Interpreter, entry: torch_api.ApiEntry, given: Value | None, node: ast.AST) -> object:
    """Return the source text of a flag in place of the dtype, "" without one."""
    written = _find_dtype_argument(entry, node)
    return SourceText(written) if written is not None and is_flag(interp, given, written) else ""


def _find_dtype_argument(entry: torch_api.ApiEntry, node: ast.AST) -> ast.expr | None:
    """Return the expression that a call gives as the dtype, by name or by position."""
    written = keywords_of(node).get("dtype")
    if written is None and isinstance(node, ast.Call):
        return dict(zip(entry.parameters, node.args, strict=False)).get("dtype")
    return written


def enabled_condition(interp: Interpreter, bound: Keywords, node: ast.AST, *, open_ended: bool) -> Formula:
    """Return the condition of an ``enabled`` argument. ``open_ended`` means that the call unpacks arguments."""
    if "enabled" in bound:
        note_switch(interp, bound)
        condition = truth_of(interp, bound["enabled"], keyword_text("enabled", node), node)
        if interp.state.frame.module is interp.module and isinstance(node, ast.Call) and not _is_literal_switch(node):
            interp.branch_runs.add_run(node, condition)
        return condition
    return interp.predicate_formula(("open", id(node)), "", frozenset(), node) if open_ended else True


def _is_literal_switch(node: ast.Call) -> bool:
    given = (*node.args, keywords_of(node).get("enabled"))
    return any(isinstance(constant_of_node(each), bool) for each in given)


def _is_choice(value: Value) -> bool:
    return isinstance(value, ExternalName) and len(value.possible_dtypes) > 1


def _find_region_dtype(given: Value | None, device: str, open_ended: bool) -> str:
    """Return the dtype of a region, or "?" if unknown."""
    if given is not None and literal_value(given) is not None:
        dtypes = list(given.possible_dtypes) if isinstance(given, ExternalName) else []
        return dtypes[0] if len(dtypes) == 1 else "?"
    return "?" if open_ended else torch_api.DEFAULT_AUTOCAST_DTYPE.get(device, "?")


def _find_chosen_dtypes(given: Value | None, device: str) -> frozenset[str]:
    """Return the dtypes that the code chooses between, empty if one of them is not known. None is the default."""
    dtypes: set[str] = set()
    for each in given.alternatives() if given is not None else ():
        if isinstance(each, ExternalName) and each.possible_dtypes:
            dtypes.update(each.possible_dtypes)
        elif isinstance(each, Const) and each.value is None:
            dtypes.add(torch_api.DEFAULT_AUTOCAST_DTYPE.get(device, "?"))
        else:
            return frozenset()
    return frozenset(dtypes)


def _may_choose_float16(dtypes: frozenset[str], node: ast.AST) -> bool:
    """Return True if the code chooses between float16 and another dtype. A comparison may enable only the other."""
    return len(dtypes) > 1 and "float16" in dtypes and not isinstance(keywords_of(node).get("enabled"), ast.Compare)


def _caches_weights(interp: Interpreter, entry: torch_api.ApiEntry, cache: Value | None) -> bool:
    """Return True if a region caches weight casts."""
    if cache is not None:
        return literal_value(cache) is not False
    # Without the argument, the cache setting of the enclosing region applies, except for the old entry points.
    return entry.name != "torch.autocast" or not interp.state.open_regions or interp.state.open_regions[-1].cache


def _gets_device_of_input(interp: Interpreter, node: ast.AST) -> bool:
    """Return True if an argument is ``x.device`` of an input that the forward of a module passes to its layers."""
    frame = interp.state.frame
    function = frame.function
    if function is None or frame.cls is None or function.name != "forward" or not isinstance(node, ast.Call):
        return False
    if role_of(interp, frame.cls) != torch_api.MODULE:
        return False
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "device_type")]
    owners = {
        each.value.id
        for each in given
        if isinstance(each, ast.Attribute) and each.attr == "device" and isinstance(each.value, ast.Name)
    }
    inputs = owners & {parameter.arg for parameter in function.parameters()[1:]}
    layers = [call for call in find_nodes(function.node, ast.Call) if access_text(call.func).startswith("self.")]
    return any(isinstance(each, ast.Name) and each.id in inputs for call in layers for each in call.args)


def _call_autocast_method(
    interp: Interpreter, context: ObjectRef, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "__enter__":
        enter_context(interp, context, node)
    elif name == "__exit__":
        exit_context(interp, context, node, max(interp.state.region_depth - 1, 0))
        close_context(interp, context)
        interp.state.region_depth = max(interp.state.region_depth - 1, 0)
    return interp.fresh_unknown(node, name)


def _decorate_with_autocast(
    interp: Interpreter, func: ObjectRef, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """Decorate a function that is passed to a region."""
    if args and isinstance(args[0], FunctionValue):
        inner = args[0]
        return FunctionValue(inner.function, inner.frame, inner.receiver, (*inner.wrappers, func))
    return call_unknown(interp, func, args, keywords, node)


def _make_subclass_autocast(
    interp: Interpreter, cls: Class, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Return a region for a project subclass of autocast.

    Return None if the subclass overrides construction, enter or exit.
    """
    if cls.methods.keys() & {"__init__", "__enter__", "__exit__"}:
        return None
    entry = next(
        (found for base in cls.bases if (found := torch_api.find_entry(dotted_name(interp, base) or ""))), None
    )
    return make_autocast(interp, entry, args, keywords, node) if entry is not None else None


def _make_float8_region(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return Float8Context(
        enabled_condition(
            interp, bind_arguments(("enabled",), args, keywords), node, open_ended=has_unknown_arguments(interp, node)
        )
    )


def register(handlers: HandlerTable) -> None:
    handlers.named_functions.update(dict.fromkeys(frameworks.FLOAT8, _make_float8_region))
    handlers.torch_roles[torch_api.AUTOCAST] = make_autocast
    handlers.constructors[torch_api.AUTOCAST] = _make_subclass_autocast
    handlers.calls["autocast"] = _decorate_with_autocast
    handlers.methods["autocast"] = _call_autocast_method
