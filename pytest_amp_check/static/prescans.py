"""Prescans of files, and the choice of the files to analyze."""

from __future__ import annotations

import os

from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.sites import is_test_file
from .deep_stack import with_deep_stack
from .processes import run_in_processes, shared_arguments
from .project.import_reach import trains_without_regions
from .project.import_search import sources_of_imports
from .project.project import Project
from .settings import Settings
from .sources import prefilter, source_files
from .sources.patterns.low_precision import evaluates
from .sources.patterns.training import may_affect_importer
from .sources.prefilter import Prescan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cache import Cache


#: Number of files that a process prescans at once.
PRESCAN_CHUNK = 100


def prescan_changed_files(files: list[str], jobs: int, store: Cache | None, largest: int) -> _PrescanResults:
    """Prescan every file that changed since the last run."""
    scan = _PrescanResults([], [])
    fresh = files
    if store is not None:
        known = {path: store.find_prescan(path) for path in files}
        scan.prescans.extend(filter(None, known.values()))
        fresh = [path for path, look in known.items() if look is None]
    chunks = [fresh[start : start + PRESCAN_CHUNK] for start in range(0, len(fresh), PRESCAN_CHUNK)]
    for found in run_in_processes(_prescan_chunk, chunks, jobs, largest):
        scan.prescans.extend(found.prescans)
        scan.unreadable_files.extend(found.unreadable_files)
        if store is not None:
            for look in found.prescans:
                store.add_prescan(look)
    return scan


def prescan_importing_files(
    seen: list[Prescan], named: frozenset[str], project: Project, settings: Settings
) -> list[Prescan]:
    """Prescan the files that import a named file, and add the surroundings of the named files to the project."""
    relevant_paths = [look.path for look in seen if look.path in named and _may_have_mistake(look, settings.largest)]
    if not relevant_paths:
        return []
    from .importing_files import ImportingFiles

    selection = settings.files
    importing = ImportingFiles(relevant_paths, selection.exclude, settings.largest, gitignore=selection.gitignore)
    project.add_surroundings(importing.relevant_code(), importing.files, is_complete=importing.is_complete)
    users = importing.find_importing_files([path for path in relevant_paths if path.endswith(".py")], project)
    return prescan_changed_files(users, 1, None, settings.largest).prescans


def _may_have_mistake(prescan: Prescan, largest: int) -> bool:
    """Return True if a file may hold a mistake, alone or through the files that import it."""
    if prescan.may_have_findings or not prescan.path.endswith(".py"):
        return prescan.may_have_findings and prescan.path.endswith(source_files.PROGRAMS)
    return may_affect_importer(source_files.load_or_nothing(prescan.path, largest))


def files_to_analyze(seen: list[Prescan], project: Project, named: frozenset[str]) -> list[Prescan]:
    """Return the files to analyze: files that may hold a mistake, alone or together with such a file.

    The user gave the paths of the files in ``named``: their base classes may be in files that were not prescanned.
    """
    todo: list[Prescan] = []
    others: list[Prescan] = []
    for look in seen:
        (todo if look.may_have_findings else others).append(look)
    # A base class may call methods that a subclass defines; this file may save objects that another file trains.
    classes = set[bytes]().union(*(look.class_names or () for look in todo))
    training = {os.path.abspath(look.path) for look in todo if look.does_training_step and look.path.endswith(".py")}
    stems = {os.fsencode(source_files.import_stem(path)) for path in training}
    casting = {os.path.abspath(look.path) for look in seen if look.casts_weights}
    casting_stems = {os.fsencode(source_files.import_stem(path)) for path in casting}
    parts = {os.path.abspath(look.path) for look in others if look.does_training_part and look.path.endswith(".py")}

    def takes_part(prescan: Prescan) -> bool:
        if not classes.isdisjoint(prescan.base_names or ()):
            return True
        if prescan.path in named and _inherits_training(prescan, project):
            return True
        if any(len(classes.intersection(bases.split())) > 1 for bases in prescan.combined_bases or ()):
            return True
        # Few files share a name, so this test is rare.
        if stems.isdisjoint(prescan.imported_names or ()):
            return False
        imported = sources_of_imports(project, prescan.path)
        if training.isdisjoint(imported):
            return False
        # A file that trains nothing may connect a file that trains with a file that saves, or choose a dtype.
        if prescan.does_training_part or prescan.gives_dtype or not parts.isdisjoint(imported):
            return True
        return prescan.casts_models and not evaluates(source_files.load_or_nothing(prescan.path, project.largest))

    def trains_cast_model(prescan: Prescan) -> bool:
        """Return True if a file trains, and imports a file that casts a model to a low dtype."""
        return (
            prescan.optimizes_model
            and not casting_stems.isdisjoint(prescan.imported_names or ())
            and not casting.isdisjoint(sources_of_imports(project, prescan.path))
        )

    rounding = {os.path.abspath(look.path) for look in seen if look.may_round_inputs}
    rounding_stems = {os.fsencode(source_files.import_stem(path)) for path in rounding}

    def lowers_inputs(prescan: Prescan) -> bool:
        """Return True if a file makes values low, and imports a file that may compute what this spoils."""
        return (
            prescan.makes_values_low
            and not rounding_stems.isdisjoint(prescan.imported_names or ())
            and not rounding.isdisjoint(sources_of_imports(project, prescan.path))
        )

    found = todo + [look for look in others if takes_part(look) or lowers_inputs(look)]
    taken = {look.path for look in found}
    training_files = [look for look in others if look.path not in taken and trains_cast_model(look)]
    found += training_files
    analyzed = {look.path for look in found}
    assumed = [look for look in seen if look.path not in analyzed and _may_suffer_from_chosen_dtype(look, project)]
    project.assumed_files = frozenset(look.path for look in assumed)
    return found + assumed


def _inherits_training(prescan: Prescan, project: Project) -> bool:
    """Return True if an imported file that may hold a mistake defines a base class of a file."""
    names = prescan.base_names or set()
    for path in sorted(sources_of_imports(project, prescan.path)) if names else ():
        if any(b"class " + name in source_files.load_or_nothing(path, project.largest) for name in names):
            found = _prescan_files([path], project.largest).prescans
            if any(not names.isdisjoint(base.class_names or ()) for base in found):
                return True
    return False


def _may_suffer_from_chosen_dtype(prescan: Prescan, project: Project) -> bool:
    """Return True if the dtype of the inputs of a file, which its users choose, may spoil the results.

    A test chooses the dtype of its own inputs.
    """
    if is_test_file(prescan.path):
        return False
    if project.assumed_dtype:
        return prescan.computes_tensors
    if prescan.multiplies_coordinates and project.autocast_files:
        return True
    if prescan.has_loss_math and trains_without_regions(project):
        return True
    if prescan.has_epsilons and (project.float16_files or trains_without_regions(project)):
        return True
    return prescan.has_fragile_math and bool(project.float16_files or project.low_model_files or project.casting_files)


class _PrescanResults(NamedTuple):
    """Results of prescans, and unreadable files: path, line and reason."""

    prescans: list[Prescan]
    unreadable_files: list[tuple[str, int, str]]


def _prescan_chunk(paths: list[str]) -> _PrescanResults:
    largest: int = shared_arguments()
    return with_deep_stack(lambda: _prescan_files(paths, largest))


def _prescan_files(paths: list[str], largest: int) -> _PrescanResults:
    scan = _PrescanResults([], [])
    for path in paths:
        try:
            scan.prescans.append(prefilter.prescan_file(path, largest=largest))
        except source_files.Unreadable as error:
            scan.unreadable_files.append((path, error.line, str(error)))
    return scan
