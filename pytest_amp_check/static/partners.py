"""Files that were not named, and use one that was: what they do with it is judged with it.

A mistake that two files make together stands in one of them. Who names the other one is shown it there, at the line
that takes part in it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from ..protocol.finding import Finding, Step
from .project.project import Project, marked_project, package_top
from .sources import programs, source_files
from .sources.patterns import BY_HAND, Code

#: Files of a project, above which none is looked for that uses a file by name: that would take seconds.
MANY = 20_000
#: What code holds that tells a project something of itself (:meth:`~.project.project.Project.know`).
_TELLING = (b"autocast", b"half", b"float16", b"precision", b"load_state_dict", *BY_HAND)


class Surroundings:
    """The files of the projects that some named files lie in, and what the programs among them hold.

    ``whole`` says that these are all of them, with the ones that were named.
    """

    def __init__(self, named: Collection[str], exclude: Sequence[str], largest: int, *, gitignore: bool) -> None:
        self.whole = True
        self.files: set[str] = set()
        self.data: dict[str, bytes] = {}
        searched: set[str] = set()
        for folder in {os.path.dirname(os.path.abspath(path)) for path in named}:
            tops, whole = _tops(folder)
            if searched.issuperset(tops):
                continue
            searched.update(tops)
            found = source_files.find(tops, exclude, gitignore=gitignore)
            self.whole = self.whole and whole and len(found) <= MANY
            self.files.update(map(os.path.abspath, found if len(found) <= MANY else ()))
        # What lies beside a file that is left out of its folder is left out with it.
        self.whole = self.whole and self.files.issuperset(map(os.path.abspath, named))
        for path in sorted(self.files):
            if path.endswith(source_files.PROGRAMS):
                with suppress(source_files.Unreadable):
                    self.data[path] = programs.load(path, largest)

    def codes(self) -> Iterator[tuple[str, Code]]:
        """The code of those that tell something of their project."""
        for path, held in self.data.items():
            if any(word in held for word in _TELLING):
                with suppress(source_files.Unreadable):
                    yield path, Code(programs.code(path, held))

    def partners(self, named: Collection[str], tree: Project) -> list[str]:
        """The files that import one of some files, directly or not, and are not to be checked themselves."""
        waiting = {os.path.abspath(path) for path in named}
        data = {path: held for path, held in self.data.items() if path not in tree.files and path.endswith(".py")}
        found: list[str] = []
        leads: dict[str, frozenset[str]] = {}
        while waiting and data:
            words = [os.fsencode(source_files.stem(path)) for path in waiting]
            if any(os.path.basename(path) == "__init__.py" for path in waiting):
                # A package may be imported from without its name.
                words.append(b"from .")
            mentioning = [path for path, held in data.items() if any(word in held for word in words)]
            leads.update((path, tree.leads_to(path)) for path in mentioning if path not in leads)
            waiting = {path for path in mentioning if not waiting.isdisjoint(leads[path])}
            for path in waiting:
                del data[path]
            found += sorted(waiting)
        return [tree.written(path) for path in found]


def _tops(folder: str) -> tuple[list[str], bool]:
    """Files and folders of the project of a folder, and whether they are all; without a mark of one what is near."""
    project = marked_project(folder)
    if project is not None:
        return [project], True
    # Such a folder may hold anything: only what lies in it is looked at, and the package below it.
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


def shown_at(finding: Finding, named: Collection[str]) -> Finding | None:
    """A finding of another file as it is shown in one that was named and takes part in it; None where none does.

    It is shown at the call that leads to the mistake, or else at the last event before it, or after it.
    """
    blamed = finding.site.place
    told = [step.site.place for step in finding.witness]
    at = told.index(blamed) if blamed in told else len(told)
    events = [*reversed(finding.witness[:at]), *finding.witness[at:]]
    sites = [*reversed(finding.site.frames()), *(site for step in events for site in reversed(step.site.frames()))]
    here = next((site for site in sites if site.path in named), None)
    if here is None:
        return None
    said = f"{finding.message} (the mistake is at {blamed}, and this line takes part in it)"
    made = Finding(finding.code, finding.name, finding.severity, said, here, certain=finding.certain)
    made.condition, made.label, made.names = finding.condition, finding.label, finding.names
    made.witness = finding.witness if blamed in told else (*finding.witness, Step(finding.site, "the mistake"))
    made.elsewhere = finding.site
    return made
