"""Checkpoints: the training state that a saved value contains."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from ...protocol import events as e
from ...protocol import frameworks, torch_api
from ...protocol.source_text import SourceText, find_access_path, names_optimizer
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.unanalyzed_code import LOGGING_METHODS, holds_scaler, is_assert_name
from ..interpreter.values.containers import MappingValue, SequenceValue, UnionValue
from ..interpreter.values.definitions import Args, Instance, Keywords
from ..interpreter.values.objects import ObjectRef, StateDict
from ..interpreter.values.value import NONE, UnknownValue, Value
from ..project.syntax import walk
from .arguments import first_or_named, items_of, object_ref_of
from .syntax_queries import callee_of, last_name, receiver_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..project.module import Function

#: Levels of nested containers that are searched.
DEPTH = 5
#: Functions that return an optimizer's state, with the position of the optimizer in the arguments.
STATE_FUNCTIONS = {
    "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict": 1,
    "torch.distributed.fsdp.FullyShardedDataParallel.optim_state_dict": 1,
    "torch.distributed.fsdp.FullyShardedDataParallel.full_optim_state_dict": 1,
    "torch.distributed.fsdp.FullyShardedDataParallel.sharded_optim_state_dict": 1,
}
#: Function that returns the states of a module and of the optimizers of this module.
STATES_FUNCTION = "torch.distributed.checkpoint.state_dict.get_state_dict"
#: Functions that return the fields of an object as a dict.
FIELD_FUNCTIONS = frozenset({"dataclasses.asdict", "attr.asdict", "attrs.asdict", "builtins.vars"})
#: Methods of modules that optimizers and scalers lack.
_MODULE_METHODS = frozenset({"train", "eval", "parameters", "named_parameters"})
#: Prefix of the torch functions that write a checkpoint, beside ``torch.save``.
WRITERS = "torch.distributed.checkpoint."

#: Words in the names of flags.
FLAGS = frozenset({"use", "using", "enable", "enabled", "is", "with", "no", "has"})

_WORD = r"[a-z0-9]+"
#: Methods of a framework's object that save and load all states.
_ENGINE_STATE = frozenset(("save_state", "load_state"))
_SCALER_KEY = re.compile("scal", re.IGNORECASE)
#: A condition that is true if a scaler exists. Names such as ``no_scaler`` or ``disable_scaler`` do not match.
_SCALER = re.compile(r"(?!(?:.*[_.])?(?:no|not|without|disable|skip)_)[\w.]*scaler\w*( is None)?", re.IGNORECASE)


def names_scaling(words: str) -> bool:
    """Return True if a name may refer to a scaler or an owner of a scaler, and not to a flag such as ``use_amp``."""
    found = re.findall(_WORD, words.lower())
    return any("scal" in w for w in found) or ("amp" in found and not FLAGS.intersection(found))


class CheckpointContents:
    """The training state that a saved value contains."""

    def __init__(self, interp: Interpreter) -> None:
        self._attributes_of = interp.stored_attributes
        self._tracked_objects = interp.tracked_objects
        self._interp = interp
        #: Source names of the optimizers whose state is saved, and the object keys of known optimizers.
        self.optimizer_names: list[str] = []
        self.optimizer_keys: list[int] = []
        #: Dict keys of saved optimizer states, and dict keys of saved states of known scalers.
        self.optimizer_entries: set[str] = set()
        self.scaler_entries: set[str] = set()
        self.scaler_names: list[str] = []
        self.whole_scalers: list[str] = []
        #: The value contains another state, most likely a model's; the second flag means the state of a known module.
        self.has_other_state = self.has_module_state = False
        #: The value may contain more than was found.
        self.is_open = False
        #: The first optimizer state that was found.
        self.first_state: StateDict | None = None

    def add_value(self, value: Value, key: str | None = "", depth: int = 0) -> None:
        """Add the contents of a value. ``key`` is the dict key of the value, or None if the key is unknown."""
        look = _LOOKS.get(value.kind)
        if look is not None and depth <= DEPTH:
            look(self, value, key, depth)

    def add_object(self, value: ObjectRef, key: str | None, depth: int) -> None:
        """Add a tracked object that is saved as a whole."""
        self.has_module_state = self.has_module_state or value.role == "module"
        if value.role == "scaler":
            self.whole_scalers.append(value.tracked_object.name)
        elif value.role == "optimizer":
            self.optimizer_names.append(value.tracked_object.name)
            self.optimizer_keys.append(value.tracked_object.key)

    def add_mapping(self, value: MappingValue, key: str | None, depth: int) -> None:
        """Add the items of a dict.

        Unknown further items of a nested dict with a known key are seldom states (often a configuration). Such a dict
        leaves the contents open only if the key names scaling.
        """
        self.is_open = self.is_open or (value.is_open and (depth == 0 or key is None or names_scaling(key)))
        for name, item in value.items.items():
            is_state = any(option.kind == "state" for option in item.alternatives())
            # The containers in a nested dict are as seldom states as its further items; a state may be any.
            unknown = None if is_state or depth == 0 else key
            self.add_value(item, unknown if isinstance(name, tuple) else str(name), depth + 1)

    def add_parts(self, value: SequenceValue | UnionValue, key: str | None, depth: int) -> None:
        """Add each item of a sequence, or each option of a union."""
        for part in value.contained_values():
            self.add_value(part, key, depth + (value.kind == "sequence"))

    def add_unknown(self, value: UnknownValue, key: str | None, depth: int) -> None:
        """Add an unknown value, which may contain a scaler state that other code created."""
        unknown = depth == 0 or (key is None and depth == 1)
        number = value.count.is_loop_index or value.count.is_counter
        self.is_open = self.is_open or unknown or (not number and names_scaling(f"{key or ''} {value.text}"))

    def add_state(self, state: StateDict, key: str | None, depth: int) -> None:
        """Add the state of an object."""
        owner = next((v for v in state.owner.alternatives() if isinstance(v, ObjectRef)), state.owner)
        # An unknown owner may have been recognized by use in another file that received the owner.
        used = self._tracked_objects.get(("used", owner.key)) if isinstance(owner, UnknownValue) else None
        owner = ObjectRef(used) if used is not None else owner
        if isinstance(owner, UnknownValue):
            collection = _find_collection(self._interp, state.node)
            name = "" if collection is None else _text_of_optimizers(collection)
            if name:
                self.optimizer_names.append(name)
                self.first_state = self.first_state or state
            elif _holds_modules(self._interp, collection):
                self.has_other_state = self.has_module_state = True
            else:
                self._add_unknown_state(owner, state, key)
        elif isinstance(owner, ObjectRef) and owner.role in ("scaler", "optimizer"):
            self._add_known_state(owner, state, key or "")
        else:
            self.has_other_state = True
            self.has_module_state = (
                self.has_module_state or isinstance(owner, Instance) or object_ref_of(owner, "module") is not None
            )

    def _add_known_state(self, owner: ObjectRef, state: StateDict, key: str) -> None:
        if owner.role == "scaler":
            self.scaler_names.append(key)
            # The state of apex belongs to apex, so that no scaler of the program loads this entry.
            if owner.tracked_object.attributes.framework != frameworks.APEX:
                self.scaler_entries.add(key)
        else:
            self.optimizer_names.append(_name_in_source(owner, state.node))
            self.optimizer_keys.append(owner.tracked_object.key)
            self.optimizer_entries.add(key)
            self.first_state = self.first_state or state

    def _add_unknown_state(self, owner: UnknownValue, state: StateDict, key: str | None) -> None:
        if names_optimizer(owner.text) and names_optimizer(key or ""):
            self.optimizer_names.append(owner.text)
            self.first_state = self.first_state or state
        elif not _SCALER_KEY.search(key or "") and _is_unbound(self._interp, owner):
            self.has_other_state = True
        elif key is None:
            self.is_open = True
        elif names_scaling(f"{key} {owner.text}"):
            self.scaler_names.append(key)
        else:
            self.has_other_state = True

    def add_fields(self, value: Instance, key: str | None, depth: int) -> None:
        """Add an instance that is saved as a whole: a record of states, or an object with a scaler attribute."""
        if value.tracked_object is not None:
            self.has_module_state = True
            return
        record = value.cls.is_record()
        self.is_open = self.is_open or (depth == 0 and not record)
        for name, item in self._attributes_of(value.key):
            if isinstance(item, ObjectRef):
                self.scaler_names += [name] if item.role == "scaler" else []
            elif record or isinstance(item, Instance):
                self.add_value(item, name, depth + 1)


def _find_collection(interp: Interpreter, node: ast.AST) -> ast.expr | None:
    """Return the collection that has the owner of a state as an item, or None.

    The owner is an item by its index, or the target of a loop or a comprehension over the collection.
    """
    owner = receiver_of(node) if last_name(callee_of(node)) == "state_dict" else None
    if isinstance(owner, ast.Subscript):
        return owner.value
    if not isinstance(owner, ast.Name):
        return None
    for loop, generator in _iterate_generators(interp):
        targets = (each.id for each in walk(generator.target) if isinstance(each, ast.Name))
        if owner.id in targets and any(each is node for each in walk(loop)):
            return generator.iter
    return None


def _iterate_generators(interp: Interpreter) -> Iterator[tuple[ast.AST, ast.comprehension | ast.For]]:
    """Yield the loops and comprehensions of the current file, each with its target and iterable."""
    for loop in interp.state.frame.module.nodes:
        if isinstance(loop, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            for generator in loop.generators:
                yield loop, generator
        elif isinstance(loop, ast.For):
            yield loop, loop


def _holds_modules(interp: Interpreter, collection: ast.expr | None) -> bool:
    """Return True for a collection of models by its name, or whose items are used as such: ``nets[name].train()``."""
    path = None if collection is None else _path_of_items(collection)
    if path is None or "model" in path.rpartition(".")[2].lower():
        return path is not None
    names = {
        each.id
        for _, generator in _iterate_generators(interp)
        if _path_of_items(generator.iter) == path
        for each in walk(generator.target)
        if isinstance(each, ast.Name)
    }
    owners = (
        node.value
        for node in interp.state.frame.module.nodes
        if isinstance(node, ast.Attribute) and node.attr in _MODULE_METHODS
    )
    return any(
        (isinstance(owner, ast.Subscript) and find_access_path(owner.value) == path)
        or (isinstance(owner, ast.Name) and owner.id in names)
        for owner in owners
    )


def _path_of_items(iterable: ast.expr) -> str | None:
    """Return the access path of a collection, also of a view of its items, or None."""
    if isinstance(iterable, ast.Call) and last_name(iterable.func) in ("items", "values"):
        owner = receiver_of(iterable)
        return None if owner is None else find_access_path(owner)
    return find_access_path(iterable)


def _text_of_optimizers(node: ast.expr) -> str:
    """Return the text of an iterable whose name is that of optimizers, also of its items or numbered, or ""."""
    if isinstance(node, ast.Call):
        view = isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "values")
        source = node.func.value if isinstance(node.func, ast.Attribute) and view else next(iter(node.args), None)
        numbered = last_name(node.func) in ("enumerate", "list", "tuple", "zip")
        return _text_of_optimizers(source) if source is not None and (view or numbered) else ""
    path = find_access_path(node)
    return path if path is not None and names_optimizer(path) else ""


def _is_unbound(interp: Interpreter, owner: UnknownValue) -> bool:
    """Return True if a value stands for a name that nothing in its file binds, so that its use raises a NameError."""
    module = interp.state.frame.module
    if module.star_imports or interp.unknown_values.get(("global", module.path, owner.text)) is not owner:
        return False
    if interp.program.attributes.fragment or not module.path.endswith(".py"):
        return False
    bound = (
        name
        for node in module.nodes
        for name in (
            [node.id]
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            else [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else [getattr(node, "name", None), getattr(node, "arg", None)]
        )
    )
    return owner.text not in bound


#: Method that adds a value, by the kind of the value.
_LOOKS: dict[str, Callable[[CheckpointContents, Any, str | None, int], None]] = {
    **dict.fromkeys(("module", "scaler", "optimizer", "engine"), CheckpointContents.add_object),
    **dict.fromkeys(("instance", "module instance"), CheckpointContents.add_fields),
    "state": CheckpointContents.add_state,
    "scale": lambda contents, value, key, depth: contents.scaler_names.append(key or ""),
    "mapping": CheckpointContents.add_mapping,
    "sequence": CheckpointContents.add_parts,
    "choice": CheckpointContents.add_parts,
    "unknown": CheckpointContents.add_unknown,
}


def _name_in_source(owner: ObjectRef, node: ast.AST) -> str:
    """Return the source name of an optimizer whose state is saved.

    A name from elsewhere is preferred to a vague ``x``.
    """
    taken = receiver_of(node)
    if taken is None or last_name(callee_of(node)) != "state_dict":
        return owner.tracked_object.name
    vague = isinstance(taken, ast.Name) and ("." in owner.tracked_object.name or "opt" not in taken.id.lower())
    if vague and owner.tracked_object.attributes.constructed:
        return owner.tracked_object.name
    return str(SourceText(taken))


def _is_without_scaler(interp: Interpreter) -> bool:
    """Return True if the path condition says that no scaler exists: the scaler expression is None or false."""
    asked = (
        (_SCALER.fullmatch(str(interp.graph.predicates[key].text)), truth) for key, truth in interp.active_guards()
    )
    return any(found is not None and truth is bool(found[1]) for found, truth in asked)


def emit_save(
    interp: Interpreter, value: Value, node: ast.AST, *, objects: bool = False, function_name: str = ""
) -> None:
    """Emit a save event for a value.

    ``function_name`` is the function that saves. A state that another function took is then not used as the location.
    """
    contents = CheckpointContents(interp)
    contents.add_value(value)
    place = contents.first_state if not contents.whole_scalers else None
    if function_name and place is not None and place.site.function != function_name:
        place = None
    interp.emit_at(
        e.Save(
            place.site if place is not None else interp.site_of(node),
            None,
            optimizers=tuple(contents.optimizer_names),
            owners=tuple(contents.optimizer_keys),
            scalers=tuple(contents.scaler_names),
            whole_scalers=tuple(contents.whole_scalers),
            open=_is_without_scaler(interp),
            has_unknown_parts=contents.is_open,
            optimizer_entries=frozenset(contents.optimizer_entries),
            scaler_entries=frozenset(contents.scaler_entries),
            objects=objects,
            is_beside_engine_state=not interp.state.frame.module.identifiers.isdisjoint(_ENGINE_STATE),
            names={"call": expression_text(node), "optimizer": next(iter(contents.optimizer_names), "")},
        )
    )


def check_saved_states(interp: Interpreter, given: list[Value], node: ast.AST) -> None:
    """Treat a dict with the state of an optimizer and other state as a checkpoint if unanalyzed code receives the dict.

    The dict is no checkpoint if the code also receives a scaler, because the code may add the scaler's state.
    """
    inner = [v for value in given for v in items_of(value)]
    mappings = [value for value in (*given, *inner) if isinstance(value, MappingValue)]
    states: list[Value] = [value for value in given if value.kind == "state"]
    scaled = bool(mappings or states) and holds_scaler(interp, given)
    for mapping in mappings:
        mapping.is_open = mapping.is_open or scaled
        if not scaled:
            _emit_if_checkpoint(interp, mapping, node, others=True)
    if states and not scaled:
        _emit_if_checkpoint(interp, SequenceValue(states), node, others=False)


def check_saved_objects(interp: Interpreter, name: str, given: list[Value], node: ast.AST) -> None:
    """Emit a save event if unanalyzed code that is named for saving receives a module and an optimizer, but no scaler.

    An object of the program, such as the trainer, may hold the scaler.
    """
    last = name.rpartition(".")[2].lower()
    if not last.startswith("save") and "_save" not in last:
        return
    used = [_find_used_object(interp, value) for value in given]
    optimizers = [each for each in used if each is not None and each.role == "optimizer"]
    contents = CheckpointContents(interp)
    for value in given:
        if value.kind in ("mapping", "sequence", "state"):
            contents.add_value(value)
    may_hold_scaler = (
        holds_scaler(interp, given)
        or bool(contents.scaler_names or contents.is_open)
        or any(
            isinstance(value, Instance) or (isinstance(value, UnknownValue) and names_scaling(value.text))
            for value in given
        )
    )
    if may_hold_scaler or not optimizers or all(each is None or each.role != "module" for each in used):
        return
    interp.emit_at(
        e.Save(
            interp.site_of(node),
            None,
            optimizers=tuple(each.name for each in optimizers),
            owners=tuple(each.key for each in optimizers),
            open=_is_without_scaler(interp),
            objects=True,
            by_name=True,
            names={"call": expression_text(node), "function": SourceText(callee_of(node) or node)},
        )
    )


def _find_used_object(interp: Interpreter, value: Value) -> TrackedObject | None:
    """Return the object that a value refers to, or that the use of an unknown value has shown. None if unknown."""
    for option in value.alternatives():
        for role in ("optimizer", "module"):
            known = object_ref_of(option, role)
            if known is not None:
                return known.tracked_object
        used = interp.tracked_objects.get(("used", option.key)) if isinstance(option, UnknownValue) else None
        if used is not None:
            return used
    return None


def _emit_if_checkpoint(interp: Interpreter, holder: Value, node: ast.AST, *, others: bool) -> None:
    """Emit a save event if the states form a checkpoint.

    With ``others``, any state of a non-optimizer is sufficient.
    """
    contents = CheckpointContents(interp)
    contents.add_value(holder)
    # Live objects are passed to code that takes or loads the states itself; only states already taken are a checkpoint.
    if (
        contents.optimizer_names
        and contents.first_state is not None
        and (contents.has_module_state or (others and contents.has_other_state))
    ):
        emit_save(interp, holder, node)


def call_state_function(interp: Interpreter, name: str, given: list[Value], node: ast.AST) -> Value | None:
    """Return the state that a torch function takes of an optimizer, or of a module and the optimizers. Else None."""
    if name == STATES_FUNCTION and len(given) > 1:
        return SequenceValue([take_state(interp, given[0], node), take_state(interp, given[1], node)])
    place = STATE_FUNCTIONS.get(name)
    return take_state(interp, given[place], node) if place is not None and len(given) > place else None


def _call_save(interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    value = first_or_named(args, keywords, "obj")
    if value is not None:
        emit_save(interp, value, node)
    return NONE


def take_state(interp: Interpreter, of: Value, node: ast.AST) -> StateDict:
    return StateDict(of, node, interp.site_of(node))


def emit_unknown_load(interp: Interpreter, owner: object, state: Value | None, node: ast.AST) -> None:
    """Emit a scaler load for an unknown object that loads a state, unless the entry name excludes a scaler."""
    _, name = entry_of_state(state)
    if name is None or names_scaling(f"{owner} {name}"):
        interp.emit(e.ScalerLoad, node, entry=None)


def entry_of_state(state: Value | None) -> tuple[int, str | None]:
    """Return the key of the unknown value that contains a state, and the entry name. (-1, None) if unknown."""
    return (state.item_origin if isinstance(state, UnknownValue) else None) or (-1, None)


def _check_escaped_states(interp: Interpreter, func: Value, given: list[Value], node: ast.AST) -> None:
    last = func.text.rpartition(".")[2] if isinstance(func, UnknownValue) else ""
    if last not in LOGGING_METHODS and not is_assert_name(last):
        check_saved_states(interp, given, node)


def _check_returned_state(interp: Interpreter, function: Function, value: Value) -> None:
    """Emit a save event for the result of ``state_dict`` of a class that creates a scaler.

    Other code saves this state in a checkpoint.
    """
    if function.name != "state_dict" or not any(each.kind == "mapping" for each in value.alternatives()):
        return
    cls = function.qualified_name.rpartition(".")[0]
    made = (
        tracked_object.site
        for tracked_object in interp.program.objects
        if tracked_object.role == "scaler" and tracked_object.site is not None
    )
    if not cls or not any(site.function.rpartition(".")[0] == cls for site in made):
        return
    contents = CheckpointContents(interp)
    contents.add_value(value)
    if contents.optimizer_names and contents.first_state is not None:
        emit_save(interp, value, function.node, function_name=function.qualified_name)


def register(handlers: HandlerTable) -> None:
    handlers.entry_end_listeners.append(_check_returned_state)
    handlers.torch_roles[torch_api.SAVE] = _call_save
    handlers.escape_listeners.append(_check_escaped_states)
