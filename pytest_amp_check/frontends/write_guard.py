"""Guard for writes of a check: command line paths, and only the project if a file there requests the write.

A checked repository brings its own configuration, links and folders. None of these may make a check write outside the
repository: not by ``fix`` and ``paths``, not by a symbolic link, not by the folder of the cache, the baseline or the
report.
"""

from __future__ import annotations

import os

from . import options as table
from .options import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class WriteGuard:
    """Guard for files that receive fixes and comments. ``given`` are the paths of the command line."""

    def __init__(self, given: Sequence[str], options: table.Options) -> None:
        self._roots = [
            os.path.realpath(path) if os.path.isdir(path) else _resolve_file(path, options.project_folder)
            for path in given or options.paths or [os.curdir]
        ]
        self._project_folder = ""
        self._restriction_origin = ""
        asked = [name for name in ("fix", "fix_only", "add_ignores") if getattr(options, name)]
        by_file = [name for name in asked if name in options.set_by_file]
        if asked and asked == by_file:
            self._confine_to_project(options, asked[0])
        elif not given and "paths" in options.set_by_file:
            self._confine_to_project(options, "paths")

    def _confine_to_project(self, options: table.Options, name: str) -> None:
        self._project_folder = os.path.realpath(options.project_folder)
        self._restriction_origin = options.origins[name]

    def explain_refusal(self, path: str) -> str:
        """Return the reason not to write a file, in one sentence, or "" if allowed."""
        real = os.path.realpath(path)
        if not any(_is_below(real, root) for root in self._roots):
            return (
                f"{path} was not written: a symbolic link leads from there to {real}, outside of what was named: "
                "name that file"
            )
        if self._project_folder and not _is_below(real, self._project_folder):
            return (
                f"{path} was not written: {self._restriction_origin} speaks of that project alone: name the "
                f"file, and give --fix"
            )
        return ""

    def may_write(self, path: str) -> bool:
        """Return True if fixes of a file would be written."""
        from ..static.fixes import fix_files

        try:
            return not self.explain_refusal(path) and not fix_files.is_read_only(path)
        except OSError:
            return False


def _resolve_file(path: str, project: str) -> str:
    """Return the real path of a named file, or an impossible path if a link leads out of the file's tree."""
    real = os.path.realpath(path)
    written = os.path.abspath(path)
    if _is_below(written, os.getcwd()):
        tops = [os.getcwd(), *([project] if project else [])]
    else:
        tops = [os.path.dirname(written)]
    return real if any(_is_below(real, os.path.realpath(top)) for top in tops) else os.path.join(real, "")


def _is_below(path: str, top: str) -> bool:
    """Return True if a path equals another path or lies below. Both paths are absolute."""
    return path == top or path.startswith(os.path.join(top, ""))


def find_cache_folder(options: table.Options, base: str = os.curdir) -> str | None:
    """Return the cache folder, or None if disabled. Raise :class:`ConfigError` if a project sets a folder outside."""
    folder = table.find_cache_folder(options, base)
    if folder is not None and (options.cache_dir is None or "cache_dir" in options.set_by_file):
        _refuse_outside(
            folder, options.project_folder or base, "the cache", options.origins["cache_dir"], "--cache-dir"
        )
    return folder


def check_baseline_path(options: table.Options) -> None:
    """Raise :class:`ConfigError` if a project sets a baseline path outside the project."""
    if options.update_baseline and options.baseline is not None and "baseline" in options.set_by_file:
        origin = options.origins["baseline"]
        _refuse_outside(options.baseline, options.project_folder, "the baseline", origin, "--baseline")


def check_report_path(options: table.Options) -> None:
    """Raise :class:`ConfigError` if a project sets a report path outside the project."""
    if options.report is not None and "report" in options.set_by_file:
        _refuse_outside(options.report, options.project_folder, "the report", options.origins["report"], "--report")


def _refuse_outside(path: str, project: str, what: str, origin: str, flag: str) -> None:
    real, top = os.path.realpath(path), os.path.realpath(project)
    if not _is_below(real, top):
        raise ConfigError(f"{what} would be written to {real}, outside of {top} ({origin}): name that place by {flag}")
