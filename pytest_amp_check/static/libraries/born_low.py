"""Modules whose parameters are of low precision from the start, and those that a Trainer trains."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks
from ...protocol.events import Site, Thing
from ..interpreter.classes import bases_of
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import NONE, Args, Keywords, Named, Opaque, Value
from ..interpreter.wording import receiver_words, wording
from .arguments import first_of, thing_of
from .written import all_of, called, constant, keywords_of, last_name, receiver

#: Methods that cast, with the dtype, "" where it is among what they are given.
_CASTS = {"half": "float16", "bfloat16": "bfloat16", "to": ""}
_LOW = frozenset(("float16", "bfloat16"))
#: Keywords of ``from_pretrained`` that name a dtype, and those that load what is frozen and trained through adapters.
_DTYPES = ("torch_dtype", "dtype")
_QUANTISES = frozenset(("quantization_config", "load_in_4bit", "load_in_8bit"))
#: Methods of a Trainer that are given the model which it trains.
_GIVEN_MODEL = frozenset(("compute_loss", "training_step"))
#: What stands for torch itself among the objects, and its attribute that is the default dtype.
_OF_TORCH, _DEFAULT = -1, "default dtype"
_ARGUMENTS = frozenset(("TrainingArguments", "Seq2SeqTrainingArguments"))


def low_dtype(at: Interpreter, node: ast.expr | None) -> str:
    """The low dtype that an expression stands for, or may stand for; "" where there is none."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value) if node.value in _LOW else ""
    found: list[Value] = []
    at.unrecorded(lambda: found.append(at.evaluate(node)))
    return next(iter(_low_among(found[0])), "")


def born(at: Interpreter, thing: Thing, dtype: str, node: ast.AST) -> None:
    """A module is made with parameters of a low dtype."""
    thing.facts["low"] = True
    names = {"module": receiver_words(node) or thing.name, "call": wording(node)}
    at.emit(e.MODULE_CAST, node, thing.key, dtype=dtype, born=True, names=names)


class _Defaults(dict[str, tuple[Site, object]]):
    """Where a low dtype was made the default, with the words for that, by dtype."""


def _default_set(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """What is made from here on is of the dtype that is given."""
    given = first_of(args, keywords, "d")
    at.store(_OF_TORCH, _DEFAULT, given if given is not None else NONE)
    for dtype in _low_among(given):
        at.of_file(_Defaults)[dtype] = at.site(node), wording(node)
    return NONE


def born_by_default(at: Interpreter, thing: Thing) -> None:
    """A module is made that is given no dtype."""
    default = at.state.heap.get((_OF_TORCH, _DEFAULT))
    for dtype in _low_among(default)[:1]:
        thing.facts["low"] = True
        site, words = at.of_file(_Defaults)[dtype]
        at.emit_at(e.MODULE_CAST, site, thing.key, dtype=dtype, born=True, how="default", names={"call": words})


def made_wide(at: Interpreter, keys: frozenset[int]) -> None:
    """Modules are cast to float32 that were made in a low dtype."""
    for node in at.draft.nodes:
        event = node.event
        if event is not None and event.kind == e.MODULE_CAST and event.facts.get("born") and event.subject in keys:
            event.facts["dtype"] = "float32"
            at.program.things[event.subject].facts["low"] = False


def _low_among(value: Value | None) -> list[str]:
    """The low dtypes that a value may stand for."""
    named = [each for each in value.alternatives() if isinstance(each, Named)] if value is not None else []
    return [dtype for each in named for dtype in each.dtypes if dtype in _LOW]


def _loaded(at: Interpreter, value: Value, node: ast.Call) -> None:
    """A pretrained model is loaded in low precision."""
    given = keywords_of(node)
    if given.keys() & _QUANTISES:
        return
    for name in _DTYPES:
        dtype = low_dtype(at, given.get(name))
        if dtype:
            _of_unknown(at, value, dtype, node)


def _cast(at: Interpreter, value: Value, node: ast.Call) -> None:
    """A model is cast in the expression that loads it."""
    made = receiver(node)
    trained = isinstance(made, ast.Name) and _is_given_what_it_trains(at, made.id)
    if not trained and last_name(called(made)) != "from_pretrained":
        return
    asked = _CASTS[last_name(node.func)]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    dtype = asked or next(filter(None, (low_dtype(at, argument) for argument in given)), "")
    if dtype:
        thing = _of_unknown(at, value, dtype, node)
        if trained and thing is not None:
            thing.facts["trainer"] = "float32"
    elif isinstance(value, Opaque) and made is not None:
        moved = _used(at, made)
        if moved is not None:
            at.things["used", value.key] = moved


def _of_unknown(at: Interpreter, value: Value, dtype: str, node: ast.Call) -> Thing | None:
    """What is known by its use alone, once it is used, is made in a low dtype."""
    if not isinstance(value, Opaque):
        return None
    thing = at.thing(("used", value.key), "module", value.text, at.site(node))
    born(at, thing, dtype, node)
    return thing


def _given_to_trainer(at: Interpreter, value: Value, node: ast.Call) -> None:
    """A Trainer is given the model that it trains: with a loss scale where it is asked for float16."""
    name = dotted_name(at, node.func)
    model = keywords_of(node).get("model", node.args[0] if node.args else None)
    if name is None or model is None or frameworks.canonical(name) != frameworks.HUGGING_FACE_TRAINER:
        return
    thing = _used(at, model)
    arguments = _arguments_of_trainers(at)
    named = at.state.frame.module.identifiers.union(*arguments)
    if any("deepspeed" in name.lower() for name in named if name is not None):
        return  # DeepSpeed updates float32 copies of the parameters, whatever they are made in.
    if thing is not None and thing.role == "module":
        in_float16 = any(constant(given.get("fp16")) is True for given in arguments)
        thing.facts["trainer"] = "float16" if in_float16 else "float32"


def _frozen(at: Interpreter, value: Value, node: ast.Call) -> None:
    """A model is frozen that is known by no use of its own."""
    of, asked = receiver(node), keywords_of(node).get("requires_grad", node.args[0] if node.args else None)
    thing = _used(at, of) if of is not None and constant(asked) is False else None
    if thing is not None:
        thing.facts["frozen"] = True


def _adapted(at: Interpreter, value: Value, node: ast.Call) -> None:
    """A model is given adapters, which are trained in its place."""
    model = keywords_of(node).get("model", node.args[0] if node.args else None)
    thing = _used(at, model) if model is not None else None
    if thing is not None:
        thing.facts["frozen"] = True


def _used(at: Interpreter, node: ast.expr) -> Thing | None:
    """The module that an expression stands for, whether it is known to be one or was made low as one."""
    found: list[Value] = []
    at.unrecorded(lambda: found.append(at.evaluate(node)))
    value = found[0]
    return at.things.get(("used", value.key)) if isinstance(value, Opaque) else thing_of(value)


def _arguments_of_trainers(at: Interpreter) -> list[dict[str | None, ast.expr]]:
    """The arguments of Trainers, as they are written in the file."""
    calls = all_of(at.state.frame.module.tree, ast.Call)
    return [keywords_of(call) for call in calls if last_name(call.func) in _ARGUMENTS]


def _is_given_what_it_trains(at: Interpreter, name: str) -> bool:
    """Whether a name is that of the model which a Trainer gives to the method being read."""
    function = at.state.frame.function
    if function is None or function.cls is None or function.name not in _GIVEN_MODEL:
        return False
    if [parameter.arg for parameter in function.parameters()[1:2]] != [name]:
        return False
    named = (dotted_name(at, base) for owner in bases_of(at, function.cls) for base in owner.bases)
    return any(text and frameworks.canonical(text) == frameworks.HUGGING_FACE_TRAINER for text in named)


def register(handlers: Handlers) -> None:
    handlers.functions["torch.set_default_dtype"] = _default_set
    handlers.results["from_pretrained"] = _loaded
    handlers.results["requires_grad_"] = _frozen
    handlers.results["get_peft_model"] = _adapted
    handlers.results.update(dict.fromkeys(_CASTS, _cast))
    handlers.results.update(dict.fromkeys(("Trainer", "Seq2SeqTrainer"), _given_to_trainer))
