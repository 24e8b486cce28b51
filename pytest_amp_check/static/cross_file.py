"""Exemptions across files: a call on a scaler or an optimizer that another file makes on an object of the same name."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Iterable

from ..protocol.finding import Finding
from ..protocol.rules import LABELS
from .project.syntax import tail_name, walk

#: Method of a scaler or an optimizer -> its partner method. A file that calls both on the same name has its own object.
PARTNER_METHODS = {"scale": "step", "step": "scale", "unscale_": "step", "update": "step", "zero_grad": "step"}
#: Missing call of a possible finding: the last name of a scaler or an optimizer, and the method.
MissingCall = tuple[str, str]


def drop_findings_by_other_files(
    findings: list[Finding], paths: Iterable[str], text_of: Callable[[str], str]
) -> list[Finding]:
    """Drop findings that other files of the project exempt, and findings that rest on a loop in another file."""
    files = list(dict.fromkeys(map(os.path.abspath, paths)))
    return _drop_exempt_findings(_drop_single_calls(findings, files, text_of), files, text_of)


def _drop_single_calls(findings: list[Finding], files: list[str], text_of: Callable[[str], str]) -> list[Finding]:
    """Drop findings about functions that no loop of the project calls.

    A function without any call, which makes one step with an optimizer of its caller, is meant for such a loop.
    """
    # A damaged cache may lack the name.
    asked = {f.names.get("function", "") for f in findings if LABELS[f.label][1].precedence.needs_repeated_call}
    calling = {name: [t for path in files if _may_call(t := text_of(path), name)] for name in asked if name}
    repeated = {name for name, texts in calling.items() if any(_calls_in_loop(text, name) for text in texts)}
    uncalled = {name for name, texts in calling.items() if not texts}
    return [
        f
        for f in findings
        if not LABELS[f.label][1].precedence.needs_repeated_call
        or f.names.get("function", "") in repeated
        or (f.names.get("function", "") in uncalled and f.names.get("is_one_step"))
    ]


def _may_call(text: str, name: str) -> bool:
    """Return True if a text names a function or a method outside of its definition."""
    return re.search(rf"(?<!def )\b{re.escape(name)}\b", text) is not None


def _calls_in_loop(text: str, name: str) -> bool:
    """Return True if a loop of a text calls a function or a method with this name."""
    tree = _parse_or_none(text)
    if tree is None:
        return False
    loops = [node for node in walk(tree) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
    calls = [node.func for loop in loops for top in loop.body for node in walk(top) if isinstance(node, ast.Call)]
    return any(tail_name(function) == name for function in calls)


def _parse_or_none(text: str) -> ast.Module | None:
    """Return the syntax tree of a text, or None if Python's parser rejects the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _drop_exempt_findings(
    findings: list[Finding], paths: Iterable[str], text_of: Callable[[str], str]
) -> list[Finding]:
    """Drop findings about a missing call that another file of the project makes.

    The owner and the name of a scaler are not known in general, but the last name is the same. A file that also makes
    the partner call, in any form, is a complete training and gives no exemption: its calls concern its own objects.
    """
    doubts = {id(finding): doubt for finding in findings if (doubt := _missing_call(finding))}
    if not doubts:
        return findings
    done: dict[MissingCall, dict[str, str]] = {doubt: {} for doubt in doubts.values()}
    for path in paths:
        text = text_of(path)
        for (name, method), files in done.items():
            if _has_call(text, name, method) and not _is_complete_training(text, name, method):
                files[path] = text

    def is_exempt(finding: Finding) -> bool:
        doubt, home = doubts.get(id(finding)), _path_of_finding(finding)
        others = done[doubt].items() if doubt is not None else ()
        return any(
            path != home and not _is_about_own_object(text, text_of(home), *(doubt or ("", "")))
            for path, text in others
        )

    return [each for each in findings if not is_exempt(each)]


def _path_of_finding(finding: Finding) -> str:
    return os.path.abspath(finding.site.path)


def _missing_call(finding: Finding) -> MissingCall | None:
    """Return the missing call that another file may make, or None if the finding rests on no missing call."""
    violation = LABELS[finding.label][1]
    if not violation.certainty.missing_method or finding.certain:
        return None
    role = "optimizer" if violation.certainty.missing_method == "zero_grad" else "scaler"
    return finding.names.get(role, "").rpartition(".")[2], violation.certainty.missing_method


def _has_call(text: str, name: str, method: str) -> bool:
    """Return True if a text calls a method of an object, or passes the object to a method of the same name.

    A method that only passes the call on, as ``def zero_grad(self, optimizer): optimizer.zero_grad()``, is no caller:
    the calls of that method are.
    """
    called = re.escape(name)
    given = rf"\.{method}\s{{0,8}}\(\s{{0,8}}(?:\w{{1,80}}\.){{0,8}}{called}\s{{0,8}}[,)]"
    if re.search(given, text) is not None:
        return True
    if re.search(rf"\b{called}\.{method}\s*\(", text) is None:
        return False
    return re.search(rf"\bdef {method}\(", text) is None or not _only_passes_on(text, name, method)


def _only_passes_on(text: str, name: str, method: str) -> bool:
    """Return True if all calls on a bare name are in functions that have the name of the method and get the object."""
    tree = _parse_or_none(text)
    if tree is None:
        return False
    nodes = walk(tree)
    forwarders = [
        node
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == method
        and any(each.arg == name for each in [*node.args.args, *node.args.kwonlyargs])
    ]
    passed_on = {node for each in forwarders for node in walk(each)}
    called = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return all(
        node in passed_on
        for node in called
        if isinstance(node.func, ast.Attribute) and node.func.attr == method and tail_name(node.func.value) == name
    )


def _is_about_own_object(text: str, home: str, name: str, method: str) -> bool:
    """Return True if all calls in a text concern an object that a class or a function of the text constructs.

    A function keeps its object if it passes the object to nobody. No class of ``home`` may share the object of a class.
    Classes of two files share an object if one class derives from the other, so one file names a class of the other.
    """
    called = re.escape(name)
    is_called_on_self = re.search(rf"\bself\.{called}\.{method}\s*\(", text) is not None
    is_called_otherwise = re.search(rf"(?<!\bself\.)\b{called}\.{method}\s*\(", text) is not None
    if is_called_otherwise and not _is_kept_by_functions(text, name, method):
        return False
    if not is_called_on_self:
        return is_called_otherwise
    if not re.search(rf"\bself\.{called}\s{{0,8}}=\s{{0,8}}(?:\w{{1,80}}\.){{0,8}}_?[A-Z]\w{{0,80}}\(", text):
        return False
    classes = r"^class\s+(\w+)"
    return not any(
        re.search(rf"\b{cls}\b", named)
        for naming, named in ((text, home), (home, text))
        for cls in re.findall(classes, naming, re.MULTILINE)
    )


def _is_kept_by_functions(text: str, name: str, method: str) -> bool:
    """Return True if each call on a bare name is in a function that constructs the object and only uses its methods."""
    tree = _parse_or_none(text)
    if tree is None:
        return False
    kept: set[ast.AST] = set()
    for function in walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes = walk(function)
            uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
            receivers = {node.value for node in nodes if isinstance(node, ast.Attribute)}
            made = {
                target
                for node in nodes
                if isinstance(node, ast.Assign) and _is_construction(node.value)
                for target in node.targets
            }
            if any(use in made for use in uses) and all(use in made or use in receivers for use in uses):
                kept.update(uses)
    calls = [node.func for node in walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    called = [func.value for func in calls if func.attr == method and tail_name(func.value) == name]
    return all(value in kept or _is_own_attribute(value) for value in called)


def _is_construction(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and tail_name(value.func).lstrip("_")[:1].isupper()


def _is_own_attribute(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self"


def _is_complete_training(text: str, name: str, method: str) -> bool:
    """Return True if a text also makes the partner call of a method, in any form."""
    if _has_call(text, name, PARTNER_METHODS[method]):
        return True
    # ``scaler.step(self.optimizer)``, ``loss_scaler(loss, optimizer, ...)``, ``step(model, optimizer)``
    given = rf"(?:step|[Ss]caler)\w{{0,40}}\s{{0,8}}\([^()]{{0,400}}\b{re.escape(name)}\b"
    return method == "zero_grad" and re.search(given, text) is not None
