"""Byte patterns for the prescan: a search in the bytes of code, so that most files need no parsing.

Parsing is most of the work, and few files of a project train. The search expects common spelling: names in ASCII, on
one line, and the bracket directly behind the name of a method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ...protocol import rules

#: A Lightning Trainer that trains in float16 with a scaler.
_LIGHTNING16 = rb"precision\s*=\s*[\"']?16(?!-true)"

#: A layer or a pretrained model created in low precision.
_LOW_DTYPE = (
    rb"(?:from_pretrained|nn\.[A-Z]\w*)\((?:[^()]|\([^()]*\)){0,300}?dtype\s*=\s*[\"']?(?:torch\.)?(?:half|b?float16)"
)
#: A pretrained model is loaded in a dtype that a variable or a dict names.
_NAMED_DTYPE = (
    rb"from_pretrained\((?:[^()]|\([^()]*\)){0,300}?dtype\s*=\s*(?!None\b)[A-Za-z_]|[\"']torch_dtype[\"']\s*[:\]]"
)
#: A dtype, or another attribute of torch, that a text names.
_DTYPE_BY_NAME = b"getattr(torch, "
#: A model is loaded in the dtype of its checkpoint.
_DTYPE_OF_CHECKPOINT = rb"dtype\s*=\s*[\"']auto[\"']"

_STEP = b".step("
_BACKWARD = b"backward("

#: An item of a checkpoint: ``state["optimizer"]``.
_CHECKPOINT_ITEM = rb"[\"'](\w*)[\"']\s*[\])](?!\s*=[^=])"
_LOAD_METHOD = b".load_state_dict"
_WORD_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
#: Beginnings of names that end in "backward" and run no backward: hooks, and what an autograd.Function keeps.
_NO_BACKWARD = frozenset({b"save_for_", b"on_before_", b"on_after_"})
#: Text before a call whose value the code uses.
_USES_VALUE = (b"=", b"(", b",", b"[", b"return")
_TYPE_TEST = b"isinstance("


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
        return (b"precision" in words or b"fp16" in data) and re.search(_FLOAT16_OPTION, data) is not None

    @property
    def has_lightning16(self) -> bool:
        """True if a Lightning Trainer in the code trains in float16."""
        if b"precision" not in self.words_found:
            return False
        data = self.data
        return b"'16-mixed" in data or b'"16-mixed' in data or re.search(_LIGHTNING16, data) is not None

    @property
    def computes_tensors(self) -> bool:
        """True if the code may compute with tensors."""
        return b"torch" in self.data and b"def " in self.data

    @property
    def chooses_model_dtype(self) -> bool:
        """True if the code lets its user choose a low dtype for the weights of a model."""
        # The words only save time: the search of a file for the pattern takes several times as long.
        return any(word in self.data for word in _MODEL_DTYPE_WORDS) and re.search(_MODEL_DTYPE, self.data) is not None

    @property
    def may_choose_float16(self) -> bool:
        """True if the code has such a choice other than a literal bfloat16."""
        return re.search(_MODEL_DTYPE_BUT_BFLOAT16, self.data) is not None

    @property
    def casts_weights(self) -> bool:
        """True if the code may store the weights of a model in a low dtype, also for a file that trains the model."""
        if self._casts_weights is None:
            self._casts_weights = casts_weights(self.data)
        return self._casts_weights

    @property
    def enters_in_forward(self) -> bool:
        """True if the code may define a model whose forward enters autocast, and does not choose whether."""
        return _enters_in_forward(self.data)

    @property
    def may_round_inputs(self) -> bool:
        """True if a definition in the code may compute what the low dtype of its inputs spoils."""
        return b"torch" in self.data and any(map(may_round_inputs, re.split(_START_OF_DEFINITION, self.data)))

    @property
    def casts_models(self) -> bool:
        """True if the code may cast a model to a low dtype, or to one that its users choose, for whatever use."""
        return self.casts_weights or _casts_to_choice(self.data)

    @property
    def optimizes_model(self) -> bool:
        """True if the code may make an optimizer for the parameters of a model."""
        return b"parameters(" in self.data and re.search(rb"optim(?!\w)", self.data) is not None

    @property
    def casts_model(self) -> bool:
        """True if the code casts a model to a low dtype."""
        return any(_casts_model(line) for _, line in _lines_of_words(_LOW_DTYPE_WORDS, self.data))

    @property
    def has_fragile_math(self) -> bool:
        """True if the code has an expression that low precision may spoil for any tensor of its arguments."""
        if b"torch" not in self.data:
            return False
        return any(_is_fragile(line, self.data) for _, line in _lines_of_words(_FRAGILE_WORDS, self.data))

    @property
    def multiplies_coordinates(self) -> bool:
        """True if a function may multiply matrices of coordinates, and use their digits."""
        data = self.data
        if b"torch" not in data or not any(word in data for word in _PRODUCT_WORDS):
            return False
        return any(
            re.search(_PRODUCT, function) is not None and re.search(_USE_OF_DIGITS, function) is not None
            for function in re.split(_START_OF_FUNCTION, data)
            if any(word in function for word in _PRODUCT_WORDS)
        )

    @property
    def may_resume(self) -> bool:
        """True if the code may load the state of an optimizer."""
        return b"load_state_dict" in self.data and _loads_optimizer_state(self.data)

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
        return _BACKWARD not in (first, *others) or self.runs_backward

    @property
    def runs_backward(self) -> bool:
        """True if the code may run backward. A definition or a hook alone runs nothing."""
        if self._runs_backward is None:
            self._runs_backward = any(map(_runs_backward, _lines_containing(_BACKWARD, self.data)))
        return self._runs_backward

    @property
    def does_training_step(self) -> bool:
        """True if the code may scale a loss, run backward or step an optimizer, so that another file does the rest."""
        bare = self.without_docstrings
        return (
            bare.has_rule_need("scaler")
            or bare.runs_backward
            or b"update_params(" in bare.data
            or _steps_optimizer(bare.data)
        )

    def may_cast_trained_module(self) -> bool:
        """Return True if the code may cast a module to a low-precision dtype and train the module."""
        data = self.data
        if b"Trainer" in self.words_found and b"-true" in data and b".fit(" in data:
            return True  # the precision of Lightning that stores parameters in a low dtype
        of_checkpoint = (b"'auto'" in data or b'"auto"' in data) and re.search(_DTYPE_OF_CHECKPOINT, data) is not None
        # A setting of another file may name the dtype.
        if self.words_found.isdisjoint((b"half", b"float16")) and not (of_checkpoint or _DTYPE_BY_NAME in data):
            return False
        from ...protocol.frameworks import HUGGING_FACE

        if b"Trainer" in self.words_found and HUGGING_FACE.encode() in data:
            trained = True
        else:
            trained = b"parameters(" in self.words_found and (
                (_STEP in self.words_found and _steps_optimizer(data)) or re.search(rb"optim(?!\w)", data) is not None
            )
        if not trained:
            return False
        if of_checkpoint or b".half(" in data or b".bfloat16(" in data or re.search(_LOW_DTYPE, data):
            return True
        if b"from_pretrained(" in data and re.search(_NAMED_DTYPE, data):
            return True
        return any(re.search(name + rb"\([^)]{0,200}?(?:half|float16|dtype)", data) for name in (rb"\.to", rb"\.type"))

    def class_names(self) -> set[bytes]:
        """Return the names of the classes that the code defines."""
        return {name for name, _ in _class_definitions(self.data)}

    def base_names(self) -> set[bytes]:
        """Return the last names of base classes, if a method of the subclasses may affect inherited code.

        Classes of the code itself and of torch are omitted: they inherit nothing from other files of the project.
        """
        hooks = self.words_found.intersection(_HOOK_WORDS)
        if hooks == {_STEP} and not _steps_optimizer(self.data):
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
        for cls, bases in _class_definitions(self.data):
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


#: Low precision without autocast: layers that cast their weights, another default dtype, an FSDP policy, and apex.
MANUAL_LOW_WORDS = (
    b".weight.t",
    b"set_default_tensor_type",
    b"set_default_dtype",
    b"MixedPrecision",
    b"amp.initialize",
)
#: Words of methods that may make a mistake in a class of another file.
_HOOK_WORDS = (b"clip_grad", b"backward(", b"autocast", b".step(", b"zero_grad")
#: Words of files that leave the training to another file and may still make a mistake.
_TRAINING_PART_WORDS = (b".state_dict(", b"clip_grad", b"training_step", _BACKWARD)
#: Words of all code that affects the protocol, or creates an object that does.
_PROTOCOL_WORDS = (
    b"autocast",
    b"caler",
    b".scale(",
    b"backward(",
    b"zero_grad",
    b"clip_grad",
    b".step(",
    b".save(",
    b"register_hook(",
    b"optim",
    b".state_dict(",
    b"parameters(",
)

#: A counter that is compared with the end of a window, as in ``i % self.every == 0``.
_COUNTS = rb"[\w)\]] ?% ?[\w.]{1,40}\)? ?(?:[=!]=|$)|\bnot [\w.]{1,40} ?% ?[\w.]"
#: The gradient of a parameter, but no call of ``torch.autograd.grad``.
_GRADIENT = rb"\.grad\b(?!\()"
#: Words of all classes that train.
_TRAINING_WORDS = (b"caler", b"backward(", b"zero_grad", b"unscale_", b"update_params")


def may_affect_importer(data: bytes) -> bool:
    """Return True if code may affect the protocol of a file that imports the code."""
    if any(word in data for word in _PROTOCOL_WORDS):
        return True
    if b".grad" in data and any(map(_uses_gradients, re.split(_START_OF_DEFINITION, data))):
        return True
    return b"%" in data and re.search(_COUNTS, data) is not None


def _uses_gradients(data: bytes) -> bool:
    """Return True if a definition uses gradients of parameters. An optimizer does so in its own step."""
    return b"def step(" not in data and re.search(_GRADIENT, data) is not None


def may_do_training(data: bytes) -> bool:
    """Return True if code may do a part of a training itself."""
    return any(word in data for word in _TRAINING_WORDS)


def _loads_optimizer_state(data: bytes) -> bool:
    """Return True if an optimizer loads a state, as in ``opts[0].load_state_dict``.

    An item of a checkpoint with an optimizer's name also counts.
    """
    if b"#" in data:
        # A pattern with a fixed first character is much faster than a pattern with a line anchor.
        data = re.sub(rb"\n[ \t]*#[^\n]*", b"", b"\n" + data)
        if _LOAD_METHOD not in data:
            return False
    for before in data.split(_LOAD_METHOD)[:-1]:
        name, item = before, b"]"
        if before.endswith(b"]"):
            name, _, item = before.rpartition(b"[")
        if b"\n" in item or item.find(b"]") < len(item) - 1:
            continue
        if b"opt" in name[len(name.rstrip(_WORD_BYTES)) :].lower():
            return True
    return b"optim" in data.lower() and any(b"optim" in name.lower() for name in re.findall(_CHECKPOINT_ITEM, data))


_QUOTES = b'"""'


def strip_docstrings(data: bytes) -> bytes:
    """Return code without triple-quoted strings. Return all code if the start of such a string is ambiguous."""
    if b"'''" in data:
        return data
    parts = data.split(_QUOTES)
    codes, strings = parts[::2], parts[1::2]
    if len(codes) == len(strings) or any(string.endswith(b"\\") for string in strings):
        return data
    for before in codes[:-1]:
        line = before[before.rfind(b"\n") + 1 :]
        if any(mark in line for mark in (b"#", b"'", b'"')):
            return data
    return b"''".join(codes) if strings else data


def _lines_containing(word: bytes, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the text of each line that contains a word.

    The byte search is much faster than a line loop.
    """
    if not data.endswith(b"\n"):
        data += b"\n"
    position = data.find(word)
    while position >= 0:
        start = data.rfind(b"\n", 0, position) + 1
        end = data.index(b"\n", position)
        yield start, data[start:end]
        position = data.find(word, end)


def _lines_with(word: bytes, data: bytes) -> Iterator[int]:
    """Yield the positions at which a word begins a line, after blanks."""
    for start, line in _lines_containing(word, data):
        code = line.lstrip(b" \t")
        if code.startswith(word):
            yield start + len(line) - len(code)


#: Text in brackets up to the first closing bracket, with at most three more opening brackets. The limit bounds the
#: search, because each opening bracket may be a start.
_IMPORT_LIST = rb"\([^()]*(?:\([^()]*){0,3}\)"
_IMPORT = rb"from[ \t]+([.\w]+)[ \t]+import[ \t]+(" + _IMPORT_LIST + rb"|[^\n#]*)|import[ \t]+([^\n#]*)"


def iterate_imports(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the imports of code: module, imported name ("" for the module itself), and local name."""
    for module, names in imports_from(data):
        for words in _split_import_list(names):
            yield module, words[0], words[-1]
    for _, modules in _match_imports(b"import", data):
        for words in _split_import_list(modules):
            yield words[0], b"", words[-1] if len(words) > 1 else words[0].partition(b".")[0]


def imports_from(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the modules of ``from`` imports, each with the text of the imported names."""
    return _match_imports(b"from", data)


def taken_names(names: bytes) -> list[bytes]:
    """Return the imported names in the text of a ``from`` import."""
    return [words[0] for words in _split_import_list(names)]


def _match_imports(word: bytes, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the imports that begin with a word: the module of a ``from`` import or "", and the text of the names."""
    match = re.compile(_IMPORT).match
    for position in _lines_with(word, data):
        found = match(data, position)
        if found is not None:
            module, names, modules = found.groups()
            yield module or b"", names or modules or b""


def _split_import_list(text: bytes) -> Iterator[list[bytes]]:
    """Yield the words of each part of an import, separated by commas."""
    for part in re.sub(rb"#[^\n]*", b"", text).strip(b"() ").split(b","):
        words = part.split()
        if words:
            yield words


_CLASS = rb"class\s+(\w+)\s*(" + _IMPORT_LIST + rb")?"


def _class_definitions(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the classes that code defines, each with the text of the bases."""
    for position in _lines_with(b"class", data):
        match = re.compile(_CLASS).match(data, position)
        if match is not None:
            yield match.group(1), (match.group(2) or b"")[1:-1]


def is_torch(module: bytes) -> bool:
    """Return True if a module is torch or a submodule of torch."""
    return module == b"torch" or module.startswith(b"torch.")


def is_class_without_base(data: bytes, name: bytes) -> bool:
    """Return True if code defines a class of a name that derives from nothing, and so is no module of torch.

    It may be a scheduler or a data set, which take part in other ways.
    """
    if b"class " + name not in data:
        return False
    bases = [bases.strip() for cls, bases in _class_definitions(data) if cls == name]
    return bool(bases) and all(each in (b"", b"object") for each in bases)


#: Functions of torch whose names end in "autocast" and that enter no region of the calling program.
_NO_REGION = (b"enter_autocast", b"exit_autocast", b"register_autocast")


def _uses_autocast(data: bytes) -> bool:
    """Return True if code calls, imports, stores or decorates with a name that ends in "autocast".

    A test whether an object is a region enters no region, and neither does an assignment to a name with a prefix.
    """
    previous = line_end = 0
    commented = False
    for match in re.finditer(rb"autocast(?![\w'\"])", data):
        start, end = match.span()
        if start >= line_end:
            previous = data.rfind(b"\n", line_end, start) + 1 or line_end
            line_end = data.find(b"\n", end) + 1 or len(data)
            commented = data[previous:end].lstrip().startswith(b"#")
        # Only from the previous occurrence on the same line, which keeps the search linear.
        before = data[previous:end]
        previous = start
        if commented or before.endswith(_NO_REGION):
            continue
        if data[end : end + 8].lstrip().startswith(b"("):
            return True
        _, is_tested, arguments = before.rpartition(_TYPE_TEST)
        if (is_tested and b")" not in arguments) or _is_assigned_flag(before, data[end : end + 8]):
            continue
        if re.search(rb"(?:^|[=(,.\[@:{*]|\b(?:with|return|import|if|else|or|and|in|from|yield))\s*\w*$", before):
            return True
    # Deprecated getters and setters for one device, AMP901.
    return re.search(rb"_autocast_(?:cpu|gpu)_\w+(?![\w'\"])", data) is not None


def _is_assigned_flag(before: bytes, after: bytes) -> bool:
    """Return True for the target of an assignment or a keyword such as ``enable_autocast=``, whose value may be a flag.

    The value, and each use of the name, are other occurrences.
    """
    after = after.lstrip(b" ")
    return before.endswith(b"_autocast") and after.startswith(b"=") and not after.startswith(b"==")


def _runs_backward(found: tuple[int, bytes]) -> bool:
    """Return True if a line, given with its position, may run backward.

    ``loss.backward()`` returns nothing: a function ``x_backward`` whose value is used computes a derivative.
    """
    _, line = found
    if line.lstrip().startswith(b"#"):
        return False
    for before in line.split(_BACKWARD)[:-1]:
        rest = before.rstrip(_WORD_BYTES)
        name = before[len(rest) :]
        if name in _NO_BACKWARD or rest.endswith(b"def "):
            continue
        receiver = rest.rstrip(_WORD_BYTES + b".")
        if not name or name == b"manual_" or not receiver.rstrip().endswith(_USES_VALUE):
            return True
    return False


def _steps_optimizer(data: bytes) -> bool:
    """Return True if code steps an object with any other name than a scheduler: pipelines for inference step those."""
    return not all(before.endswith(b"scheduler") for before in data.split(_STEP)[:-1])


#: Finite checks. A check that fails a test skips no batch.
_FINITE_WORDS = (b"isnan", b"isinf", b"isfinite")
_ASSERTIONS = (b"assert", b"self.assert")


def _may_skip_backward(code: Code) -> bool:
    """Return True if code may skip a backward by a finite check."""
    checks = (line for word in _FINITE_WORDS for _, line in _lines_containing(word, code.data))
    return not all(line.lstrip().startswith(_ASSERTIONS) for line in checks) and code.runs_backward


def _defines_loss_of_trainer(code: Code) -> bool:
    """Return True if a class may compute the loss of transformers' Trainer."""
    return b"def compute_loss(" in code.data and (b"Trainer" in code.data or b"num_items_in_batch" in code.data)


def _uses_scaler(data: bytes) -> bool:
    """Return True if code uses a scaler: a name that ends in "scaler", or a method that only a scaler has."""
    # The group is optional, so that the search visits each name only once.
    if b"caler" in data and any(re.findall(rb"caler\w*\s*([.(\[,)=:]|as\b)?", data)):
        return True
    return b".unscale_" in data or (b"backward(" in data and b".scale(" in data)


#: Numbers that may exceed float16: a large number, a power, or the limits of a wider type.
_LARGE = (
    rb"(?:[0-9._]*[0-9.][eE]\+?0*(?:[4-9]|[1-3][0-9])(?!\w)|[0-9][0-9_]{4,}(?![\w.])"
    rb"|[0-9]{2,}\s*\*\*\s*[0-9]|[0-9]\s*\*\*\s*[0-9]{2}|\w*\.?finfo\()"
)
_SIGN = rb"[-'\"(\s]*(?:float\([-'\"(\s]*)?"
#: The name of a constant, whose number may stand in another file.
_CONSTANT_NAME = rb"[A-Z][A-Z0-9_]{2,}"
#: An item that is set to such a number or to minus a constant.
_LARGE_ITEM = rb"\] = (?:-?" + _LARGE + rb"|-(?:\w+\.)*" + _CONSTANT_NAME + rb"\b)"
_FILL_FUNCTIONS = rb"masked_fill|index_fill|full_like|\.fill_\(|where\("
#: Each fill function contains one of these words.
_FILL_WORDS = (b"fill", b"where(", b"full_like")
#: Dtype of a model as an argument of a loader, a precision of Lightning that casts the model, an engine of DeepSpeed,
#: and a policy of FSDP2. A cast of a model is no sign, because most are for inference.
_MODEL_DTYPE = rb"torch_dtype\s*=|16-true[\"']|deepspeed\.initialize\(|MixedPrecisionPolicy\("
_MODEL_DTYPE_WORDS = (b"torch_dtype", b"16-true", b"deepspeed.", b"MixedPrecisionPolicy")
_MODEL_DTYPE_BUT_BFLOAT16 = _MODEL_DTYPE.replace(rb"\s*=", rb"\s*=(?!\s*torch\.bfloat16\b)").replace(
    rb"Policy\(", rb"Policy\((?![^\n]{0,80}param_dtype\s*=\s*torch\.bfloat16\b)"
)
#: An option of accelerate, Lightning or Transformers for regions in float16.
_FLOAT16_OPTION = rb"precision\s*=\s*[\"'](?:fp16|16-mixed|16)[\"']|\bfp16\s*=\s*True"
#: An option of accelerate or Lightning for regions in any low dtype.
_REGION_OPTION = rb"precision\s*=\s*(?:[\"'](?:b?fp?16|16)(?:-mixed)?[\"']|16\b)"
#: Words of which each line with a literal low dtype, or with a cast to one, has one.
_LOW_DTYPE_WORDS = (b"half", b"float16")
#: A cast to a low dtype.
_LOW_CAST_WORDS = (b".half()", b".bfloat16()", b"torch.float16", b"torch.bfloat16", b"torch.half")
_LOW_CAST = rb"\.(?:half\(\)|bfloat16\(\)|to\([^()\n]*torch\.(?:b?float16|half))"
#: A low dtype as the default of a parameter.
_LOW_DEFAULT = rb"dtype\w{0,20}(?:\s{0,4}:[^=,()\n]{1,60})?\s{0,4}=\s{0,4}torch\.(?:b?float16|half)\b"
#: A tensor that the code itself makes low: a cast, or a constructor with a low dtype.
_LOW_TENSOR = _LOW_CAST + rb"|(?<!\w)dtype\s*=\s*torch\.(?:b?float16|half)\b"
#: Calls and numbers that a low dtype spoils, beside this cast, and the start of a sum in a low dtype.
_ROUNDED_MATH = (
    rb"\b(?:arange|cumsum|topk|torch\.log|log_softmax|kl_div|rsqrt)\(|\.log\(\)"
    rb"|\de-(?:0?[89]|1\d)\b|zeros\([^\n]{0,80}dtype\s*=\s*(?:torch\.(?:b?float16|half)\b|[^\n]{0,60}dtype\b)"
)
#: Positions in the dtype of another tensor, and a number that float16 rounds to zero.
_ROUNDED_INPUTS = (
    rb"arange\([^\n]{0,200}(?:dtype\s*=\s*\w+\.dtype|\.(?:to|type_as)\()|\de-(?:0?[89]|1\d)\b"
    rb"|register_buffer\([^\n]{0,40}freq|\bexp\(self\.\w*log|zeros\([^\n]{0,80}dtype\s*=\s*[a-z_.]{0,40}dtype\b"
)
#: Largest definition, in bytes, that is followed only because it may round its inputs. Larger ones take long.
_LARGEST_ROUNDING = 6_000
#: Words of code that computes with tensors, and words of which each match of :data:`_ROUNDED_INPUTS` has one.
_TENSOR_WORDS = (b"torch", b"nn.", b"F.", b"forward(")
_ROUNDED_WORDS = (b"arange(", b"e-", b"freq", b"exp(self.", b"zeros(")
#: Functions of logits that keep their dtype, and words of code that makes float32 of it.
_LOG_WORDS = (b"log_softmax(", b"logsumexp(", b"kl_div(")
_WIDE_WORDS = (b".float()", b"float32")
#: A cast to a low dtype as a statement, and the assignment of a cast copy to the data of a parameter.
_CAST_STATEMENT = (
    rb"(?m)^[ \t]*[\w.]+(?:\[\w+\])?"
    + _LOW_CAST
    + rb"\)?[ \t]*(?:#.*)?$|\.data\s*=\s*[\w.]+"
    + _LOW_CAST
    # A part of a module, unless it is a tensor.
    + rb"|^[ \t]+self\.\w+ = (?!torch\.)[\w.]+[(\[][^\n]{0,160}\)"
    + _LOW_CAST
)
#: A policy of FSDP2 with a low compute dtype.
_LOW_POLICY = rb"MixedPrecisionPolicy\([^\n]{0,80}param_dtype\s*=\s*torch\.(?:b?float16|half)\b"
#: A line that enters autocast, and does not choose whether.
_REGION_LINE = rb"(?m)^[ \t]*(?:@|with[ \t]+)[\w.]*autocast\((?![^\n]*enabled)"
#: A low dtype that a function returns, that a table holds, or that is a constant.
_GIVEN_DTYPE = rb"(?m)(?:\breturn[ \t]+|[\"'\w)\]][ \t]*:[ \t]*|^[ \t]*\w+[ \t]*=[ \t]*)torch\.(?:b?float16|half)\b"
#: The data of a parameter, cast.
_WIDENED_PARAMETER = rb"(?<!\w)(\w{1,30})\.data = \1(?:\.data)?\.(?:float|to)\("
#: A return of something cast to a low dtype.
_RETURNED_CAST = rb"(?m)^[ \t]+return [^\n]{1,200}" + _LOW_CAST
#: The construction of an object with a low dtype.
_GIVEN_TO_CLASS = rb"\b[A-Z]\w*\([^\n]{0,200}\btorch\.b?float16\b"
#: The cast of a model to a dtype that a variable or a setting holds.
_CAST_TO_CHOICE = (
    rb"\b(?:model|module|self)\.to\((?:(?:device ?= ?)?[\w.\"']{1,40}, ?)?(?:dtype ?= ?)?[\w.]{0,60}dtype\b"
    # A cast as a statement of its own casts a module.
    rb"|(?m:^[ \t]*)[\w.]{1,60}\.to\([^()\n]{0,80}dtype\)[ \t]*(?m:$)"
)
#: Code before a cast of a model, or of the value that a model gets.
_CAST_OF_MODEL = rb"model\w*(?:\s*=.*\))?$"
#: Number of bytes before a cast in which the model stands.
_CAST_REACH = 200
#: A square: ``x * x``, ``x**2``, ``x.pow(2)`` or ``x.square()``.
_SQUARE = rb"(?:\b([\w.]+) ?\* ?\1\b|\*\* ?2\b|pow\([^()]*\b2\)|square\()"
#: Positions in the dtype of a buffer of frequencies.
_ROUNDED_POSITIONS = rb"(?:dtype\s*=\s*|type_as\(|\.to\()self\.\w*freq"
#: The second operand of a difference of log-probabilities.
_LOG_OPERAND = rb"[\w.(]*log_?p"
#: Text before a number that is assigned to items.
_ITEMS = b"] = "
#: Number of bytes that are searched for arguments without a closing bracket, or with too many brackets.
_ARGUMENT_REACH = 200
#: The name before an assigned number, with its annotation.
_ASSIGNED_NAME = rb"(\w+) *(?::[^=\n]*)?$"
#: Number of bytes before the equals sign in which the name stands.
_NAME_REACH = 100
#: Name of a call up to its bracket, and arguments with brackets up to two levels deep.
_NAME_AND_ARGUMENTS = rb"[^(]{0,40}(\((?:[^()#]|\((?:[^()#]|\([^()#]*\))*\)){0,400}\))"


def _fills_large_number(code: Code) -> bool:
    """Return True if code may fill a tensor with a number above float16, written directly or by a name."""
    data = code.data
    if _ITEMS in code.words_found and re.search(_LARGE_ITEM, data) is not None:
        return True
    if code.words_found.isdisjoint(_FILL_WORDS):
        return False
    names: set[bytes] = set()
    before = re.compile(_ASSIGNED_NAME)
    # The lookahead only saves time: most assignments fail there.
    for match in re.finditer(rb"= *(?=[-0-9.'\"(fnt])" + _SIGN + _LARGE, data):
        name = before.search(data, match.start() - _NAME_REACH, match.start())
        if name is not None:
            names.add(name.group(1))
    value = re.compile(rb"[,=(\n]" + _SIGN + rb"(?:(" + _LARGE + rb")|((?:\w+\.)*\w+))?")
    call = re.compile(_NAME_AND_ARGUMENTS)
    for named in re.finditer(_FILL_FUNCTIONS, data):
        position = named.start()
        found = call.match(data, position)
        text = found.group(1) if found is not None else data[position : position + _ARGUMENT_REACH]
        for number, dotted in value.findall(text):
            if number or not names.isdisjoint(dotted.split(b".")):
                return True
            if re.fullmatch(_CONSTANT_NAME, dotted.rpartition(b".")[2]):
                return True
    return False


def returns_cast(data: bytes) -> bool:
    """Return True if a function may return a model in a low dtype."""
    return any(word in data for word in _LOW_CAST_WORDS) and _has_low_line(_RETURNED_CAST, data)


def has_loss_math(data: bytes) -> bool:
    """Return True if code has an expression that low inputs spoil, and that a region would compute in float32."""
    lines = _lines_of_words((*_LOSS_WORDS, b"exp(", b" + ("), data) if b"torch" in data else ()
    return any(_computes_of_low_outputs(line) for _, line in lines)


def has_epsilons(data: bytes) -> bool:
    """Return True if code has a small number that float16 rounds to zero, where zero is no value."""
    lines = _lines_containing(b"1e-", data) if b"torch" in data else ()
    return any(re.search(_SMALL_NUMBER, line) for _, line in lines)


def fragile_lines(data: bytes, *, losses: bool = True, epsilons: bool = True) -> list[int]:
    """Return the numbers of the lines, from 1, with an expression that low precision may spoil for any tensor.

    ``losses`` and ``epsilons`` include those that matter without a region and in float16 alone.
    """
    numbers: list[int] = []
    number, counted = 1, 0
    for start in sorted(set(_iterate_fragile_lines(data, losses=losses, epsilons=epsilons))):
        number += data.count(b"\n", counted, start)
        counted = start
        numbers.append(number)
    return numbers


#: Text of a product of matrices, and words of uses that need its digits.
_PRODUCT = rb" @ |\b(?:b?mm|matmul|einsum|baddbmm|multi_dot|chain_matmul)\("
_PRODUCT_WORDS = (b" @ ", b"mm(", b"matmul(", b"einsum(", b"multi_dot(")
_START_OF_FUNCTION = rb"\n[ \t]*(?:async )?def "
_START_OF_DEFINITION = rb"\n(?=class |def )"
_SQUARED = rb"(?:\*\* ?2\b|\bpow\(|\bsquare\()"
_USE_OF_DIGITS = (
    rb"\b(?:arc|a)(?:cos|sin|tan2)\(|grid_sample\(|\b(?:p?inv|inverse|pinverse|solve|cholesky|svd|eigh|det)\(|\bcdist\("
    rb"|norm\([^\n]{0,200}(?:\bdim\b|\baxis\b|, ?-?\d)"
    rb"|\bsum\([^\n]{0,200}" + _SQUARED + rb"|" + _SQUARED + rb"[^\n]{0,200}\bsum\("
    rb"|(?<!math)(?<!np)\.(?:floor|round|ceil|trunc)_?\(|\bunbind\((?:dim=)?-1|\] ?/ "
    rb"|@[^@\n]*@[^@\n]*@|mm\([^\n]{0,80}mm\([^\n]{0,80}mm\("
)


def product_lines(data: bytes) -> list[int]:
    """Return the numbers of the lines, from 1, with a product of matrices."""
    return [number for number, line in enumerate(data.split(b"\n"), 1) if re.search(_PRODUCT, line) is not None]


#: Words of expressions that need more digits or more range than low precision has: a bound just below one, a table that
#: a method casts, a sum by index, levels of a noise schedule, integers of a sum, and areas of boxes.
_DIGIT_WORDS = (b"clamp", b"clip(", b".to(", b"scatter_", b"index_add", b"cumprod(", b"sum(", b") * (")
_LOST_DIGITS = (
    rb"cl(?:amp|ip)\w{0,8}\([^\n]{0,80}\b1(?:\.0?)? ?- ?\w{0,20}(?:\de-|eps)"
    rb"|self\.(\w{1,60}) = self\.\1\.to\([^\n]{0,80}dtype"
    rb"|\b(?:scatter_(?:add|reduce)|index_add)_?\(|\bcumprod\(|\bsum\([^\n]{0,60}\)\.(?:long\(|int\(|to\((?:torch\.)?(?:int|long))"
    rb"|\((\w{1,40}) - \w[^()\n]{0,40}\) \* \((?!\2 - )\w[^()\n]{0,40} - \w"
)
#: Functions of logits or embeddings that a region computes in float32, or that need its range.
_LOSS_WORDS = (b"log_softmax(", b"cross_entropy(", b"F.normalize(", b"functional.normalize(")
#: Words of fragile expressions. A fragile line has at least one of them.
_FRAGILE_WORDS = (
    b" - ",
    b"mean(",
    b"freq",
    b"softmax(",
    b"autocast(",
    b"exp(",
    b"Function)",
    b"register_buffer(",
    *_DIGIT_WORDS,
)
#: A number that float16 rounds to zero: as the default of a parameter, or beside a root, a logarithm or a division.
_SMALL_NUMBER = (
    rb"^[ \t]*def [^\n]{1,300}eps\w*(?:\s*:\s*float)?\s*=\s*1e-(?:0?[89]|1\d)\b"
    rb"|(?:sqrt|log)\([^\n]{1,80}\b1e-(?:0?[89]|1\d)\b| / [^\n]{1,80}\+ 1e-(?:0?[89]|1\d)\b"
    rb"|\+ 1e-(?:0?[89]|1\d)\)\.(?:sqrt|log|rsqrt)\("
)
#: A running mean: ``mean = mean + (x - mean) / n``.
_RUNNING_MEAN = rb"(?<![\w.])([\w.]{1,60}) = \1 \+ \([^\n]{1,80} - \1\)"
#: Words of small updates in place, as those of a moving average.
_UPDATE_WORDS = (b"lerp_(", b".mul_(", b"alpha=", b"momentum", b"decay")
_DECAYED_ATTRIBUTE = rb"self\.(\w+) = (?:[^\n]{1,60}\* ?self\.\1\b|self\.\1 ?\*)"
#: The name of a buffer. Its small updates: in place, by an expression with its old value, by a function of averages,
#: or under another name.
_BUFFER_NAME = rb"register_buffer\(\s*[\"'](\w+)[\"']"
_UPDATE = (
    rb"\.%(name)s(?:\.data)?"
    rb"(?:\.(?:lerp|mul|add|sub)_\(|\.copy_\([^#]{0,120}?(?:\*|lerp)| [-+*]= | = [^=]{0,160}?\.%(name)s\b)"
    rb"|(?i:ema|average|update|moving)\w{0,30}\((?:\w{1,30}\.){1,3}%(name)s\s*,"
    rb"|\b(\w{1,30}) = (?:\w{1,30}\.){1,3}%(name)s(?:\.data)?\n[^#]{0,400}?\b\1\.(?:lerp|mul|add|sub)_\("
)
#: Products that autocast computes in low precision, in the backward of a Function.
_PRODUCT_CALLS = (b"mm(", b"matmul(", b"linear(", b"einsum(", b" @ ", b"conv")
#: The difference of an exponential and one.
_EXP_COMPLEMENT = rb"(?<![\w.])1(?:\.0?)? ?- ?[^\n]{0,60}\bexp\(|\bexp\([^\n]{0,60}\) ?- ?1(?:\.0?)?(?![\w.])"
#: The exponential of a parameter that holds logarithms.
_EXP_OF_PARAMETER = rb"\bexp\(-?self\.\w*(?i:log)\w*\)"
#: A call that switches autocast off.
_SWITCHED_OFF = rb"autocast\([^)\n]{0,100}\bFalse\b"


def _iterate_fragile_lines(data: bytes, *, losses: bool, epsilons: bool) -> Iterator[int]:
    """Yield the positions of the lines with an expression that low precision may spoil for any tensor."""
    for start, line in sorted(set(_lines_of_words(_FRAGILE_WORDS, data))):
        if _is_fragile(line, data):
            yield start
    for start, line in sorted(set(_lines_of_words((*_LOSS_WORDS, b"exp(", b" + ("), data))) if losses else ():
        if _computes_of_low_outputs(line):
            yield start
    for start, line in _lines_containing(b"1e-", data) if epsilons else ():
        if re.search(_SMALL_NUMBER, line):
            yield start


def _lines_of_words(words: Iterable[bytes], data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the text of each line with one of some words, once for each such word."""
    return (found for word in words for found in _lines_containing(word, data))


def _is_fragile(line: bytes, data: bytes) -> bool:
    """Return True if a line may average squares, subtract squares or log-probabilities, or round ranked scores.

    A line that switches autocast off counts as well: it casts nothing.
    """
    if _rounds_scores(line) and b"topk(" in data:
        return True
    if any(word in line for word in _DIGIT_WORDS) and _loses_digits(line):
        return True
    if b"autocast(" in line and re.search(_SWITCHED_OFF, line):
        return True
    if b"exp(" in line and re.search(_EXP_COMPLEMENT, line):
        return True
    if b"mean(" in line and re.search(_SQUARE, line):
        return True
    if b"Function)" in line:
        return b"class " in line and (b"save_for_backward(" in data or any(word in data for word in _PRODUCT_CALLS))
    if b"register_buffer(" in line and _updates_slowly(line, data):
        return True
    if b"freq" in line and (b"register_buffer(" in line or re.search(_ROUNDED_POSITIONS, line)):
        return True
    before, dash, _ = line.partition(b" - ")
    if not dash:
        return False
    return (b"(" in before and re.search(_SQUARE, before) is not None) or (
        b"log" in before and any(re.match(_LOG_OPERAND, part) for part in line.split(b" - ")[1:])
    )


def _loses_digits(line: bytes) -> bool:
    """Return True if a line may need more digits or more range than low precision has."""
    return re.search(_LOST_DIGITS, line) is not None


def _computes_of_low_outputs(line: bytes) -> bool:
    """Return True if a line may compute a loss, a running mean or the exponential of a parameter."""
    if any(word in line for word in _LOSS_WORDS):
        return b".float()" not in line
    if b"exp(" in line and re.search(_EXP_OF_PARAMETER, line):
        return True
    return b" + (" in line and re.search(_RUNNING_MEAN, line) is not None


def _updates_slowly(line: bytes, data: bytes) -> bool:
    """Return True if code may change the buffer of a line in small steps, as a moving average."""
    if not any(word in data for word in _UPDATE_WORDS) and re.search(_DECAYED_ATTRIBUTE, data) is None:
        return False
    # The name may stand in the next line.
    ends_with_name = line.rstrip().endswith(b"register_buffer(")
    names = set(re.findall(_BUFFER_NAME, data if ends_with_name else line))
    return not names or any(re.search(_UPDATE % {b"name": re.escape(name)}, data) for name in names)


def _rounds_scores(line: bytes) -> bool:
    """Return True if a line may cast the result of a softmax."""
    return b"softmax(" in line and (b").to(" in line or b").type_as(" in line)


def _casts_model(line: bytes) -> bool:
    """Return True if a line casts a model to a low dtype: ``model.half()``, or ``model = Net().to(torch.half)``."""
    cast = re.search(_LOW_CAST, line) if b"model" in line else None
    return cast is not None and re.search(_CAST_OF_MODEL, line[: cast.start()][-_CAST_REACH:]) is not None


def casts_weights(data: bytes) -> bool:
    """Return True if code may store the weights of a model in a low dtype, compute with low copies, or replace them.

    A cast as a statement of its own casts a module: the method of a tensor returns another tensor.
    """
    if b"fully_shard(" in data:
        return True
    if not any(word in data for word in _LOW_CAST_WORDS):
        return False
    return (
        _has_low_line(_CAST_STATEMENT, data)
        or re.search(_LOW_DTYPE, data) is not None
        or (b"MixedPrecisionPolicy" in data and re.search(_LOW_POLICY, data) is not None)
        or any(_casts_model(line) for _, line in _lines_of_words(_LOW_DTYPE_WORDS, data))
    )


def gives_low_precision(data: bytes) -> bool:
    """Return True if a definition may give its user a low dtype, or a model that computes in a low dtype.

    A dtype is given by a return, by a table or by a constant. The weights of a model may be low, or its forward may
    enter autocast. A definition that casts the data of parameters to float32 takes low precision back.
    """
    if _enters_in_forward(data) or b"fully_shard(" in data:
        return True
    if b".data = " in data and b"requires_grad" in data and re.search(_WIDENED_PARAMETER, data) is not None:
        return True
    if (b"'auto'" in data or b'"auto"' in data) and re.search(_DTYPE_OF_CHECKPOINT, data) is not None:
        return True
    # A variable, a setting or the caller names the dtype.
    if b"dtype" in data and (re.search(_NAMED_DTYPE, data) is not None or _casts_to_choice(data)):
        return True
    if not any(word in data for word in _LOW_CAST_WORDS):
        return False
    return _has_low_line(_GIVEN_DTYPE, data) or casts_weights(data) or _returns_cast(data)


def may_round_inputs(data: bytes) -> bool:
    """Return True if a definition may compute what the low dtype of its inputs spoils.

    Positions take the dtype of another tensor, a small number bounds a divisor, a fill is beyond float16, scores
    are cast before they are ranked, or log-probabilities have the dtype of the logits.
    """
    if len(data) > _LARGEST_ROUNDING:
        return False
    if any(word in data for word in _LOG_WORDS) and not any(word in data for word in _WIDE_WORDS):
        return True
    if not any(word in data for word in _TENSOR_WORDS):
        return False
    if any(word in data for word in _ROUNDED_WORDS) and re.search(_ROUNDED_INPUTS, data) is not None:
        return True
    if any(_loses_digits(line) for _, line in _lines_of_words(_DIGIT_WORDS, data)):
        return True
    if b"topk(" in data and any(_rounds_scores(line) for _, line in _lines_containing(b"softmax(", data)):
        return True
    return any(word in data for word in (*_FILL_WORDS, _ITEMS)) and _fills_large_number(Code(data))


def _has_line(pattern: bytes, words: Iterable[bytes], data: bytes) -> bool:
    """Return True if a line with one of some words matches a pattern.

    A byte search for the words and a search of these lines take a tenth of the time of a search of all code.
    """
    lines = b"\n".join([line for _, line in _lines_of_words(words, data)])
    return bool(lines) and re.search(pattern, lines) is not None


def _has_low_line(pattern: bytes, data: bytes) -> bool:
    """Return True if a line that names a low dtype matches a pattern."""
    return _has_line(pattern, _LOW_DTYPE_WORDS, data)


def _casts_to_choice(data: bytes) -> bool:
    """Return True if code casts a model to a dtype that a variable or a setting holds."""
    return _has_line(_CAST_TO_CHOICE, (b".to(",), data)


def gives_dtype(data: bytes) -> bool:
    """Return True if code constructs an object with a low dtype, which may be a trainer of another file."""
    return b"float16" in data and _has_low_line(_GIVEN_TO_CLASS, data)


def makes_values_low(data: bytes) -> bool:
    """Return True if code enters autocast, casts to a low dtype, or lets a framework run a model in low precision."""
    if b"autocast" in data or b"MixedPrecision" in data or b"deepspeed.initialize(" in data:
        return True
    if _has_low_line(_LOW_TENSOR, data):
        return True
    return b"precision" in data and re.search(_REGION_OPTION, data) is not None


def _enters_in_forward(data: bytes) -> bool:
    return b"def forward" in data and b"autocast(" in data and re.search(_REGION_LINE, data) is not None


def _returns_cast(data: bytes) -> bool:
    """Return True if a definition casts what it returns, under the same name: ``net = net.half()``, ``return net``."""
    replaced: set[bytes] = set()
    for word in (b".half()", b".bfloat16()"):
        for _, line in _lines_containing(word, data):
            match line.partition(word)[0].replace(b"=", b" = ").split():
                case [b"return", _]:
                    return True
                case [target, b"=", name] if target == name:
                    replaced.add(name)
    returned = b" ".join(line for _, line in _lines_containing(b"return", data)) if replaced else b""
    return not replaced.isdisjoint(re.findall(rb"\w+", returned))


def _casts_copy(line: bytes) -> bool:
    """Return True if a line may cast an attribute or a copy to a low dtype."""
    is_copied = b"self." in line or b"deepcopy(" in line or b"clone()" in line
    return is_copied and re.search(_LOW_CAST, line) is not None


def _may_average_low_copy(data: bytes) -> bool:
    """Return True if a class may keep an average in a low dtype: of weights, or in the state of an optimizer."""
    if b"param_groups" in data and b"zeros" in data and _has_low_line(_LOW_TENSOR, data):
        return True
    if not (b"deepcopy" in data or b"clone" in data) or b"self." not in data:
        return False
    decays = b"lerp" in data or b"mul_" in data or b"*=" in data or b"decay" in data
    if not decays:
        return False
    if any(_casts_copy(line) for word in _LOW_CAST_WORDS for _, line in _lines_containing(word, data)):
        return True
    casts = [line for _, line in _lines_containing(b".to(", data) if b"dtype" in line]
    return any(b"deepcopy(" in line or b"clone()" in line for line in casts) and bool(re.search(_LOW_DEFAULT, data))


def _computes_with_cast(code: Code) -> bool:
    """Return True if code makes a tensor low and may compute what rounding spoils.

    The code casts the tensor or creates it in a low dtype, or a framework runs the code in a region.
    """
    data = code.data
    is_low = _has_low_line(_LOW_TENSOR, data) or (
        b"precision" in code.words_found and re.search(_REGION_OPTION, data) is not None
    )
    return is_low and re.search(_ROUNDED_MATH, data) is not None


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
    "autocast": ((b"autocast",), lambda code: _uses_autocast(code.data)),
    "scaler": ((b"cale",), lambda code: _uses_scaler(code.data)),
    "clip_grad_norm": ((b"clip_grad",), _names_old_clip),
    "low average": ((b"half", b"float16"), lambda code: _may_average_low_copy(code.data)),
    "low-precision math": ((b"half", b"float16", b"precision"), _computes_with_cast),
    "low-precision weights": ((b"parameters(", b"Trainer"), Code.may_cast_trained_module),
    # A mistake if any file of the project trains in float16.
    "large fill": ((*_FILL_WORDS, _ITEMS), _fills_large_number),
    "skipped backward": ((_BACKWARD,), _may_skip_backward),
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
