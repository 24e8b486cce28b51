"""Traversal of the autograd graph."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from .deferred_values import DeferredNumber

#: Largest number of visited nodes in a search for the scaled loss below a backward root.
NEAR = 64
#: Largest number of visited nodes in a search for the parameters of a graph.
FAR = 200_000
#: Loss scales below this value may also be weights of a loss term.
SMALL = 256.0


def find_tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in find_tensors(item)]
    return []


def dense_values(grad: torch.Tensor) -> torch.Tensor:
    return grad._values() if grad.is_sparse else grad


def has_values(tensor: torch.Tensor) -> bool:
    """Return False for a tensor on the meta device, and for a fake tensor of a compiler."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def has_nonzero(grad: torch.Tensor | None) -> bool:
    """Return True if a gradient has a non-zero value. A gradient without values counts as such."""
    return grad is not None and (not has_values(grad) or bool(dense_values(grad).any()))


def storage_pointer(tensor: torch.Tensor) -> int:
    return dense_values(tensor).untyped_storage().data_ptr()


def is_number(value: Any) -> bool:
    """Return True for a real number, also of numpy, and for a tensor with one element."""
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, Real)


def plain_number(value: Any) -> float:
    """Return the value of a number, or of a tensor with one element."""
    if type(value) is torch.Tensor:
        # A dispatch mode of the program would otherwise get the bare number instead of a tensor.
        with _disable_current_modes():
            return float(value.detach())
    return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)


def iter_nodes(
    roots: Iterable[torch.Tensor], limit: int, should_stop: Callable[[Any], bool] = lambda node: False
) -> Iterator[Any]:
    """Yield at most ``limit`` nodes of the graph below some tensors, nearest first.

    Skip all nodes below a stop node.
    """
    return iter_nodes_below((root.grad_fn for root in roots if root.grad_fn is not None), limit, should_stop)


def iter_nodes_below(
    start_nodes: Iterable[Any], limit: int, should_stop: Callable[[Any], bool] = lambda node: False
) -> Iterator[Any]:
    """Yield some nodes of the graph and the nodes below them, in the order of :func:`iter_nodes`."""
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


def find_leaves(roots: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the parameters and other leaves that a backward pass from these tensors reaches."""
    for node in iter_nodes(roots, FAR):
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable


def find_leaf_ids(roots: Sequence[torch.Tensor]) -> Iterator[int]:
    """Yield the ids of the leaves that a backward pass from these tensors reaches."""
    return map(id, find_leaves(roots))


def saves_any(roots: Sequence[torch.Tensor], storages: Collection[int]) -> bool:
    """Return True if a product near some tensors has a factor in the memory of one of these storage pointers."""
    operands = (operand for node in iter_nodes(roots, NEAR) for operand in _saved_operands(node, _OPERANDS_OF_PRODUCTS))
    tensors = (each for each in operands if isinstance(each, torch.Tensor) and has_values(each))
    return any(storage_pointer(each) in storages for each in tensors)


#: Attributes of nodes with the operands of a product: of elements, of vectors and of matrices.
_OPERANDS_OF_PRODUCTS = ("_saved_self", "_saved_other", "_saved_tensor", "_saved_mat2")


def multiplies_by_scale(node: Any, scale: DeferredNumber) -> bool:
    """Return True if a graph node multiplies its input by the loss scale. A small scale may be any other number."""
    if not type(node).__name__.startswith("Mul"):
        return False
    return any(number >= SMALL and math.isclose(number, scale.value, rel_tol=1e-6) for number in _saved_numbers(node))


def divides_by_scale(node: Any, scale: DeferredNumber) -> bool:
    """Return True if a graph node divides its input by the loss scale, or multiplies it by the inverse."""
    name = type(node).__name__
    if name.startswith("Mul"):
        return any(math.isclose(factor * scale.value, 1.0, rel_tol=1e-3) for factor in _saved_numbers(node))
    return name.startswith("Div") and any(
        math.isclose(factor, scale.value, rel_tol=1e-3) for factor in _saved_numbers(node, ("_saved_other",))
    )


def multiplies_by_zero(node: Any) -> bool:
    """Return True if a graph node multiplies its input by 0, so that nothing below it gets a gradient."""
    return type(node).__name__.startswith("Mul") and any(number == 0.0 for number in _saved_numbers(node))


def _saved_numbers(
    node: Any, attributes: tuple[str, ...] = ("_saved_other", "_saved_self", "_saved_scalar")
) -> Iterator[float]:
    """Yield the numbers that a graph node has saved of its operands."""
    return (plain_number(each) for each in _saved_operands(node, attributes) if is_number(each))


def _saved_operands(node: Any, attributes: tuple[str, ...]) -> Iterator[Any]:
    """Yield the operands that a graph node has saved, without those that were freed or changed."""
    for attribute in attributes:
        try:
            operand = getattr(node, attribute, None)
        except RuntimeError:
            continue
        if operand is not None:
            yield operand
