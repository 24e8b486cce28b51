"""Code: the bytes of a file, the words in them, and the needs of rules that they meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ....protocol import rules
from .declarations import class_definitions, is_torch, iterate_imports
from .fragile_math import has_fragile_math, has_rounded_math, may_round_inputs, multiplies_coordinates
from .large_fills import FILL_WORDS, ITEM_WRITE, fills_large_number
from .lines import START_OF_DEFINITION, lines_containing, strip_docstrings
from .low_precision import (
    DTYPE_BY_NAME,
    MANUAL_LOW_WORDS,
    casts_model,
    casts_parameters,
    casts_to_choice,
    casts_weights,
    chooses_model_dtype,
    enters_in_forward,
    gives_dtype,
    has_float16_option,
    has_lightning16,
    has_low_tensor,
    has_region_option,
    makes_values_low,
    may_average_low_copy,
    may_choose_float16,
    returns_cast,
    takes_dtype_of_checkpoint,
)
from .training import (
    BACKWARD_CALL,
    STEP_CALL,
    line_runs_backward,
    loads_optimizer_state,
    steps_optimizer,
    uses_autocast,
    uses_scaler,
)


class Code:
    """Bytes of code, and what a search in the bytes shows."""

    __slots__ = (
        "_bare_code",
        "_casts_weights",
        "_has_no_docstrings",
        "_may_enter_autocast",
        "_runs_backward",
        "_searched_words",
        "_words_found",
        "data",
        "is_test",
    )

    def __init__(self, data: bytes, searched_words: Iterable[bytes] | None = None) -> None:
        self.data = data
        #: Words to search for: part of :data:`SEARCHED_WORDS`, None for all of them.
        self._searched_words = searched_words
        self._words_found: frozenset[bytes] | None = None
        self._bare_code: Code | None = None
        self._casts_weights: bool | None = None
        self._may_enter_autocast: bool | None = None
        self._runs_backward: bool | None = None
        #: True for a test, which chooses the dtype of its own inputs.
        self.is_test = False
        #: True if the code is known to have no docstring.
        self._has_no_docstrings = False

    @property
    def words_found(self) -> frozenset[bytes]:
        """Words of :data:`SEARCHED_WORDS` in the code."""
        if self._words_found is None:
            words = SEARCHED_WORDS if self._searched_words is None else self._searched_words
            self._words_found = frozenset([word for word in words if word in self.data])
        return self._words_found

    @property
    def without_docstrings(self) -> Code:
        """Same code without docstrings, whose examples are no code."""
        if self._bare_code is None and not self._has_no_docstrings:
            data = strip_docstrings(self.data)
            self._has_no_docstrings = data is self.data
            self._bare_code = None if self._has_no_docstrings else Code(data, self.words_found)
            if self._bare_code is not None:
                self._bare_code.is_test = self.is_test
        return self._bare_code or self

    @property
    def may_enter_autocast(self) -> bool:
        """True if the code may enter autocast, or cast without autocast."""
        if self._may_enter_autocast is None:
            self._may_enter_autocast = b"autocast" in self.words_found or any(
                word in self.data for word in MANUAL_LOW_WORDS
            )
        return self._may_enter_autocast

    @property
    def may_use_float16(self) -> bool:
        """True if the code contains a name of float16."""
        words, data = self.words_found, self.data
        half = b"half" in words and (b".half()" in data or b"torch.half" in data)
        if half or self.may_enter_autocast or b"float16" in words or b"opt_level" in words:
            return True
        return (b"precision" in words or b"fp16" in data) and has_float16_option(data)

    @property
    def has_lightning16(self) -> bool:
        """True if a Lightning Trainer in the code trains in float16."""
        return b"precision" in self.words_found and has_lightning16(self.data)

    @property
    def computes_tensors(self) -> bool:
        """True if the code may compute with tensors."""
        return b"torch" in self.data and b"def " in self.data

    @property
    def chooses_model_dtype(self) -> bool:
        """True if the code lets its user choose a low dtype for the weights of a model."""
        return chooses_model_dtype(self.data)

    @property
    def may_choose_float16(self) -> bool:
        """True if the code has such a choice other than a literal bfloat16."""
        return may_choose_float16(self.data)

    @property
    def casts_weights(self) -> bool:
        """True if the code may store the weights of a model in a low dtype, also for a file that trains the model."""
        if self._casts_weights is None:
            self._casts_weights = casts_weights(self.data)
        return self._casts_weights

    @property
    def enters_in_forward(self) -> bool:
        """True if the code may define a model whose forward enters autocast, and does not choose whether."""
        return enters_in_forward(self.data)

    @property
    def may_round_inputs(self) -> bool:
        """True if a definition in the code may compute what the low dtype of its inputs spoils."""
        return b"torch" in self.data and any(map(may_round_inputs, re.split(START_OF_DEFINITION, self.data)))

    @property
    def casts_models(self) -> bool:
        """True if the code may cast a model to a low dtype, or to one that its users choose, for whatever use."""
        return self.casts_weights or casts_to_choice(self.data)

    @property
    def optimizes_model(self) -> bool:
        """True if the code may make an optimizer for the parameters of a model."""
        return b"parameters(" in self.data and re.search(rb"optim(?!\w)", self.data) is not None

    @property
    def casts_model(self) -> bool:
        """True if the code casts a model to a low dtype."""
        return casts_model(self.data)

    @property
    def has_fragile_math(self) -> bool:
        """True if the code has an expression that low precision may spoil for any tensor of its arguments."""
        return has_fragile_math(self.data)

    @property
    def multiplies_coordinates(self) -> bool:
        """True if a function may multiply matrices of coordinates, and use their digits."""
        return multiplies_coordinates(self.data)

    @property
    def may_resume(self) -> bool:
        """True if the code may load the state of an optimizer."""
        return b"load_state_dict" in self.data and loads_optimizer_state(self.data)

    def may_have_findings(self) -> bool:
        """Return True if the code may contain a mistake. Code without a possible mistake needs no parsing.

        The needs of every rule appear in the text by name (:data:`.rules.WORDS`). Code with such a name is searched
        again without docstrings. True promises no finding, and False does not promise that the code parses.
        """
        if b"\0" in self.words_found:
            return True  # Neither UTF-16 nor a broken notebook can be searched: the analysis says why it is unreadable.
        return self._has_rule_word() and (self.without_docstrings is self or self.without_docstrings._has_rule_word())

    def _has_rule_word(self) -> bool:
        return any(map(self.has_rule_need, rules.WORDS if not self.is_test else _WORDS_OF_TESTS))

    def has_rule_need(self, need: str) -> bool:
        """Return True if the code has the words for a need of a rule (:attr:`~.protocol.rule.Rule.prescan_words`)."""
        look = CLOSER_SEARCHES.get(need)
        if look is not None:
            words, closely = look
            return not self.words_found.isdisjoint(words) and closely(self)
        first, *others = WORDS_OF_NEED[need]
        if first not in self.words_found or not all(word in self.data for word in others):
            return False
        return BACKWARD_CALL not in (first, *others) or self.runs_backward

    @property
    def runs_backward(self) -> bool:
        """True if the code may run backward. A definition or a hook alone runs nothing."""
        if self._runs_backward is None:
            self._runs_backward = any(map(line_runs_backward, lines_containing(BACKWARD_CALL, self.data)))
        return self._runs_backward

    @property
    def does_training_step(self) -> bool:
        """True if the code may scale a loss, run backward or step an optimizer, so that another file does the rest."""
        bare = self.without_docstrings
        return (
            bare.has_rule_need("scaler")
            or bare.runs_backward
            or b"update_params(" in bare.data
            or steps_optimizer(bare.data)
        )

    def may_cast_trained_module(self) -> bool:
        """Return True if the code may cast a module to a low-precision dtype and train the module."""
        data = self.data
        if b"Trainer" in self.words_found and b"-true" in data and b".fit(" in data:
            return True  # the precision of Lightning that stores parameters in a low dtype
        of_checkpoint = takes_dtype_of_checkpoint(data)
        # A setting of another file may name the dtype.
        if self.words_found.isdisjoint((b"half", b"float16")) and not (of_checkpoint or DTYPE_BY_NAME in data):
            return False
        from ....protocol.frameworks import HUGGING_FACE

        if b"Trainer" in self.words_found and (HUGGING_FACE.encode() in data or b"from_pretrained(" in data):
            trained = True  # the trainer's class may be defined in another file
        else:
            trained = b"parameters(" in self.words_found and (
                (STEP_CALL in self.words_found and steps_optimizer(data))
                or re.search(rb"optim(?!\w)", data) is not None
            )
        if not trained:
            return False
        return of_checkpoint or casts_parameters(data)

    def class_names(self) -> set[bytes]:
        """Return the names of the classes that the code defines."""
        return {name for name, _ in class_definitions(self.data)}

    def base_names(self) -> set[bytes]:
        """Return the last names of base classes, if a method of the subclasses may affect inherited code.

        Classes of the code itself and of torch are omitted: they inherit nothing from other files of the project.
        """
        hooks = self.words_found.intersection(_HOOK_WORDS)
        if hooks == {STEP_CALL} and not steps_optimizer(self.data):
            return set()
        if not hooks and returns_cast(self.data):
            # The subclass makes the model that the base class trains.
            hooks = self.words_found
        if not hooks or self.without_docstrings.words_found.isdisjoint(hooks):
            return set()
        found = set[bytes]().union(*self._foreign_bases())
        if found:
            found.difference_update([name for module, name, _ in iterate_imports(self.data) if is_torch(module)])
        return found

    def combined_bases(self) -> set[bytes]:
        """Return the last names of the bases of each class with several bases, joined by spaces.

        Such a class may run a method of one base in the middle of another one, without a method of its own.
        """
        return {b" ".join(sorted(bases)) for bases in self._foreign_bases() if len(bases) > 1}

    def _foreign_bases(self) -> list[set[bytes]]:
        """Return the last names of the bases of each class, except classes of the code itself and of torch."""
        own = {b"", b"Module", b"object"}
        found: list[set[bytes]] = []
        for cls, bases in class_definitions(self.data):
            own.add(cls)
            names = (base.partition(b"[")[0].strip() for base in bases.split(b","))
            found.append({name.rpartition(b".")[2] for name in names if not name.startswith(b"torch.")})
        return [bases - own for bases in found]

    @property
    def does_training_part(self) -> bool:
        """True if the code may leave the training to another file and still make a mistake."""
        return not (
            self.words_found.isdisjoint(_TRAINING_PART_WORDS)
            or self.without_docstrings.words_found.isdisjoint(_TRAINING_PART_WORDS)
        )

    def imported_names(self) -> set[bytes]:
        """Return the last names of imported names and modules, if the code may make a mistake with these imports.

        Code that constructs an optimizer may pass it to two other files that together make the mistake, and code that
        names a low dtype may choose the dtype of a training.
        """
        data = self.data
        if not (self.does_training_part or b".optim" in data or gives_dtype(data) or makes_values_low(data)):
            return set()
        found: set[bytes] = set()
        for module, name, _ in iterate_imports(self.data):
            if not is_torch(module):
                found.update((module.rpartition(b".")[2], name))
        return found - {b""}


#: Words of methods that may make a mistake in a class of another file.
_HOOK_WORDS = (b"clip_grad", b"backward(", b"autocast", b".step(", b"zero_grad")
#: Words of files that leave the training to another file and may still make a mistake.
_TRAINING_PART_WORDS = (b".state_dict(", b"clip_grad", b"training_step", BACKWARD_CALL)

#: Finite checks. A check that fails a test skips no batch.
_FINITE_WORDS = (b"isnan", b"isinf", b"isfinite")
_ASSERTIONS = (b"assert", b"self.assert")


def _may_skip_backward(code: Code) -> bool:
    """Return True if code may skip a backward by a finite check."""
    checks = (line for word in _FINITE_WORDS for _, line in lines_containing(word, code.data))
    return not all(line.lstrip().startswith(_ASSERTIONS) for line in checks) and code.runs_backward


def _defines_loss_of_trainer(code: Code) -> bool:
    """Return True if a class may compute the loss of transformers' Trainer."""
    return b"def compute_loss(" in code.data and (b"Trainer" in code.data or b"num_items_in_batch" in code.data)


def _computes_with_cast(code: Code) -> bool:
    """Return True if code makes a tensor low and may compute what rounding spoils.

    The code casts the tensor or creates it in a low dtype, or a framework runs the code in a region.
    """
    data = code.data
    return (has_low_tensor(data) or has_region_option(data)) and has_rounded_math(data)


def _names_old_clip(code: Code) -> bool:
    """Return True if code names the deprecated ``clip_grad_norm``, whose new name ends in an underscore."""
    return re.search(rb"clip_grad_norm(?!\w)", code.data) is not None


def _has_suppression(code: Code) -> bool:
    """Return True if a comment may suppress a rule, or looks as if it did."""
    data = code.data
    if re.search(rb"amp(?:-check)?:\s*(?:ignor|noqa|disable|enable|[\w-]+\s*[\[(])", data) is not None:
        return True
    # A search without regard to case takes long.
    return b"noqa" in data.lower() and any(b"AMP" in codes for codes in re.findall(rb"(?i)noqa\s*:([^\n#]*)", data))


#: Needs of rules that require a closer search -> words that must occur, and the search.
CLOSER_SEARCHES: dict[str, tuple[tuple[bytes, ...], Callable[[Code], bool]]] = {
    "autocast": ((b"autocast",), lambda code: uses_autocast(code.data)),
    "scaler": ((b"cale",), lambda code: uses_scaler(code.data)),
    "clip_grad_norm": ((b"clip_grad",), _names_old_clip),
    "low average": ((b"half", b"float16"), lambda code: may_average_low_copy(code.data)),
    "low-precision math": ((b"half", b"float16", b"precision"), _computes_with_cast),
    "low-precision weights": ((b"parameters(", b"Trainer"), Code.may_cast_trained_module),
    # A mistake if any file of the project trains in float16.
    "large fill": ((*FILL_WORDS, ITEM_WRITE), lambda code: fills_large_number(code.data)),
    "skipped backward": ((BACKWARD_CALL,), _may_skip_backward),
    "loss of a Trainer": ((b"compute_loss(",), _defines_loss_of_trainer),
    "suppression": ((b"amp:", b"amp-check:", b"AMP"), _has_suppression),
}
#: Needs of rules in tests.
_WORDS_OF_TESTS = tuple(word for word in rules.WORDS if word != "low-precision math")
#: Needs of rules, each with words that must all occur.
WORDS_OF_NEED = {what: what.encode().split() for what in rules.WORDS if what not in CLOSER_SEARCHES}
#: Further words for the prescan: float16, Trainers, and names that connect this file with other files.
_PRESCAN_WORDS = (
    b"\0",
    b"half",
    b"float16",
    b"opt_level",
    b"precision",
    b"autocast",
    b"cale",
    b".step(",
    *_HOOK_WORDS,
    *_TRAINING_PART_WORDS,
)
#: All searched words, each once. Without one of them, the code gives no finding and no other prescan result.
SEARCHED_WORDS = tuple(
    dict.fromkeys(
        (
            *(word for words, _ in CLOSER_SEARCHES.values() for word in words),
            *(first for first, *_ in WORDS_OF_NEED.values()),
            *_PRESCAN_WORDS,
        )
    )
)
