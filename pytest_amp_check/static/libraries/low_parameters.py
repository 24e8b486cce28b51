"""Modules with low-precision parameters at construction, and models that a Trainer trains."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial

from ...protocol import events as e
from ...protocol import frameworks
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.sites import Site, TraceFacts
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.classes.lineage import base_value, lineage_of
from ..interpreter.conditions import Formula, conjunction, implied_literals
from ..interpreter.expressions.conditional import condition_formula
from ..interpreter.expressions.names import role_by_use
from ..interpreter.imports import dotted_name, load_any_import
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import residual_condition, run_branches
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.values.containers import MappingValue
from ..interpreter.values.definitions import Args, ClassValue, ExternalName, Instance, Keywords
from ..interpreter.values.value import NONE, UnknownValue, Value
from .arguments import first_or_named, literal_value, tracked_object_of
from .default_dtypes import find_default_dtypes
from .dtype_choices import trace_dtype_choice
from .syntax_queries import (
    assigned_values,
    callee_of,
    constant_of_node,
    find_nodes,
    keywords_of,
    last_name,
    receiver_of,
)

#: Methods that cast, with the target dtype, or "" if the dtype is an argument.
_CASTS = {"half": "float16", "bfloat16": "bfloat16", "to": ""}
_LOW = frozenset(("float16", "bfloat16"))
#: Methods of a module that return the module itself.
_MOVES = frozenset(("cuda", "cpu", "to", "train", "eval", "float"))
#: Methods of a model class of Transformers or diffusers that make a model.
_LOADERS = ("from_pretrained", "from_config", "_from_config")
#: Keywords of these methods that set a dtype, and keywords that load a frozen model for training with adapters.
_DTYPES = ("torch_dtype", "dtype")
_QUANTISES = frozenset(("quantization_config", "load_in_4bit", "load_in_8bit"))
#: Methods of a Trainer that receive the trained model as an argument.
_GIVEN_MODEL = frozenset(("compute_loss", "training_step"))
#: Heap key of torch itself, and the name of the attribute with the default dtype.
_OF_TORCH, _DEFAULT = -1, "default dtype"


def find_low_dtype(interp: Interpreter, node: ast.expr | None) -> str:
    """Return the low dtype that an expression may evaluate to, or ""."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value) if node.value in _LOW else ""
    return next(iter(_filter_low_dtypes(interp, interp.without_events(lambda: interp.evaluate(node)))), "")


class LowModules(dict[int, "tuple[Site, str] | None"]):
    """Modules that ever had a low dtype: where their parameters or a policy got the dtype, as a step of a trace."""


def set_low(interp: Interpreter, tracked_object: TrackedObject, dtype: str, node: ast.AST | None = None) -> None:
    """Set the low dtype of the parameters of a module. ``node`` is the call that sets the dtype."""
    _set_low_at(interp, tracked_object, dtype, None if node is None else interp.site_of(node))


def _set_low_at(interp: Interpreter, tracked_object: TrackedObject, dtype: str, site: Site | None) -> None:
    tracked_object.attributes.dtypes = tracked_object.attributes.dtypes._replace(low=dtype)
    cause = None if site is None else (site, f"the model is stored in {dtype}")
    interp.file_data(LowModules).setdefault(tracked_object.key, cause)


def low_dtype_of_modules(interp: Interpreter, modules: frozenset[int]) -> str:
    """Return the low dtype in which all of some modules are stored, or ""."""
    dtypes = {interp.program.objects[key].attributes.dtypes.low for key in modules}
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    return dtype if dtype in _LOW else ""


def emit_created_low(interp: Interpreter, tracked_object: TrackedObject, dtype: str, node: ast.AST) -> None:
    """Emit the construction of a module with parameters of a low dtype."""
    set_low(interp, tracked_object, dtype, node)
    names = {"module": receiver_text(node) or tracked_object.name, "call": expression_text(node)}
    premises = trace_dtype_choice(interp, node, dtype)
    interp.emit(e.ModuleCast, node, tracked_object.key, dtype=dtype, created=True, names=names, premises=premises)


class _LowDefaultSites(dict[str, tuple[Site, object]]):
    """Source locations and source texts of calls that set a low default dtype, by dtype."""


def _call_set_default_dtype(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Model ``torch.set_default_dtype``: later modules are created in the given dtype."""
    given = first_or_named(args, keywords, "d")
    interp.store_attribute(_OF_TORCH, _DEFAULT, given if given is not None else NONE)
    for dtype in _filter_low_dtypes(interp, given):
        interp.file_data(_LowDefaultSites)[dtype] = interp.site_of(node), expression_text(node)
    return NONE


def emit_low_by_default(interp: Interpreter, tracked_object: TrackedObject) -> None:
    """Emit a low-precision construction for a module without a dtype argument, if the default dtype is low."""
    default = interp.state.heap.get((_OF_TORCH, _DEFAULT))
    dtype = next(iter(_filter_low_dtypes(interp, default)), None)
    if dtype is not None:
        set_low(interp, tracked_object, dtype)
        site, words = interp.file_data(_LowDefaultSites)[dtype]
        interp.emit_at(
            e.ModuleCast(site, tracked_object.key, dtype=dtype, created=True, how="default", names={"call": words})
        )


def mark_cast_to_float32(interp: Interpreter, keys: frozenset[int]) -> None:
    """Mark modules created in a low dtype as cast to float32."""
    for node in interp.builder.nodes:
        event = node.event
        if isinstance(event, e.ModuleCast) and event.created and event.subject in keys:
            event.dtype = "float32"
            module = interp.program.objects[event.subject].attributes
            module.dtypes = module.dtypes._replace(low="")


def do_nothing() -> None:
    """Do nothing, in a branch without events."""


def find_low_dtypes(interp: Interpreter, args: Iterable[Value]) -> list[tuple[str, Formula]]:
    """Return the low dtypes that arguments may be on the current path, each with its condition."""
    named = [each for value in args for each in value.alternatives() if isinstance(each, ExternalName)]
    low = [pair for each in named for pair in each.possible_dtypes.items() if pair[0] in _LOW]
    return [pair for pair in low if residual_condition(interp, pair[1]) is not False]


def _filter_low_dtypes(interp: Interpreter, value: Value | None) -> list[str]:
    """Return the low dtypes that a value may refer to."""
    return [dtype for dtype, _ in find_low_dtypes(interp, [] if value is None else [value])]


def _check_pretrained_load(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record a model that a model class loads, or makes from a configuration, in low precision."""
    given = keywords_of(node)
    if given.keys() & _QUANTISES:
        return
    for name in _DTYPES:
        # One finding is enough for a choice of several low dtypes.
        for dtype, condition in _find_keyword_dtypes(interp, node, name)[:1]:
            run_branches(interp, condition, partial(_load_low_module, interp, value, dtype, node), do_nothing)
        if constant_of_node(given.get(name)) == frameworks.OF_CHECKPOINT and isinstance(value, UnknownValue):
            loaded = interp.tracked_object(("used", value.key), "module", value.text, interp.site_of(node))
            names = {"call": expression_text(node), "keyword": name}
            interp.emit(e.ModuleCast, node, loaded.key, dtype="bfloat16", how="checkpoint", created=True, names=names)


def _constructs_model(node: ast.expr | None) -> bool:
    """Return True for a call that loads a model, or that constructs an object of a class which may be one.

    The model may be moved afterwards: ``Net().cuda()``.
    """
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES:
        node = node.func.value
    name = last_name(callee_of(node)) if isinstance(node, ast.Call) else ""
    if name == "from_pretrained":
        return True
    return name[:1].isupper() and not name.isupper() and not name.endswith(("Tensor", "Variable", "Parameter"))


def _load_low_module(interp: Interpreter, value: Value, dtype: str, node: ast.Call) -> None:
    _create_low_module(interp, value, dtype, node)


def _find_keyword_dtypes(interp: Interpreter, node: ast.Call, name: str) -> list[tuple[str, Formula]]:
    """Return the low dtypes of a keyword of a call, or of the same entry of an unpacked dict, with their conditions."""
    found: list[Value] = []
    by_default: list[tuple[str, Formula]] = []
    for keyword in node.keywords:
        if keyword.arg not in (name, None):
            continue
        if isinstance(keyword.value, ast.Constant):
            return [(keyword.value.value, True)] if keyword.value.value in _LOW else []
        value = interp.without_events(partial(interp.evaluate, keyword.value))
        if keyword.arg is None:
            mappings = (each for each in value.alternatives() if isinstance(each, MappingValue))
            found += (each.items[name] for each in mappings if name in each.items)
        else:
            found.append(value)
            by_default += find_default_dtypes(interp, keyword.value) if isinstance(value, UnknownValue) else []
    return find_low_dtypes(interp, found) or by_default


def _check_parameter(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record a parameter that a module creates in a low dtype: ``nn.Parameter(torch.ones(n, dtype=dtype))``."""
    receiver = interp.state.frame.receiver
    module = receiver.tracked_object if isinstance(receiver, Instance) else None
    is_trained = constant_of_node(keywords_of(node).get("requires_grad")) is not False
    data = node.args[0] if node.args else keywords_of(node).get("data")
    if module is None or module.role != "module" or not is_trained or not isinstance(data, ast.Call):
        return
    for dtype, condition in _dtypes_of_data(interp, data)[:1]:
        premises = trace_dtype_choice(interp, data, dtype)
        names = {"module": expression_text(node), "call": expression_text(data)}
        made = partial(e.ModuleCast, dtype=dtype, how="made", created=True, names=names, premises=premises)
        run_branches(interp, condition, partial(interp.emit, made, node, module.key), do_nothing)


def _dtypes_of_data(interp: Interpreter, data: ast.Call) -> list[tuple[str, Formula]]:
    """Return the low dtypes that the values of a parameter may have by a ``dtype`` argument or a cast."""
    if last_name(data.func) in _CASTS and isinstance(data.func, ast.Attribute):
        named = _CASTS[last_name(data.func)]
        return (
            [(named, True)] if named else [pair for each in data.args for pair in _dtypes_of_expression(interp, each)]
        )
    return _find_keyword_dtypes(interp, data, "dtype")


def _dtypes_of_expression(interp: Interpreter, node: ast.expr) -> list[tuple[str, Formula]]:
    value = interp.without_events(lambda: interp.evaluate(node))
    return find_low_dtypes(interp, [value]) or (
        find_default_dtypes(interp, node) if isinstance(value, UnknownValue) else []
    )


class AdapterConditions(dict[int, set[tuple[int, bool]]]):
    """Predicates that hold where adapters are added to a module, each with its truth, by the key of the adapters."""


class CastCopies(dict[int, tuple[str, ast.Call]]):
    """Dtypes and casts of tensors that the code casts, by the key of the result. Only float32 is no low dtype."""


class _Receivers(dict[ast.expr, tuple[int, Value]]):
    """Values of the receivers of casts and moves, each with the number of statements that were analyzed before it."""


def _note_receiver(interp: Interpreter, node: ast.expr, value: Value) -> None:
    interp.file_data(_Receivers)[node] = interp.earlier_statements + interp.statement_count, value


def _value_of_receiver(interp: Interpreter, node: ast.expr) -> Value:
    """Return the value of a receiver that was just evaluated.

    To evaluate each receiver in a chain of casts again, with its own receivers, takes exponential time.
    """
    count, known = interp.file_data(_Receivers).get(node, (-1, NONE))
    if count == interp.earlier_statements + interp.statement_count:
        return known
    value = interp.without_events(lambda: interp.evaluate(node))
    _note_receiver(interp, node, value)
    return value


def _check_cast(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record the cast of a model or of a tensor, which may be the data of a parameter."""
    _note_receiver(interp, node, value)
    made = receiver_of(node)
    if isinstance(value, UnknownValue) and isinstance(made, (ast.Name, ast.Attribute)):
        dtype = _CASTS[last_name(node.func)]
        for each in (*node.args, *keywords_of(node).values()) if not dtype else ():
            dtype = dtype or find_low_dtype(interp, each) or ("float32" if _is_float32(interp, each) else "")
        if dtype:
            interp.file_data(CastCopies)[value.key] = dtype, node
    _check_model_cast(interp, value, node)


def _is_float32(interp: Interpreter, node: ast.expr) -> bool:
    """Return True for ``torch.float32`` alone, also by the name of a variable or a parameter."""
    may_be = last_name(node).startswith("float") or "dtype" in last_name(node)
    named = interp.without_events(lambda: interp.evaluate(node)) if may_be else NONE
    return isinstance(named, ExternalName) and "float32" in named.possible_dtypes


def _note_move(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record that a model which was cast in the same expression is still this model: ``Net().bfloat16().cuda()``."""
    _note_receiver(interp, node, value)
    made = receiver_of(node)
    if isinstance(value, UnknownValue) and isinstance(made, ast.Call):
        cast = _find_module(interp, made)
        if cast is not None:
            interp.tracked_objects["used", value.key] = cast
        else:
            _note_possible_cast(interp, value, node)


def _note_float32_copy(interp: Interpreter, value: Value, node: ast.Call) -> None:
    _note_receiver(interp, node, value)
    if not isinstance(value, UnknownValue) or node.args:
        return
    interp.file_data(CastCopies)[value.key] = "float32", node
    made = receiver_of(node)
    module = _find_module(interp, made) if isinstance(made, (ast.Name, ast.Attribute)) else None
    if module is not None and module.role == "module":
        mark_cast_to_float32(interp, frozenset((module.key,)))


def _check_model_cast(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record a model that is cast in the expression that loads the model, or in a method of a Trainer."""
    made = receiver_of(node)
    trained = isinstance(made, ast.Name) and _is_trainer_model_parameter(interp, made.id)
    if not trained and not _constructs_model(made):
        _note_possible_cast(interp, value, node)
        return
    asked = _CASTS[last_name(node.func)]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    dtype = asked or next(filter(None, (find_low_dtype(interp, argument) for argument in given)), "")
    by_default = [] if dtype else [pair for each in given for pair in find_default_dtypes(interp, each)]
    if by_default:
        dtype, condition = by_default[0]
        run_branches(interp, condition, partial(_load_low_module, interp, value, dtype, node), do_nothing)
    elif dtype:
        tracked_object = _create_low_module(interp, value, dtype, node)
        if trained and tracked_object is not None:
            tracked_object.attributes.set_trainer(is_float16=False)
    elif isinstance(value, UnknownValue) and made is not None:
        moved = _find_module(interp, made)
        if moved is not None:
            interp.tracked_objects["used", value.key] = moved


class _PossibleCast(NamedTuple):
    """Cast of an unknown value. The value is a model if the code uses it as one."""

    site: Site
    dtype: str
    condition: Formula
    names: dict[str, object]
    premises: TraceFacts


class _PossibleCasts(dict[int, _PossibleCast]):
    """Casts of unknown values, by the key of the result and of the cast value."""


def _note_assigned_state(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record a module whose parameters become low tensors: ``load_state_dict(state, assign=True)``."""
    module, given = receiver_of(node), keywords_of(node)
    state = given.get("state_dict", node.args[0] if node.args else None)
    if module is None or state is None or constant_of_node(given.get("assign")) is not True:
        return
    dtype = _find_dtype_of_state(interp, state)
    if not dtype:
        return
    tracked_object = _find_module(interp, module)
    if tracked_object is not None:
        emit_created_low(interp, tracked_object, dtype, node)
        return
    receiver = interp.without_events(lambda: interp.evaluate(module))
    if isinstance(receiver, UnknownValue):
        names: dict[str, object] = {"module": receiver_text(node), "call": expression_text(node)}
        condition = conjunction(*interp.state.path_condition)
        cast = _PossibleCast(interp.site_of(node), dtype, condition, names, ())
        interp.file_data(_PossibleCasts)[receiver.key] = cast


def _find_dtype_of_state(interp: Interpreter, state: ast.expr) -> str:
    """Return the low dtype to which code casts the tensors of a state dict, or ""."""
    function = interp.state.frame.function
    made = [state]
    if isinstance(state, ast.Name):
        made = assigned_values(interp.state.frame.module.tree.body if function is None else function.nodes, state.id)
    for each in made:
        cast = each.value if isinstance(each, ast.DictComp) else None
        if isinstance(cast, ast.Call) and last_name(cast.func) in _CASTS:
            dtype = _CASTS[last_name(cast.func)]
            asked = (*cast.args, *keywords_of(cast).values())
            return dtype or next(filter(None, (find_low_dtype(interp, argument) for argument in asked)), "")
    return ""


class _AssignedCasts(set[int]):
    """Keys of these values that a graph uses as a model."""


def _note_possible_cast(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record the cast of an unknown value, which may be a model: ``build_model(config).to(torch.bfloat16)``."""
    made = receiver_of(node)
    if not isinstance(value, UnknownValue) or made is None:
        return
    known = interp.file_data(_PossibleCasts)
    named = _CASTS.get(last_name(node.func), "")
    given = [*node.args, *keywords_of(node).values()]
    dtypes = [(named, True)] if named else [pair for each in given for pair in _dtypes_of_expression(interp, each)]
    if not (dtypes or isinstance(made, ast.Call)):
        return
    receiver = _value_of_receiver(interp, made)
    if not isinstance(receiver, UnknownValue):
        return
    if not dtypes:
        # The model is moved after the cast, or after it was loaded in a low dtype.
        if receiver.key in known:
            known[value.key] = known[receiver.key]
        loaded = interp.tracked_objects.get(("used", receiver.key))
        if loaded is not None and not any(map(_may_be_dtype, given)):
            interp.tracked_objects["used", value.key] = loaded
        return
    dtype, condition = dtypes[0]
    names: dict[str, object] = {"module": receiver_text(node), "call": expression_text(node)}
    condition = conjunction(*interp.state.path_condition, condition)
    premises = trace_dtype_choice(interp, node, dtype)
    # The cast changes a model in place, and returns it.
    known[value.key] = known[receiver.key] = _PossibleCast(interp.site_of(node), dtype, condition, names, premises)


def _may_be_dtype(node: ast.expr) -> bool:
    """Return True for an argument of ``to`` that may be a dtype, or a tensor with the wanted dtype."""
    name = last_name(node)
    return isinstance(node, ast.Starred) or name.startswith("float") or "dtype" in name


def _check_assigned_model(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Record that what the file uses as a model is assigned an unknown value that was cast, or is low by default."""
    casts = interp.file_data(_PossibleCasts)
    default = interp.state.heap.get((_OF_TORCH, _DEFAULT))
    if not casts and default is None:
        return
    for option in value.alternatives():
        if default is not None and isinstance(option, UnknownValue) and _is_made_by_default(node.value):
            if any(role_by_use(interp, target) == "module" for target in node.targets):
                model = interp.tracked_object(("used", option.key), "module", option.text, interp.site_of(node))
                emit_low_by_default(interp, model)
            continue
        if isinstance(option, UnknownValue) and any(_is_model(interp, target) for target in node.targets):
            _emit_possible_casts(interp, option)


def _is_model(interp: Interpreter, target: ast.expr) -> bool:
    """Return True for what the file uses as a module, and for an attribute of a module, which is then a part of it."""
    receiver = interp.state.frame.receiver
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    if is_own and isinstance(receiver, Instance) and receiver.tracked_object is not None:
        return receiver.tracked_object.role == "module"
    return role_by_use(interp, target) == "module"


def _emit_possible_casts(interp: Interpreter, value: UnknownValue) -> None:
    """Emit the cast of an unknown value that the code uses as a module, once for each graph."""
    casts = interp.file_data(_PossibleCasts)
    cast = _find_cast(interp, casts, value) if casts else None
    assigned = interp.graph_data(_AssignedCasts)
    if cast is not None and value.key not in assigned:
        assigned.add(value.key)
        run_branches(interp, cast.condition, partial(_emit_possible_cast, interp, value, cast), do_nothing)


def _find_cast(interp: Interpreter, casts: _PossibleCasts, value: UnknownValue) -> _PossibleCast | None:
    """Return the cast of an unknown value, or of a value that it stands for after branches."""
    todo = [value.key]
    for key in todo:
        if key in casts:
            return casts[key]
        todo += [side for side in interp.joined_keys.get(key, ()) if side not in todo]
    return None


def _is_made_by_default(node: ast.expr) -> bool:
    """Return True for a call that makes its object in the default dtype, as far as its arguments say."""
    if not isinstance(node, ast.Call) or last_name(node.func) == "from_pretrained":
        return False
    return keywords_of(node).keys().isdisjoint(_DTYPES)


def _emit_possible_cast(interp: Interpreter, value: UnknownValue, cast: _PossibleCast) -> None:
    model = interp.tracked_object(("used", value.key), "module", value.text, cast.site)
    _set_low_at(interp, model, cast.dtype, cast.site)
    interp.emit_at(
        e.ModuleCast(cast.site, model.key, dtype=cast.dtype, created=True, names=cast.names, premises=cast.premises)
    )


def _create_low_module(interp: Interpreter, value: Value, dtype: str, node: ast.Call) -> TrackedObject | None:
    """Create the tracked module of an unknown value in a low dtype. Return None if the value is known.

    The module is recognized only by a later use.
    """
    if not isinstance(value, UnknownValue):
        return None
    tracked_object = interp.tracked_object(("used", value.key), "module", value.text, interp.site_of(node))
    emit_created_low(interp, tracked_object, dtype, node)
    return tracked_object


def _note_trained_model(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record the model that a Trainer trains. The Trainer scales the loss if float16 is requested."""
    given = keywords_of(node)
    model = given.get("model", node.args[0] if node.args else None)
    if model is None or not _is_trainer(interp, node.func):
        return
    if "peft_config" in given and constant_of_node(given["peft_config"]) is not None:
        return  # Only the adapters are trained.
    tracked_object = _find_module(interp, model)
    arguments = _find_trainer_arguments(interp)
    named = interp.state.frame.module.identifiers.union(*arguments)
    if any(frameworks.DEEP_SPEED in name.lower() for name in named if name is not None):
        return  # DeepSpeed updates float32 copies of the parameters, independent of the parameter dtype.
    if tracked_object is not None and tracked_object.role == "module":
        is_float16 = any(constant_of_node(given.get("fp16")) is True for given in arguments)
        tracked_object.attributes.set_trainer(is_float16=is_float16)


def _is_trainer(interp: Interpreter, func: ast.expr) -> bool:
    """Return True for a Trainer of transformers or trl, or a class of the project that derives from one."""
    made = interp.without_events(lambda: interp.evaluate(func))
    named = [dotted_name(interp, func)]
    if isinstance(func, ast.Name) and isinstance(made, ExternalName) and made.is_of_project:
        # The file of the class may hold nothing else of interest.
        made = load_any_import(interp, func.id, interp.state.frame.module) or made
    if isinstance(made, ClassValue):
        bases = (base_value(interp, owner, base) for owner in lineage_of(interp, made.cls) for base in owner.bases)
        named = [base.name for base in bases if isinstance(base, ExternalName)]
    return any(
        name.partition(".")[0] in frameworks.TRANSFORMERS_PACKAGES and name.endswith("Trainer")
        for name in named
        if name is not None
    )


def _note_lightning_fit(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record the model of ``Trainer(precision="bf16-true").fit(model)``, whose parameters Lightning casts."""
    model = keywords_of(node).get("model", node.args[0] if node.args else None)
    trainer = _find_construction(interp, receiver_of(node))
    name = None if trainer is None else dotted_name(interp, trainer.func)
    if model is None or trainer is None or name is None:
        return
    stored = frameworks.STORED_LOW.get(_precision_of(interp, trainer))
    if stored is None or frameworks.canonical_name(name) != f"{frameworks.LIGHTNING}.Trainer":
        return
    made = _find_construction(interp, model)
    if made is not None and last_name(made.func) == frameworks.MAKES_ADAPTERS:
        return  # Only the adapters are trained.
    key = (frameworks.LIGHTNING, str(expression_text(model)))
    tracked_object = tracked_object_of(interp.without_events(lambda: interp.evaluate(model))) or interp.tracked_object(
        key, "module", str(expression_text(model)), interp.site_of(node)
    )
    if tracked_object.role == "module":
        tracked_object.attributes.set_trainer(is_float16=False)
        dtype, mixed = stored
        names = {"call": expression_text(trainer), "mixed": mixed}
        interp.emit(e.ModuleCast, trainer, tracked_object.key, dtype=dtype, how="trainer", names=names)


def _precision_of(interp: Interpreter, trainer: ast.Call) -> str:
    """Return the ``precision`` of a Trainer, named or in an unpacked dict, or "" if it is not known."""
    given = keywords_of(trainer)
    named = given.get("precision", given.get(None))
    if named is None:
        return ""
    value = interp.without_events(lambda: interp.evaluate(named))
    if "precision" not in given:
        value = value.items.get("precision", NONE) if isinstance(value, MappingValue) else NONE
    return str(literal_value(value))


def _find_construction(interp: Interpreter, node: ast.expr | None) -> ast.Call | None:
    """Return the call that constructs an object: the expression, or the only assignment to its name in the function."""
    if isinstance(node, ast.Call):
        return node
    if not isinstance(node, ast.Name):
        return None
    frame = interp.state.frame
    made = [
        each.value
        for each in find_nodes(frame.module.tree if frame.function is None else frame.function.node, ast.Assign)
        if any(isinstance(target, ast.Name) and target.id == node.id for target in each.targets)
    ]
    return made[0] if len(made) == 1 and isinstance(made[0], ast.Call) else None


def _note_frozen(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Mark a module as frozen by ``requires_grad_(False)``, or where a condition is false that the call receives."""
    of, asked = receiver_of(node), keywords_of(node).get("requires_grad", node.args[0] if node.args else None)
    tracked_object = _find_module(interp, of) if of is not None and asked is not None else None
    if tracked_object is None or asked is None:
        return
    if constant_of_node(asked) is False:
        tracked_object.attributes.freeze()
        return
    trained = interp.without_events(lambda: condition_formula(interp, asked))
    training = tracked_object.attributes.training
    under = training.frozen_under.union((key, not truth) for key, truth in implied_literals(trained))
    tracked_object.attributes.training = training._replace(frozen_under=under)


def _note_adapter(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Mark a model as frozen that receives adapters, because only the adapters are trained.

    peft creates the adapters of a low model in float32, unless ``autocast_adapter_dtype=False`` asks for its dtype.
    """
    given = keywords_of(node)
    model = given.get("model", node.args[0] if node.args else None)
    tracked_object = _find_module(interp, model) if model is not None else None
    if tracked_object is None:
        return
    dtype = tracked_object.attributes.dtypes.low
    tracked_object.attributes.freeze()
    if dtype in _LOW and constant_of_node(given.get("autocast_adapter_dtype")) is False:
        _create_low_module(interp, value, dtype, node)


def _find_module(interp: Interpreter, node: ast.expr) -> TrackedObject | None:
    """Return the module of an expression, or None.

    A value that was only recognized by low-precision construction counts as a module.
    """
    value = _value_of_receiver(interp, node)
    return (
        interp.tracked_objects.get(("used", value.key)) if isinstance(value, UnknownValue) else tracked_object_of(value)
    )


def _find_trainer_arguments(interp: Interpreter) -> list[dict[str | None, ast.expr]]:
    """Return the keyword arguments of all ``TrainingArguments`` calls in the file."""
    calls = interp.state.frame.module.find_nodes(ast.Call)
    return [keywords_of(call) for call in calls if last_name(call.func) in frameworks.TRAINER_ARGUMENTS]


def _is_trainer_model_parameter(interp: Interpreter, name: str) -> bool:
    """Return True if a name is the model parameter of the current Trainer method."""
    function = interp.state.frame.function
    if function is None or function.cls is None or function.name not in _GIVEN_MODEL:
        return False
    if [parameter.arg for parameter in function.parameters()[1:2]] != [name]:
        return False
    named = (dotted_name(interp, base) for owner in lineage_of(interp, function.cls) for base in owner.bases)
    return any(
        text and frameworks.canonical_name(text) == frameworks.FRAMEWORKS[frameworks.HUGGING_FACE].base_class
        for text in named
    )


def register(handlers: HandlerTable) -> None:
    handlers.named_functions["torch.set_default_dtype"] = _call_set_default_dtype
    handlers.call_result_listeners.update(dict.fromkeys(_LOADERS, _check_pretrained_load))
    handlers.call_result_listeners["Parameter"] = _check_parameter
    handlers.call_result_listeners["requires_grad_"] = _note_frozen
    handlers.call_result_listeners[frameworks.MAKES_ADAPTERS] = _note_adapter
    handlers.call_result_listeners["load_state_dict"] = _note_assigned_state
    handlers.call_result_listeners["fit"] = _note_lightning_fit
    handlers.call_result_listeners.update(dict.fromkeys(_CASTS, _check_cast))
    handlers.call_result_listeners["float"] = _note_float32_copy
    handlers.call_result_listeners.update(dict.fromkeys(("cuda", "cpu", "train", "eval"), _note_move))
    handlers.call_result_listeners["Trainer"] = _note_trained_model
    handlers.assignment_listeners.append(_check_assigned_model)
    handlers.module_use_listeners.append(_emit_possible_casts)
