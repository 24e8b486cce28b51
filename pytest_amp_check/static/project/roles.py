"""What a file shows to be a scaler, an optimizer or a module by how it uses it, whatever it is called."""

from __future__ import annotations

import ast

from ...protocol.frameworks import FRAMEWORKS
from ...protocol.source_text import find_access_path

#: The role of an object that is called with a loss and an optimizer as timm's NativeScaler is.
WRAPPER = "timm"
#: Roles of objects that are called themselves.
CALLABLE_ROLES = frozenset({"module", WRAPPER})
_TELLING_METHODS = "unscale_ scale step update backward zero_grad parameters named_parameters train eval"
#: Methods by which modules are cast or moved, and tensors too.
CAST_METHODS = frozenset({"to", "half", "bfloat16", "requires_grad_"})
#: Attributes whose owner they tell something about.
TELLING_ATTRIBUTES = frozenset(_TELLING_METHODS.split()).union(
    *(framework.signature_names for framework in FRAMEWORKS.values())
)


class RoleCollector:
    """Collects how expressions are used in one file."""

    __slots__ = (
        "_alias_by_text",
        "_cast_texts",
        "_members_by_text",
        "_scaler_texts",
        "_step_targets",
        "_wrapper_arguments",
    )

    def __init__(self) -> None:
        self._members_by_text: dict[str, set[str]] = {}
        #: What speaks of a scaler and is called itself -> what it is given as the optimizer.
        self._wrapper_arguments: dict[str, set[str]] = {}
        self._scaler_texts: set[str] = set()
        self._step_targets: dict[str, set[str]] = {}
        #: What is cast, or moved, and the parts of something that have a name of their own, with that.
        self._cast_texts: set[str] = set()
        self._alias_by_text: dict[str, str] = {}

    def note_assignment(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Attribute) and len(node.targets) == 1:
            source, name = find_access_path(node.value), find_access_path(node.targets[0])
            if source is not None and name is not None:
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
            return
        if func.attr in CAST_METHODS:
            self._cast_texts.add(find_access_path(func.value) or "")
        if func.attr in ("unscale_", "step") and node.args:
            owner, argument = find_access_path(func.value), find_access_path(node.args[0])
            if owner is not None and argument is not None:
                self._step_targets.setdefault(owner, set()).add(argument)
        elif func.attr == "backward":
            match func.value:
                case ast.Call(func=ast.Attribute(attr="scale", value=scaler)):
                    self._scaler_texts.add(find_access_path(scaler) or "")

    def _note_wrapper(self, node: ast.Call) -> None:
        """A scaler that is called with a loss and an optimizer: it does all that a step takes."""
        owner = find_access_path(node.func)
        if owner is None or "scaler" not in owner.rpartition(".")[2].lower():
            return
        given = [keyword.value for keyword in node.keywords if keyword.arg == "optimizer"] or node.args[1:2]
        argument = find_access_path(given[0]) if given else None
        if argument is not None:
            self._wrapper_arguments.setdefault(owner, set()).add(argument)

    def resolve_roles(self) -> dict[str, str]:
        """Text of an expression -> "scaler", "optimizer", "module" or the framework whose engine it is.

        What is asked to ``unscale_``, or to ``scale`` what then runs backward, is a scaler, and what steps what it is
        given if it scales too, or is called so, or is updated and steps what is cleared as an optimizer is; so is what
        another object calls the same, and asks to scale; what a scaler steps, or is both stepped and zeroed, is an
        optimizer; what has parameters is a module. What runs something backward and has a method of one framework
        alone is that framework's engine. What speaks of a scaler, and is called with an optimizer, is such a one as
        timm's.
        """
        roles: dict[str, str] = {}
        for text, names in self._members_by_text.items():
            targets = self._step_targets.get(text, set())
            scales = "scale" in names or "scaler" in text.rpartition(".")[2].lower()
            # A scaler of torch runs nothing backward: what does is some library's object, with a scaler in it perhaps.
            updates = "update" in names and "backward" not in names
            steps = bool(targets) and (scales or (updates and self._are_cleared(targets)))
            if "unscale_" in names or text in self._scaler_texts or steps:
                roles[text] = "scaler"
            elif "backward" in names:
                roles.update((text, key) for key, framework in FRAMEWORKS.items() if names & framework.signature_names)
        called = {text.rpartition(".")[2] for text, role in roles.items() if role == "scaler"}
        for text, names in self._members_by_text.items():
            if text.rpartition(".")[2] in called and names & {"scale", "update"}:
                roles.setdefault(text, "scaler")
        for scaler in list(roles):
            roles = dict.fromkeys(self._step_targets.get(scaler, ()), "optimizer") | roles
        role_by_methods = {text: _role_of_methods(names) for text, names in self._members_by_text.items()}
        roles = {text: role for text, role in role_by_methods.items() if role} | roles
        stepped = {text.rpartition(".")[2] for text, role in roles.items() if role == "optimizer"}
        for text, names in self._members_by_text.items():
            # Modules and optimizers have it: what else is called the same tells which this is.
            if names == {"zero_grad"} and text.rpartition(".")[2] in stepped:
                roles[text] = "optimizer"
        for text, targets_given in self._wrapper_arguments.items():
            for target in targets_given:
                if roles.get(target) == "optimizer" or "optim" in target.rpartition(".")[2].lower():
                    roles.setdefault(text, WRAPPER)
                    roles[target] = "optimizer"
        for text in self._cast_texts & self._alias_by_text.keys():
            # `model = pipeline.model` names what `pipeline.model.to(...)` casts.
            if roles.get(self._alias_by_text[text]) == "module":
                roles.setdefault(text, "module")
        roles.pop("self", None)
        return roles

    def _are_cleared(self, targets: set[str]) -> bool:
        return any("zero_grad" in self._members_by_text.get(target, ()) for target in targets)


def _role_of_methods(names: set[str]) -> str:
    """What it is that has these methods, an optimizer or a module."""
    if {"zero_grad", "step"} <= names:
        return "optimizer"
    return "module" if names & {"parameters", "named_parameters", "zero_grad"} or {"train", "eval"} <= names else ""
