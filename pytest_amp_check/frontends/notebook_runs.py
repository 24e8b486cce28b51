"""Execution of a notebook: its code cells run in order in one module, and IPython runs what is no Python."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any

    from ..static.sources.block import Block


class NotRunnable(Exception):
    """Error for a notebook that cannot run; the message is one sentence."""


def is_notebook(target: str) -> bool:
    return target.lower().endswith(".ipynb")


class Notebook:
    """The code cells of a notebook, as programs that run one after the other."""

    def __init__(self, path: str) -> None:
        """Load a notebook. Raise :class:`NotRunnable` for an unreadable notebook, and for IPython without IPython."""
        from ..static.sources import code_blocks, notebooks
        from ..static.sources.source_files import Unreadable

        self.path = os.path.abspath(path)
        translate = _find_translator()
        self._uses_ipython = translate is not None
        try:
            text = code_blocks.decode_source(path, code_blocks.load_source(path, 0))
            self._cells: list[tuple[int, Block]] = list(notebooks.split_cells(text, translate or self._refuse))
        except Unreadable as error:
            raise NotRunnable(f"{path} cannot run: {error}") from None
        if not self._cells:
            raise NotRunnable(f"{path} cannot run: it has no code cell in Python")

    def _refuse(self, cell: int, line: int, statement: str) -> str:
        shown = statement.partition("\n")[0]
        raise NotRunnable(
            f"{os.path.relpath(self.path)}:cell {cell}:{line}: `{shown}` needs IPython: pip install ipython, or remove "
            "the line"
        )

    def run(self) -> None:
        """Run the cells in order as ``__main__``, in the folder of the notebook, as Jupyter does."""
        from codeop import Compile
        from types import ModuleType

        names = self._register_cells()
        main = ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        before = os.getcwd()
        folder = sys.path[0] = os.path.dirname(self.path)
        # Figures are drawn as in Jupyter, not in a window for which the run would wait.
        os.environ.setdefault("MPLBACKEND", "agg")
        # The compiler remembers the imports from __future__ of earlier cells.
        compiler = Compile()
        os.chdir(folder)
        try:
            with _open_shell(main, is_wanted=self._uses_ipython):
                for name, (_, block) in zip(names, self._cells, strict=True):
                    exec(compiler(block.text, name, "exec"), main.__dict__)  # noqa: S102 - the user's notebook
        finally:
            os.chdir(before)

    def _register_cells(self) -> list[str]:
        """Return the name under which each cell is compiled, and make the source of each cell available."""
        import linecache

        from ..runtime.record.cells import CellCode, register_cell

        rows = [block.text.removesuffix("\n").split("\n") for _, block in self._cells]
        program = [row for cell in rows for row in cell]
        names = []
        first_line = 0
        for lines, (number, block) in zip(rows, self._cells, strict=True):
            name = f"{self.path}:cell {number}"
            # Without a time of change, the lines stay: no file has this name.
            linecache.cache[name] = (len(block.text), None, [f"{line}\n" for line in lines], name)
            cuts = [cut for _, _, cut in block.line_positions or ()]
            register_cell(name, CellCode(self.path, number, cuts, program, first_line))
            names.append(name)
            first_line += len(lines)
        return names


def _find_translator() -> Callable[[int, int, str], str] | None:
    """Return the function that converts a statement of IPython to a line of Python, or None without IPython."""
    from importlib.util import find_spec

    if find_spec("IPython") is None:
        return None
    from IPython.core.inputtransformer2 import TransformerManager

    manager = TransformerManager()

    def translate(cell: int, line: int, statement: str) -> str:
        python: str = manager.transform_cell(statement)
        return python.removesuffix("\n")

    return translate


def _open_shell(main: ModuleType, *, is_wanted: bool) -> AbstractContextManager[Any]:
    """Return a context with a shell of IPython for a module, which runs magics and shell commands."""
    from contextlib import contextmanager, nullcontext

    if not is_wanted:
        return nullcontext()

    @contextmanager
    def open_shell() -> Iterator[None]:
        import tempfile

        from IPython.terminal.interactiveshell import TerminalInteractiveShell
        from traitlets.config import Config

        config = Config()
        config.HistoryManager.enabled = False
        config.TerminalInteractiveShell.simple_prompt = True
        # Neither the settings of the user nor new files in the home folder.
        with tempfile.TemporaryDirectory() as folder:
            shell = TerminalInteractiveShell.instance(
                user_module=main, user_ns=main.__dict__, ipython_dir=folder, config=config
            )
            try:
                with shell.builtin_trap:
                    yield
            finally:
                shell.restore_sys_module_state()
                TerminalInteractiveShell.clear_instance()

    return open_shell()
