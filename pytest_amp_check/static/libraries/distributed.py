"""Modules that are sharded, replicated, compiled, traced or run in threads: where AMP's state does not follow."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Iterator

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ...protocol.words import chain
from ..interpreter.values import (
    Const,
    FunctionValue,
    Instance,
    Named,
    NullContext,
    Params,
    Pool,
    Ref,
    Sequence,
    Tensor,
    ThreadValue,
    Value,
)
from ..project.module import Class
from ..project.syntax import walk
from .autograd_functions import is_low_op
from .lightning import Lightning
from .torch_objects import first_of

#: Methods by which a pool of threads is given work.
SUBMITS = frozenset("submit map apply apply_async map_async imap imap_unordered starmap".split())
#: Identifiers of what leaves averaging over processes out, or does it in another way.
_SPARES = frozenset(
    "no_sync require_backward_grad_sync set_requires_gradient_sync register_comm_hook static_graph".split()
)
#: Modules within modules that are looked into.
NESTED = 4


class Distributed(Lightning):
    """Reads what wraps a module, what captures it, and what runs it elsewhere."""

    @abstractmethod
    def may_save(self, given: list[Value], node: ast.AST) -> None: ...

    @abstractmethod
    def _wrap_module(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value: ...

    # Captures.

    def _capture(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A module is traced, or its kernels are captured."""
        how = entry.facts["how"]
        bound = {**dict(zip(entry.parameters, args, strict=False)), **keywords}
        inner = first_of(args, keywords, entry.parameters[0])
        thing = inner.thing if isinstance(inner, (Ref, Instance)) else None
        casts = thing is not None and thing.role == "module" and not _is_never_cast(thing)
        checked = bound.get("check_trace")
        if isinstance(checked, Const) and checked.value is False:
            casts = False
        names = {"call": self.words(node), "module": thing.name if thing is not None else ""}
        if how != "trace" or casts:
            self.emit(e.CAPTURE, node, thing.key if thing is not None else None, how=how, names=names)
        return NullContext() if how == "graph" else self._wrap_module(entry, args, keywords, node)

    # Sharding.

    def mark_wrapped(self, thing: Thing, entry: surface.Entry, args: list[Value], keywords: dict[str, Value]) -> None:
        """Remember what a module is wrapped in, and under which tests."""
        wraps = entry.facts.get("wraps")
        if wraps is None:
            return
        strategy = keywords.get("sharding_strategy") or (args[2] if len(args) > 2 else None)
        if wraps == "fsdp1" and isinstance(strategy, Named) and strategy.name.endswith(".NO_SHARD"):
            wraps = "whole"
        thing.facts.setdefault("wrapped", {}).setdefault(wraps, frozenset(self.guards()))

    def sharded(self, keys: frozenset[int] | None, aware: Callable[[], bool]) -> bool:
        """Whether some of these modules hold local shards here.

        ``aware`` asks whether the file shows that it knows what to do with shards: then it must be plain that it does
        not do so here.
        """
        mine = frozenset(self.guards())
        for key in self._whole(keys) if keys else ():
            under = self.program.things[key].facts.get("wrapped", {}).get("fsdp1")
            if under is None or any((test, not truth) in mine for test, truth in under) or self._told_whole(mine):
                continue
            if (under and under <= mine) or not aware():
                return True
        return False

    def _told_whole(self, guards: frozenset[tuple[int, bool]]) -> bool:
        """Whether a test has told that a module is not wrapped in FSDP."""
        for key, truth in guards:
            question = self.tests.question(key)
            if not truth and isinstance(question, tuple) and question[0] == "isinstance":
                entry = surface.lookup(str(question[2]))
                if entry is not None and entry.facts.get("wraps") == "fsdp1":
                    return True
        return False

    def local_clip(self, params: Value | None) -> bool:
        """Whether the norm of these parameters is that of one shard alone."""
        modules = params.modules if isinstance(params, Params) else None
        if isinstance(params, Sequence):
            parts = [item.modules for item in params.items if isinstance(item, Params) and item.modules]
            modules = frozenset().union(*parts)
        return self.sharded(modules, self._clips_shards)

    def _clips_shards(self) -> bool:
        """Whether something in this file clips its own gradients, as a module that is sharded does."""
        for node in walk(self.module.tree):
            func = node.func if isinstance(node, ast.Call) else None
            if isinstance(func, ast.Attribute) and func.attr == "clip_grad_norm_":
                named = self._dotted(func.value)
                if named is None or not named.startswith("torch."):
                    return True
        return False

    def unsynchronised(self, scaler: Ref, optimizer: int) -> str:
        """Why ranks can disagree about whether this scaler skips a step: "" where they cannot, as far as is known."""
        facts, owner = scaler.thing.facts, self.program.things[optimizer].facts
        owns = owner.get("owns")
        if facts.get("framework") or not facts.get("constructed") or facts.get("cls") is not None:
            return ""
        if facts.get("sharded"):
            wraps: set[str] = set()
            for key in self._whole(owns) if owns else ():
                wraps |= self.program.things[key].facts.get("wrapped", {}).keys()
            return "fused" if owner.get("fused") and (not wraps or "fsdp1" in wraps) else ""
        return "plain" if self.sharded(owns, lambda: "ShardedGradScaler" in self.module.identifiers) else ""

    def averaged_over(self, tensor: Tensor) -> Thing | None:
        """The module of which a backward averages the gradients over processes, if nothing here may keep it from that.

        A context of which nothing is known may be ``no_sync()`` by another name.
        """
        if self.state.maybe_open or not (
            _SPARES.isdisjoint(self.module.identifiers | self.state.frame.module.identifiers)
        ):
            return None
        keys = tensor.deps if tensor.deps is not None else frozenset()
        if not keys and tensor.forward is not None and tensor.forward.subject is not None:
            keys = frozenset((tensor.forward.subject,))
        for key in sorted(keys):
            thing = self.program.things[key]
            if "ddp" in thing.facts.get("wrapped", {}):
                return thing
        return None

    # Hooks on gradients.

    def comm_hook(self, module: Thing | None, hook: Value | None, node: ast.AST) -> None:
        """Gradients are cast before they are averaged over ranks."""
        if isinstance(hook, Named) and surface.canonical(hook.name) in surface.FP16_HOOKS:
            key = module.key if module is not None else None
            self.emit(e.COMM_HOOK, node, key, names={"call": self.words(node)})

    def _register_hook(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound = {**dict(zip(entry.parameters, args, strict=False)), **keywords}
        model = bound.get("model")
        thing = model.thing if isinstance(model, (Ref, Instance)) else None
        self.comm_hook(thing, bound.get("comm_hook_type"), node)
        return self.fresh(node, "hook")

    def _compressed(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A hook that is wrapped so that its gradients are cast to float16."""
        return Named(min(surface.FP16_HOOKS))

    # Threads.

    def _thread(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        self._hand_over([*args, *keywords.values()], node)
        bound = {**dict(zip(entry.parameters, args, strict=False)), **keywords}
        given = bound.get("args")
        return ThreadValue(bound.get("target"), given.items if isinstance(given, Sequence) else [])

    def _hand_over(self, given: list[Value], node: ast.AST) -> None:
        """Another thread is given something, which it may write to a checkpoint."""
        self.hand_off(given, node)
        self.may_save(given, node)

    def _pool(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return Pool()

    def thread_method(
        self, receiver: ThreadValue | Pool, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """What a thread, or a pool of threads, is asked to do."""
        self._hand_over([*args, *keywords.values()], node)
        if isinstance(receiver, ThreadValue):
            if name == "start":
                self._elsewhere(receiver.target, receiver.args, node)
        elif name in SUBMITS and args:
            self._elsewhere(args[0], args[1:] if name == "submit" else [], node)
        return self.fresh(node, name)

    def _elsewhere(self, target: Value | None, args: list[Value], node: ast.AST) -> None:
        """A function of the project is run by another thread: the regions around this place are not around it."""
        if not isinstance(target, FunctionValue) or not self.in_region():
            return
        function = target
        ran: list[Thing] = []

        def act() -> None:
            self.state.open, self.state.maybe_open = [], 0
            self.follow(function, args, {}, node, always=True)
            ran.extend(self._forwards(self.draft.nodes))

        self.previewed(act)
        if ran:
            names = {"call": self.words(node), "module": ran[0].name}
            self.emit(e.THREAD, node, ran[0].key, how="thread", names=names)

    def _forwards(self, nodes: list[e.Node]) -> Iterator[Thing]:
        """The modules that some code runs, if it enters no autocast itself."""
        events = [node.event for node in nodes if node.event is not None]
        if not any(event.kind == e.AUTOCAST_ENTER for event in events):
            for event in events:
                if event.kind == e.FORWARD and event.subject is not None:
                    thing = self.program.things[event.subject]
                    if thing.facts.get("read", True) and not _is_never_cast(thing):
                        yield thing

    def replicated(self, thing: Thing, node: ast.AST) -> None:
        """A module runs forward whose replicas run in threads of their own."""
        if "replicas" in thing.facts.get("wrapped", {}) and thing.facts.get("read"):
            self.emit(e.THREAD, node, thing.key, how="replicas", names={"module": self.words(node)})

    # Compiled modules.

    def compiled_backward(self, tensor: Tensor, node: ast.AST) -> None:
        """A loss runs backward outside of the region in which a compiled module ran, which has float32 islands."""
        forward = tensor.forward
        if (
            forward is None
            or forward.subject is None
            or tensor.autocast != "in"
            or self.in_region()
            or self.state.maybe_open
        ):
            return
        thing = self.program.things[forward.subject]
        if thing.facts.get("compiled") and "backward_pass_autocast" not in self.module.identifiers:
            owner = next((i for i in self.instances.values() if i.thing is thing), None)
            if owner is not None and self._has_island(owner, NESTED):
                self.emit_at(e.COMPILED, forward.site, thing.key, names=dict(forward.names))

    def _has_island(self, module: Instance, depth: int) -> bool:
        """Whether a module, or one that it holds, multiplies matrices where it has switched autocast off."""
        if any(_switches_off(owner) for owner in self._bases(module.cls)) or self._leaves_autocast(module):
            return True
        held = [value for _, value in self.attributes(module.key)]
        held += [item for value in held if isinstance(value, Sequence) for item in value.items]
        return depth > 0 and any(self._has_island(value, depth - 1) for value in held if isinstance(value, Instance))

    def _leaves_autocast(self, module: Instance) -> bool:
        """Whether the forward of a module runs others where it has switched autocast off."""
        forward = self.method_of(module.cls, "forward")
        if forward is None or forward in self.active:
            return False
        function = FunctionValue(forward, self.home(forward.module), module, self.decorations(forward))
        ran: list[bool] = []

        def act() -> None:
            self.follow(function, [], {}, forward.node, always=True)
            off = False
            for node in self.draft.nodes:
                kind = node.event.kind if node.event is not None else ""
                if node.event is not None and kind == e.AUTOCAST_ENTER and not node.event.facts.get("null"):
                    facts = node.event.facts
                    off = facts["enabled"] is False or facts["dtype"] == "float32"
                elif kind == e.AUTOCAST_EXIT:
                    off = False
                elif kind == e.FORWARD and off:
                    ran.append(True)

        self.previewed(act)
        return bool(ran)


def _is_never_cast(thing: Thing) -> bool:
    """Whether the weights of a module are not cast in a region, and so not kept for it."""
    return bool(thing.facts.get("frozen") or thing.facts.get("low") or thing.facts.get("compiled"))


def _switches_off(cls: Class) -> bool:
    """Whether a class multiplies matrices itself where it has switched autocast off."""
    for node in walk(cls.node):
        if not isinstance(node, (ast.With, ast.FunctionDef)):
            continue
        contexts = node.decorator_list if isinstance(node, ast.FunctionDef) else [i.context_expr for i in node.items]
        off = any(_is_off(context) for context in contexts)
        if off and any(is_low_op(inner, cls.module) for part in node.body for inner in walk(part)):
            return True
    return False


def _is_off(context: ast.expr) -> bool:
    """Whether a context is an autocast that its literal arguments switch off, or have compute in float32."""
    if not isinstance(context, ast.Call) or (chain(context.func) or "").rpartition(".")[2] != "autocast":
        return False
    given = {keyword.arg: keyword.value for keyword in context.keywords}
    enabled = given.get("enabled")
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return True
    return (chain(given["dtype"]) or "") in ("torch.float32", "torch.float") if "dtype" in given else False
