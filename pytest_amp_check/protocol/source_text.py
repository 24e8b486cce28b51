"""Source text of expressions, as the user wrote them."""

from __future__ import annotations

import ast
import re


def find_access_path(node: ast.AST) -> str | None:
    """Return the text of a name, an attribute or an item, which identifies a value. None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = find_access_path(node.value)
        return f"{head}.{node.attr}" if head else None
    if isinstance(node, ast.Subscript):
        head = find_access_path(node.value)
        index = repr(node.slice.value) if isinstance(node.slice, ast.Constant) else find_access_path(node.slice)
        return f"{head}[{index}]" if head and index else None
    return None


def access_text(node: ast.AST | None) -> str:
    """Return the text of a name, an attribute or an item, or "" for other expressions and for None."""
    return (find_access_path(node) if node is not None else None) or ""


def _find_beginning(node: ast.AST, limit: int) -> ast.AST:
    """Return the part of an expression that contains the first characters: of a long chain, the first links."""
    links: list[ast.AST] = []
    inner = node
    while isinstance(inner, ast.Call | ast.Attribute | ast.Subscript):
        links.append(inner)
        inner = inner.func if isinstance(inner, ast.Call) else inner.value
    # Each link has at least two characters: a dot and a letter, or two parentheses.
    return links[-limit] if len(links) > limit else node


class SourceText:
    """Source text of an expression. Most texts are never shown, so the text is created on demand."""

    __slots__ = ("_node", "_text", "limit")

    def __init__(self, node: ast.AST, limit: int = 60) -> None:
        self._node = node
        self._text: str | None = None
        self.limit = limit

    def __str__(self) -> str:
        if self._text is None:
            beginning = _find_beginning(self._node, self.limit)
            text = " ".join((find_access_path(beginning) or ast.unparse(beginning)).split())
            self._text = text if len(text) <= self.limit else text[: self.limit - 3] + "..."
        return self._text


class NegatedText:
    """Source text of a negated expression. The negation is omitted if the message also states the truth."""

    __slots__ = ("operand",)

    def __init__(self, operand: SourceText) -> None:
        self.operand = operand

    def __str__(self) -> str:
        return f"not ({self.operand})"


#: A counter whose remainder is compared with zero.
_REMAINDER = re.compile(r"([\w.]+) % (.+) == 0")


def count_from_one(window: str) -> str:
    """Return the condition of a window that counts from zero, changed to count from one."""
    found = _REMAINDER.fullmatch(window)
    return f"({found[1]} + 1) % {found[2]} == 0" if found is not None else "(i + 1) % k == 0"


def find_window_size(window: str) -> str:
    """Return the source text of the number of micro-batches in the condition of a window, "" if unknown."""
    try:
        condition = ast.parse(window, mode="eval")
    except SyntaxError:
        # The text of a long condition is cut.
        return ""
    remainders = [node for node in ast.walk(condition) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)]
    sizes = {ast.unparse(node.right) for node in remainders}
    match condition.body:
        case ast.Compare(ast.Name() | ast.Attribute(), [ast.Eq() | ast.GtE()], [ast.Name() | ast.Attribute() as size]):
            # A counter that reaches the size.
            sizes.add(ast.unparse(size))
    return sizes.pop() if len(sizes) == 1 else ""


def find_counter(window: str) -> str:
    """Return the source text of the counter whose remainder a window compares with zero, "" if unknown."""
    found = re.fullmatch(r"\(?([^()%]+)\)? % [^%]+ == 0", window)
    return found[1].strip() if found is not None else ""


def find_loop_size(head: str) -> str:
    """Return the source text of the number of iterations in the head of a loop over a range, "" if unknown."""
    found = re.fullmatch(r"for \w+ in range\(([^(),]+)\)", head)
    return found[1] if found is not None else ""


def parenthesize(text: str) -> str:
    """Return the source text of an expression, in parentheses if an operator is outermost."""
    try:
        parsed = ast.parse(text, mode="eval").body
    except SyntaxError:
        # The text of a long expression is cut.
        return text
    is_compound = isinstance(parsed, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda))
    return f"({text})" if is_compound else text


#: Functions whose arguments, after a pattern, are tensors.
_PRODUCTS = frozenset(("einsum", "matmul", "mm", "bmm", "outer"))


def find_wide_call(text: str) -> str:
    """Return the source text of a product with ``.float()`` operands, in backticks, else ""."""
    try:
        parsed = ast.parse(text, mode="eval").body
    except SyntaxError:
        # The text of a long expression is cut.
        return ""
    if isinstance(parsed, ast.BinOp) and isinstance(parsed.op, (ast.MatMult, ast.Mult)):
        sign = "@" if isinstance(parsed.op, ast.MatMult) else "*"
        return f"`{_widen(parsed.left)} {sign} {_widen(parsed.right)}`"
    is_function = isinstance(parsed, ast.Call) and access_text(parsed.func).rpartition(".")[2] in _PRODUCTS
    if not is_function or not isinstance(parsed, ast.Call) or parsed.keywords:
        return ""
    if any(isinstance(each, (ast.Starred, ast.List, ast.Tuple)) for each in parsed.args):
        return ""
    of_function = isinstance(parsed.func, ast.Name) or access_text(parsed.func).startswith("torch.")
    function = ast.unparse(parsed.func) if of_function or not isinstance(parsed.func, ast.Attribute) else ""
    if not function and isinstance(parsed.func, ast.Attribute):
        function = f"{_widen(parsed.func.value)}.{parsed.func.attr}"
    arguments = [ast.unparse(each) if isinstance(each, ast.Constant) else _widen(each) for each in parsed.args]
    return f"`{function}({', '.join(arguments)})`"


def find_expm1_call(text: str) -> str:
    """Return the source text with ``torch.expm1`` of a difference of an exponential and 1, in backticks, else ""."""
    try:
        parsed = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    match parsed:
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Sub(), right=exponential):
            sign = "-"
        case ast.BinOp(left=exponential, op=ast.Sub(), right=ast.Constant(value=1)):
            sign = ""
        case _:
            return ""
    match exponential:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="exp"), args=[exponent], keywords=[]):
            return f"`{sign}torch.expm1({ast.unparse(exponent)})`"
        case ast.Call(func=ast.Attribute(value=exponent, attr="exp"), args=[], keywords=[]):
            return f"`{sign}torch.expm1({ast.unparse(exponent)})`"
    return ""


def _widen(node: ast.expr) -> str:
    return f"{parenthesize(ast.unparse(node))}.float()"


def names_optimizer(path: str) -> bool:
    """Return True if the last part of an access path is the usual name of an optimizer: ``self.optimizer``."""
    return "optim" in path.rpartition(".")[2].lower()
