"""Effects of low precision on values: result dtypes of expressions, and losses of precision."""

from __future__ import annotations

import ast

from ...interpreter.interpreter import HandlerTable
from .assumed import assume_parameters, may_get_low_tensors
from .assumed_fills import check_item_fill
from .calls import annotate_call
from .fragile import check_overwritten_table, check_timesteps, mark_written_positions
from .items import annotate_attribute, annotate_subscript
from .moving_averages import check_assigned_average
from .operators import annotate_binary, annotate_compare, annotate_unary
from .parameters import makes_parameters
from .sums import annotate_sum, check_assigned_sum, check_item_write
from .weight_averages import report_averages_of_weights

__all__ = ["assume_parameters", "makes_parameters", "may_get_low_tensors", "register", "report_averages_of_weights"]


def register(handlers: HandlerTable) -> None:
    handlers.dtype_annotators.update(
        {
            ast.Attribute: annotate_attribute,
            ast.Subscript: annotate_subscript,
            ast.Compare: annotate_compare,
            ast.UnaryOp: annotate_unary,
            ast.BinOp: annotate_binary,
            ast.Call: annotate_call,
            ast.AugAssign: annotate_sum,
        }
    )
    handlers.assignment_listeners += [
        check_assigned_average,
        check_assigned_sum,
        check_overwritten_table,
        check_timesteps,
    ]
    handlers.item_write_listeners += [check_item_write, check_item_fill, mark_written_positions]
