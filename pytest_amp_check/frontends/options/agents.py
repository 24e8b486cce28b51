"""Recognition of coding agents that run the command."""

from __future__ import annotations

import os

#: Variables that coding agents set for the commands that they start: the common proposal, then each agent's own.
VARIABLES = (
    "AI_AGENT",
    "AUGMENT_AGENT",
    "CLAUDECODE",
    "CLINE_ACTIVE",
    "CODEX_SANDBOX",
    "CODEX_THREAD_ID",
    "CURSOR_AGENT",
    "GEMINI_CLI",
    "OPENCODE",
    "VSCODE_AGENT",
)


def find_agent_variable() -> str | None:
    """Return the name of a variable by which a coding agent says that it runs this command, or None."""
    return next((name for name in VARIABLES if os.environ.get(name, "0").lower() not in ("", "0", "false")), None)
