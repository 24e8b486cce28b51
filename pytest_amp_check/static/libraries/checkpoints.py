"""Checkpoints: what a saved value holds of the state of a training."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.words import Words
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.unknown import TELLING, compares, holds_scaler
from ..interpreter.values import (
    NONE,
    Args,
    Choice,
    Instance,
    Keywords,
    Mapping,
    Opaque,
    Ref,
    Sequence,
    StateDict,
    Value,
)
from ..interpreter.wording import wording
from .arguments import first_of, items_of, ref_of
from .written import called, last_name, receiver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..project.module import Function

#: Containers within containers that are looked into.
DEPTH = 5
#: Functions that take an optimizer's state, and the place of the optimizer among their arguments.
STATE_FUNCTIONS = {
    "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict": 1,
    "torch.distributed.fsdp.FullyShardedDataParallel.optim_state_dict": 1,
    "torch.distributed.fsdp.FullyShardedDataParallel.full_optim_state_dict": 1,
    "torch.distributed.fsdp.FullyShardedDataParallel.sharded_optim_state_dict": 1,
}
#: Gives back the states of a module and of its optimizers.
STATES_FUNCTION = "torch.distributed.checkpoint.state_dict.get_state_dict"
#: Functions that give back the fields of an object as a dict.
FIELD_FUNCTIONS = frozenset({"dataclasses.asdict", "attr.asdict", "attrs.asdict", "builtins.vars"})
#: Functions of torch that write what they are given, beside ``torch.save``.
WRITERS = "torch.distributed.checkpoint."

#: Words of names of flags.
FLAGS = frozenset({"use", "using", "enable", "enabled", "is", "with", "no", "has"})

_WORD = r"[a-z0-9]+"
#: A question whether there is a scaler, and not whether there is none.
_SCALER = re.compile(r"(?!(?:.*[_.])?(?:no|not|without|disable|skip)_)[\w.]*scaler\w*( is None)?", re.IGNORECASE)


def speaks_of_scaling(words: str) -> bool:
    """Whether words may name a scaler, or what holds one, rather than a flag that says whether there is one."""
    found = re.findall(_WORD, words.lower())
    return any("scal" in w for w in found) or ("amp" in found and not FLAGS.intersection(found))


class Contents:
    """What a saved value holds of the training state."""

    def __init__(self, at: Interpreter) -> None:
        self._attributes = at.attributes
        self._things = at.things
        #: What the user calls each optimizer whose state it holds, and the keys of those that are known.
        self.optimizers: list[str] = []
        self.owners: list[int] = []
        #: The names under which it holds the states of optimizers, and those of scalers that are known.
        self.optimizer_entries: set[str] = set()
        self.scaler_entries: set[str] = set()
        self.scalers: list[str] = []
        self.whole_scalers: list[str] = []
        #: It holds the state of something else, a model's most likely, or that of a module for certain.
        self.others = self.modules = False
        #: It may hold more.
        self.open = False
        #: Where the first optimizer's state was taken.
        self.place: StateDict | None = None

    def look(self, value: Value, key: str | None = "", depth: int = 0) -> None:
        """Look into a value; ``key`` is what it is saved under, None where that is not known."""
        look = _LOOKS.get(value.kind)
        if look is not None and depth <= DEPTH:
            look(self, value, key, depth)

    def thing(self, value: Ref, key: str | None, depth: int) -> None:
        """A thing that is saved as it is."""
        self.modules = self.modules or value.role == "module"
        if value.role == "scaler":
            self.whole_scalers.append(value.thing.name)
        elif value.role == "optimizer":
            self.optimizers.append(value.thing.name)
            self.owners.append(value.thing.key)

    def mapping(self, value: Mapping, key: str | None, depth: int) -> None:
        """What a dict under a name of its own holds besides is seldom a state: a configuration, say."""
        self.open = self.open or (value.open and (depth == 0 or key is None or speaks_of_scaling(key)))
        for name, item in value.items.items():
            self.look(item, None if isinstance(name, tuple) else str(name), depth + 1)

    def parts(self, value: Sequence | Choice, key: str | None, depth: int) -> None:
        """Each of several values, or one of them."""
        for part in value.parts():
            self.look(part, key, depth + (value.kind == "sequence"))

    def unknown(self, value: Opaque, key: str | None, depth: int) -> None:
        """A scaler's state may have been put together elsewhere."""
        unknown = depth == 0 or (key is None and depth == 1)
        number = value.index or value.counter
        self.open = self.open or unknown or (not number and speaks_of_scaling(f"{key or ''} {value.text}"))

    def state(self, state: StateDict, key: str | None, depth: int) -> None:
        """The state of something."""
        owner = next((v for v in state.of.alternatives() if isinstance(v, Ref)), state.of)
        # What is unknown here may have been recognised by its use, in another file that it was handed to.
        used = self._things.get(("used", owner.key)) if isinstance(owner, Opaque) else None
        owner = Ref(used) if used is not None else owner
        if isinstance(owner, Opaque):
            self._unknown_state(owner, key)
        elif isinstance(owner, Ref) and owner.role in ("scaler", "optimizer"):
            self._known_state(owner, state, key or "")
        else:
            self.others = True
            self.modules = self.modules or isinstance(owner, Instance) or ref_of(owner, "module") is not None

    def _known_state(self, owner: Ref, state: StateDict, key: str) -> None:
        if owner.role == "scaler":
            self.scalers.append(key)
            self.scaler_entries.add(key)
        else:
            self.optimizers.append(_said(owner, state.node))
            self.owners.append(owner.thing.key)
            self.optimizer_entries.add(key)
            self.place = self.place or state

    def _unknown_state(self, owner: Opaque, key: str | None) -> None:
        if key is None:
            self.open = True
        elif speaks_of_scaling(f"{key} {owner.text}"):
            self.scalers.append(key)
        else:
            self.others = True

    def fields(self, value: Instance, key: str | None, depth: int) -> None:
        """An object that is saved as it is: a record of states, or something that has a scaler among the rest."""
        if value.thing is not None:
            self.modules = True
            return
        record = value.cls.is_record()
        self.open = self.open or (depth == 0 and not record)
        for name, item in self._attributes(value.key):
            if isinstance(item, Ref):
                self.scalers += [name] if item.role == "scaler" else []
            elif record or isinstance(item, Instance):
                self.look(item, name, depth + 1)


#: What a value of a kind holds.
_LOOKS: dict[str, Callable[[Contents, Any, str | None, int], None]] = {
    **dict.fromkeys(("module", "scaler", "optimizer", "engine"), Contents.thing),
    **dict.fromkeys(("instance", "module instance"), Contents.fields),
    "state": Contents.state,
    "scale": lambda contents, value, key, depth: contents.scalers.append(key or ""),
    "mapping": Contents.mapping,
    "sequence": Contents.parts,
    "choice": Contents.parts,
    "unknown": Contents.unknown,
}


def _said(owner: Ref, node: ast.AST) -> str:
    """What the user calls an optimizer whose state is taken; a name that it goes by elsewhere tells more than ``x``."""
    taken = receiver(node)
    if taken is None or last_name(called(node)) != "state_dict":
        return owner.thing.name
    vague = isinstance(taken, ast.Name) and ("." in owner.thing.name or "opt" not in taken.id.lower())
    if vague and owner.thing.facts.get("constructed"):
        return owner.thing.name
    return str(Words(taken))


def _no_scaler(at: Interpreter) -> bool:
    """Whether this is read under the condition that there is no scaler: that what is called one is None, or false."""
    asked = ((_SCALER.fullmatch(str(at.graph.tests[key].text)), truth) for key, truth in at.guards())
    return any(found is not None and truth is bool(found[1]) for found, truth in asked)


def saved(at: Interpreter, value: Value, node: ast.AST, *, objects: bool = False, by: str = "") -> None:
    """Something is saved: ``by`` the function of that name, where what another one makes of it is not told there."""
    contents = Contents(at)
    contents.look(value)
    place = contents.place if not contents.whole_scalers else None
    if by and place is not None and place.site.function != by:
        place = None
    at.emit_at(
        e.SAVE,
        place.site if place is not None else at.site(node),
        None,
        optimizers=tuple(contents.optimizers),
        owners=tuple(contents.owners),
        scalers=tuple(contents.scalers),
        whole_scalers=tuple(contents.whole_scalers),
        open=contents.open or _no_scaler(at),
        optimizer_entries=frozenset(contents.optimizer_entries),
        scaler_entries=frozenset(contents.scaler_entries),
        objects=objects,
        names={"call": wording(node)},
    )


def may_save(at: Interpreter, given: list[Value], node: ast.AST) -> None:
    """A dict with the states of an optimizer and of more, given to code that cannot be read, is a checkpoint.

    Unless that code is given a scaler too, whose state it may add.
    """
    inner = [v for value in given for v in items_of(value)]
    mappings = [value for value in (*given, *inner) if isinstance(value, Mapping)]
    states: list[Value] = [value for value in given if value.kind == "state"]
    scaled = bool(mappings or states) and holds_scaler(at, given)
    for mapping in mappings:
        mapping.open = mapping.open or scaled
        if not scaled:
            _may_save(at, mapping, node, others=True)
    if states and not scaled:
        _may_save(at, Sequence(states), node, others=False)


def _may_save(at: Interpreter, holder: Value, node: ast.AST, *, others: bool) -> None:
    """Whether the states are for a checkpoint; ``others`` says that any that are no optimizer's tell."""
    contents = Contents(at)
    contents.look(holder)
    # Live objects are given for their states to be taken, or loaded, by whoever gets them.
    if contents.optimizers and contents.place is not None and (contents.modules or (others and contents.others)):
        saved(at, holder, node)


def states_taken(at: Interpreter, name: str, given: list[Value], node: ast.AST) -> Value | None:
    """The state of an optimizer, or of a module and its optimizers, where a function of torch takes it."""
    if name == STATES_FUNCTION and len(given) > 1:
        return Sequence([state_of(at, given[0], node), state_of(at, given[1], node)])
    place = STATE_FUNCTIONS.get(name)
    return state_of(at, given[place], node) if place is not None and len(given) > place else None


def _save(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    value = first_of(args, keywords, "obj")
    if value is not None:
        saved(at, value, node)
    return NONE


def state_of(at: Interpreter, of: Value, node: ast.AST) -> StateDict:
    return StateDict(of, node, at.site(node))


def loads_unknown(at: Interpreter, owner: object, state: Value | None, node: ast.AST) -> None:
    """Something that is not known loads a state: a scaler may, unless what it loads goes by another name."""
    _, name = entry_in(state)
    if name is None or speaks_of_scaling(f"{owner} {name}"):
        at.emit(e.SCALER_LOAD, node, entry=None)


def entry_in(state: Value | None) -> tuple[int, str | None]:
    """Which unknown value a state was taken from, and under which name."""
    return (state.entry if isinstance(state, Opaque) else None) or (-1, None)


def _handed(at: Interpreter, func: Value, given: list[Value], node: ast.AST) -> bool:
    last = func.text.rpartition(".")[2] if isinstance(func, Opaque) else ""
    if last not in TELLING and not compares(last):
        may_save(at, given, node)
    return False


def _gives_its_state(at: Interpreter, function: Function, value: Value) -> None:
    """What an object that makes a scaler gives as its own state is for a checkpoint, whoever writes that."""
    if function.name != "state_dict" or not any(each.kind == "mapping" for each in value.alternatives()):
        return
    cls = function.qualified_name.rpartition(".")[0]
    made = (thing.site for thing in at.program.things if thing.role == "scaler" and thing.site is not None)
    if not cls or not any(site.function.rpartition(".")[0] == cls for site in made):
        return
    contents = Contents(at)
    contents.look(value)
    if contents.optimizers and contents.place is not None:
        saved(at, value, function.node, by=function.qualified_name)


def register(handlers: Handlers) -> None:
    handlers.root_left.append(_gives_its_state)
    handlers.roles[surface.SAVE] = _save
    handlers.handed.append(_handed)
