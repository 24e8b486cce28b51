"""Tools of amp-check mcp: the command that each runs, and its answer. The package mcp is replaced."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pytest_amp_check import __version__


class ToolError(Exception):
    """The exception whose message an agent receives."""


class Server:
    """A server that keeps what it is given."""

    made: ClassVar[list[Server]] = []

    def __init__(self, name: str, **more: Any) -> None:
        self.name, self.more = name, more
        self.tools: dict[str, dict[str, Any]] = {}
        self.ran: list[str] = []
        self.made.append(self)

    def add_tool(self, tool: Callable[..., str], **more: Any) -> None:
        self.tools[tool.__name__] = more

    def run(self, transport: str) -> None:
        self.ran.append(transport)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    Server.made.clear()
    packages: dict[str, dict[str, Any]] = {
        "mcp": {},
        "mcp.server": {"MCPServer": Server},
        "mcp.server.mcpserver": {},
        "mcp.server.mcpserver.exceptions": {"ToolError": ToolError},
        "mcp.types": {"ToolAnnotations": dict},
    }
    for name, contents in packages.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "pytest_amp_check.frontends.mcp_server", raising=False)
    module = importlib.import_module("pytest_amp_check.frontends.mcp_server")
    # The next import gets the package itself again.
    monkeypatch.delitem(sys.modules, "pytest_amp_check.frontends.mcp_server")
    return module


Answer = Callable[..., subprocess.CompletedProcess[str]]


def answering(code: int, out: str = "", err: str = "") -> tuple[list[list[str]], Answer]:
    """Return a list of commands, and a function that keeps a command there and gives this answer."""
    commands: list[list[str]] = []

    def run(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        assert more["stdin"] is subprocess.DEVNULL
        assert command[:3] == [sys.executable, "-I", "-c"]
        commands.append(command[4:])
        return subprocess.CompletedProcess(command, code, out, err)

    return commands, run


QUIET = ["--no-fix", "--no-fix-only", "--no-diff", "--no-statistics"]


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (
            lambda tools: tools.check(["a.py", "-x.py", "@b.py"]),
            ["check", *QUIET, "--output-format", "agent", "--", "a.py", "./-x.py", "./@b.py"],
        ),
        (lambda tools: tools.explain(["AMP201", "--all"]), ["explain", "--", "AMP201", "--all"]),
        (lambda tools: tools.explain(["AMP2"], in_full=True), ["explain", "--all", "--", "AMP2"]),
        (
            lambda tools: tools.preview_fixes(["-x.py"]),
            ["check", "--no-fix", "--no-fix-only", "--no-statistics", "--diff", "--no-unsafe-fixes", "--", "./-x.py"],
        ),
        (
            lambda tools: tools.preview_fixes(["a.py"], unsafe=True),
            ["check", "--no-fix", "--no-fix-only", "--no-statistics", "--diff", "--unsafe-fixes", "--", "a.py"],
        ),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_the_command_of_a_tool(
    tools: Any, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], str], command: list[str], code: int
) -> None:
    commands, run = answering(code, "told\n", "warned\n")
    monkeypatch.setattr(subprocess, "run", run)
    assert call(tools) == "told\n"
    assert commands == [command]


@pytest.mark.parametrize(
    ("err", "said"),
    [
        (" amp-check: error: `a.py` does not exist\n", "amp-check: error: `a.py` does not exist"),
        ("", "amp-check ended with 2"),
    ],
)
def test_an_error_of_the_command_is_one_of_the_tool(
    tools: Any, monkeypatch: pytest.MonkeyPatch, err: str, said: str
) -> None:
    monkeypatch.setattr(subprocess, "run", answering(2, "told\n", err)[1])
    with pytest.raises(ToolError) as raised:
        tools.check(["a.py"])
    assert str(raised.value) == said


def test_a_call_without_arguments_is_refused(tools: Any) -> None:
    for tool, said in (
        (tools.check, "name at least one file or folder"),
        (tools.preview_fixes, "name at least one file or folder"),
        (tools.explain, "name at least one rule, such as AMP201"),
    ):
        with pytest.raises(ToolError) as raised:
            tool([])
        assert str(raised.value) == said


def test_the_command_itself_answers(tools: Any) -> None:
    assert tools.explain(["AMP201"]).startswith("# AMP201 clip-before-unscale")


def test_the_server_offers_three_tools_that_change_nothing(tools: Any) -> None:
    tools.serve_agent()
    (server,) = Server.made
    assert server.name == "amp-check"
    assert server.more["version"] == __version__
    assert server.more["instructions"] == tools.INSTRUCTIONS
    assert server.ran == ["stdio"]
    harmless = {"read_only_hint": True, "idempotent_hint": True, "open_world_hint": False}
    offer = {"annotations": harmless, "structured_output": False}
    assert server.tools == {"check": offer, "explain": offer, "preview_fixes": offer}
