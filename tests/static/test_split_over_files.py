"""Mistakes whose program lies in two files: each function or class of a fixture is moved to a file of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_amp_check import check_paths
from pytest_amp_check.static.engine import check_source

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Moved definitions, and codes that are not found then: the training or the capture is in a file that no region enters.
GAPS = {
    ("autocast/custom_function_undecorated_bad.py", "train"): {"AMP107"},
    ("autocast/reentrant_autocast_instance_bad.py", "train"): {"AMP102"},
    ("autocast/stale_weight_cache_decorator_bad.py", "train"): {"AMP101"},
    ("distributed/capture_with_cast_cache_bad.py", "Detector"): {"AMP605"},
    ("distributed/capture_with_cast_cache_bad.py", "main"): {"AMP605"},
    ("distributed/found_inf_not_synchronised_bad.py", "train"): {"AMP602"},
}


def bound_names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def used_names(nodes: list[ast.stmt]) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def written(nodes: list[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, nodes)) + "\n"


def splits(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (moved definition, its file, the file of the rest), the definition with all that it uses."""
    body = [node for node in ast.parse(text).body if getattr(node, "module", "") != "__future__"]
    imports: list[ast.stmt] = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    others = [node for node in body if node not in imports]
    owners = {name: node for node in others for name in bound_names(node)}
    for definition in others:
        if not isinstance(definition, (ast.FunctionDef, ast.ClassDef)):
            continue
        moved: list[ast.stmt] = []
        todo: list[ast.stmt] = [definition]
        while todo:
            node = todo.pop()
            if node not in moved:
                moved.append(node)
                todo += [owners[name] for name in used_names([node]) if name in owners]
        rest = [node for node in others if node not in moved]
        shared = sorted(name for node in moved for name in bound_names(node) if name in used_names(rest))
        if definition.name in shared:
            first = written([*imports, *(node for node in others if node in moved)])
            yield definition.name, first, f"from helpers_of import {', '.join(shared)}\n" + written([*imports, *rest])


@pytest.mark.parametrize("name", sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.rglob("*_bad.py")))
def test_a_definition_may_lie_in_another_file(tmp_path: Path, name: str) -> None:
    text = (FIXTURES / name).read_text()
    codes = {finding.code for finding in check_source(text, "main.py")}
    for moved, helpers, rest in splits(text):
        (tmp_path / "helpers_of.py").write_text(helpers)
        (tmp_path / "main.py").write_text(rest)
        found = {finding.code for finding in check_paths([tmp_path]).findings}
        assert codes - found == GAPS.get((name, moved), set()), moved
