"""Models of calls of Python's builtins."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from functools import partial

from ...protocol import torch_api
from ...protocol.events import UNKNOWN
from ...protocol.source_text import SourceText, find_access_path
from ..interpreter.classes.attributes import BINDABLE_METHODS, as_mapping
from ..interpreter.comparisons import ItemCounts, RangeEnds, RangeSteps
from ..interpreter.conditions import Formula, conjunction, disjunction
from ..interpreter.dtypes import NO_DTYPE_INFO
from ..interpreter.expressions.assignments import write_field
from ..interpreter.expressions.attributes import DATA_SIZE_NAMES, attribute_of
from ..interpreter.expressions.iteration import COUNTED, EnumerateIterables, ZipIterables, element_of
from ..interpreter.expressions.operators import apply_operator
from ..interpreter.formulas import truth_of
from ..interpreter.identity import Operation, structural_unknown
from ..interpreter.imports import dotted_name, globals_of
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text, names_in, short_text_or
from ..interpreter.tensors import compute_tensor
from ..interpreter.values.containers import MappingValue, SequenceValue, UnionValue, merge_into
from ..interpreter.values.definitions import (
    Args,
    ClassValue,
    ExternalName,
    GeneratorValue,
    Instance,
    Keywords,
    SuperValue,
)
from ..interpreter.values.gradients import ParamsValue, ScaleValue, gradients_in, join_params
from ..interpreter.values.objects import ObjectRef, StateDict
from ..interpreter.values.tensors import TensorValue, tensors_in
from ..interpreter.values.value import NONE, ConditionValue, Const, UnknownValue, Value, are_data_sizes
from ..project.assignments import is_unknown_name
from ..project.clipping_hooks import names_hook
from ..project.syntax import walk
from .arguments import find_tensors, first_or_named, literal_value, object_ref_of
from .devices import device_text_of
from .gradients import HooksByName, emit_grad_read
from .losses.operators import is_unevenly_scaled
from .syntax_queries import constant_of_node, first_argument, keywords_of, operands_of

#: Class names for ``isinstance``: a value known to be a dict, a list or a tuple is an instance of every class in its
#: set.
_DICTS = frozenset({"builtins.dict"})
_LISTS = frozenset({"builtins.list", "builtins.tuple"})
_TEXTS = frozenset({"builtins.str"})
_CONTAINERS = _DICTS | _LISTS | _TEXTS | {"builtins.set"}


def _call_super(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    frame = interp.state.frame
    if frame.cls is not None and frame.receiver is not None:
        return SuperValue(frame.cls, frame.receiver)
    return interp.fresh_unknown(node)


def _call_range(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = _make_counter(interp, "range", args, args[0] if len(args) > 1 else Const(0))
    if len(args) == 1:
        interp.file_data(ItemCounts)[made.key] = args[0]
    if args:
        _record_end(interp, made, args[1] if len(args) > 1 else args[0], args[2] if len(args) > 2 else Const(1))
    made.microbatches = _iterates_microbatches(args)
    return made


def _call_enumerate(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    first = args[0] if args else NONE
    made = _make_counter(interp, "enumerate", args, first_or_named(args[1:], keywords, "start") or Const(0))
    if made.count.first_value is None:
        made.count = made.count._replace(added_to_start=_find_added_number(node))
    made.microbatches = first.microbatches
    interp.file_data(EnumerateIterables)[made.key] = first
    length = interp.file_data(ItemCounts).length_of(first)
    if length is not None:
        interp.file_data(ItemCounts)[made.key] = length
    if made.count.first_value == 0:
        # The number of items, as the code would ask for it.
        _record_end(interp, made, structural_unknown(interp, Operation.CALL, (first,), "len", "len"), Const(1))
    return made


def _find_added_number(node: ast.AST) -> int | None:
    """Return the number that the start of an enumeration adds to another number, or None for another start."""
    arguments = node.args if isinstance(node, ast.Call) else []
    start = keywords_of(node).get("start", arguments[1] if len(arguments) > 1 else None)
    for side in operands_of(start, ast.Add):
        number = constant_of_node(side)
        if isinstance(number, int):
            return number
    return None


def call_count(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Return the numbers of ``itertools.count(start=0, step=1)``, which have no end."""
    return _make_counter(interp, "count", args, first_or_named(args, keywords, "start") or Const(0))


def _record_end(interp: Interpreter, made: UnknownValue, end: Value, step: Value) -> None:
    interp.file_data(RangeEnds)[made.key] = end
    interp.file_data(RangeSteps)[made.key] = step


def _make_counter(interp: Interpreter, name: str, args: Args, start: Value) -> UnknownValue:
    """Return a value that counts the iterations of a loop, beginning with a given number."""
    made = structural_unknown(interp, Operation.CALL, tuple(args), name, name)
    made.loops |= interp.current_loops()
    made.iterable_kind = name
    number = literal_value(start)
    made.count = made.count._replace(
        first_value=number if isinstance(number, int) else None, possible_start=start.possible_start()
    )
    return made


def _call_zip(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    # The items of micro-batches belong to the iterations of the loop over them, so only the loop evaluates the items.
    splits = bool(args) and all(a.microbatches for a in args)
    if splits or any(map(_counts_or_yields_windows, args)):
        iterable = interp.fresh_unknown(node)
        iterable.iterable_kind = "zip"
        iterable.microbatches = any(a.microbatches for a in args)
        interp.file_data(ZipIterables)[iterable.key] = args
        return iterable
    place = first_argument(node) or ast.Constant(0)
    zipped = SequenceValue([SequenceValue([element_of(interp, a, place) for a in args])], is_open=True)
    zipped.microbatches = any(a.microbatches for a in args)
    return zipped


def _counts_or_yields_windows(iterable: Value) -> bool:
    """Return True for an iterable whose items belong to the iterations of the loop over it."""
    if isinstance(iterable, GeneratorValue):
        return bool(iterable.yield_predicates)
    return isinstance(iterable, UnknownValue) and iterable.iterable_kind in COUNTED


def _call_float(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    given = literal_value(args[0]) if args else None
    if given is UNKNOWN or not isinstance(given, (str, int, float)):
        return _convert_value("float", interp, args, keywords, node)
    try:
        return Const(float(given))
    except ValueError:
        return interp.fresh_unknown(node)


def _call_getattr(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    name = literal_value(args[1]) if len(args) >= 2 else UNKNOWN
    if isinstance(name, str) and name is not UNKNOWN:
        got = attribute_of(interp, args[0], name, node)
        if isinstance(got, UnknownValue) and names_hook(name):
            interp.file_data(HooksByName)[got.key] = name
        return got
    if len(args) >= 2 and isinstance(args[0], ExternalName) and args[0].name == "torch.optim":
        return ExternalName("torch.optim.Optimizer")  # which optimizer does not matter to the protocol
    return _numbered_attribute(interp, args, node)


class _FirstNumbers(dict[tuple[int, str], str]):
    """The number with which a graph first reads one of several numbered attributes of an object."""


def _numbered_attribute(interp: Interpreter, args: Args, node: ast.AST) -> Value | None:
    """Return an attribute such as ``getattr(self, f"scaler{i}")`` that ``setattr`` sets for each number.

    Another number in the same graph is another object with the same role, and in a loop over numbers it is unknown.
    """
    receiver = args[0] if args else NONE
    name = _name_pattern(node.args[1]) if isinstance(node, ast.Call) and len(args) >= 2 else None
    if name is None or not isinstance(receiver, Instance) or (receiver.key, name[0]) not in interp.state.heap:
        return None
    pattern, number = name
    function = interp.state.frame.function
    if function is None or _counts(function.node, number):
        return None
    text = str(expression_text(number))
    stored = attribute_of(interp, receiver, pattern, node)
    if interp.graph_data(_FirstNumbers).setdefault((receiver.key, pattern), text) == text:
        return stored
    if not isinstance(stored, ObjectRef):
        return None
    key = ("numbered", receiver.key, pattern, text)
    return ObjectRef(interp.tracked_object(key, stored.kind, text, interp.site_of(node)), stored.enabled)


def _counts(code: ast.AST, number: ast.expr) -> bool:
    """Return True if a loop in the code assigns a name of the expression, or the code assigns it more than once."""
    nodes = walk(code)
    loops = [each for each in nodes if isinstance(each, (ast.For, ast.AsyncFor, ast.While))]
    targets = [each.target for each in nodes if isinstance(each, ast.comprehension)]
    in_loops = {node for loop in (*loops, *targets) for node in walk(loop)}
    stored = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    times = Counter(node.id for node in stored)
    changing = {node.id for node in stored if node in in_loops or times[node.id] > 1}
    return not names_in(number).isdisjoint(changing)


def _name_pattern(name: ast.expr) -> tuple[str, ast.expr] | None:
    """Return the text of an f-string with one number left out, and the expression of the number; else None."""
    if not isinstance(name, ast.JoinedStr):
        return None
    numbers = [part for part in name.values if isinstance(part, ast.FormattedValue)]
    texts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in name.values]
    return ("".join(texts), numbers[0].value) if len(numbers) == 1 and len(texts) > 1 else None


def _call_setattr(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Model ``setattr``: store the attribute, or mark the instance as open if the attribute name is unknown."""
    receiver, name = (args[0], literal_value(args[1])) if len(args) == 3 else (NONE, UNKNOWN)
    if isinstance(receiver, Instance):
        pattern = _name_pattern(node.args[1]) if isinstance(node, ast.Call) else None
        if isinstance(name, str) and name is not UNKNOWN:
            write_field(interp, receiver, name, args[2].as_stored(), node)
        elif pattern is not None:
            write_field(interp, receiver, pattern[0], args[2].as_stored(), node)
        elif isinstance(node, ast.Call) and is_unknown_name(node.args[1]):
            receiver.is_open = True
    return NONE


def _call_exec(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Model ``exec`` with a single argument: set every global with a known constant to unknown.

    Scripts execute such code to set options from the command line; the code is known only at run time.
    """
    if len(args) == 1 and not keywords:
        globals_ = globals_of(interp, interp.state.frame.module).vars
        for name, value in globals_.items():
            if isinstance(value, Const) and value.value is not None:
                globals_[name] = interp.unknown_value(("executed", interp.location_key(node), name), name)
    return NONE


def _call_dict(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = MappingValue({})
    for value in (*args, MappingValue(keywords, is_open="**" in keywords)):
        merge_into(made, value)
    return made


def _call_defaultdict(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return a dict of lists, or None for another factory."""
    factory = args[0] if len(args) == 1 else None
    makes_lists = isinstance(factory, ExternalName) and factory.name == "builtins.list"
    return MappingValue({}, makes_lists=True) if makes_lists else None


def call_vars(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the attributes of an instance as a dict, or None if the argument is no instance."""
    return as_mapping(interp, args[0]) if args and isinstance(args[0], Instance) else None


def _return_last_argument(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Return the iterable that is passed last, behind a function."""
    return args[1] if len(args) > 1 else args[0] if args else NONE


def _call_sum(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    parameters = call_chain_of_lists(interp, args, keywords, node)
    if parameters is not None:
        return parameters
    made = _combine_tensors(interp, args, keywords, node)
    if isinstance(made, TensorValue):
        made.loss_scale = made.loss_scale._replace(
            has_mixed_scales=made.loss_scale.has_mixed_scales or is_unevenly_scaled(tensors_in(args[0]))
        )
        if made.normalization.is_only_share and _has_weight_per_term(node):
            made.normalization = made.normalization._replace(is_divided=False, is_only_share=False)
    return made


def _has_weight_per_term(node: ast.AST) -> bool:
    """Return True for a call such as ``sum(losses[k] * weights[k] for k in losses)``.

    Each term has a weight of its own, so the sum itself is not divided into shares.
    """
    given = first_argument(node)
    if not isinstance(given, (ast.GeneratorExp, ast.ListComp)):
        return False
    of_term = names_in(*(generator.target for generator in given.generators))
    factors, work = [], [given.elt]
    while work:
        part = work.pop()
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            work += [part.left, part.right]
        else:
            factors.append(part)
    return len(factors) > 1 and all(not of_term.isdisjoint(names_in(factor)) for factor in factors)


def _combine_tensors(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    tensors = find_tensors(args[:1], {})
    return compute_tensor(interp, tensors) if tensors else None


def iterate_over(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the value that iteration over the arguments yields: joined parameters, a single argument, or None."""
    params = [v for v in args if isinstance(v, ParamsValue)]
    if params:
        return join_params(params)
    return args[0] if len(args) == 1 else None


def call_chain_of_lists(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the elements of the lists in a list: ``chain.from_iterable(lists)`` or ``sum(lists, [])``, or None."""
    lists = args[0].items if args and isinstance(args[0], SequenceValue) else []
    params = [each for each in lists if isinstance(each, ParamsValue)]
    return join_params(params) if params and len(params) == len(lists) else None


def _call_next(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    runs = bool(args) and isinstance(args[0], (GeneratorValue, SequenceValue, ParamsValue))
    return element_of(interp, args[0], node) if runs else iterate_over(interp, args, keywords, node)


def call_chain(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    known = iterate_over(interp, args, keywords, node)
    if known is not None:
        return known
    tensors = find_tensors(args, {})
    return compute_tensor(interp, tensors) if tensors else interp.fresh_unknown(node)


def _convert_value(name: str, interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Model a conversion to a number or a text. A conversion of gradients, except ``len``, reads the gradients."""
    if name in ("float", "int") and len(args) == 1 and _is_plain_number(args[0]):
        return args[0]
    for value in args if name != "len" else ():
        for grad in gradients_in(value):
            emit_grad_read(interp, grad, node)
    device = object_ref_of(args[0], "device") if args and name == "str" else None
    text = device_text_of(interp, device) if device is not None else None
    if text is not None:
        return text
    made = structural_unknown(
        interp, Operation.CALL, tuple(args), expression_text(node) if name == "len" else name, name
    )
    made.normalization = made.normalization._replace(is_data_size=name in DATA_SIZE_NAMES or are_data_sizes(args))
    return made


def _is_plain_number(value: Value) -> bool:
    """Return True if a value is a loss scale or may be a setting: converted to a number, it is the same number."""
    return isinstance(value, ScaleValue) or (
        isinstance(value, UnknownValue)
        and value.dtype_info is NO_DTYPE_INFO
        and value.count.remainder_operands is None
        and not (
            value.origin.is_call_result
            or value.normalization.is_divided
            or value.origin.is_from_gradient
            or value.gradient_reads
        )
    )


def _call_isinstance(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    value = args[0] if args else NONE
    if isinstance(value, UnionValue):
        # Each option has its own result. A test that separates lists from other values decides which option is a list.
        are_distinguished = _distinguishes_lists(value, _class_names_of(interp, node))
        ways: list[Formula] = [
            formula
            if are_distinguished and isinstance(option, SequenceValue)
            else conjunction(
                formula, truth_of(interp, _call_isinstance(interp, [option, *args[1:]], {}, node), node=node)
            )
            for formula, option in value.options
        ]
        return ConditionValue(disjunction(*ways), value.loops)
    classes = _class_names_of(interp, node)
    known = False if _is_torch_optimizer(value) and _are_project_classes(args[1:]) else _is_instance_of(value, classes)
    if known is not None:
        return Const(known)
    named = classes[0] if len(classes) == 1 else None
    asked = tuple(classes) if classes and None not in classes else id(node)
    role = torch_api.BASES.get(torch_api.canonical_name(named)) if named else None
    if isinstance(value, ObjectRef) and value.recognized_from is None and role in ("scaler", "optimizer", "module"):
        return Const(value.role == role)
    if isinstance(value, ParamsValue) and not value.is_single and named in ("torch.Tensor", "torch.nn.Parameter"):
        return Const(False)
    return ConditionValue(
        interp.predicate_formula(
            ("isinstance", value.identity_key(interp.unique_number), named or asked),
            SourceText(node),
            value.loops,
            node,
        )
    )


def _distinguishes_lists(value: UnionValue, classes: list[str | None]) -> bool:
    """Return True if the classes are lists or tuples, and some but not all options of a union are sequences."""
    lists = [isinstance(option, SequenceValue) for _, option in value.options]
    return _LISTS.issuperset(classes) and any(lists) and not all(lists)


def _is_torch_optimizer(value: Value) -> bool:
    """Return True if a value is an optimizer of a class of torch."""
    return (
        isinstance(value, ObjectRef)
        and value.recognized_from is None
        and value.tracked_object.attributes.callable.startswith("torch.")
    )


def _are_project_classes(given: Args) -> bool:
    """Return True if all classes passed to ``isinstance`` are classes of the project."""
    classes = [item for value in given for item in (value.items if isinstance(value, SequenceValue) else [value])]
    return bool(classes) and all(isinstance(each, ClassValue) for each in classes)


def _class_names_of(interp: Interpreter, node: ast.AST) -> list[str | None]:
    """Return the names of the classes that are passed to ``isinstance``, None for an unknown class."""
    if not isinstance(node, ast.Call) or len(node.args) != 2:
        return []
    given = node.args[1]
    return [_resolve_class_name(interp, each) for each in (given.elts if isinstance(given, ast.Tuple) else [given])]


def _resolve_class_name(interp: Interpreter, node: ast.expr) -> str | None:
    """Return the full name of a class if known, else the source path of the expression."""
    known = dotted_name(interp, node)
    if known is None and isinstance(node, ast.Name) and f"builtins.{node.id}" in _CONTAINERS:
        return f"builtins.{node.id}"
    return known or find_access_path(node)


def _is_instance_of(value: Value, classes: list[str | None]) -> bool | None:
    """Decide ``isinstance`` for a dict, a list, a tuple, a text, a torch object or None. None if undecided."""
    if value.value is None:
        return False if classes else None
    if isinstance(value, (MappingValue, StateDict)):
        own = _DICTS
    elif isinstance(value.value, str):
        own = _TEXTS
    elif isinstance(value, SequenceValue):
        own = _LISTS
    elif isinstance(value, ObjectRef) and value.recognized_from is None:
        own = frozenset[str]()
    else:
        return None
    if own and own <= set(classes):
        return True
    return False if classes and _CONTAINERS.difference(own).issuperset(classes) else None


def _call_hasattr(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    value = args[0] if args else NONE
    if not isinstance(value, UnionValue):
        return Const(True) if _has_attribute(args) else None
    # A union of an object and None (or a text flag) has the attribute exactly where the union is the object.
    has = [
        (formula, _has_attribute([option, *args[1:]]), isinstance(option, Const)) for formula, option in value.options
    ]
    if not any(known for _, known, _ in has) or not all(known or constant for _, known, constant in has):
        return None
    return ConditionValue(disjunction(*(formula for formula, known, _ in has if known)), value.loops)


def _has_attribute(args: Args) -> bool:
    """Return True if an object is known to have an attribute.

    A tracked object has the methods of its role, because an object without these methods has another role. A torch
    module has the names in the API table.
    """
    if len(args) != 2:
        return False
    owner, name = args[0], literal_value(args[1])
    if isinstance(owner, ExternalName):
        return torch_api.find_entry(f"{owner.name}.{name}") is not None
    return isinstance(owner, ObjectRef) and name in BINDABLE_METHODS.get(owner.role, ())


def _iterates_microbatches(bounds: list[Value]) -> bool:
    """Return True if a range has a step greater than one or an unknown step, like slices of a batch."""
    if len(bounds) != 3:
        return False
    step = literal_value(bounds[2])
    return step is UNKNOWN or (isinstance(step, int) and step > 1)


def _iterate_constants(interp: Interpreter, value: SequenceValue, node: ast.AST) -> Value:
    """Return what a loop over constants assigns, such as the keys of a dict: known if there is only one."""
    if len(value.items) == 1 and not value.is_open and not isinstance(value.items[0].value, tuple):
        return value.items[0]
    made = interp.fresh_unknown(node, "element")
    made.origin = made.origin._replace(is_loop_element=True, is_from_gradient=value.origin.is_from_gradient)
    return made


def register(handlers: HandlerTable) -> None:
    handlers.loop_elements["sequence"] = _iterate_constants
    functions: dict[str, Callable[[Interpreter, Args, Keywords, ast.AST], Value | None]] = {
        "super": _call_super,
        "range": _call_range,
        "enumerate": _call_enumerate,
        "zip": _call_zip,
        "divmod": lambda interp, args, keywords, node: (
            SequenceValue([apply_operator(interp, op, args[0], args[1], node) for op in ("//", "%")])
            if len(args) == 2
            else None
        ),
        "float": _call_float,
        "bool": lambda interp, args, keywords, node: ConditionValue(
            truth_of(interp, args[0] if args else NONE, short_text_or(first_argument(node) or node), node)
        ),
        "isinstance": _call_isinstance,
        "getattr": _call_getattr,
        "setattr": _call_setattr,
        "exec": _call_exec,
        "hasattr": _call_hasattr,
        "dict": _call_dict,
        "vars": call_vars,
        "filter": _return_last_argument,
        "map": _return_last_argument,
        "sum": _call_sum,
        "max": _combine_tensors,
        "min": _combine_tensors,
        "chain": call_chain,
        **dict.fromkeys(("list", "tuple", "set", "sorted", "reversed", "iter"), iterate_over),
        "next": _call_next,
    }
    for name in ("int", "str", "len", "print", "format", "repr"):
        functions[name] = partial(_convert_value, name)
    handlers.named_functions.update({f"builtins.{name}": function for name, function in functions.items()})
    handlers.named_functions["collections.OrderedDict"] = _call_dict
    handlers.named_functions["collections.defaultdict"] = _call_defaultdict
