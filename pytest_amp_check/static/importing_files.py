"""Importing files: files that use a named file without being named. Both files are checked together.

A mistake of two files is located in one of them. A user who names only the other file sees the finding there, at the
line that takes part.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from ..protocol.finding import Finding, TraceStep
from .project.project import Project
from .project.roots import marked_project, package_top
from .sources import code_blocks, source_files
from .sources.patterns.code import Code
from .sources.patterns.low_precision import MANUAL_LOW_WORDS

#: Maximum number of project files searched for imports of a named file. A larger search would take seconds.
MAX_SEARCHED_FILES = 20_000
#: Words of code that affect the project attributes (:meth:`~.project.project.Project.add_prescan`).
_PROJECT_WORDS = (b"autocast", b"half", b"float16", b"precision", b"load_state_dict", *MANUAL_LOW_WORDS)


class ImportingFiles:
    """Files of the projects around some named files, with the content of all programs.

    ``is_complete`` says that these are all files of the projects, and that the named files are included.
    """

    def __init__(self, named: Collection[str], exclude: Sequence[str], largest: int, *, gitignore: bool) -> None:
        self.is_complete = True
        self.files: set[str] = set()
        self.data_by_path: dict[str, bytes] = {}
        searched: set[str] = set()
        for folder in {os.path.dirname(os.path.abspath(path)) for path in named}:
            tops, whole = _search_roots(folder)
            if searched.issuperset(tops):
                continue
            searched.update(tops)
            found = source_files.find_sources(tops, exclude, gitignore=gitignore)
            self.is_complete = self.is_complete and whole and len(found) <= MAX_SEARCHED_FILES
            self.files.update(map(os.path.abspath, found if len(found) <= MAX_SEARCHED_FILES else ()))
        # The files beside an excluded file are excluded with it.
        self.is_complete = self.is_complete and self.files.issuperset(map(os.path.abspath, named))
        for path in sorted(self.files):
            if path.endswith(source_files.PROGRAMS):
                with suppress(source_files.Unreadable):
                    self.data_by_path[path] = code_blocks.load_source(path, largest)

    def relevant_code(self) -> Iterator[tuple[str, Code]]:
        """Yield the code of the files that affect the project attributes."""
        for path, data in self.data_by_path.items():
            if any(word in data for word in _PROJECT_WORDS):
                with suppress(source_files.Unreadable):
                    yield path, Code(code_blocks.code_bytes(path, data))

    def find_importing_files(self, named: Collection[str], project: Project) -> list[str]:
        """Return the files that import a named file, directly or not, without the files to check."""
        waiting = {os.path.abspath(path) for path in named}
        data = {
            path: held for path, held in self.data_by_path.items() if path not in project.files and path.endswith(".py")
        }
        found: list[str] = []
        leads: dict[str, frozenset[str]] = {}
        while waiting and data:
            words = [os.fsencode(source_files.import_stem(path)) for path in waiting]
            if any(os.path.basename(path) == "__init__.py" for path in waiting):
                # An import from inside a package may omit the name of the package.
                words.append(b"from .")
            mentioning = [path for path, held in data.items() if any(word in held for word in words)]
            leads.update((path, project.static_imports(path)) for path in mentioning if path not in leads)
            waiting = {path for path in mentioning if not waiting.isdisjoint(leads[path])}
            for path in waiting:
                del data[path]
            found += sorted(waiting)
        return [project.display_path(path) for path in found]


def _search_roots(folder: str) -> tuple[list[str], bool]:
    """Return the roots of the project of a folder, and True if the roots cover the project.

    Without a project mark, the roots are nearby files and folders.
    """
    project = marked_project(folder)
    if project is not None:
        return [project], True
    # Such a folder may hold anything: only its files count, and the package below it.
    around = package_top(folder)
    tops = _sources_in(around)
    if around != folder:
        tops.append(os.path.join(around, os.path.relpath(folder, around).split(os.sep)[0]))
    return tops, False


def _sources_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as scan:
            return [entry.path for entry in scan if entry.name.endswith(".py") and entry.is_file()]
    except OSError:
        return []


def move_to_named_file(finding: Finding, named: Collection[str]) -> Finding | None:
    """Return a finding of another file, moved to a named file that takes part in the mistake, or None.

    The location is the call that leads to the mistake; otherwise the nearest event before or after the mistake.
    """
    blamed = finding.site.location_text
    steps = finding.event_steps
    trace_places = [step.site.location_text for step in steps]
    cause_index = trace_places.index(blamed) if blamed in trace_places else len(trace_places)
    events = [*reversed(steps[:cause_index]), *steps[cause_index:]]
    sites = [
        *reversed(finding.site.list_frames()),
        *(site for step in events for site in reversed(step.site.list_frames())),
    ]
    site_in_named = next((site for site in sites if site.path in named), None)
    if site_in_named is None:
        return None
    message = f"{finding.message} (the mistake is at {blamed}, and this line takes part in it)"
    made = Finding(finding.code, finding.name, finding.severity, message, site_in_named, certain=finding.certain)
    made.condition, made.label, made.names = finding.condition, finding.label, finding.names
    made.remedy, made.edit_places = finding.remedy, finding.edit_places
    made.trace = finding.trace if blamed in trace_places else (*finding.trace, TraceStep(finding.site, "the mistake"))
    made.elsewhere = finding.site
    return made
