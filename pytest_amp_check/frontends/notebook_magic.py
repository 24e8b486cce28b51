"""The cell magic ``%%amp`` of IPython: record the training of a cell, and show the result below the cell."""

from __future__ import annotations

import ast
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..runtime.run import Run


def register_magic(shell: Any) -> None:
    """Register ``%%amp`` in a shell of IPython."""

    def amp(line: str, cell: str) -> Any:
        """Record the training of this cell, and show steps, loss scale and findings below the cell.

        ``%%amp NAME`` also keeps the recording in the variable NAME.
        """
        __tracebackhide__ = True
        return _record_cell(shell, line.strip(), cell)

    shell.register_magic_function(amp, "cell", "amp")


def _record_cell(shell: Any, name: str, cell: str) -> Any:
    """Run a cell under the recorder, show the run, and return the value of the last expression."""
    __tracebackhide__ = True
    from IPython.core.error import UsageError

    if name and not name.isidentifier():
        raise UsageError(f"%%amp takes the name of a variable for the recording, not {name!r}")
    try:
        from ..runtime.run import record
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("%%amp needs torch: install the build you train with, or pytest-amp-check[torch]") from None
    code = _CellProgram(shell, cell)
    recording = record()
    try:
        with recording:
            return code.run()
    finally:
        _show(shell, recording.run, name)


def _show(shell: Any, run: Run, name: str) -> None:
    from IPython.display import display

    if name:
        shell.user_ns[name] = run
    display(run)


def _find_number(shell: Any) -> int:
    """Return the number of the running cell. Some versions of IPython have already counted the next cell."""
    from ..runtime.record.cells import find_cell

    frame = sys._getframe(1)
    while frame.f_back is not None and find_cell(frame.f_code.co_filename) is None:
        frame = frame.f_back
    cell = find_cell(frame.f_code.co_filename)
    if cell is not None:
        return cell.number
    count: int = shell.execution_count
    return count


class _CellProgram:
    """The statements of a cell, and the expression at the end, whose value the cell shows."""

    def __init__(self, shell: Any, cell: str) -> None:
        self._shell = shell
        blank = len(cell) - len(cell.lstrip("\n"))
        # The line of the magic counts, so that lines are those of the whole cell.
        code = "\n" * (1 + blank) + shell.transform_cell(cell)
        self._filename = shell.compile.cache(code, _find_number(shell))
        tree = shell.transform_ast(shell.compile.ast_parse(code, filename=self._filename))
        last = tree.body[-1] if tree.body else None
        self._value = ast.Expression(tree.body.pop().value) if isinstance(last, ast.Expr) else None
        self._statements = tree

    def run(self) -> Any:
        """Run the statements, and return the value of the last expression, or None."""
        __tracebackhide__ = True
        exec(self._compile(self._statements, "exec"), self._shell.user_global_ns, self._shell.user_ns)  # noqa: S102
        if self._value is None:
            return None
        value = self._compile(self._value, "eval")
        return eval(value, self._shell.user_global_ns, self._shell.user_ns)  # noqa: S307 - as above: the user's cell

    def _compile(self, tree: ast.AST, mode: str) -> Any:
        return self._shell.compile(tree, self._filename, mode)
