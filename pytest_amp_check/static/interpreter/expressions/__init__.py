"""Evaluation of expressions, by kind of expression. :mod:`~..calls` evaluates calls."""

from __future__ import annotations

import ast

from ..interpreter import HandlerTable
from .assignments import evaluate_walrus, write_field
from .attributes import evaluate_attribute, evaluate_slice, evaluate_subscript
from .comprehensions import evaluate_comprehension, evaluate_dict_comp
from .conditional import evaluate_bool_op, evaluate_compare, evaluate_if
from .functions import evaluate_lambda, evaluate_wrapped, evaluate_yield, evaluate_yield_from
from .literals import evaluate_constant, evaluate_dict, evaluate_fstring, evaluate_sequence
from .names import evaluate_name
from .operators import evaluate_binary, evaluate_unary


def register(handlers: HandlerTable) -> None:
    for kind in ("instance", "module instance"):
        handlers.attribute_writes[kind] = write_field
    handlers.expressions.update(
        {
            ast.Constant: evaluate_constant,
            ast.Name: evaluate_name,
            ast.Attribute: evaluate_attribute,
            ast.Subscript: evaluate_subscript,
            ast.Tuple: evaluate_sequence,
            ast.List: evaluate_sequence,
            ast.Set: evaluate_sequence,
            ast.Starred: evaluate_wrapped,
            ast.Dict: evaluate_dict,
            ast.JoinedStr: evaluate_fstring,
            ast.ListComp: evaluate_comprehension,
            ast.SetComp: evaluate_comprehension,
            ast.GeneratorExp: evaluate_comprehension,
            ast.DictComp: evaluate_dict_comp,
            ast.Lambda: evaluate_lambda,
            ast.NamedExpr: evaluate_walrus,
            ast.Await: evaluate_wrapped,
            ast.Yield: evaluate_yield,
            ast.YieldFrom: evaluate_yield_from,
            ast.IfExp: evaluate_if,
            ast.BoolOp: evaluate_bool_op,
            ast.UnaryOp: evaluate_unary,
            ast.Compare: evaluate_compare,
            ast.BinOp: evaluate_binary,
            ast.Slice: evaluate_slice,
        }
    )
