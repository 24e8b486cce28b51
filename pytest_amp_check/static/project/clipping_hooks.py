"""Methods of the project that clip gradients for a training loop, found by the name of a hook."""

from __future__ import annotations

import ast
import re

from ..sources import source_files
from .import_reach import parse_file
from .project import Project
from .relevance import CLIP_FUNCTIONS
from .syntax import tail_name, walk

#: Names of methods that a training loop calls around its step.
_HOOK = re.compile(r"(?:^|_)(?:on|before|after|pre|post)_(?:\w*_)?(?:optim|step|backward|grad|update)")
#: Parts of names in a class that knows about the loss scale.
_SCALE_WORDS = re.compile(r"unscale|get_scale|scaler|precision")


def names_hook(name: str) -> bool:
    """Return True for the name of a method that a training loop calls around its step."""
    return _HOOK.search(name) is not None


def may_clip_in_hook(project: Project, name: str) -> bool:
    """Return True if classes of the project define a hook of this name that clips gradients as they are.

    A class that unscales, or knows a scaler, decides for all: the loop may hold one of its objects.
    """
    if not names_hook(name):
        return False
    project.depends_on_all = True
    known = project.clipping_hooks.get(name)
    if known is None:
        known = project.clipping_hooks[name] = _search_files(project, name)
    return known


def _search_files(project: Project, name: str) -> bool:
    head = b"def " + name.encode() + b"("
    clips = False
    for path in sorted(project.members):
        data = source_files.load_or_nothing(path, project.largest) if path.endswith(".py") else b""
        tree = parse_file(path, project.largest) if head in data and b"clip_grad" in data else None
        for cls, method in _find_methods(tree, name) if tree is not None else ():
            if any(_SCALE_WORDS.search(tail_name(node)) for node in walk(cls)):
                return False
            clips = clips or _clips(method)
    return clips


def _find_methods(tree: ast.Module, name: str) -> list[tuple[ast.ClassDef, ast.FunctionDef]]:
    classes = (node for node in walk(tree) if isinstance(node, ast.ClassDef))
    return [
        (cls, part) for cls in classes for part in cls.body if isinstance(part, ast.FunctionDef) and part.name == name
    ]


def _clips(method: ast.FunctionDef) -> bool:
    """Return True if a method calls a function of ``torch.nn.utils`` that clips, not a method of an engine."""
    calls = (node.func for node in walk(method) if isinstance(node, ast.Call))
    return any(
        tail_name(function) in CLIP_FUNCTIONS
        and (isinstance(function, ast.Name) or tail_name(getattr(function, "value", method)) in ("utils", "clip_grad"))
        for function in calls
    )
