"""Roles of expressions: scalers, optimizers and modules, recognized by use and independent of their names."""

from __future__ import annotations

import ast

from ...protocol.frameworks import FRAMEWORKS
from ...protocol.source_text import find_access_path, names_optimizer
from .syntax import tail_name

#: Role of an object that is called with a loss and an optimizer, such as timm's NativeScaler.
WRAPPER = next(key for key, framework in FRAMEWORKS.items() if framework.engine.call_parameters)
#: Names of parameters by which frameworks pass their wrappers of optimizers -> framework.
_WRAPPER_PARAMETERS = {
    framework.engine.parameter_name: key for key, framework in FRAMEWORKS.items() if framework.engine.parameter_name
}
SCALER_CLASSES = frozenset({"GradScaler", "ShardedGradScaler"})
#: Roles of objects that code calls directly.
CALLABLE_ROLES = frozenset({"module", WRAPPER})
_TELLING_METHODS = "unscale_ scale step update backward zero_grad param_groups parameters named_parameters train eval"
#: Methods that cast or move modules, and also tensors.
CAST_METHODS = frozenset({"to", "half", "bfloat16", "requires_grad_"})
#: Methods that cast or move, and return the object.
_MOVES = CAST_METHODS | {"cuda", "cpu"}
#: Methods of modules. Optimizers have ``zero_grad``, too.
_OF_MODULES = frozenset({"parameters", "named_parameters", "zero_grad"})
#: Methods that set the mode of a module. Schedule-free optimizers have them, too.
_MODES = frozenset({"train", "eval"})
#: Attributes that give evidence of the role of their owner.
TELLING_ATTRIBUTES = frozenset(_TELLING_METHODS.split()).union(
    *(framework.engine.signature_names for framework in FRAMEWORKS.values())
)


def _alternatives(value: ast.expr) -> list[ast.expr]:
    """Return the expressions among which a conditional expression chooses, or the expression itself."""
    if isinstance(value, ast.IfExp):
        return [*_alternatives(value.body), *_alternatives(value.orelse)]
    return [value]


def _without_casts(value: ast.expr) -> ast.expr:
    """Return the object that an expression casts or moves: ``net`` for ``net.to(device).half()``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES:
        value = value.func.value
    return value


def _is_low_cast(node: ast.Call) -> bool:
    """Return True for a cast to a low dtype, or to one that a name holds: ``half()``, ``to(dtype)``."""
    if tail_name(node.func) in ("half", "bfloat16"):
        return True
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(tail_name(each) in ("float16", "half", "bfloat16") or "dtype" in tail_name(each) for each in given)


def _makes_scaler(value: ast.expr) -> bool:
    """Return True if an assigned expression constructs a scaler, perhaps under a condition."""
    return any(isinstance(each, ast.Call) and tail_name(each.func) in SCALER_CLASSES for each in _alternatives(value))


class RoleCollector:
    """Collector of the uses of expressions in one file."""

    __slots__ = (
        "_alias_by_text",
        "_called_texts",
        "_cast_texts",
        "_cleared_arguments",
        "_low_cast_texts",
        "_maker_by_text",
        "_members_by_text",
        "_scaler_texts",
        "_step_targets",
        "_wrapper_arguments",
    )

    def __init__(self) -> None:
        self._members_by_text: dict[str, set[str]] = {}
        #: Callable expressions with "scaler" in their name -> their optimizer arguments.
        self._wrapper_arguments: dict[str, set[str]] = {}
        self._scaler_texts: set[str] = set()
        self._step_targets: dict[str, set[str]] = {}
        #: Objects whose ``zero_grad`` takes arguments, with these.
        self._cleared_arguments: dict[str, set[str]] = {}
        #: Expressions that code casts or moves, and those that it casts to a dtype that may be low.
        self._cast_texts: set[str] = set()
        self._low_cast_texts: set[str] = set()
        #: Names, and attributes of names, that code calls.
        self._called_texts: set[str] = set()
        #: Attributes that have a local name, with that name.
        self._alias_by_text: dict[str, str] = {}
        #: Expressions that a method of an object returns, with this object.
        self._maker_by_text: dict[str, str] = {}

    def note_assignment(self, node: ast.Assign) -> None:
        if _makes_scaler(node.value):
            self._scaler_texts.update(filter(None, map(find_access_path, node.targets)))
        if len(node.targets) != 1:
            return
        match node.value:
            case ast.Call(func=ast.Attribute(value=maker)):
                made, text = find_access_path(node.targets[0]), find_access_path(maker)
                if made is not None and text is not None:
                    self._maker_by_text[made] = text
        for value in _alternatives(node.value):
            inner = _without_casts(value)
            if isinstance(value, ast.Attribute) or inner is not value:
                source, name = find_access_path(inner), find_access_path(node.targets[0])
                if source is not None and name is not None and source != name:
                    self._alias_by_text[source] = name

    def note_attribute(self, node: ast.Attribute) -> None:
        if node.attr in TELLING_ATTRIBUTES:
            owner = find_access_path(node.value)
            if owner is not None:
                self._members_by_text.setdefault(owner, set()).add(node.attr)

    def note_call(self, node: ast.Call) -> None:
        func = node.func
        self._note_wrapper(node)
        if not isinstance(func, ast.Attribute):
            if isinstance(func, ast.Name):
                self._called_texts.add(func.id)
            return
        if isinstance(func.value, ast.Name):
            self._called_texts.add(f"{func.value.id}.{func.attr}")
        if func.attr in CAST_METHODS:
            cast = find_access_path(_without_casts(func.value))
            if cast is not None:
                self._cast_texts.add(cast)
                if _is_low_cast(node):
                    self._low_cast_texts.add(cast)
        if func.attr in ("unscale_", "step") and node.args:
            owner, argument = find_access_path(func.value), find_access_path(node.args[0])
            if owner is not None and argument is not None:
                self._step_targets.setdefault(owner, set()).add(argument)
        elif func.attr == "zero_grad" and node.args:
            owner, argument = find_access_path(func.value), find_access_path(node.args[0])
            if owner is not None and argument is not None:
                self._cleared_arguments.setdefault(owner, set()).add(argument)
        elif func.attr == "backward":
            match func.value:
                case ast.Call(func=ast.Attribute(attr="scale", value=scaler)) if text := find_access_path(scaler):
                    self._scaler_texts.add(text)

    def _note_wrapper(self, node: ast.Call) -> None:
        """Record a scaler that is called with a loss and an optimizer: such a call does a whole step."""
        func = node.func
        last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else "scaler"
        # Most names end the search here, without the text of the whole path.
        if "scaler" not in last.lower():
            return
        owner = find_access_path(func)
        if owner is None or "scaler" not in owner.rpartition(".")[2].lower():
            return
        given = [keyword.value for keyword in node.keywords if keyword.arg == "optimizer"] or node.args[1:]
        argument = find_access_path(given[0]) if given else None
        if argument is not None:
            self._wrapper_arguments.setdefault(owner, set()).add(argument)

    def resolve_roles(self) -> dict[str, str]:
        """Return the role of each expression text: "scaler", "optimizer", "module" or the framework of an engine.

        A scaler is assigned from its class, or calls ``unscale_``, or ``scale`` on a loss that then runs backward. An
        object that steps an argument is a scaler if the object also scales or has "scaler" in its name. The same holds
        if the object is updated and the argument is cleared as an optimizer. Another object of the same name that
        scales or updates is a scaler too.

        An optimizer is stepped by a scaler, is both stepped and zeroed, or is stepped or zeroed and has the usual name.
        A module has parameters, or it is cast and returns an optimizer, or it is called and cast to a dtype that may be
        low, beside an optimizer. An object that runs backward and has a method of only one framework is the engine of
        that framework. An object with "scaler" in its name that is called with an optimizer has the role of timm's
        scaler. An optimizer with the name by which a framework passes its wrapper is an engine of the framework.
        """
        roles: dict[str, str] = {}
        for text, names in self._members_by_text.items():
            targets = self._step_targets.get(text, set())
            scales = "scale" in names or "scaler" in text.rpartition(".")[2].lower()
            # A torch scaler runs no backward: an object that does belongs to a library, and may contain a scaler.
            updates = "update" in names and "backward" not in names
            steps = bool(targets) and (scales or (updates and self._are_cleared(targets)))
            if "unscale_" in names or text in self._scaler_texts or steps:
                roles[text] = "scaler"
            elif "backward" in names:
                roles.update(
                    (text, key) for key, framework in FRAMEWORKS.items() if names & framework.engine.signature_names
                )
        called = {text.rpartition(".")[2] for text, role in roles.items() if role == "scaler"}
        for text, names in self._members_by_text.items():
            if text.rpartition(".")[2] in called and names & {"scale", "update"}:
                roles.setdefault(text, "scaler")
        for scaler in list(roles):
            roles = dict.fromkeys(self._step_targets.get(scaler, ()), "optimizer") | roles
        role_by_methods = {text: _role_of_methods(text, names) for text, names in self._members_by_text.items()}
        roles = {text: role for text, role in role_by_methods.items() if role} | roles
        stepped = {text.rpartition(".")[2] for text, role in roles.items() if role == "optimizer"}
        for text, names in self._members_by_text.items():
            # Modules and optimizers both have `zero_grad`: another expression of the same name decides.
            if names == {"zero_grad"} and text.rpartition(".")[2] in stepped:
                roles[text] = "optimizer"
            elif "zero_grad" in names and roles.get(text) in ("module", "optimizer"):
                # Theirs takes no optimizer. That of an engine does: `self.strategy.zero_grad(optimizer)`.
                cleared = self._cleared_arguments.get(text, set()) - {text}
                if any(roles.get(each) == "optimizer" or names_optimizer(each) for each in cleared):
                    del roles[text]
        for text, targets_given in self._wrapper_arguments.items():
            for target in targets_given:
                if roles.get(target) == "optimizer" or names_optimizer(target):
                    roles.setdefault(text, WRAPPER)
                    roles[target] = "optimizer"
        for text in [text for text, role in roles.items() if role == "optimizer"]:
            # A dict of such wrappers has one for each model.
            roles[text] = _WRAPPER_PARAMETERS.get(text.partition("[")[0], "optimizer")
        for text in self._cast_texts & self._alias_by_text.keys():
            # `model = pipeline.model` names the object of `pipeline.model.to(...)`; `self.net = net.half()` casts it.
            if roles.get(self._alias_by_text[text]) == "module":
                roles.setdefault(text, "module")
        for text in self._low_cast_texts if "optimizer" in roles.values() else ():
            # A tensor is not called: `self.net = net.half()`, and `self.net(x)` elsewhere.
            name = self._alias_by_text.get(text, text)
            if not self._called_texts.isdisjoint((text, name)):
                for each in (text, name):
                    roles.setdefault(each, "module")
        for made, text in self._maker_by_text.items():
            # `optimizer = model.configure_optimizers(lr)`
            if text in self._cast_texts and roles.get(made) == "optimizer":
                roles.setdefault(text, "module")
        roles.pop("self", None)
        return roles

    def _are_cleared(self, targets: set[str]) -> bool:
        return any("zero_grad" in self._members_by_text.get(target, ()) for target in targets)


def _role_of_methods(text: str, names: set[str]) -> str:
    """Return the role of an object with these methods, "optimizer" or "module", or ""."""
    is_called_optimizer = names_optimizer(text)
    if {"zero_grad", "step"} <= names or {"zero_grad", "param_groups"} <= names:
        return "optimizer"
    # A base class may only clear what its subclasses step.
    if is_called_optimizer and ("step" in names or names & _OF_MODULES == {"zero_grad"}):
        return "optimizer"
    if names & _OF_MODULES:
        return "module"
    has_modes = names >= _MODES and not is_called_optimizer
    return "module" if has_modes else ""
