"""The autograd graph, as far as the recorder looks at it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .deferred_values import DeferredNumber

#: Nodes of a graph that are looked at to find the scaled loss below what runs backward.
NEAR = 64
#: Nodes of a graph that are looked at to find the parameters it leads to.
FAR = 200_000
#: Loss scales below this are numbers that a loss may be weighted with.
SMALL = 256.0


def find_tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in find_tensors(item)]
    return []


def detach_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its graph."""
    return tensor.detach() if tensor.requires_grad else tensor


def dense_values(grad: torch.Tensor) -> torch.Tensor:
    return grad._values() if grad.is_sparse else grad


def has_nonzero(grad: torch.Tensor | None) -> bool:
    return grad is not None and bool(dense_values(grad).any())


def storage_pointer(tensor: torch.Tensor) -> int:
    dense = dense_values(tensor) if tensor.layout == torch.sparse_coo else tensor
    return dense.untyped_storage().data_ptr()


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def plain_number(value: Any) -> float:
    """The value of a number, or of a tensor with one element."""
    if type(value) is torch.Tensor:
        # A dispatch mode of the program would be given the number that a tensor of the graph stands for, and no tensor.
        with _disable_current_modes():
            return float(value.detach())
    return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)


def iter_nodes(
    roots: Iterable[torch.Tensor], limit: int, should_stop: Callable[[Any], bool] = lambda node: False
) -> Iterator[Any]:
    """The nodes of the graph below some tensors, nearest first; not those that lie below a node to stop at."""
    return iter_nodes_below((root.grad_fn for root in roots if root.grad_fn is not None), limit, should_stop)


def iter_nodes_below(
    start_nodes: Iterable[Any], limit: int, should_stop: Callable[[Any], bool] = lambda node: False
) -> Iterator[Any]:
    """Some nodes of the graph and those below them, as :func:`nodes` gives them."""
    pending: deque[Any] = deque(start_nodes)
    seen = {id(node) for node in pending}
    held_nodes = list(pending)
    while pending and limit:
        limit -= 1
        node = pending.popleft()
        yield node
        if should_stop(node):
            continue
        for next_node, _ in node.next_functions:
            if next_node is not None and id(next_node) not in seen:
                seen.add(id(next_node))
                held_nodes.append(next_node)
                pending.append(next_node)


def find_leaf_ids(roots: Sequence[torch.Tensor]) -> Iterator[int]:
    """Identities of the parameters that a backward of these tensors reaches."""
    for node in iter_nodes(roots, FAR):
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield id(variable)


def multiplies_by_scale(node: Any, scale: DeferredNumber) -> bool:
    """Whether a graph node multiplies what it is given by the loss scale; a small one may be any other number."""
    if not type(node).__name__.startswith("Mul"):
        return False
    return any(number >= SMALL and math.isclose(number, scale.value, rel_tol=1e-6) for number in _saved_numbers(node))


def divides_by_scale(node: Any, scale: DeferredNumber) -> bool:
    """Whether a graph node divides what it is given by the loss scale, or multiplies by its inverse."""
    name = type(node).__name__
    if name.startswith("Mul"):
        return any(math.isclose(factor * scale.value, 1.0, rel_tol=1e-3) for factor in _saved_numbers(node))
    return name.startswith("Div") and any(
        math.isclose(factor, scale.value, rel_tol=1e-3) for factor in _saved_numbers(node, ("_saved_other",))
    )


def _saved_numbers(
    node: Any, attributes: tuple[str, ...] = ("_saved_other", "_saved_self", "_saved_scalar")
) -> Iterator[float]:
    """The numbers that a graph node keeps of its operands."""
    for attribute in attributes:
        try:
            number = getattr(node, attribute, None)
        except RuntimeError:
            continue
        if number is not None and is_number(number):
            yield plain_number(number)
