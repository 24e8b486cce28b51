"""Mutation operators: each inserts a mistake into a correct syntax tree, at every location where the mistake applies.

The findings that a change must cause are computed here from the tree and the rule book, never by the linter.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from landmarks import (
    FUNCTIONS,
    Spot,
    after,
    autocast_of,
    backward_of,
    body_of,
    called,
    clips_in,
    inside,
    is_optimizer,
    is_scaler,
    last,
    loops_in,
    measures,
    models_of,
    of_scaler,
    regions,
    roots,
    scaler_call,
    spots,
    spots_of,
    steps_of,
    target_of,
)
from marks import Places
from rewriting import copied

from pytest_amp_check.static.project.syntax import walk

#: Function that maps a node or a list of statements to its copy.
Twin = Callable[[Any], Any]
#: A change to apply to a copy of the tree, and the findings expected afterwards.
Change = tuple[Callable[[Twin], None], Places]


class Mutant(NamedTuple):
    """A mistake to insert into a program. ``expected`` holds exactly the findings of the changed program."""

    operator: str
    program: ast.Module
    change: Callable[[Twin], None]
    expected: Places

    def tree(self) -> ast.Module:
        """Return the program with the mistake. The nodes keep their lines."""
        twins: dict[int, Any] = {}
        made: ast.Module = copied(self.program, twins)
        self.change(lambda node: twins[id(node)])
        return made


def emptied(block: list[ast.stmt]) -> None:
    """Add ``pass`` to a block without statements."""
    if not block:
        block.append(ast.Pass(lineno=-1, col_offset=0))


# Mistakes with clipping.


def clipped_after(tree: ast.Module, spot: Spot, call: ast.Call) -> Iterator[tuple[ast.stmt, ast.Call, str]]:
    """Find the clips of gradients that a call unscales. Yield statement, clip, and code of a clip without unscale_."""
    optimizer = target_of(call)
    others = {
        target_of(node)
        for node in inside(*body_of(spot.scope))
        if isinstance(node, ast.Call) and scaler_call(node, "unscale_")
    } - {optimizer}
    own = models_of(tree, optimizer)
    for statement in after(spot):
        for clip in clips_in(statement):
            named = roots(clip.args[0]) if clip.args else set()
            if measures(clip):
                continue
            if not others or (named and named <= own):
                yield statement, clip, "AMP201"
            elif named & own:
                yield statement, clip, "AMP212"
        if any(target_of(step) == optimizer for step in steps_of(statement)):
            return


def reads_gradients(statements: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in inside(*statements))


def drop_unscale(tree: ast.Module) -> Iterator[Change]:
    """Remove ``unscale_`` before a clip."""
    for spot in spots(tree):
        call = of_scaler(spot.statement, "unscale_")
        if call is None or reads_gradients(list(after(spot))):
            continue
        expected = {(clip.lineno, code) for _, clip, code in clipped_after(tree, spot, call)}
        if expected:
            # Without unscale_, an update on a path without a step has no recorded inf checks, and torch raises.
            expected |= {
                (other.statement.lineno, "AMP207")
                for other in spots_of(spot.scope)
                if (update := of_scaler(other.statement, "update")) and not update.args and skips_the_step(other)
            }

            def change(twin: Twin, spot: Spot = spot) -> None:
                del twin(spot.block)[spot.at]
                emptied(twin(spot.block))

            yield change, expected


def clip_above_unscale(tree: ast.Module) -> Iterator[Change]:
    """Move the clip before ``unscale_``."""
    for spot in spots(tree):
        call = of_scaler(spot.statement, "unscale_")
        if call is None:
            continue
        for statement, clip, code in clipped_after(tree, spot, call):
            if statement not in spot.block or code == "AMP212" or reads_gradients([statement]):
                continue
            place = spot.block.index(statement)
            between = spot.block[spot.at : place]
            made = {node.id for node in inside(*between) if isinstance(node, ast.Name) and is_store(node)}
            used = {node.id for node in inside(statement) if isinstance(node, ast.Name)}
            moves_scaler = any(scaler_call(node, "unscale_", "step", "update") for node in inside(statement))
            if made & used or moves_scaler or any(clips_in(other) for other in between):
                continue

            def change(twin: Twin, spot: Spot = spot, place: int = place) -> None:
                block = twin(spot.block)
                block.insert(spot.at, block.pop(place))

            yield change, {(clip.lineno, code)}


def is_store(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


# Mistakes with regions.


def region_then_backward(tree: ast.Module) -> Iterator[tuple[Spot, int, ast.Call]]:
    """Find autocast blocks with a following backward. Yield block, index of the backward in the block, and call."""
    names = regions(tree)
    for spot in spots(tree):
        if autocast_of(spot.statement, names) is None:
            continue
        for place in range(spot.at + 1, len(spot.block)):
            statement = spot.block[place]
            backward = backward_of(statement)
            if backward is not None:
                yield spot, place, backward
            if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)) or backward is not None:
                break


def indented(spot: Spot, end: int) -> Callable[[Twin], None]:
    """Return a change that moves the statements after a ``with``, up to ``end``, into the ``with``."""

    def change(twin: Twin) -> None:
        block = twin(spot.block)
        block[spot.at].body.extend(block[spot.at + 1 : end])
        del block[spot.at + 1 : end]

    return change


def backward_into_region(tree: ast.Module) -> Iterator[Change]:
    """Indent ``backward`` into the autocast block of the forward."""
    for spot, place, backward in region_then_backward(tree):
        yield indented(spot, place + 1), {(backward.lineno, "AMP103")}


def step_into_region(tree: ast.Module) -> Iterator[Change]:
    """Indent all statements up to ``update`` into the autocast block of the forward."""
    names = regions(tree)
    for spot, place, backward in region_then_backward(tree):
        for end in range(place + 1, len(spot.block)):
            if of_scaler(spot.block[end], "update"):
                moved = spot.block[spot.at + 1 : end]
                backward_count = sum(called(node, "backward") for node in inside(*moved))
                regions_inside = any(isinstance(node, ast.With) and autocast_of(node, names) for node in inside(*moved))
                if backward_count == 1 and not regions_inside:
                    yield indented(spot, end + 1), {(backward.lineno, "AMP103")}
                break


def loss_out_of_region(tree: ast.Module) -> Iterator[Change]:
    """Compute the cross entropy of the model's output after the autocast block."""
    names = regions(tree)
    criteria = {
        last(node.targets[0])
        for node in walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last(node.value.func) in ("CrossEntropyLoss", "NLLLoss")
    }
    for spot in spots(tree):
        context = autocast_of(spot.statement, names)
        if context is None or "torch.float16" not in ast.unparse(context):
            continue
        assert isinstance(spot.statement, ast.With)
        body = spot.statement.body
        final = body[-1]
        if len(body) < 2 or not isinstance(final, ast.Assign) or not isinstance(final.value, ast.Call):
            continue
        loss = final.value
        if last(loss.func) not in {"cross_entropy", "nll_loss"} | criteria or not isinstance(loss.args[0], ast.Name):
            continue
        output = loss.args[0].id
        calls = [
            statement.value.func.id
            for statement in body
            if isinstance(statement, ast.Assign)
            and last(statement.targets[0]) == output
            and isinstance(statement.value, ast.Call)
            and isinstance(statement.value.func, ast.Name)
        ]
        if calls:

            def change(twin: Twin, spot: Spot = spot) -> None:
                block = twin(spot.block)
                block.insert(spot.at + 1, block[spot.at].body.pop())

            yield change, {(loss.lineno, "AMP104")}


# Mistakes with scaling.


def plain_step(tree: ast.Module) -> Iterator[Change]:
    """Step the optimizer without the scaler."""
    for spot in spots(tree):
        call = of_scaler(spot.statement, "step")
        if call is not None and len(call.args) == 1 and not call.keywords:

            def change(twin: Twin, call: ast.Call = call) -> None:
                plain = twin(call)
                plain.func.value, plain.args = plain.args[0], []

            yield change, {(call.lineno, "AMP204")}


def plain_backward(tree: ast.Module) -> Iterator[Change]:
    """Remove the scaling of the loss."""
    for spot in spots(tree):
        call = backward_of(spot.statement)
        if call is None or not scaler_call(call.func.value, "scale"):  # type: ignore[attr-defined]
            continue
        if not reads_gradients(body_of(spot.scope)):

            def change(twin: Twin, call: ast.Call = call) -> None:
                method = twin(call).func
                method.value = method.value.args[0]

            yield change, {(call.lineno, "AMP203")}


def skips_the_step(update: Spot) -> bool:
    """Return True if an update is on a path that continues before the step."""
    leaves = any(isinstance(statement, (ast.Continue, ast.Return)) for statement in update.block[update.at :])
    return leaves and update.block is not body_of(update.scope) and not steps_of(*update.block[: update.at])


def drop_update(tree: ast.Module) -> Iterator[Change]:
    """Remove ``update`` after the steps, or on the path that skips the steps."""
    whole = {node: cls for cls in walk(tree) if isinstance(cls, ast.ClassDef) for node in cls.body}
    for spot in spots(tree):
        call = of_scaler(spot.statement, "update")
        if call is None:
            continue
        expected: Places = set()
        nodes = [node for node in inside(*body_of(spot.scope)) if isinstance(node, ast.Call)]
        earlier = [node for node in nodes if node.lineno < call.lineno]
        if skips_the_step(spot):
            opened = [node for node in earlier if scaler_call(node, "unscale_")]
            expected = {(node.lineno, "AMP209") for node in opened[-1:]}
        else:
            # Another update in the same iteration serves all steps.
            everything = walk(whole[spot.scope]) if spot.scope in whole else iter(nodes)
            updates = [spot for spot in spots_of(spot.scope) if of_scaler(spot.statement, "update")]
            skips = sum(skips_the_step(other) for other in updates)
            if sum(scaler_call(node, "update") for node in everything) - skips == 1:
                expected = {(node.lineno, "AMP206") for node in earlier if scaler_call(node, "step")}
        if expected:

            def change(twin: Twin, spot: Spot = spot) -> None:
                del twin(spot.block)[spot.at]
                emptied(twin(spot.block))

            yield change, expected


def scaler_into_loop(tree: ast.Module) -> Iterator[Change]:
    """Construct the scaler in each iteration of the loop that steps with the scaler."""
    for spot in spots(tree):
        statement = spot.statement
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        scaler = ast.unparse(statement.targets[0])
        if last(statement.value.func) != "GradScaler":
            continue
        for loop in spot.block[spot.at + 1 :]:
            steps = [call for call in steps_of(loop) if ast.unparse(call.func.value) == scaler]  # type: ignore[attr-defined]
            if isinstance(loop, (ast.For, ast.While)) and steps:
                inner = {ast.unparse(node) for node in inside(loop) if is_store(node)}
                if not any(target_of(step) in inner for step in steps):

                    def change(twin: Twin, spot: Spot = spot, loop: ast.stmt = loop) -> None:
                        block = twin(spot.block)
                        twin(loop).body.insert(0, block.pop(spot.at))

                    yield change, {(statement.value.lineno, "AMP208")}
                break
            if scaler in ast.unparse(loop):
                break


# Mistakes with accumulation and checkpoints.


def counts(tree: ast.Module, divisor: ast.expr) -> bool:
    """Return True if a divisor is the number of micro-batches: a condition or a loop counts up to the divisor."""
    text, name = ast.unparse(divisor), last(divisor)
    for node in walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            if name and last(node.right) == name:
                return True
        elif isinstance(node, ast.For):
            counted = ast.unparse(node.iter)
            if f"range({text})" in counted or f"chunk({text})" in counted or text == f"len({counted})":
                return True
    return False


def drop_division(tree: ast.Module) -> Iterator[Change]:
    """Remove the division of the loss by the number of micro-batches."""
    for spot in spots(tree):
        statement = spot.statement
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div):
            divided: ast.expr = statement.target
            divisor = statement.value
        else:
            if not isinstance(statement, (ast.Assign, ast.Expr)):
                continue
            found = [
                node
                for node in inside(statement)
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and counts(tree, node.right)
            ]
            if len(found) != 1:
                continue
            divided, divisor = found[0].left, found[0].right
        backward = backward_of(statement)
        if backward is None and isinstance(statement, (ast.Assign, ast.AugAssign)):
            target = statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0]
            name = last(target)
            calls = (backward_of(other.statement) for other in spots_of(spot.scope))
            fed = [
                call
                for call in calls
                if call is not None
                and call.lineno > statement.lineno
                and name in {last(node) for node in walk(call.func)}
            ]
            backward = min(fed, key=lambda call: call.lineno) if fed else None
        if backward is None or not counts(tree, divisor) or not name_of_loss(divided):
            continue

        def change(twin: Twin, spot: Spot = spot, divided: ast.expr = divided) -> None:
            if isinstance(spot.statement, ast.AugAssign):
                del twin(spot.block)[spot.at]
                emptied(twin(spot.block))
            else:
                Undivide(twin(divided)).visit(twin(spot.statement))

        yield change, {(backward.lineno, "AMP301")}


def name_of_loss(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Call))


class Undivide(ast.NodeTransformer):
    """Rewriter that replaces a division by its dividend."""

    def __init__(self, dividend: ast.expr) -> None:
        self.dividend = dividend

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self.dividend if node.left is self.dividend else self.generic_visit(node)


def state_of(node: ast.AST, kind: Callable[[ast.AST], bool]) -> bool:
    return called(node, "state_dict") and kind(node.func.value)  # type: ignore[attr-defined]


def drop_scaler_state(tree: ast.Module) -> Iterator[Change]:
    """Write the checkpoint without the scaler's state."""
    if not any(called(node, "save") and last(node.func.value) == "torch" for node in walk(tree)):  # type: ignore[attr-defined]
        return
    for scope in [tree, *(node for node in walk(tree) if isinstance(node, FUNCTIONS))]:
        nodes = list(inside(*body_of(scope)))
        taken = [node for node in nodes if isinstance(node, ast.Call) and state_of(node, is_scaler)]
        kept = [node for node in nodes if isinstance(node, ast.Call) and state_of(node, is_optimizer)]
        if len(taken) != 1 or not kept:
            continue
        expected = {(min(call.lineno for call in kept), "AMP401")}
        for node in nodes:
            if isinstance(node, ast.Dict) and taken[0] in node.values:

                def unkey(twin: Twin, node: ast.Dict = node, at: int = node.values.index(taken[0])) -> None:
                    del twin(node).keys[at]
                    del twin(node).values[at]

                yield unkey, expected
            elif isinstance(node, ast.Call) and taken[0] in [keyword.value for keyword in node.keywords]:

                def unpass(twin: Twin, node: ast.Call = node, state: ast.Call = taken[0]) -> None:
                    called_with = twin(node)
                    state = twin(state)
                    called_with.keywords = [keyword for keyword in called_with.keywords if keyword.value is not state]

                yield unpass, expected
        for spot in spots_of(scope):
            statement = spot.statement
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):

                def unset(twin: Twin, spot: Spot = spot) -> None:
                    del twin(spot.block)[spot.at]
                    emptied(twin(spot.block))

                if statement.value is taken[0]:
                    yield unset, expected


def drop_zero_grad(tree: ast.Module) -> Iterator[Change]:
    """Remove the only clearing of the gradients."""
    for scope in [tree, *(node for node in walk(tree) if isinstance(node, FUNCTIONS))]:
        zeroing = [
            spot
            for spot in spots_of(scope)
            if isinstance(spot.statement, ast.Expr) and called(spot.statement.value, "zero_grad")
        ]
        loops = [
            loop
            for loop in loops_in(scope)
            if steps_of(loop) and not any(other is not loop and steps_of(other) for other in loops_in(loop))
        ]
        if len(zeroing) != 1 or len(loops) != 1:
            continue
        loop, zero = loops[0], zeroing[0].statement
        assert isinstance(zero, ast.Expr) and isinstance(zero.value, ast.Call)
        assert isinstance(zero.value.func, ast.Attribute)
        cleared = ast.unparse(zero.value.func.value)
        backwards = [node for node in inside(*loop.body) if called(node, "backward")]
        steps = steps_of(loop)
        if zero not in list(inside(*loop.body)) or len(backwards) != 1 or [target_of(s) for s in steps] != [cleared]:
            continue

        def change(twin: Twin, spot: Spot = zeroing[0]) -> None:
            del twin(spot.block)[spot.at]
            emptied(twin(spot.block))

        yield change, {(backwards[0].lineno, "AMP215")}  # type: ignore[attr-defined]


OPERATORS: dict[str, Callable[[ast.Module], Iterator[Change]]] = {
    "drop unscale_": drop_unscale,
    "clip above unscale_": clip_above_unscale,
    "backward into autocast": backward_into_region,
    "step into autocast": step_into_region,
    "loss out of autocast": loss_out_of_region,
    "optimizer.step()": plain_step,
    "loss not scaled": plain_backward,
    "drop update": drop_update,
    "scaler into loop": scaler_into_loop,
    "drop division": drop_division,
    "drop scaler's state": drop_scaler_state,
    "drop zero_grad": drop_zero_grad,
}


def mutants(tree: ast.Module) -> Iterator[Mutant]:
    """Yield every mistake at every location of a program where the mistake applies."""
    for name, operator in OPERATORS.items():
        for change, expected in operator(tree):
            yield Mutant(name, tree, change, expected)
