"""Prescan of a file: a search in its bytes before parsing."""

from __future__ import annotations

from ...protocol.sites import is_test_file
from . import code_blocks, configurations, source_files
from .patterns.code import Code
from .patterns.fragile_math import has_epsilons, has_loss_math
from .patterns.low_precision import gives_dtype, makes_values_low


class Prescan:
    """Result of the prescan of one file.

    may_have_findings    the file may hold a mistake by itself
    may_enter_autocast   the file may enter autocast
    may_use_float16      the file contains a name of float16
    has_lightning16      a Lightning Trainer in the file trains in float16
    may_resume           the file may load the state of an optimizer
    class_names          classes that the file defines, for a file to analyze
    base_names           names of base classes: another file takes part if it derives from a class of an analyzed file
    combined_bases       names of the bases of each class with several bases, joined by spaces
    imported_names       names of imports: another file takes part if it imports an analyzed file
    chooses_model_dtype  the file lets its user choose a low dtype for the weights of a model
    casts_models         the file may cast a model to a low dtype, or to a dtype that its users choose
    casts_weights        the file may store the weights of a model in a low dtype, or define a model whose forward
                         enters autocast
    may_round_inputs     the file may compute what the low dtype of its inputs spoils
    makes_values_low     the file may cast to a low dtype, or enter autocast
    gives_dtype          a file without a mistake of its own constructs an object with a low dtype
    optimizes_model      a file without a mistake of its own makes an optimizer for the parameters of a model
    multiplies_coordinates  the file may multiply matrices of coordinates, and use their digits
    has_fragile_math     the file has an expression that low-precision inputs may spoil, with no region in sight
    has_loss_math        the file has an expression that a region would compute in float32
    has_epsilons         the file has a small number that float16 rounds to zero
    computes_tensors     the file computes with tensors
    does_training_part   the file may leave the training to another file and still hold a mistake
    does_training_step   a file that may hold a mistake does a step of a training, which another file may complete
    digest               digest of the content

    None means that the prescan did not search for these names.
    """

    __slots__ = (
        "base_names",
        "casts_models",
        "casts_weights",
        "chooses_model_dtype",
        "class_names",
        "combined_bases",
        "computes_tensors",
        "digest",
        "does_training_part",
        "does_training_step",
        "gives_dtype",
        "has_epsilons",
        "has_fragile_math",
        "has_lightning16",
        "has_loss_math",
        "imported_names",
        "makes_values_low",
        "may_enter_autocast",
        "may_have_findings",
        "may_resume",
        "may_round_inputs",
        "may_use_float16",
        "multiplies_coordinates",
        "optimizes_model",
        "path",
        "size",
    )

    def __init__(self, path: str, size: int, flags: tuple[bool, bool, bool, bool], *, may_have_findings: bool) -> None:
        self.path = path
        self.size = size
        self.may_enter_autocast, self.may_use_float16, self.has_lightning16, self.may_resume = flags
        self.may_have_findings = may_have_findings
        self.class_names: set[bytes] | None = None
        self.base_names: set[bytes] | None = None
        self.combined_bases: set[bytes] | None = None
        self.imported_names: set[bytes] | None = None
        self.does_training_part = self.does_training_step = False
        self.casts_weights = self.casts_models = self.optimizes_model = False
        self.multiplies_coordinates = self.may_round_inputs = self.makes_values_low = self.gives_dtype = False
        self.has_fragile_math = self.computes_tensors = self.chooses_model_dtype = False
        self.has_loss_math = self.has_epsilons = False
        self.digest = ""


def prescan_file(path: str, *, largest: int) -> Prescan:
    """Prescan a file. Raise :class:`.source_files.Unreadable`.

    ``largest`` is the maximum size of parsed code in bytes. Whether the code is valid is left to the analysis, which a
    file without a relevant word does not reach.
    """
    data = code_blocks.load_source(path, largest)
    code = Code(code_blocks.code_bytes(path, data))
    code.is_test = is_test_file(path)
    # Code in documentation is no part of the programs of this project.
    shown = code_blocks.is_markdown(path)
    facts = (code.may_enter_autocast, code.may_use_float16, code.has_lightning16, code.may_resume)
    facts = (False, False, False, False) if shown else facts
    is_configuration = configurations.is_configuration(path)
    may_have_findings = configurations.sets_precision(data) if is_configuration else code.may_have_findings()
    seen = Prescan(path, len(data), facts, may_have_findings=may_have_findings)
    if seen.may_have_findings:
        seen.class_names = code.class_names()
        seen.does_training_step = code.does_training_step
    else:
        seen.base_names, seen.imported_names = code.base_names(), code.imported_names()
        seen.combined_bases = code.combined_bases()
        seen.does_training_part = code.does_training_part
        seen.optimizes_model, seen.gives_dtype = code.optimizes_model, gives_dtype(code.data)
    if path.endswith(".py"):
        seen.has_fragile_math, seen.computes_tensors = code.has_fragile_math, code.computes_tensors
        seen.has_loss_math, seen.has_epsilons = has_loss_math(code.data), has_epsilons(code.data)
        seen.multiplies_coordinates = code.multiplies_coordinates
        seen.may_round_inputs = code.may_round_inputs
        seen.makes_values_low = not (seen.may_have_findings or code.is_test) and makes_values_low(code.data)
        seen.chooses_model_dtype = code.chooses_model_dtype
        seen.casts_weights = code.casts_weights or code.enters_in_forward
        seen.casts_models = code.casts_models
    seen.digest = source_files.content_digest(data)
    return seen
