"""Constructors that a decorator generates: those of dataclasses and attrs classes with a method for after it.

The method, ``__post_init__`` or ``__attrs_post_init__``, often makes the scaler and the optimizer. A written
constructor that stores the fields and calls the method takes the place of the generated one, so that the rest of the
analysis sees an ordinary class. Other dataclasses hold settings and need none.
"""

from __future__ import annotations

import ast

from .syntax import tail_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Decorators that generate a constructor, and the method that it calls at its end.
LAST_METHODS = {
    "dataclass": ("__post_init__", "__attrs_post_init__"),
    **dict.fromkeys(("attrs", "s", "define", "frozen", "mutable"), ("__attrs_post_init__",)),
}
#: Functions that describe a field.
_FIELD_FUNCTIONS = frozenset({"field", "ib", "attrib"})


def add_constructor(node: ast.ClassDef, others: Mapping[str, ast.ClassDef]) -> None:
    """Add the constructor that a decorator generates to the body of a class, if it calls a method of the class.

    ``others`` are the earlier classes of the file, by name: fields of base classes come first.
    """
    if not node.decorator_list:
        return
    wanted = [last for name in _decorators(node) for last in LAST_METHODS.get(name, ())]
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    last = next((methods[name] for name in wanted if name in methods), None)
    if last is None or "__init__" in methods:
        return
    fields = _fields_of(node, others)
    parameters: list[ast.arg] = []
    defaults: list[ast.expr] = []
    body: list[ast.stmt] = []
    given: list[ast.expr] = []
    for name, (owner, annotation, default) in fields.items():
        parameters.append(ast.arg(name.lstrip("_"), annotation))
        if default is not None or defaults:
            # The class holds the default under the name of the field.
            defaults.append(ast.Attribute(ast.Name(owner, ast.Load()), name, ast.Load()))
        value = ast.Name(name.lstrip("_"), ast.Load())
        if annotation is not None and _names(annotation) == "InitVar":
            given.append(value)
        else:
            body.append(ast.Assign([ast.Attribute(ast.Name("self", ast.Load()), name, ast.Store())], value))
    call = ast.Call(ast.Attribute(ast.Name("self", ast.Load()), last.name, ast.Load()), given, [])
    arguments = ast.arguments([], [ast.arg("self"), *parameters], None, [], [], None, defaults)
    made = ast.FunctionDef(name="__init__", args=arguments, body=[*body, ast.Expr(call)], decorator_list=[])
    for part in ast.walk(made):
        if not hasattr(part, "lineno"):
            ast.copy_location(part, node)
    node.body.append(made)


def is_generated(constructor: ast.AST, node: ast.ClassDef) -> bool:
    """Return True for a constructor that :func:`add_constructor` added to a class."""
    return getattr(constructor, "lineno", 0) == node.lineno


def _decorators(node: ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        yield tail_name(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _names(annotation: ast.expr) -> str:
    return tail_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation)


def _fields_of(
    node: ast.ClassDef, others: Mapping[str, ast.ClassDef]
) -> dict[str, tuple[str, ast.expr | None, ast.expr | None]]:
    """Return the fields of a class that its constructor takes: the class with the default, annotation and default."""
    found: dict[str, tuple[str, ast.expr | None, ast.expr | None]] = {}
    annotation: ast.expr | None
    for base in reversed(node.bases):
        inherited = others.get(tail_name(base))
        if (
            inherited is not None
            and inherited is not node
            and not LAST_METHODS.keys().isdisjoint(_decorators(inherited))
        ):
            found.update(_fields_of(inherited, {name: each for name, each in others.items() if each is not inherited}))
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=default):
                if _names(annotation) in {"ClassVar", "KW_ONLY"}:
                    continue
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func) as default):
                annotation = None
                if tail_name(func) not in _FIELD_FUNCTIONS:
                    continue
            case _:
                continue
        if not _is_left_out(default):
            found[name] = node.name, annotation, default
    return found


def _is_left_out(default: ast.expr | None) -> bool:
    """Return True for ``field(init=False)``."""
    keywords = default.keywords if isinstance(default, ast.Call) and tail_name(default.func) in _FIELD_FUNCTIONS else []
    return any(
        each.arg == "init" and isinstance(each.value, ast.Constant) and each.value.value is False for each in keywords
    )
