"""Relevance of functions: most functions of a file can neither make nor contribute to a mistake.

A function is tested by the used names, and by the names in the functions that these names refer to, so one pass is
enough.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ...protocol import frameworks, kernels
from ...protocol.frameworks import FRAMEWORKS
from ...protocol.sites import is_test_file
from ..sources.patterns.lines import strip_docstrings
from .assignments import assigned_pairs
from .module import Class, Function, Module
from .region_entry import POLICIES
from .syntax import root_name, tail_name, walk
from .syntax_marks import AVERAGING, COUNTING, FILLING, LARGE_NUMBER, SCALING, SMALL_NUMBER, is_constant_name

#: Classes that train the model they receive, and names by which the model may have been created in low precision.
TRAINERS = FRAMEWORKS[frameworks.HUGGING_FACE].relevant_names
LOW_DTYPE_NAMES = frozenset({"half", "bfloat16", "float16", *frameworks.LOW_VALUES})
#: Identifiers that make a function worth inlining at a call. A function without any of these, and without the name of a
#: function that uses one, does nothing in the protocol.
RELEVANT_NAMES = frozenset(
    "autocast fp8_autocast GradScaler ShardedGradScaler scaler unscale_ backward grad step zero_grad update scale "
    "get_scale "
    "clip_grad_norm_ clip_grad_norm clip_grad_value_ clip_grads_with_norm_ get_total_norm state_dict load_state_dict "
    "save torch_dtype "
    "half bfloat16 float16 param_groups optim Adam AdamW SGD nullcontext ExitStack enter_context no_sync partial "
    "binary_cross_entropy BCELoss cross_entropy CrossEntropyLoss mse_loss MSELoss l1_loss nll_loss masked_fill "
    "masked_fill_ clear_autocast_cache parameters no_grad yield FullyShardedDataParallel fully_shard "
    "register_comm_hook "
    "register_ddp_comm_hook make_graphed_callables Thread ThreadPool ThreadPoolExecutor".split()
).union(frameworks.RELEVANT_NAMES, {FILLING, AVERAGING})
#: Identifiers worth inlining in a file that does not train: functions that may enter a region, and losses that must not
#: run in a region.
CONTEXT_NAMES = frozenset(
    ("autocast", "binary_cross_entropy", "BCELoss", "masked_fill", "masked_fill_", FILLING, AVERAGING)
)
#: Identifiers of training code: each file that trains has at least one.
TRAINING_NAMES = frameworks.BACKWARD_METHODS | {
    "GradScaler",
    "ShardedGradScaler",
    "backward",
    "unscale_",
    "zero_grad",
}
#: Names of loss functions in a forward that computes the loss itself.
LOSSES = frozenset(
    "binary_cross_entropy BCELoss cross_entropy CrossEntropyLoss mse_loss MSELoss l1_loss nll_loss".split()
)
#: Losses that must not run in a function that a framework runs under autocast.
BANNED_LOSSES = frozenset({"binary_cross_entropy", "BCELoss"})

#: Identifiers of files that leave the training to another file.
TRAINS_ELSEWHERE = frozenset({"clip_grad_norm_", "clip_grad_value_", "training_step"})
#: Text of files that save or load the state of an optimizer or a scaler, not only of models.
_STATE_OF_TRAINING = re.compile(
    rb"optim(?!iz(?:ed|ation|e)\b)|\bopt(?!ion|im)|_opt\b|scaler|trainer|learner", re.IGNORECASE
)

#: Pattern for the name of an optimizer, of several optimizers, or of a scaler.
_OWNER_NAME = re.compile(r"optim(?!iz(?:ed|ation|e)(?![a-z]))|(?<![a-z])opts?(?![a-z])|scaler", re.IGNORECASE)

#: Functions and methods that clip gradients.
CLIP_FUNCTIONS = frozenset({"clip_grad_norm_", "clip_grad_value_"})

#: Identifiers of code that low precision may spoil. A small constant or a buffer may come from another part of the
#: file.
FRAGILE_NAMES = frozenset(
    "autocast normalize topk softmax log log2 log10 log1p var std var_mean std_mean square arange numpy index_add_ "
    "index_copy_ scatter_ scatter_add_ index_add masked_scatter_ index_put_ addmm_ baddbmm_ addbmm_ addmv_ scatter_add "
    "scatter_reduce scatter_reduce_ scatter scatter_sum scatter_mean segment_csr global_add_pool cumprod cumsum lerp "
    "lerp_ sin cos".split()
).union(kernels.NAMES, kernels.ATTENTION, {SCALING, AVERAGING})

#: Functions that autocast computes in float32, and that keep the dtype of the logits elsewhere. The mean of small
#: differences, such as ``mse_loss``, loses less.
LOSSES_OF_LOGITS = frozenset(
    "cross_entropy nll_loss kl_div binary_cross_entropy_with_logits log_softmax logsigmoid logsumexp".split()
)
#: Functions that a file which trains nothing calls with logits or parameters of any dtype.
_LOG_FUNCTIONS = frozenset(("log_softmax", "logsumexp", "kl_div", "exp"))
#: These functions, and modules that call them.
_LOG_PROBABILITIES = LOSSES_OF_LOGITS.union(
    "CrossEntropyLoss NLLLoss KLDivLoss BCEWithLogitsLoss LogSoftmax LogSigmoid".split()
)

#: Identifiers of code that a low dtype spoils, beside a cast to it in the same file. A sum may start from zeros.
ROUNDED_NAMES = (FRAGILE_NAMES - {"autocast"}) | _LOG_PROBABILITIES | {"exp", "norm", "vector_norm", "get_total_norm"}
_ZERO_NAMES = frozenset({"zeros", "new_zeros", "zeros_like"})

#: Frameworks whose scalers, optimizers and losses have the same names as in torch.
OTHER_FRAMEWORKS = frozenset({"paddle", "mindspore", "oneflow", "jittor", "tensorflow", "jax", "mxnet"})
#: Identifiers of code that makes a loss scale, which checkpoints need: torch's scalers, and apex' context of a loss.
_SCALING_NAMES = frozenset({"GradScaler", "ShardedGradScaler", "scale_loss"})
#: Calls that replace the parameters of a model by shards.
_SHARDS = ("fully_shard", "FullyShardedDataParallel")
#: Identifiers of a function that writes a checkpoint of its arguments.
_SAVING_NAMES = frozenset({"save", "state_dict"})
#: Identifiers of a method that registers a buffer of positions.
_POSITION_NAMES = frozenset({"arange", "register_buffer"})
#: Identifiers of a constructor that starts sums at zero.
_SUM_NAMES = frozenset({"zeros"})
#: Identifiers of a method that computes the levels of a noise schedule.
_SCHEDULE_NAMES = frozenset({"cumprod"})
#: Identifiers of a constructor that keeps a buffer for counts or sums.
_COUNT_NAMES = frozenset({"register_buffer", "zeros"})

# Actions of a function, as bits.
_AMP, _BACKWARD, _STEP, _COUNTS, _OLD, _FILLS, _LARGE, _CASTS, _TRAINER, _STATE = (1 << n for n in range(10))
_TRAINING_STEP = _BACKWARD | _STEP
# Use of a name that may be relevant in another file; save or load of a state; name of an optimizer or a scaler.
_OTHER_FILE, _TAKES, _OWNER = (1 << n for n in range(10, 13))
# Computation that the low dtype of a cast spoils; use of a dtype that a setting names; start of a sum.
_ROUNDS, _CHOOSES, _ZEROS = (1 << n for n in range(13, 16))
_BITS = {
    **dict.fromkeys(ROUNDED_NAMES, _ROUNDS),
    **dict.fromkeys(_ZERO_NAMES, _ZEROS),
    **dict.fromkeys(("autocast", "fp8_autocast"), _AMP),
    "GradScaler": _AMP,
    "ShardedGradScaler": _AMP,
    "unscale_": _AMP,
    "fp16_compress_hook": _AMP,
    **dict.fromkeys(("MixedPrecision", "MixedPrecisionPolicy"), _AMP),
    "fp16_compress_wrapper": _AMP,
    "FP16_COMPRESS": _AMP,
    "backward": _BACKWARD,
    "step": _STEP,
    COUNTING: _COUNTS,
    LARGE_NUMBER: _LARGE,
    FILLING: _FILLS,
    SMALL_NUMBER: _ROUNDS,
    **dict.fromkeys(("masked_fill", "masked_fill_", "index_fill", "full_like", "where"), _FILLS),
    # Sharding replaces the parameters, as a cast replaces their values.
    **dict.fromkeys((*LOW_DTYPE_NAMES, *_SHARDS), _CASTS),
    **dict.fromkeys(TRAINERS, _TRAINER),
    **dict.fromkeys(("custom_fwd", "custom_bwd", "clip_grad_norm"), _OLD),
    **dict.fromkeys(
        (f"{way}_autocast_cpu_{what}" for way in ("set", "get", "is") for what in ("enabled", "dtype")), _OLD
    ),
    **dict.fromkeys(("get_autocast_gpu_dtype", "set_autocast_gpu_dtype"), _OLD),
}


def _may_violate(bits: int) -> bool:
    """Return True if a function with these action bits may make a mistake by itself."""
    accumulates = _BACKWARD | _STEP | _COUNTS
    if bits & _OTHER_FILE and bits & (_BACKWARD | _STEP):
        # The other file may do the rest of the training.
        bits |= _BACKWARD | _STEP
    return bool(
        bits & (_AMP | _OLD | _STATE)
        or bits & accumulates == accumulates
        or bits & (_FILLS | _LARGE) == _FILLS | _LARGE
        or (bits & (_CASTS | _CHOOSES) and bits & (_STEP | _TRAINER))
        or _computes_low(bits)
    )


def _computes_low(bits: int) -> bool:
    """Return True if a function with these action bits casts values to a low dtype, and may lose their digits."""
    sums = _ZEROS | _COUNTS
    return bool(bits & _CASTS and (bits & _ROUNDS or bits & sums == sums))


def may_train(module: Module) -> bool:
    """Return True if a file may train, by its own code or through imports."""
    return _trains_itself(module) or _does_part_of_training(module)


def base_names(module: Module) -> frozenset[str]:
    """Return the names of base classes in a file, or of the modules that contain the base classes.

    Training may be inherited from a base class.
    """
    return frozenset(root_name(base) for cls in module.classes.values() for base in cls.bases)


def _does_part_of_training(module: Module) -> bool:
    """Return True if a file does a part of a training, and other files may do the rest."""
    if not module.identifiers.isdisjoint(TRAINS_ELSEWHERE) or "optim" in module.identifiers:
        return True
    if any(map(_names_scaler, module.identifiers)):
        return True
    if "state_dict" not in module.identifiers:
        return False
    return _STATE_OF_TRAINING.search(strip_docstrings(module.text.encode())) is not None


#: A region whose dtype a name holds.
_REGION_DTYPE = re.compile(r"autocast\([^\n]{0,80}\bdtype ?= ?[\w.]{0,60}dtype\b")


def _names_dtype_of_region(module: Module) -> bool:
    return "autocast" in module.identifiers and _REGION_DTYPE.search(module.text) is not None


def _trains_itself(module: Module) -> bool:
    named = module.identifiers
    if named & TRAINING_NAMES or "scaler" in module.role_by_text.values():
        return True
    return not named.isdisjoint(TRAINERS) and not named.isdisjoint(LOW_DTYPE_NAMES)


def mark_relevant(
    module: Module,
    foreign: frozenset[str],
    casting: frozenset[str] = frozenset(),
    rounding: frozenset[str] = frozenset(),
) -> None:
    """Mark the functions of a module that are entry points (``is_entry_point``), and restrict their relevant names.

    ``used_names`` keeps names that are relevant to a file that trains, ``context_names`` names for other files.
    ``foreign`` are the local names of relevant objects from other files, ``casting`` those that may cast a model,
    and ``rounding`` those that may compute what the low dtype of their inputs spoils.
    """
    if is_of_another_framework(module):
        return
    # If the file trains neither itself nor through its imports, the foreign names are base classes with a training.
    trains = module.may_train = _trains_itself(module) or bool(foreign)
    bits = _bits_by_name(module, foreign)
    bits.update((name, bits.get(name, 0) | _ROUNDS) for name in rounding)
    plain_bits = dict(bits)
    # A function of another file may store the model in a low dtype, or shard it with a low policy.
    lows = bool(casting) or not module.identifiers.isdisjoint(LOW_DTYPE_NAMES | POLICIES | {frameworks.DEEP_SPEED})
    # A file that trains nothing is followed for what it computes of the values of another file.
    lows = lows or not (_trains_itself(module) or module.identifiers.isdisjoint(_LOG_FUNCTIONS))
    is_test = is_test_file(module.path)
    if is_test:
        # A test chooses the dtype of its own inputs.
        bits = {name: does & ~(_ROUNDS | _ZEROS) for name, does in bits.items()}
        plain_bits = dict(bits)
    elif lows or "getattr(torch, " in module.text or _names_dtype_of_region(module):
        # A default of a parameter, of a class or of the module may be low, and the dtype of a region is.
        bits.update(
            (name, bits.get(name, 0) | _CHOOSES) for name in module.identifiers if name.lower().endswith("dtype")
        )
    for name in casting:
        bits[name] = bits.get(name, 0) | _CASTS
    small = SMALL_NUMBER in module.identifiers
    fragile = FRAGILE_NAMES | ROUNDED_NAMES | _ZERO_NAMES if lows else FRAGILE_NAMES
    module.may_lose_precision = small or bool(rounding) or not fragile.isdisjoint(module.identifiers)
    # The number of a constant may stand in another file.
    named = LARGE_NUMBER in module.used_names or any(map(is_constant_name, module.imports))
    everywhere = _LARGE if named else 0
    # Without training, a region is relevant to the function that enters it, not to all callers.
    used = _names_by_callee(module)
    rounds = {name: does & (_ROUNDS | _ZEROS) for name, does in bits.items() if does & (_ROUNDS | _ZEROS)}
    found = _bits_by_callee(used, bits if trains else rounds) if trains or lows else {}
    # Other methods of a class compute with the buffers of the class.
    # The file that trains may give the sums of a class the dtype of its tensors.
    kept = (_POSITION_NAMES, _SCHEDULE_NAMES, *([_COUNT_NAMES] if lows else []), *([_SUM_NAMES] if not trains else []))
    keeping = {
        function.cls
        for function in module.functions.values()
        if function.cls is not None and any(function.used_names >= names for names in kept)
    }
    # The number may stand in the body of the class, or in its constructor.
    with_large_number = {cls for cls in module.classes.values() if _keeps_large_number(cls)}

    def bits_of(function: Function, by_name: dict[str, int], by_callee: dict[str, int]) -> int:
        names = function.used_names
        kept = everywhere | (_LARGE if function.cls in with_large_number else 0)
        own = _own_bits(names, by_name)
        if own & (_OTHER_FILE | _TRAINING_STEP) == _OTHER_FILE | _TRAINING_STEP:
            # A loop that trains with an object of another file, which may hold the scaler.
            kept |= _AMP
        return kept | _add_called_bits(own, _combine_bits(names, by_callee))

    does = {function: bits_of(function, bits, found) for function in module.functions.values()}
    plain_found = _bits_by_callee(used, plain_bits) if trains and plain_bits != bits else found

    def violates_without_casts(function: Function) -> bool:
        return _may_violate(bits_of(function, plain_bits, plain_found))

    losses = LOSSES | _users_of(used, LOSSES) if trains or module.may_lose_precision else LOSSES
    # One method may do without the scaler the work that another method does with the scaler.
    scaling = {function.cls for function in does if trains and function.cls is not None and does[function] & _AMP}
    if is_test:
        # Each test has an instance of its own: the methods share only what the class keeps in attributes.
        amp = {name for name, actions in (*bits.items(), *found.items()) if actions & _AMP}
        scaling = {cls for cls in scaling if _may_keep(cls, amp, foreign)}
    # One method may make the model and the optimizer with which another method trains.
    casting_methods = {
        method
        for cls in module.classes.values()
        for method in cls.methods.values()
        if does.get(method, 0) & (_CASTS | _CHOOSES)
        and (method.name == "__init__" or does[method] & _OTHER_FILE or _uses_parameters(method, cls))
    }
    cast_and_train = {
        method.cls for method in casting_methods if method.cls is not None and _has_training_step(method.cls, does)
    }
    # A file that trains nothing passes its optimizer to other files that train and save.
    connects = not _trains_itself(module)
    for function in module.functions.values():
        connecting = bool(does[function] & _OTHER_FILE) and (
            (connects and "optim" in function.used_names) or _passes_scaler(function, foreign)
        )
        part = does[function] & (_BACKWARD | _STEP | _OTHER_FILE) or not function.used_names.isdisjoint(CLIP_FUNCTIONS)
        function.is_entry_point = (
            _may_violate(does[function]) or connecting or _is_run_by_a_trainer(module, function, does[function])
        )
        shares_scaler = function.cls in scaling and bool(part)
        function.has_scaler_siblings = shares_scaler or (
            function.cls in cast_and_train
            and (
                function in casting_methods
                or bool(does[function] & _TRAINING_STEP)
                or function.name == "configure_optimizers"
            )
        )
        function.is_weight_entry_point = (function.is_entry_point or function.has_scaler_siblings) and not (
            connecting
            or shares_scaler
            or violates_without_casts(function)
            or _is_run_by_a_trainer(module, function, does[function])
        )
        function.may_compute_loss = not losses.isdisjoint(function.used_names)
        function.may_save_checkpoint = function.used_names >= _SAVING_NAMES
        function.may_lose_precision = (
            small
            or not fragile.isdisjoint(function.used_names)
            or function.cls in keeping
            or (module.may_lose_precision and _makes_integers(function.used_names))
        )
    amp = {word for word, does in bits.items() if does & (_AMP | _OLD)}
    words, contexts = RELEVANT_NAMES | amp | foreign | casting, CONTEXT_NAMES | amp
    _restrict_names(module, words | _users_of(used, words), contexts | _users_of(used, contexts))


def _makes_integers(names: frozenset[str] | set[str]) -> bool:
    """Return True if a function may make integers of a sum."""
    return "sum" in names and not names.isdisjoint(("long", "int64", "int", "int32"))


def _has_training_step(cls: Class, does: dict[Function, int]) -> bool:
    """Return True if methods of a class do a training step together, or make the optimizer for the one of Lightning."""
    parts = 0
    for method in cls.methods.values():
        parts |= does[method]
    return parts & _TRAINING_STEP == _TRAINING_STEP or "configure_optimizers" in cls.methods


def _uses_parameters(method: Function, cls: Class) -> bool:
    """Return True if a method, or a method of its class that it calls, asks for the parameters of a model."""
    called = (cls.methods[name] for name in method.attributes_used() & cls.methods.keys())
    return any("parameters" in each.used_names for each in (method, *called))


def _names_scaler(name: str) -> bool:
    return name == "scaler" or name.endswith("_scaler")


def _passes_scaler(function: Function, foreign: frozenset[str]) -> bool:
    """Return True if a function passes a scaler to functions of other files, which do parts of its training."""
    return any(
        isinstance(node, ast.Call)
        and not foreign.isdisjoint((tail_name(node.func), root_name(node.func)))
        and any(_names_scaler(tail_name(given)) for given in (*node.args, *(k.value for k in node.keywords)))
        for node in function.nodes
    )


def _keeps_large_number(cls: Class) -> bool:
    """Return True if the body or the constructor of a class has a large number, which a method may use."""
    init = cls.methods.get("__init__")
    return LARGE_NUMBER in cls.used_names or (init is not None and LARGE_NUMBER in init.used_names)


def _may_keep(cls: Class, names: set[str], foreign: frozenset[str]) -> bool:
    """Return True if an attribute of a class may hold what one of some names returns, or if a base class may do so.

    A scaler that other code stores there is used by its attribute.
    """
    if cls.is_open or any(root_name(base) in foreign for base in cls.bases):
        return True
    if any("." in text and (role == "scaler" or role in FRAMEWORKS) for text, role in cls.module.role_by_text.items()):
        return True
    values = [value for pairs in cls.assignments.values() for _, value in pairs]
    values += [value for statement in cls.node.body for _, value in assigned_pairs(statement)]
    return any(tail_name(node) in names for value in values for node in walk(value))


def is_of_another_framework(module: Module) -> bool:
    """Return True if a file trains with a framework whose calls have the same names as torch's, and not with torch."""
    roots = {imported.module.partition(".")[0] for imported in module.imports.values() if not imported.level}
    return "torch" not in roots and not OTHER_FRAMEWORKS.isdisjoint(roots)


def _bits_by_name(module: Module, foreign: frozenset[str]) -> dict[str, int]:
    """Return the action bits for the use of each name in this file."""
    bits = dict(_BITS)
    scalers = {text.rpartition(".")[2] for text, role in module.role_by_text.items() if role == "scaler"}
    engines = {text.rpartition(".")[2] for text, role in module.role_by_text.items() if role in FRAMEWORKS}
    bits.update(dict.fromkeys(scalers | engines | frameworks.ENTRY_NAMES, _AMP))
    # Trainers of trl, and subclasses of Trainers, are named like them.
    bits.update(dict.fromkeys((name for name in module.identifiers if name.endswith("Trainer")), _TRAINER))
    if frameworks.DEEP_SPEED in module.identifiers:
        bits["initialize"] = _AMP
    if "FullyShardedDataParallel" in module.identifiers:
        bits["clip_grad_norm_"] = _AMP
    if module.may_train:
        bits = dict.fromkeys(foreign, _OTHER_FILE) | bits
    if foreign and module.identifiers >= {"backward", "step"}:
        # The object of another file may hold the scaler of this training.
        bits.update((name, _AMP) for name in filter(_names_scaler, module.identifiers))
    if scalers or not module.identifiers.isdisjoint(_SCALING_NAMES):
        bits["state_dict"] = bits["load_state_dict"] = _STATE
    elif foreign:
        bits["state_dict"] = bits["load_state_dict"] = _TAKES
        owners = {text.rpartition(".")[2] for text, role in module.role_by_text.items() if role == "optimizer"}
        for word in owners.union(filter(_OWNER_NAME.search, module.identifiers)):
            bits[word] = bits.get(word, 0) | _OWNER
    return bits


def _restrict_names(module: Module, words: frozenset[str], contexts: frozenset[str]) -> None:
    """Restrict the names of each function and class to relevant names; a class also has the names of all methods."""
    for function in module.functions.values():
        names = function.used_names
        function.used_names, function.context_names = names & words, names & contexts
    for cls in module.classes.values():
        names = cls.used_names
        cls.used_names = (names & words).union(*(m.used_names for m in cls.methods.values()))
        cls.context_names = (names & contexts).union(*(m.context_names for m in cls.methods.values()))


def _is_run_by_a_trainer(module: Module, function: Function, does: int) -> bool:
    """Return True if a Trainer runs the function and the function may make a mistake by itself.

    Such functions are steps of a LightningModule that may compute a banned loss, divide the returned loss or optimize
    manually. Others are the Lightning hook on gradients that are still scaled, and Hugging Face's loss function, which
    receives the model and may cast.
    """
    if function.cls is not None and function.name == "compute_loss" and does & _CASTS:
        return True
    is_of_trainer = function.cls is not None and any(tail_name(base).endswith("Trainer") for base in function.cls.bases)
    if is_of_trainer and function.name == "training_step" and does & _BACKWARD:
        return True
    if function.cls is None or "LightningModule" not in module.identifiers:
        return False
    if function.name == "on_after_backward":
        return "grad" in function.used_names or not function.used_names.isdisjoint(CLIP_FUNCTIONS)
    if not function.name.endswith("_step"):
        return False
    if does & (_BACKWARD | _STEP) == _BACKWARD | _STEP:
        return True  # manual optimization
    banned = any(method.used_names & BANNED_LOSSES for method in function.cls.methods.values())
    return banned or "accumulate_grad_batches" in module.text or (module.may_lose_precision and "-mixed" in module.text)


def _names_by_callee(module: Module) -> dict[str, frozenset[str]]:
    """Return the names used by the possible callees of each name: functions, or methods of a class."""
    holders = {name: list(functions) for name, functions in module.functions_by_name.items()}
    for cls in module.classes.values():
        holders.setdefault(cls.name, []).extend(cls.methods.values())
    return {name: frozenset().union(*(each.used_names for each in functions)) for name, functions in holders.items()}


def _bits_by_callee(used: dict[str, frozenset[str]], bits: dict[str, int]) -> dict[str, int]:
    """Return the action bits of a call of each name, including all indirect calls."""
    own = {name: _own_bits(words, bits) for name, words in used.items()}
    callers: dict[str, list[str]] = {}
    for name, words in used.items():
        for callee in words & used.keys():
            callers.setdefault(callee, []).append(name)
    # A function with new bits updates only its callers.
    todo = list(own)
    while todo:
        callee = todo.pop()
        does = own[callee]
        for name in callers.get(callee, ()):
            if own[name] | does != own[name]:
                own[name] |= does
                todo.append(name)
    return own


def _add_called_bits(own: int, called: int) -> int:
    """Return the action bits of a function and its calls together.

    For a function that counts or casts, a relevant name of another file may stand for a whole training. The function
    must do one of both directly, because half of a project uses such names.
    """
    does = own | called
    if own & (_OTHER_FILE | _COUNTS | _CASTS) and does & _OTHER_FILE and does & (_COUNTS | _CASTS):
        does |= _BACKWARD | _STEP
    return does


def _own_bits(names: Iterable[str], bits: dict[str, int]) -> int:
    """Return the action bits of a function for the names in its own code.

    Saving or loading a state counts only together with the name of an owner. Code that loads only a model does not
    affect the scaler of another file.
    """
    does = _combine_bits(names, bits)
    if does & _TAKES and does & _OWNER:
        does |= _STATE
    return does


def _combine_bits(names: Iterable[str], bits: dict[str, int]) -> int:
    """Return the action bits of all names together."""
    does = 0
    for name in names:
        does |= bits.get(name, 0)
    return does


def _users_of(used: dict[str, frozenset[str]], words: frozenset[str]) -> frozenset[str]:
    """Return the names of functions and classes that use one of the words, directly or through another name."""
    users: dict[str, list[str]] = {}
    for name, names in used.items():
        for word in names:
            users.setdefault(word, []).append(name)
    found: set[str] = set()
    todo = list(words & users.keys())
    while todo:
        for name in users.get(todo.pop(), ()):
            if name not in found:
                found.add(name)
                todo.append(name)
    return frozenset(found)
