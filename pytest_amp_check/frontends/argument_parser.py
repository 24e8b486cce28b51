"""Arguments of the command: files with arguments, paths, and the parser of commands and flags."""

from __future__ import annotations

import os
import sys

from ..protocol.regular_files import LARGEST_DOCUMENT, read_regular
from . import options as table
from . import printable
from .check_run import InputFailure
from .command_output import FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any, NoReturn

EPILOG = "exit codes: 0 no failing findings, 1 failing findings (--fail-level), 2 usage, input or internal error"
#: Prefix of the name of a file with arguments, one in each line.
ARGUMENTS = "@"


def expand_arguments(argv: list[str]) -> list[str]:
    """Return the arguments, with argument files replaced by their lines."""
    found: list[str] = []
    for word in argv:
        if not word.startswith(ARGUMENTS) or word == ARGUMENTS:
            found.append(word)
            continue
        path = word.removeprefix(ARGUMENTS)
        try:
            held = read_regular(path, LARGEST_DOCUMENT).decode()
        except OSError as error:
            raise InputFailure(f"{word}: the arguments cannot be read: {error.strerror}") from None
        except ValueError:
            raise InputFailure(f"{word}: the arguments cannot be read: save them as text in UTF-8") from None
        if "\0" in held:
            raise InputFailure(f"{word}: the arguments hold a null byte: write each of them in a line of its own")
        found += [line for line in held.splitlines() if line.strip()]
    return found


class PathArguments:
    """The parsed result of a command line with paths only."""

    __slots__ = ("paths", "stdin_filename")

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.stdin_filename = None


def make_parser() -> ArgumentParser:
    from argparse import REMAINDER, ArgumentParser, HelpFormatter

    from .. import __version__
    from .completion import SHELLS

    class HelpStyle(HelpFormatter):
        def __init__(self, prog: str) -> None:
            # A fixed width, so that help looks the same everywhere.
            super().__init__(prog, width=96, max_help_position=34)

    class CommandParser(ArgumentParser):
        def __init__(self, **more: Any) -> None:
            super().__init__(formatter_class=HelpStyle, allow_abbrev=False, **more)
            # Python 3.15 suggests a choice itself, in the middle of the message, where _nearest_choice finds no list.
            self.suggest_on_error = False

        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            self.exit(FAILED, f"amp-check: error: {printable.make_single_line(message + _nearest_choice(message))}\n")

        def _print_message(self, message: str, file: Any = None) -> None:
            # The method of argparse ignores write errors.
            (file or sys.stderr).write(message)

    parser = CommandParser(
        prog="amp-check",
        description="Finds the mistakes that PyTorch mixed-precision training code makes silently.",
        epilog=EPILOG,
    )
    # Each command stores its own parser.
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"amp-check {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="check files and folders",
        usage="amp-check check [OPTION ...] [PATH ...]",
        description="Each flag that enables something has a --no- form, which disables it.",
        epilog=EPILOG,
    )
    check.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and folders; - reads standard input, @FILE arguments from a file",
    )
    check.add_argument("--stdin-filename", metavar="PATH", help="file name to report for standard input")
    table.add_flags(lambda topic: check.add_argument_group(topic).add_argument, table.CLI)
    recorded = commands.add_parser(
        "run",
        help="run a script or notebook and record what it trains",
        usage="amp-check run [OPTION ...] [-m] SCRIPT [ARGUMENT ...]",
        description="Each flag that enables something has a --no- form, which disables it.",
        epilog="exit codes: the script's own where that is not 0; else 1 where errors or warnings were found or no "
        "training step was recorded, or 0",
    )
    table.add_flags(lambda topic: recorded.add_argument_group(topic).add_argument, table.RUN)
    recorded.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as for python -m"
    )
    recorded.add_argument("script", metavar="SCRIPT", help="the script or notebook that trains")
    arguments = recorded.add_argument("arguments", nargs=REMAINDER, metavar="ARGUMENT", help="arguments of the script")
    arguments.required = False
    explain = commands.add_parser("explain", help="explain a rule or a PyTorch exception")
    explain.add_argument(
        "words",
        nargs="+",
        metavar="RULE or TEXT",
        help="code or name of a rule, AMP2 or ALL for several, or the text of an exception; - reads a traceback",
    )
    explain.add_argument("--all", dest="in_full", action="store_true", help="add measured harm, examples and sources")
    explain.add_argument("--web", action="store_true", help="show the page in a browser")
    rules = commands.add_parser("rules", help="list the rules")
    clean = commands.add_parser(
        "clean",
        help="remove the cache folder of a project",
        usage="amp-check clean [PATH] [--cache-dir FOLDER]",
        description="Removes the cache folder of amp-check check, and refuses a folder that is no such cache.",
    )
    clean.add_argument("path", nargs="?", default=os.curdir, metavar="PATH", help="folder of the project")
    clean.add_argument("--cache-dir", metavar="FOLDER", help="cache folder, instead of the configured one")
    version = commands.add_parser("version", help="show the version of amp-check")
    completion = commands.add_parser("completion", help="write a script that completes commands and flags in a shell")
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    for command in (explain, rules, version):
        command.add_argument("--output-format", choices=("text", "json"), default="text", help="how it is shown")
    for command in (check, recorded, explain, rules, clean, version):
        command.set_defaults(parser=command)
    commands.add_parser(
        "server",
        help="serve an editor: the language server protocol over standard input and output",
        epilog="needs the extra: pip install 'pytest-amp-check[server]'",
    )
    commands.add_parser(
        "mcp",
        help="serve a coding agent: the model context protocol over standard input and output",
        epilog="needs the extra: pip install 'pytest-amp-check[mcp]'",
    )
    return parser


def suggest_flag(word: str, parser: ArgumentParser) -> str:
    """Return a suggestion of the parser's flag nearest to a word."""
    flags = tuple(flag for action in parser._actions for flag in action.option_strings if flag.startswith("--"))
    return table.suggest_nearest(word.partition("=")[0], flags)


def _nearest_choice(message: str) -> str:
    """Return a suggestion of the choice nearest to the invalid word in a parser message, as the end of a sentence."""
    import difflib
    import re

    wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
    if wrong is None:
        return ""
    close = difflib.get_close_matches(wrong.group(1).lower(), re.findall(r"[\w-]+", wrong.group(2)), n=1)
    return f": did you mean {close[0]!r}?" if close else ""
