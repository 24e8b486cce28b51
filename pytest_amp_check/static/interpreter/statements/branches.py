"""Branches: ``if`` and ``match``."""

from __future__ import annotations

import ast

from ....protocol.checks import ends_program
from ....protocol.source_text import SourceText, find_access_path
from ...project.syntax import is_same_syntax, walk
from ..conditions import Formula, conjunction, disjunction, literals, negate, require
from ..expressions.conditional import asks_version, condition_formula
from ..interpreter import Interpreter
from ..joins import run_branches
from .simple_statements import note_refusal, notify_end_condition


def execute_if(interp: Interpreter, node: ast.If) -> None:
    formula: Formula = _only_divides(node) or condition_formula(interp, node.test)
    for block, truth in ((node.body, True), (node.orelse, False)):
        if any(map(ends_program, block)):
            notify_end_condition(interp, node.test, truth=truth)
    is_fallback = asks_version(interp, node.test, formula)
    if interp.state.frame.module is interp.module and not is_fallback:
        interp.branch_runs.add_run(node, formula)
    interp.state.fallback_depth += is_fallback
    after_body: Formula = True
    after_else: Formula = True

    def run_body() -> None:
        nonlocal after_body
        after_body = interp.execute_block(node.body)

    def run_else() -> None:
        nonlocal after_else
        after_else = interp.execute_block(node.orelse)

    yes, no = run_branches(interp, formula, run_body, run_else)
    interp.state.fallback_depth -= is_fallback
    if not isinstance(formula, bool) and yes != no:
        # One branch ended: the code that follows runs under the condition of the other branch.
        interp.state.fallback_depth += is_fallback
        remaining = formula if yes else negate(formula)
        if _always_ends_program(node.orelse if yes else node.body):
            note_refusal(interp, negate(formula) if yes else formula)
            remaining = remaining if interp.state.try_depth else require(remaining)
        interp.state.path_condition.append(remaining)
    elif yes and no:
        # An exit inside a branch may wait for the end of a window: the code that follows waits as well.
        for other, condition in ((negate(formula), after_body), (formula, after_else)):
            if any(interp.graph.predicates[key].is_window_predicate for key, _ in literals(condition)):
                interp.state.path_condition.append(interp.shorten_formula(disjunction(other, condition)))


def _only_divides(node: ast.If) -> bool:
    """Return True for ``if k > 1:`` around a division by ``k``: without the condition, the division by one is as right.

    Where ``k`` is one, a window has one micro-batch, and nothing has to be divided.
    """
    match node:
        case ast.If(
            test=ast.Compare(left=number, ops=[ast.Gt() | ast.NotEq()], comparators=[ast.Constant(value=1)]), orelse=[]
        ) if find_access_path(number) is not None:
            return all(_divides_by(statement, number) for statement in node.body)
    return False


def _divides_by(statement: ast.stmt, number: ast.expr) -> bool:
    """Return True if a statement only divides by a number, under further conditions or in a loop over parameters."""
    match statement:
        case ast.Assert() | ast.Pass():
            return True
        case ast.AugAssign(op=ast.Div(), value=divisor):
            return is_same_syntax(divisor, number)
        case ast.Assign(value=ast.BinOp(op=ast.Div(), right=divisor)):
            return is_same_syntax(divisor, number)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="div_"), args=[divisor], keywords=[])):
            return is_same_syntax(divisor, number)
        case ast.For(body=body, orelse=[]) | ast.If(body=body, orelse=[]):
            return all(_divides_by(each, number) for each in body)
    return False


def _always_ends_program(block: list[ast.stmt]) -> bool:
    """Return True if a block ends the program on all its paths."""
    jumps = (ast.Return, ast.Break, ast.Continue)
    return bool(block) and ends_program(block[-1]) and not any(isinstance(n, jumps) for top in block for n in walk(top))


def execute_match(interp: Interpreter, node: ast.Match) -> None:
    subject = interp.evaluate(node.subject)
    loops = subject.loops

    def execute_case(index: int) -> None:
        if index == len(node.cases):
            return
        arm = node.cases[index]
        for child in walk(arm.pattern):
            name = getattr(child, "name", None) or getattr(child, "rest", None)
            if isinstance(name, str):
                interp.state.frame.vars[name] = interp.fresh_unknown(arm.pattern, name)
        if isinstance(arm.pattern, ast.MatchAs) and arm.pattern.pattern is None:
            formula: Formula = True
        elif isinstance(arm.pattern, (ast.MatchValue, ast.MatchSingleton)):
            formula = condition_formula(interp, _as_comparison(node.subject, arm.pattern))
        else:
            question = ("case", subject.identity_key(interp.unique_number), ast.dump(arm.pattern))
            formula = interp.predicate_formula(question, SourceText(arm.pattern), loops, arm.pattern)
        if arm.guard is not None:
            formula = conjunction(formula, condition_formula(interp, arm.guard))
        run_branches(interp, formula, lambda: interp.execute_block(arm.body), lambda: execute_case(index + 1))

    execute_case(0)


def _as_comparison(subject: ast.expr, pattern: ast.MatchValue | ast.MatchSingleton) -> ast.expr:
    """Return the comparison of a ``case`` as an expression, so that the predicate is the same as in an ``if``."""
    value = pattern.value if isinstance(pattern, ast.MatchValue) else ast.Constant(pattern.value)
    operator = ast.Eq() if isinstance(pattern, ast.MatchValue) else ast.Is()
    comparison = ast.copy_location(ast.Compare(subject, [operator], [value]), pattern)
    return ast.fix_missing_locations(comparison)
