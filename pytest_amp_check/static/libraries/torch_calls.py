"""Calls of dotted names: the table of torch names says which role each plays."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Symbol
from ...protocol.words import Words, chain
from ..interpreter.classes import BOUND
from ..interpreter.conditions import Formula
from ..interpreter.dtypes import low_function
from ..interpreter.expressions import IMPURE
from ..interpreter.functions import has_stars
from ..interpreter.microbatches import PIECES
from ..interpreter.values import (
    NONE,
    Choice,
    Const,
    FunctionValue,
    GradMode,
    Instance,
    Mapping,
    Named,
    NullContext,
    Opaque,
    Params,
    Partial,
    Ref,
    Sequence,
    StackContext,
    StateDict,
    SuperValue,
    Tensor,
    Truth,
    Value,
    grads_of,
    merge_into,
    merge_params,
    tensors_of,
)
from .autograd_functions import makes_float32
from .checkpoints import FIELD_FUNCTIONS, STATE_FUNCTIONS, STATES_FUNCTION, WRITERS, Contents, as_mapping
from .distributed import Distributed
from .losses import first_given, is_graded, is_uneven
from .torch_objects import first_of, is_read

#: Builtins that give back an iterable over what they are given.
PASS_THROUGH = frozenset("list tuple set sorted reversed iter filter chain next".split())
#: Functions of the standard library and of torch that neither step nor change what they are given.
HARMLESS = (
    "builtins.",
    "torch.",
    "logging.",
    "math.",
    "os.",
    "time.",
    "json.",
    "numpy.",
    "np.",
    "copy.",
    "sys.",
    "random.",
)
#: Other names of ``dict``.
DICTS = frozenset({"collections.OrderedDict"})
#: Functions that are a ``%``.
REMAINDERS = frozenset("math.fmod operator.mod numpy.mod numpy.remainder numpy.fmod torch.remainder torch.fmod".split())
#: Functions on many gradients at once, and what they do to each.
FOREACH = {"torch._foreach_div_": "/", "torch._foreach_mul_": "*"}
#: Objects that only hold what they are given.
NAMESPACES = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
#: Calls that end the program.
ENDINGS = frozenset({"sys.exit", "os._exit", "builtins.exit", "builtins.quit"})


def hands_on_divided(given: list[Value]) -> bool:
    """Whether what unknown code makes of its arguments may be a loss that was divided: it is given nothing else."""
    return len(given) == 1 and isinstance(given[0], Opaque) and given[0].divided


class TorchCalls(Distributed):
    """Reads calls of what is imported."""

    @abstractmethod
    def arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]: ...

    @abstractmethod
    def refs(self, keys: tuple[int, ...]) -> list[Value]: ...

    def _call_named(self, name: str, node: ast.Call, shim: bool) -> Value:
        args, keywords = self.arguments(node)
        return self._named(name, args, keywords, node, shim)

    def _named(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST, shim: bool) -> Value:
        made_by_framework = self.framework_call(name, args, keywords, node)
        if made_by_framework is not None:
            return made_by_framework
        name = surface.canonical(name)
        shim = shim or self.state.shims + self.state.trying > 0
        if name in surface.DEPRECATED and not shim and isinstance(node, ast.expr):
            self._deprecated(name, node)
        entry = surface.SURFACE.get(name)
        if entry is not None:
            handler = _ROLES.get(entry.role)
            if handler is not None:
                made: Value = handler(self, entry, args, keywords, node)
                return made
        op = low_function(name)
        if op:
            return self.low_result(op, [*args, *keywords.values()])
        if name.startswith("builtins."):
            return self._builtin(name.removeprefix("builtins."), args, keywords, node)
        if name in REMAINDERS and len(args) == 2 and not any(tensors_of(value) for value in args):
            return self.operate("%", args[0], args[1], node)
        if name == "itertools.islice":
            pieces = self.structural("call", tuple(args), self.words(node), name)
            pieces.pieces = True
            return pieces
        if name.startswith("itertools."):
            return self._builtin("chain" if name.endswith("chain") else "iter", args, keywords, node)
        if name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper() and name.count(".") <= 3:
            return self._torch_module(name, args, node)
        given = [*args, *keywords.values()]
        if name in DICTS:
            return self._builtin("dict", args, keywords, node)
        if name in FIELD_FUNCTIONS and args and isinstance(args[0], Instance):
            return as_mapping(args[0], self.attributes)
        states = self._states(name, given, node)
        if states is not None:
            return states
        if name in ENDINGS:
            self.draft.happened += 1
            self.state.cur = None
            return NONE
        if name in NAMESPACES and not args:
            space = self.fresh(node, name)
            for attribute, value in keywords.items():
                self.store(space.key, attribute, value)
            return space
        if name.startswith("torch.optim.lr_scheduler."):
            scheduler = self.fresh(node, "scheduler")
            target = first_of(args, keywords, "optimizer")
            if isinstance(target, Ref) and target.role == "optimizer":
                scheduler.schedules = target.thing.key
            return scheduler
        if not name.startswith(HARMLESS):
            self.hand_off(given, node)
        if (not name.startswith(HARMLESS) or name.startswith(WRITERS)) and not compares(name):
            self.may_save(given, node)
        if _averages(name) and not any(isinstance(value, Tensor) for value in given):
            self.emit(e.GRAD_AVERAGE, node)
        tensors = [t for value in given for t in tensors_of(value)]
        if tensors:
            made_tensor = self._computed(tensors)
            if name in ("torch.div", "torch.true_divide"):
                made_tensor.divided = True
            if name == "torch.sum":
                made_tensor.divided = True
            if name == "torch.mean":
                made_tensor.vague = False
            made_tensor.opaque = made_tensor.opaque or is_graded(given)
            made_tensor.pieces = name.rpartition(".")[2] in PIECES
            if not name.startswith("torch."):
                made_tensor.deps = None
                made_tensor.module_read = False
            return made_tensor
        if any(isinstance(v, Params) for v in given) and not name.startswith(HARMLESS):
            self.hand_off(self.refs(self._owners_of(given)), node)
        for value in given:
            for grad in grads_of(value):
                if name in FOREACH and len(args) > 1:
                    result = self.operate(FOREACH[name], grad, args[1], node)
                    self.grad_written(grad, result, node)
                    return NONE
                if not name.startswith("torch.distributed.") and not name.endswith(".sign"):
                    return self._read_grad(grad, node, name)
        if makes_float32(name, args, keywords):
            made_full = self.fresh(node, name)
            made_full.full = True
            return made_full
        if name.rpartition(".")[2] in IMPURE:
            return self.fresh(node, name)
        made_opaque = self.structural("call", tuple(given), self.words(node), name, tuple(keywords))
        made_opaque.pieces = name.rpartition(".")[2] in PIECES
        made_opaque.divided = name in ("torch.sum", "torch.div", "torch.true_divide") or hands_on_divided(given)
        made_opaque.compares = name == "torch.mean"
        return made_opaque

    def _owners_of(self, given: list[Value]) -> tuple[int, ...]:
        keys: list[int] = []
        for value in given:
            if isinstance(value, Params):
                owners = self._owners(value)
                keys.extend(owners if owners is not None else self._all_optimizers())
        return tuple(dict.fromkeys(keys))

    def _deprecated(self, name: str, node: ast.AST) -> None:
        self.emit(e.DEPRECATED, node, old=name, new=surface.DEPRECATED[name], names={"call": name})

    def _torch_module(self, name: str, args: list[Value], node: ast.AST) -> Value:
        parts = [v for v in args if isinstance(v, (Ref, Instance))]
        thing = self.thing(("module", self.place_key(node)), "module", "", self.site(node))
        thing.facts["read"] = all(bool(is_read(p)) for p in parts)
        kind = name.rpartition(".")[2]
        last = args[-1] if kind == "Sequential" and args else None
        thing.facts["kind"] = last.thing.facts.get("kind", "") if isinstance(last, Ref) else kind
        thing.facts["parts"] = {p.thing.key for p in parts if p.thing is not None}
        thing.facts["parameter"] = name.endswith(".Parameter") and all(isinstance(v, Opaque) and v.full for v in args)
        thing.facts["wide"] = name.endswith(".Parameter") and isinstance(node, ast.Call) and _has_dimensions(node)
        return Ref(thing)

    def _states(self, name: str, given: list[Value], node: ast.AST) -> Value | None:
        """The state of an optimizer, or of a module and its optimizers, where a function of torch takes it."""
        if name == STATES_FUNCTION and len(given) > 1:
            return Sequence([self._state(given[0], node), self._state(given[1], node)])
        place = STATE_FUNCTIONS.get(name)
        return self._state(given[place], node) if place is not None and len(given) > place else None

    def _builtin(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        first = args[0] if args else NONE
        if name == "super":
            frame = self.state.frame
            if frame.cls is not None and frame.receiver is not None:
                return SuperValue(frame.cls, frame.receiver)
            return self.fresh(node, "super()")
        if name in ("range", "enumerate"):
            made = self.structural("call", tuple(args), name, name)
            made.loops |= self.turning()
            start: Value = args[0] if name == "range" and len(args) > 1 else Const(0)
            made.pieces = _takes_pieces(args) if name == "range" else first.pieces
            if name == "enumerate":
                start = first_of(args[1:], keywords, "start") or Const(0)
                self._enumerated[made.key] = first
            made.iterates = name
            made.first = start.value if isinstance(start, Const) and isinstance(start.value, int) else None
            return made
        if name == "zip":
            place = node.args[0] if isinstance(node, ast.Call) and node.args else ast.Constant(0)
            zipped = Sequence([Sequence([self.elements(a, place) for a in args])], open=True)
            zipped.pieces = any(a.pieces for a in args)
            return zipped
        if name == "divmod" and len(args) == 2:
            return Sequence([self.operate("//", args[0], args[1], node), self.operate("%", args[0], args[1], node)])
        if name == "float" and isinstance(first, Const) and isinstance(first.value, (str, int, float)):
            try:
                return Const(float(first.value))
            except ValueError:
                return self.fresh(node, name)
        if name == "bool":
            return Truth(self.truth(first, "", node))
        if name == "isinstance":
            return self._isinstance(first, node)
        if name == "getattr" and len(args) >= 2 and isinstance(args[1], Const) and isinstance(args[1].value, str):
            return self.attribute(first, args[1].value, node)
        if name == "hasattr" and _has(args):
            return Const(True)
        if name == "dict":
            made_mapping = Mapping({})
            for value in (*args, Mapping(keywords, open="**" in keywords)):
                merge_into(made_mapping, value)
            return made_mapping
        if name == "vars" and isinstance(first, Instance):
            return as_mapping(first, self.attributes)
        if name in ("filter", "map"):
            return args[1] if len(args) > 1 else first
        if name in ("sum", "max", "min"):
            tensors = tensors_of(first)
            if tensors:
                made_sum = self._computed(tensors)
                made_sum.uneven = made_sum.uneven or (name == "sum" and is_uneven(tensors))
                return made_sum
        if name in PASS_THROUGH:
            params = [v for v in args if isinstance(v, Params)]
            if params:
                return merge_params(params)
            if len(args) == 1:
                return first
            if name == "chain":
                return (
                    self._computed([t for v in args for t in tensors_of(v)])
                    if any(tensors_of(v) for v in args)
                    else self.fresh(node)
                )
        if name in ("float", "int", "str", "len", "print", "format", "repr"):
            for value in args:
                for grad in grads_of(value):
                    self.grad_used(grad, node)
            if name == "len":
                return self.structural("call", tuple(args), self.words(node), name)
            return self.structural("call", tuple(args), name, name)
        return self.structural("call", tuple(args), self.words(node), name)

    def _isinstance(self, value: Value, node: ast.AST) -> Value:
        named = self._dotted(node.args[1]) if isinstance(node, ast.Call) and len(node.args) == 2 else None
        role = surface.BASES.get(surface.canonical(named)) if named else None
        if isinstance(value, Ref) and value.source is None and role in ("scaler", "optimizer", "module"):
            return Const(value.role == role)
        return Truth(
            self.ask(("isinstance", self.identity(value), named or id(node)), self.words(node), value.loops, node)
        )

    def _bound(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value]
    ) -> tuple[dict[str, Value], int]:
        """Arguments bound to an entry's parameters, and how many did not bind."""
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(keywords)
        return bound, max(0, len(args) - len(entry.parameters))

    def _plain(self, value: Value) -> object:
        """An argument as the protocol's facts hold it: a constant, or a name."""
        if isinstance(value, Const):
            return value.value
        if isinstance(value, Named):
            return Symbol(surface.canonical(value.name))
        if isinstance(value, Ref) and value.role == "device":
            return Symbol("torch.device()")
        return e.UNKNOWN

    def new_autocast(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and self.look_up(node.func.id) is None:
            entry = self._meant(entry, args, keywords)
        bound, excess = self._bound(entry, args, keywords)
        if entry.name == "torch.autocast" and args and isinstance(args[0], FunctionValue):
            # @torch.autocast without parentheses: the function is taken for the device type.
            bound = {"device_type": Named("function")}
        arguments = {name: self._plain(value) for name, value in bound.items()}
        names = {"context": self.words(node), "call": self.words(node)}
        open_ended = "**" in bound or has_stars(node)
        if not open_ended:
            self.emit(e.AUTOCAST_NEW, node, None, callable=entry.name, arguments=arguments, excess=excess, names=names)
        enabled: Formula = True
        if "enabled" in bound:
            enabled = self.truth(bound["enabled"], self._words_of("enabled", node), node)
        elif open_ended:
            enabled = self.ask(("open", id(node)), "", frozenset(), node)
        device = entry.facts.get("device") or arguments.get("device_type", e.UNKNOWN)
        device = device.partition(":")[0] if isinstance(device, str) and not isinstance(device, Symbol) else ""
        if "dtype" in bound and not (isinstance(bound["dtype"], Const) and bound["dtype"].value is None):
            given = bound["dtype"]
            dtype = surface.DTYPES.get(given.name, "?") if isinstance(given, Named) else "?"
        else:
            dtype = surface.DEFAULT_AUTOCAST_DTYPE.get(device, "?") if not open_ended else "?"
        cache = bound.get("cache_enabled")
        thing = self.thing(("autocast", self.place_key(node)), "autocast", "", self.site(node))
        off = isinstance(cache, Const) and cache.value is False
        # Without the argument it is what the region around is, unless the old entry points are asked.
        off = off or (
            cache is None and entry.name == "torch.autocast" and bool(self.state.open) and not self.state.open[-1].cache
        )
        thing.facts.update(device=device, dtype=dtype, cache=not off)
        return Ref(thing, enabled)

    def _meant(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value]) -> surface.Entry:
        """The autocast that a bare name stands for where no import says so: without a device type it is CUDA's own."""
        first = args[0] if args else keywords.get("device_type")
        if first is None or (isinstance(first, Const) and isinstance(first.value, bool)):
            return surface.lookup("torch.cuda.amp.autocast") or entry
        return entry

    def _words_of(self, keyword: str, node: ast.AST) -> object:
        if isinstance(node, ast.Call):
            for item in node.keywords:
                if item.arg == keyword:
                    return Words(item.value)
        return ""

    def _new_scaler(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        bound, excess = self._bound(entry, args, keywords)
        enabled: Formula = True
        if "enabled" in bound:
            enabled = self.truth(bound["enabled"], self._words_of("enabled", node), node)
        elif "**" in bound:
            enabled = self.ask(("open", id(node)), "", frozenset(), node)
        thing = self.thing(("scaler", self.place_key(node)), "scaler", "", self.site(node))
        thing.facts.update(
            constructed=True, enabled=enabled, callable=entry.name, sharded=entry.facts.get("sharded", False)
        )
        arguments = {name: self._plain(value) for name, value in bound.items()}
        thing.facts["device"] = entry.facts.get("device") or arguments.get("device", "cuda")
        self.emit(
            e.SCALER_NEW,
            node,
            thing.key,
            callable=entry.name,
            arguments=arguments,
            excess=excess,
            names={"call": self.words(node), "scaler": thing.name},
        )
        return Ref(thing, enabled)

    def _entry_optimizer(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        made = self.new_optimizer(bound.get("params"), node, entry.name)
        rate = bound.get("lr")
        groups = bound.get("params")
        rates = [item.items.get("lr") for item in _items(groups) if isinstance(item, Mapping)]
        fused = keywords.get("fused")
        made.thing.facts["fused"] = isinstance(fused, Const) and fused.value is True
        made.thing.facts["divided"] = any(value is not None and value.divided for value in (rate, *rates))
        return made

    def _entry_clip(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        rest = [bound[name] for name in entry.parameters[1:] if name in bound]
        params = bound.get("parameters")
        norm = self._clip(params, rest, bound, node)
        if entry.facts.get("norm") and self.local_clip(params):
            for event in norm.readings if isinstance(norm, Opaque) else ():
                event.facts["local"] = True
        return norm

    def _entry_norm(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        for grad in grads_of(args[0]) if args else []:
            return self._read_grad(grad, node, "norm")
        return self.fresh(node, "norm")

    def _loss_module(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        thing = self.thing(("loss", self.place_key(node)), "loss", "", self.site(node))
        reduction = keywords.get("reduction")
        thing.facts.update(entry.facts)
        thing.facts["reduction"] = (
            reduction.value if isinstance(reduction, Const) else ("sum" if reduction is not None else "mean")
        )
        legacy = keywords.get("size_average")
        if isinstance(legacy, Const) and legacy.value is False:
            thing.facts["reduction"] = "sum"
        return Ref(thing)

    def _loss_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        order = [bound.pop(name) for name in entry.parameters if name in bound]
        return self._loss(entry.facts, order, bound, node)

    def _backward_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        value = first_of(args, keywords, "tensors")
        if isinstance(value, Choice):
            return self.on_each(value, lambda v: self._backward_function(entry, [v, *args[1:]], keywords, node))
        tensors = tensors_of(value) if value is not None else []
        tensor = Tensor.merge(tensors) if tensors else self._foreign_tensor(value)
        self._backward(tensor, node, first_given(args[1:], keywords))
        return NONE

    def _grad_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        outputs = bound.get("outputs")
        tensors = tensors_of(outputs) if outputs is not None else []
        made = Tensor.merge(tensors) if tensors else self._foreign_tensor(outputs)
        if made.scaler >= 0:
            argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
            words = Words(argument) if argument is not None else ""
            made.penalty = (
                node,
                {"call": self.words(node), "loss": words, "scaler": self.program.things[made.scaler].name},
            )
        made.scaler = -1
        made.uneven = False
        made.is_loss = False
        self.emit(e.AUTOGRAD_GRAD, node)
        return made

    def _null(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return NullContext()

    def _exit_stack(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return StackContext()

    def _context(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if entry.facts.get("grad"):
            return NullContext()
        return GradMode()

    def _cache_clear(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        self.emit(e.AUTOCAST_CACHE_CLEAR, node)
        return NONE

    def _save(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        value = first_of(args, keywords, "obj")
        if value is not None:
            self._saved(value, node)
        return NONE

    def _saved(self, value: Value, node: ast.AST, *, objects: bool = False) -> None:
        contents = Contents(self.attributes)
        contents.look(value)
        place = contents.place if not contents.whole_scalers else None
        self.emit_at(
            e.SAVE,
            place.site if place is not None else self.site(node),
            None,
            optimizers=tuple(contents.optimizers),
            owners=tuple(contents.owners),
            scalers=tuple(contents.scalers),
            whole_scalers=tuple(contents.whole_scalers),
            open=contents.open,
            optimizer_entries=frozenset(contents.optimizer_entries),
            scaler_entries=frozenset(contents.scaler_entries),
            objects=objects,
            names={"call": self.words(node)},
        )

    def may_save(self, given: list[Value], node: ast.AST) -> None:
        """A dict with the states of an optimizer and of more, given to code that cannot be read, is a checkpoint.

        Unless that code is given a scaler too, whose state it may add.
        """
        inner = [v for value in given if isinstance(value, Sequence) for v in value.items]
        mappings = [value for value in (*given, *inner) if isinstance(value, Mapping)]
        states = [value for value in given if isinstance(value, StateDict)]
        if not (mappings or states):
            return
        if self._holds_scaler(given):
            for value in mappings:
                value.open = True
            return
        holders: list[Value] = [*mappings, Sequence(list(states))]
        for holder in holders:
            contents = Contents(self.attributes)
            contents.look(holder)
            # Live objects are given for their states to be taken, or loaded, by whoever gets them.
            taken = contents.optimizers and contents.place is not None
            if taken and (contents.modules or (contents.others and isinstance(holder, Mapping))):
                self._saved(holder, node)

    def lend(self, receiver: Value, given: list[Value]) -> None:
        """A dict that a method which cannot be read is given: with a scaler at hand it may add its state."""
        if self._holds_scaler([receiver]):
            for value in given:
                if isinstance(value, Mapping):
                    value.open = True

    def _holds_scaler(self, values: list[Value]) -> bool:
        return any(thing.role == "scaler" for thing in self.held(values))

    def _fill_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        tensors = [t for v in bound.values() for t in tensors_of(v)]
        made = self._computed(tensors) if tensors else self._foreign_tensor(None)
        value = bound.get("value") or bound.get("fill_value")
        if entry.name == "torch.where":
            value = next((bound[k] for k in ("input", "other") if isinstance(bound.get(k), Const)), None)
        self._fill(entry.name.rpartition(".")[2], value, made, node)
        return made

    def _wrap_module(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        inner = first_of(args, keywords, entry.parameters[0])
        thing = inner.thing if isinstance(inner, (Ref, Instance)) else None
        if thing is None and isinstance(inner, Opaque):
            thing = self.thing(("wrapped", self.place_key(node)), "module", "", self.site(node))
            inner = Ref(thing)
        if thing is not None:
            self.mark_wrapped(thing, entry, args, keywords)
        if thing is not None and entry.role == surface.COMPILE:
            thing.facts["compiled"] = True
        if entry.facts.get("copies") and isinstance(inner, (Ref, Instance)):
            # A copy has parameters of its own.
            thing = self.thing(("copy", self.place_key(node)), "module", "", self.site(node))
            return Ref(thing)
        return inner if inner is not None else self.fresh(node, "wrapped")

    def _script(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        inner = args[0] if args else NONE
        decorated = isinstance(inner, FunctionValue) and any(
            isinstance(w, Ref) and w.role == "autocast" for w in inner.wrappers
        )
        if isinstance(inner, Instance):
            forward = self.method_of(inner.cls, "forward")
            decorated = forward is not None and any(isinstance(w, Ref) for w in self.decorations(forward))
        if decorated:
            self.emit(e.SCOPE_LOST, node, None, how="script", names={"context": "autocast", "call": self.words(node)})
        return inner

    def _device(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        thing = self.thing(("device", self.place_key(node)), "device", "", self.site(node))
        return Ref(thing)

    def _partial(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return Partial(args[0], args[1:], keywords) if args else self.fresh(node)

    def _load(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return self.fresh(node, "loaded")


def _has(args: list[Value]) -> bool:
    """Whether a thing is known to have an attribute."""
    if len(args) != 2 or not isinstance(args[0], Ref) or not isinstance(args[1], Const):
        return False
    return args[0].source is None and args[1].value in BOUND.get(args[0].role, ())


def compares(name: str) -> bool:
    """Whether a function is one that tests compare with."""
    return name.rpartition(".")[2].startswith(("assert", "Assert"))


def _items(value: Value | None) -> list[Value]:
    return value.items if isinstance(value, Sequence) else []


def _takes_pieces(bounds: list[Value]) -> bool:
    """Whether a range goes forward in steps of more than one, as slices of a batch do."""
    if len(bounds) != 3:
        return False
    step = bounds[2]
    return not isinstance(step, Const) or (isinstance(step.value, int) and step.value > 1)


def _has_dimensions(node: ast.Call) -> bool:
    """Whether a parameter is made of a float32 tensor that has a dimension: with it, all that is low is float32."""
    made = node.args[0] if node.args else None
    if not isinstance(made, ast.Call) or not made.args or any(k.arg == "dtype" for k in made.keywords):
        return False
    kind = (chain(made.func) or "").rpartition(".")[2]
    first = made.args[0]
    if kind in ("Tensor", "FloatTensor", "tensor"):
        return isinstance(first, ast.List) and bool(first.elts)
    return kind in ("ones", "zeros", "rand", "randn", "empty", "full") and not (
        isinstance(first, (ast.List, ast.Tuple)) and not first.elts
    )


def _averages(name: str) -> bool:
    """Whether a function of torch brings together what several processes hold, as gradients are averaged."""
    last = name.rpartition(".")[2]
    return name.startswith("torch.distributed.") and any(word in last for word in ("reduce", "gather", "average"))


_ROLES: dict[str, Callable[..., Value]] = {
    surface.AUTOCAST: TorchCalls.new_autocast,
    surface.SCALER: TorchCalls._new_scaler,
    surface.OPTIMIZER: TorchCalls._entry_optimizer,
    surface.CLIP: TorchCalls._entry_clip,
    surface.NORM: TorchCalls._entry_norm,
    surface.LOSS_MODULE: TorchCalls._loss_module,
    surface.LOSS: TorchCalls._loss_function,
    surface.BACKWARD: TorchCalls._backward_function,
    surface.GRAD: TorchCalls._grad_function,
    surface.NULL_CONTEXT: TorchCalls._null,
    surface.EXIT_STACK: TorchCalls._exit_stack,
    surface.CONTEXT: TorchCalls._context,
    surface.CACHE_CLEAR: TorchCalls._cache_clear,
    surface.SAVE: TorchCalls._save,
    surface.LOAD: TorchCalls._load,
    surface.FILL: TorchCalls._fill_function,
    surface.WRAP_MODULE: TorchCalls._wrap_module,
    surface.COMPILE: TorchCalls._wrap_module,
    surface.SCRIPT: TorchCalls._script,
    surface.DEVICE: TorchCalls._device,
    surface.PARTIAL: TorchCalls._partial,
    surface.CAPTURE: TorchCalls._capture,
    surface.REGISTER_HOOK: TorchCalls._register_hook,
    surface.COMPRESS: TorchCalls._compressed,
    surface.THREAD: TorchCalls._thread,
    surface.POOL: TorchCalls._pool,
}
