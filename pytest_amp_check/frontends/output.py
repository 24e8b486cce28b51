"""Output to standard output and error, in color on a terminal and plain elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from .printable import Line, escape_line_start, make_single_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


STYLES = {
    "": "",
    "path": "bold",
    "dim": "dim",
    "code": "bold",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
    "mark": "bold red",
    "good": "green",
    "command": "cyan",
}


class _OutputSettings:
    """Output settings of this process from the command line: color mode, and suppression of warnings."""

    def __init__(self) -> None:
        self.color_mode = "auto"
        self.is_silent = False


_manner = _OutputSettings()


def configure_output(*, color_mode: str, is_silent: bool) -> None:
    """Set the color mode (``auto``, ``always`` or ``never``) and the suppression of warnings."""
    _manner.color_mode = color_mode
    _manner.is_silent = is_silent


def write_warning(sentence: str) -> None:
    """Write a warning to standard error, unless silent."""
    if not _manner.is_silent:
        sys.stderr.write(f"amp-check: warning: {make_single_line(sentence)}\n")


def is_color_wanted(stream: TextIO) -> bool:
    """Return True if a stream gets color: by command line, NO_COLOR, FORCE_COLOR, or a capable terminal."""
    if _manner.color_mode != "auto":
        return _manner.color_mode == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if str(getattr(stream, "name", "<")).startswith("<") and os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        # FORCE_COLOR applies to terminals and pipes, not to a named output file.
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def write_lines(lines: Iterable[Line], stream: TextIO, use_color: bool) -> None:
    """Write lines to a stream. rich is only imported for color."""
    if not use_color:
        stream.writelines(render_plain(lines))
        return
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.text import Text

    # The text must be the same as in a pipe: no wrapping, no guessed highlighting, no markup. Color is already decided,
    # so a terminal named dumb must not decide again.
    raw: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
    console = Console(file=stream, force_terminal=True, color_system="standard", **raw)
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    for line in lines:
        text = Text()
        for piece, style in escape_line_start(line):
            if style == "source":
                code = syntax.highlight(piece)
                code.rstrip()
                # Color must not change the text, even if the highlighter changes part of a statement.
                if code.plain == piece:
                    text.append_text(code)
                else:
                    text.append(piece)
            else:
                text.append(piece, style=STYLES[style])
        console.print(text)


def render_colored(lines: Iterable[Line], *, use_color: bool) -> list[str]:
    """Return each line as sent to a terminal, without the line end."""
    from io import StringIO

    shown = StringIO()
    write_lines(lines, shown, use_color)
    return shown.getvalue().splitlines()


def render_plain(lines: Iterable[Line]) -> list[str]:
    return ["".join(piece for piece, _ in escape_line_start(line)) + "\n" for line in lines]


def write_markdown(text: str, stream: TextIO, use_color: bool) -> None:
    """Render Markdown on a terminal, or write plain Markdown elsewhere."""
    if not use_color:
        stream.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    width = None if stream.isatty() else 100
    Console(file=stream, force_terminal=True, width=width).print(Markdown(text, code_theme="ansi_dark"))


def render_html(text: str) -> str:
    """Return Markdown as an HTML page of its own."""
    import io

    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(file=io.StringIO(), record=True, width=110)
    console.print(Markdown(text, code_theme="default"))
    return console.export_html()


def make_progress(stream: TextIO, large: int = 200) -> tuple[Callable[[int, int], None] | None, Callable[[], None]]:
    """Return a function that shows the number of analyzed files, and a function that removes the display.

    The display is shown only on a terminal and for a large tree; the first function may be None.
    """
    if _manner.is_silent or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None, _do_nothing
    bars: list[Any] = []

    def show_progress(done: int, total: int) -> None:
        if not bars and total >= large:
            bars.append(_make_bar(stream))
            bars[0].start()
            bars[0].add_task("checking", total=None)
        if bars:
            bars[0].update(bars[0].task_ids[0], completed=done, total=total)

    def clear_progress() -> None:
        for bar in bars:
            bar.stop()

    return show_progress, clear_progress


def _make_bar(stream: TextIO) -> Any:
    """Return a progress bar that is removed at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream, no_color=not is_color_wanted(stream)), transient=True)


def _do_nothing() -> None:
    """Do nothing, because no progress was shown."""


def configure_streams() -> None:
    """Let standard output and error accept every character of a path or a source line."""
    # The streams are None if the calling process closed them; output is then discarded.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
