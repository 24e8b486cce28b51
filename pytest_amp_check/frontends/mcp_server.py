"""``amp-check mcp``: the tools check, explain and preview_fixes for coding agents, over the model context protocol.

Each tool runs the command itself, so an agent gets the same answers as a user, and no answer depends on earlier ones.
"""

from __future__ import annotations

import subprocess
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

INSTRUCTIONS = """\
amp-check finds mistakes in PyTorch mixed-precision code (autocast, GradScaler) that raise no error. Call check on the \
files that train, explain on the codes of the findings, and preview_fixes for the changes of the safe fixes. No tool \
changes a source file: apply the edits yourself, then call check again."""
#: Switches of a configuration that would write files or leave findings out of the answer.
DISABLED = ("--no-fix", "--no-fix-only", "--no-diff", "--no-statistics")
#: Exit codes of a check whose output is an answer: no findings, findings.
ANSWERED = (0, 1)


def serve_agent() -> None:
    """Serve one agent over standard input and output until it closes them."""
    from .. import __version__

    server = MCPServer("amp-check", instructions=INSTRUCTIONS, version=__version__)
    annotations = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in (check, explain, preview_fixes):
        server.add_tool(tool, annotations=annotations, structured_output=False)
    server.run("stdio")


def check(paths: list[str]) -> str:
    """Check Python files, notebooks or folders.

    Returns one line for each finding: path:line:column CODE message, and the edits of a safe fix, each with
    line:column-line:column from 1 (exclusive end) and the new text as a JSON string.
    """
    return _run_command(
        "check", *DISABLED, "--output-format", "agent", "--", *map(_protect_path, _require_paths(paths))
    )


def explain(rules: list[str], *, in_full: bool = False) -> str:
    """Explain rules by code or name (AMP201), by prefix (AMP2), or the text of an exception of PyTorch.

    Returns Markdown: the reason, the change from bad to good code, and the fix. in_full adds measured harm and sources.
    """
    if not rules:
        raise ToolError("name at least one rule, such as AMP201")
    return _run_command("explain", *(["--all"] if in_full else []), "--", *rules)


def preview_fixes(paths: list[str], *, unsafe: bool = False) -> str:
    """Return the changes of the safe fixes as a unified diff, without writing a file.

    unsafe includes fixes that may change training results. The answer is empty if there is nothing to fix.
    """
    flags = [flag for flag in DISABLED if flag != "--no-diff"]
    more = ["--unsafe-fixes"] if unsafe else ["--no-unsafe-fixes"]
    return _run_command("check", *flags, "--diff", *more, "--", *map(_protect_path, _require_paths(paths)))


def _require_paths(paths: list[str]) -> list[str]:
    if not paths:
        raise ToolError("name at least one file or folder")
    return paths


def _protect_path(path: str) -> str:
    """Return a path that the command takes neither for standard input nor for a file with arguments."""
    return f"./{path}" if path.startswith(("-", "@")) else path


def _run_command(*words: str) -> str:
    """Return the output of the command. Raise ToolError with its error message if it gave no answer."""
    # The folder of this package comes from the parent, so the working folder is never searched for modules.
    start = (
        f"import sys; sys.path[:] = {sys.path!r}; sys.argv[0] = 'amp-check'; from {__package__}.cli import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", start, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode not in ANSWERED:
        raise ToolError(done.stderr.strip() or f"amp-check ended with {done.returncode}")
    return done.stdout
