"""Marks among the used names of code that stand for syntax: counters, numbers, products and averages."""

from __future__ import annotations

import ast

from .syntax import tail_name

NUMBER_TYPES = frozenset((int, float))
#: Largest finite float16.
FLOAT16_MAX = 65504
#: Marks among the used names that stand for syntax. In order: a remainder or counter; a number outside float16; such a
#: number assigned to items; a scaled matrix product, or a square; a number that float16 rounds to zero or few digits;
#: an average in an attribute.
COUNTING = "%"
LARGE_NUMBER = "#"
FILLING = "="
SCALING = "@"
SMALL_NUMBER = "~"
AVERAGING = "&"


def weights_old_value(target: ast.expr, value: ast.BinOp) -> bool:
    """Return True for ``self.mean = self.mean * a + b``, which a method repeats without a loop of its own."""
    if not isinstance(target, ast.Attribute) or not isinstance(value.op, ast.Add):
        return False
    products = [side for side in (value.left, value.right) if isinstance(side, ast.BinOp) and type(side.op) is ast.Mult]
    factors = [factor for product in products for factor in (product.left, product.right)]
    return any(isinstance(each, ast.Attribute) and each.attr == target.attr for each in factors)


def is_product(node: ast.expr) -> bool:
    """Return True if an expression is a matrix product."""
    if isinstance(node, ast.BinOp):
        return type(node.op) is ast.MatMult
    return isinstance(node, ast.Call) and tail_name(node.func) in ("matmul", "bmm", "einsum")


def is_large(node: ast.expr) -> bool:
    """Return True if an expression is a number above the largest float16, or may be one: a negated constant's name."""
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if number is not node and is_constant_name(tail_name(number)):
        return True
    value = number.value if isinstance(number, ast.Constant) else None
    return isinstance(value, (int, float)) and value > FLOAT16_MAX


def is_square(node: ast.BinOp) -> bool:
    """Return True for the product of a name with itself."""
    left, right = node.left, node.right
    return (
        isinstance(node.op, ast.Mult)
        and isinstance(left, ast.Name)
        and isinstance(right, ast.Name)
        and left.id == right.id
    )


def is_area(node: ast.BinOp) -> bool:
    """Return True for the product of two differences, also with a lower bound."""
    return isinstance(node.op, ast.Mult) and all(map(_is_difference, (node.left, node.right)))


def _is_difference(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=ast.Sub()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.BinOp(op=ast.Sub()))):
            return True
    return False


def is_doubled(node: ast.expr) -> bool:
    """Return True for a factor of a matrix product that is multiplied by 2 or -2."""
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else []
    numbers = [part.operand if isinstance(part, ast.UnaryOp) else part for part in parts]
    return any(isinstance(number, ast.Constant) and number.value == 2 for number in numbers)


def is_constant_name(name: str) -> bool:
    """Return True for the name of a constant: ``NEAR_INF``."""
    return len(name) > 2 and name.isupper()


def number_marks(number: float) -> tuple[str, ...]:
    """Return the marks for a number that float16 cannot represent."""
    if abs(number) > FLOAT16_MAX:
        return (LARGE_NUMBER,)
    return (SMALL_NUMBER,) if 0 < number < 1.6e-5 else ()
