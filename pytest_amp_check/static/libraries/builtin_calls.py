"""Calls of Python's builtins."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from ...protocol import surface
from ...protocol.events import UNKNOWN
from ...protocol.words import chain
from ..interpreter.classes import BOUND, as_mapping
from ..interpreter.comparisons import Lengths, Ranges
from ..interpreter.conditions import Formula, both, either
from ..interpreter.expressions import EXTENTS, Enumerated, Zipped, attribute, element_of, measures, operate
from ..interpreter.identity import structural
from ..interpreter.imports import dotted_name, globals_of
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import computed
from ..interpreter.truth import truth
from ..interpreter.values import (
    NONE,
    Args,
    Choice,
    ClassValue,
    Const,
    Generator,
    Instance,
    Keywords,
    Mapping,
    Named,
    Opaque,
    Params,
    Ref,
    Sequence,
    SuperValue,
    Tensor,
    Truth,
    Value,
    merge_into,
    merge_params,
)
from ..interpreter.wording import wording
from ..project.module import names_any
from .arguments import first_of, given_tensors, literal, ref_of
from .devices import text_of
from .gradients import grad_used
from .losses import is_uneven
from .written import first_argument

#: Classes that are asked for: what is one of a kind for certain is of all that stand there.
_DICTS = frozenset({"builtins.dict"})
_LISTS = frozenset({"builtins.list", "builtins.tuple"})
_CONTAINERS = _DICTS | _LISTS | {"builtins.set", "builtins.str"}


def _super(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    frame = at.state.frame
    if frame.cls is not None and frame.receiver is not None:
        return SuperValue(frame.cls, frame.receiver)
    return at.fresh(node, "super()")


def _range(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = _counting(at, "range", args, args[0] if len(args) > 1 else Const(0))
    if len(args) == 1:
        at.of_file(Ranges)[made.key] = at.of_file(Lengths)[made.key] = args[0]
    made.pieces = _takes_pieces(args)
    return made


def _enumerate(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    first = args[0] if args else NONE
    made = _counting(at, "enumerate", args, first_of(args[1:], keywords, "start") or Const(0))
    made.pieces = first.pieces
    at.of_file(Enumerated)[made.key] = first
    length = at.of_file(Lengths).of(first)
    if length is not None:
        at.of_file(Lengths)[made.key] = length
    return made


def _counting(at: Interpreter, name: str, args: Args, start: Value) -> Opaque:
    """What counts the turns of a loop, from a number on."""
    made = structural(at, "call", tuple(args), name, name)
    made.loops |= at.turning()
    made.iterates = name
    number = literal(start)
    made.first = number if isinstance(number, int) else None
    return made


def _zip(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if any(isinstance(a, Generator) and a.yields for a in args):
        turns = at.fresh(node, "zip")
        turns.iterates = "zip"
        turns.pieces = any(a.pieces for a in args)
        at.of_file(Zipped)[turns.key] = args
        return turns
    place = first_argument(node) or ast.Constant(0)
    zipped = Sequence([Sequence([element_of(at, a, place) for a in args])], open=True)
    zipped.pieces = any(a.pieces for a in args)
    return zipped


def _float(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    given = literal(args[0]) if args else None
    if given is UNKNOWN or not isinstance(given, (str, int, float)):
        return _shown("float", at, args, keywords, node)
    try:
        return Const(float(given))
    except ValueError:
        return at.fresh(node, "float")


def _getattr(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    name = literal(args[1]) if len(args) >= 2 else UNKNOWN
    return attribute(at, args[0], name, node) if isinstance(name, str) and name is not UNKNOWN else None


def _setattr(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """An attribute is given a value: where its name is not known, any of them may be."""
    receiver, name = (args[0], literal(args[1])) if len(args) == 3 else (NONE, UNKNOWN)
    if isinstance(receiver, Instance):
        if isinstance(name, str) and name is not UNKNOWN:
            at.store(receiver.key, name, args[2])
        elif isinstance(node, ast.Call) and names_any(node.args[1]):
            receiver.open = True
    return NONE


def _exec(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Code that only a run knows may set every global anew, as those are for whom the command line sets options."""
    if len(args) == 1 and not keywords:
        globals_ = globals_of(at, at.state.frame.module).vars
        for name, value in globals_.items():
            if isinstance(value, Const) and value.value is not None:
                globals_[name] = at.opaque(("executed", at.place_key(node), name), name)
    return NONE


def _dict(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = Mapping({})
    for value in (*args, Mapping(keywords, open="**" in keywords)):
        merge_into(made, value)
    return made


def fields(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """An object as a dict of what it holds."""
    return as_mapping(at, args[0]) if args and isinstance(args[0], Instance) else None


def _last_of_two(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """What goes over what it is given last, with a function before it."""
    return args[1] if len(args) > 1 else args[0] if args else NONE


def _sum(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    made = _largest(at, args, keywords, node)
    if isinstance(made, Tensor):
        made.uneven = made.uneven or is_uneven(args[0].tensors())
    return made


def _largest(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    tensors = given_tensors(args[:1], {})
    return computed(at, tensors) if tensors else None


def iterated(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """What goes over what it is given."""
    params = [v for v in args if isinstance(v, Params)]
    if params:
        return merge_params(params)
    return args[0] if len(args) == 1 else None


def _next(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    runs = bool(args) and isinstance(args[0], (Generator, Sequence))
    return element_of(at, args[0], node) if runs else iterated(at, args, keywords, node)


def chained(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    known = iterated(at, args, keywords, node)
    if known is not None:
        return known
    tensors = given_tensors(args, {})
    return computed(at, tensors) if tensors else at.fresh(node)


def _shown(name: str, at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """What makes a number or a text of gradients has read them."""
    for value in args if name != "len" else ():
        for grad in value.gradients():
            grad_used(at, grad, node)
    device = ref_of(args[0], "device") if args and name == "str" else None
    text = text_of(at, device) if device is not None else None
    if text is not None:
        return text
    made = structural(at, "call", tuple(args), wording(node) if name == "len" else name, name)
    made.extent = name in EXTENTS or measures(args)
    return made


def _isinstance(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    value = args[0] if args else NONE
    if isinstance(value, Choice):
        # Each of them has an answer of its own. Who tells lists from something else knows which of them is one.
        apart = _tells_lists(value, _classes_of(at, node))
        ways: list[Formula] = [
            formula
            if apart and isinstance(option, Sequence)
            else both(formula, truth(at, _isinstance(at, [option, *args[1:]], {}, node), "", node))
            for formula, option in value.options
        ]
        return Truth(either(*ways), value.loops)
    classes = _classes_of(at, node)
    known = False if _is_of_torch(value) and _are_of_project(args[1:]) else _is_of(value, classes)
    if known is not None:
        return Const(known)
    named = classes[0] if len(classes) == 1 else None
    asked = tuple(classes) if classes and None not in classes else id(node)
    role = surface.BASES.get(surface.canonical(named)) if named else None
    if isinstance(value, Ref) and value.source is None and role in ("scaler", "optimizer", "module"):
        return Const(value.role == role)
    if isinstance(value, Params) and not value.one and named in ("torch.Tensor", "torch.nn.Parameter"):
        return Const(False)
    return Truth(at.ask(("isinstance", value.identity(at.number), named or asked), wording(node), value.loops, node))


def _tells_lists(value: Choice, classes: list[str | None]) -> bool:
    """Whether classes are of lists or tuples, and only some of what a value may be is one."""
    lists = [isinstance(option, Sequence) for _, option in value.options]
    return _LISTS.issuperset(classes) and any(lists) and not all(lists)


def _is_of_torch(value: Value) -> bool:
    """Whether a value is an optimizer of one of torch's own classes."""
    return (
        isinstance(value, Ref) and value.source is None and value.thing.facts.get("callable", "").startswith("torch.")
    )


def _are_of_project(given: Args) -> bool:
    """Whether what ``isinstance`` is given are classes of the project."""
    classes = [item for value in given for item in (value.items if isinstance(value, Sequence) else [value])]
    return bool(classes) and all(isinstance(each, ClassValue) for each in classes)


def _classes_of(at: Interpreter, node: ast.AST) -> list[str | None]:
    """The names of the classes that ``isinstance`` is given."""
    if not isinstance(node, ast.Call) or len(node.args) != 2:
        return []
    given = node.args[1]
    return [_class_name(at, each) for each in (given.elts if isinstance(given, ast.Tuple) else [given])]


def _class_name(at: Interpreter, node: ast.expr) -> str | None:
    """The name of a class, in full where that is known."""
    known = dotted_name(at, node)
    if known is None and isinstance(node, ast.Name) and f"builtins.{node.id}" in _CONTAINERS:
        return f"builtins.{node.id}"
    return known or chain(node)


def _is_of(value: Value, classes: list[str | None]) -> bool | None:
    """Whether a value that is known to be a dict, a list or a tuple, an object of torch or None is of some classes."""
    if value.value is None:
        return False if classes else None
    if isinstance(value, Mapping):
        own = _DICTS
    elif isinstance(value, Sequence):
        own = _LISTS
    elif isinstance(value, Ref) and value.source is None:
        own = frozenset[str]()
    else:
        return None
    if own and own <= set(classes):
        return True
    return False if classes and _CONTAINERS.difference(own).issuperset(classes) else None


def _hasattr(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    value = args[0] if args else NONE
    if not isinstance(value, Choice):
        return Const(True) if _has(args) else None
    # What is one of its kind or nothing, or a word that says so, has what its kind has where it is one.
    has = [(formula, _has([option, *args[1:]]), isinstance(option, Const)) for formula, option in value.options]
    if not any(known for _, known, _ in has) or not all(known or constant for _, known, constant in has):
        return None
    return Truth(either(*(formula for formula, known, _ in has if known)), value.loops)


def _has(args: Args) -> bool:
    """Whether a thing has an attribute: if it lacked what all of its kind have, it would be of another one.

    And torch has what the table knows of it.
    """
    if len(args) != 2:
        return False
    owner, name = args[0], literal(args[1])
    if isinstance(owner, Named):
        return surface.lookup(f"{owner.name}.{name}") is not None
    return isinstance(owner, Ref) and name in BOUND.get(owner.role, ())


def _takes_pieces(bounds: list[Value]) -> bool:
    """Whether a range goes forward in steps of more than one, as slices of a batch do."""
    if len(bounds) != 3:
        return False
    step = literal(bounds[2])
    return step is UNKNOWN or (isinstance(step, int) and step > 1)


def register(handlers: Handlers) -> None:
    functions: dict[str, Callable[[Interpreter, Args, Keywords, ast.AST], Value | None]] = {
        "super": _super,
        "range": _range,
        "enumerate": _enumerate,
        "zip": _zip,
        "divmod": lambda at, args, keywords, node: (
            Sequence([operate(at, op, args[0], args[1], node) for op in ("//", "%")]) if len(args) == 2 else None
        ),
        "float": _float,
        "bool": lambda at, args, keywords, node: Truth(truth(at, args[0] if args else NONE, "", node)),
        "isinstance": _isinstance,
        "getattr": _getattr,
        "setattr": _setattr,
        "exec": _exec,
        "hasattr": _hasattr,
        "dict": _dict,
        "vars": fields,
        "filter": _last_of_two,
        "map": _last_of_two,
        "sum": _sum,
        "max": _largest,
        "min": _largest,
        "chain": chained,
        **dict.fromkeys(("list", "tuple", "set", "sorted", "reversed", "iter"), iterated),
        "next": _next,
    }
    for name in ("int", "str", "len", "print", "format", "repr"):
        functions[name] = partial(_shown, name)
    handlers.functions.update({f"builtins.{name}": function for name, function in functions.items()})
    handlers.functions["collections.OrderedDict"] = _dict
