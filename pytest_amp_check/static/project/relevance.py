"""Which functions of a file are worth reading: most can neither make a mistake nor help to.

A function is judged by the names in it, and by those in the functions that it names, so that one look is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...protocol import kernels
from ...protocol.frameworks import FRAMEWORKS
from ..sources.patterns import Code
from .module import COUNTING, FILLING, LARGE_NUMBER, SCALING, SMALL_NUMBER, Function, Module
from .syntax import root_name

#: What trains the model that it is given, and what may have made that model in low precision.
TRAINERS = frozenset({"Trainer", "Seq2SeqTrainer"})
LOW_DTYPE_NAMES = frozenset({"half", "bfloat16", "float16"})
#: Identifiers that make a function worth following from a caller: whoever uses none of them, and names nobody who does,
#: does nothing that the protocol knows.
RELEVANT_NAMES = frozenset(
    "autocast fp8_autocast GradScaler ShardedGradScaler scaler unscale_ backward grad step zero_grad update scale "
    "get_scale "
    "clip_grad_norm_ clip_grad_norm clip_grad_value_ clip_grads_with_norm_ get_total_norm state_dict load_state_dict "
    "save "
    "half bfloat16 float16 param_groups optim Adam AdamW SGD nullcontext ExitStack enter_context no_sync partial "
    "binary_cross_entropy BCELoss cross_entropy CrossEntropyLoss mse_loss MSELoss l1_loss nll_loss masked_fill "
    "masked_fill_ clear_autocast_cache parameters no_grad yield Accelerator Fabric NativeScaler AmpOptimWrapper "
    "accumulate prepare setup manual_backward optimizers clip_gradients scale_loss master_params initialize "
    "update_params optim_context FullyShardedDataParallel register_comm_hook register_ddp_comm_hook "
    "make_graphed_callables Thread ThreadPool ThreadPoolExecutor Checkpoint ModelCheckpoint "
    "setup_common_training_handlers create_supervised_trainer".split()
).union(TRAINERS, {FILLING})
#: Those that are worth following in a file that does not train: what may open a region, and what must not run in it.
CONTEXT_NAMES = frozenset("autocast binary_cross_entropy BCELoss masked_fill masked_fill_".split()) | {FILLING}
#: Identifiers one of which a file that trains has.
TRAINING_NAMES = frozenset(
    {"GradScaler", "ShardedGradScaler", "backward", "unscale_", "zero_grad", "manual_backward", "update_params"}
)
#: Names of frameworks that make a function worth reading by itself.
ENGINE_NAMES = frozenset(
    "Accelerator Fabric NativeScaler AmpOptimWrapper manual_backward scale_loss update_params "
    "gradient_accumulation_steps create_supervised_trainer".split()
)
#: The losses that a function which a framework runs under autocast must not compute.
BANNED_LOSSES = frozenset({"binary_cross_entropy", "BCELoss"})

#: Identifiers one of which a file has that leaves the training to another one.
TRAINS_ELSEWHERE = frozenset({"clip_grad_norm_", "clip_grad_value_", "training_step"})
#: What a file speaks of that writes or reads the state of an optimizer or a scaler, and not that of models alone.
_STATE_OF_TRAINING = re.compile(
    rb"optim(?!iz(?:ed|ation|e)\b)|\bopt(?!ion)|_opt\b|scaler|trainer|learner", re.IGNORECASE
)

#: What a name has in it of an optimizer, of several or of a scaler.
_OWNER_NAME = re.compile(r"optim(?!iz(?:ed|ation|e)(?![a-z]))|(?<![a-z])opts?(?![a-z])|scaler", re.IGNORECASE)

#: Functions and methods that clip gradients.
CLIP_FUNCTIONS = frozenset({"clip_grad_norm_", "clip_grad_value_"})

#: Identifiers of what low precision may spoil: a small constant and a buffer may come from elsewhere in the file.
FRAGILE_NAMES = frozenset(
    "autocast log log2 log10 log1p var square arange numpy index_add_ index_copy_ scatter_ scatter_add_ index_add "
    "masked_scatter_ index_put_ addmm_ baddbmm_ addbmm_ addmv_".split()
).union(kernels.NAMES, kernels.ATTENTION, {SCALING})

#: Frameworks whose scalers, optimizers and losses are called as torch's are.
OTHER_FRAMEWORKS = frozenset({"paddle", "mindspore", "oneflow", "jittor", "tensorflow", "jax", "mxnet"})
#: Identifiers of a function that writes a checkpoint of what it is given.
_SAVING_NAMES = frozenset({"save", "state_dict"})
#: Identifiers of a method that makes a buffer of positions.
_POSITION_NAMES = frozenset({"arange", "register_buffer"})

# What a function does, as bits.
_AMP, _BACKWARD, _STEP, _COUNTS, _OLD, _FILLS, _LARGE, _CASTS, _TRAINER, _STATE = (1 << n for n in range(10))
#: It uses what may matter in another file; it takes or loads a state; it speaks of an optimizer or a scaler.
_OTHER_FILE, _TAKES, _OWNER = (1 << n for n in range(10, 13))
_BITS = {
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
    **dict.fromkeys(("masked_fill", "masked_fill_", "index_fill", "full_like", "where"), _FILLS),
    **dict.fromkeys(LOW_DTYPE_NAMES, _CASTS),
    **dict.fromkeys(TRAINERS, _TRAINER),
    **dict.fromkeys(("custom_fwd", "custom_bwd", "clip_grad_norm"), _OLD),
    **dict.fromkeys(
        (f"{way}_autocast_cpu_{what}" for way in ("set", "get", "is") for what in ("enabled", "dtype")), _OLD
    ),
    **dict.fromkeys(("get_autocast_gpu_dtype", "set_autocast_gpu_dtype"), _OLD),
}


def _may_violate(bits: int) -> bool:
    """Whether a function that does these things may make a mistake by itself."""
    accumulates = _BACKWARD | _STEP | _COUNTS
    if bits & _OTHER_FILE and bits & (_BACKWARD | _STEP):
        # What is left of a training may be done there.
        bits |= _BACKWARD | _STEP
    return bool(
        bits & (_AMP | _OLD | _STATE)
        or bits & accumulates == accumulates
        or bits & (_FILLS | _LARGE) == _FILLS | _LARGE
        or (bits & _CASTS and bits & (_STEP | _TRAINER))
    )


def may_train(module: Module) -> bool:
    """Whether a file may train, by itself or by what it imports."""
    return _trains_itself(module) or _does_part_of_training(module)


def base_names(module: Module) -> frozenset[str]:
    """The names that classes of a file derive from, or that these are found in: what trains may be inherited."""
    return frozenset(root_name(base) for cls in module.classes.values() for base in cls.bases)


def _does_part_of_training(module: Module) -> bool:
    """Whether a file does a part of a training the rest of which may be in others."""
    if not module.identifiers.isdisjoint(TRAINS_ELSEWHERE):
        return True
    if "state_dict" not in module.identifiers:
        return False
    return _STATE_OF_TRAINING.search(Code(module.text.encode()).without_docstrings.data) is not None


def _trains_itself(module: Module) -> bool:
    named = module.identifiers
    if named & TRAINING_NAMES or "scaler" in module.role_by_text.values():
        return True
    return not named.isdisjoint(TRAINERS) and not named.isdisjoint(LOW_DTYPE_NAMES)


def mark_relevant(module: Module, foreign: frozenset[str]) -> None:
    """Say of each function whether it is worth reading by itself (``strong``), and which of its words matter.

    ``words`` are those that matter to a file that trains, ``contexts`` to one that does not. ``foreign`` are the local
    names of what may matter in other files.
    """
    if _is_of_another_framework(module):
        return
    # Of a file that trains neither by itself nor by what it imports, they are what its classes inherit a training from.
    trains = module.may_train = _trains_itself(module) or bool(foreign)
    bits = _bits_by_name(module, foreign)
    small = SMALL_NUMBER in module.identifiers
    module.may_lose_precision = small or not FRAGILE_NAMES.isdisjoint(module.identifiers)
    everywhere = _LARGE if LARGE_NUMBER in module.used_names else 0
    # Where nothing trains, a region matters to the function that opens it, not to all that call that function.
    used = _names_by_callee(module)
    found = _bits_by_callee(used, bits) if trains else {}
    # What a class keeps in its buffers, its other methods compute with.
    keeping = {function.cls for function in module.functions.values() if function.used_names >= _POSITION_NAMES} - {
        None
    }
    does = {
        f: everywhere | _add_called_bits(_own_bits(f.used_names, bits), _combine_bits(f.used_names, found))
        for f in module.functions.values()
    }
    # What one method does with a scaler, another one may do without it.
    scaling = {function.cls for function in does if trains and does[function] & _AMP} - {None}
    for function in module.functions.values():
        part = does[function] & (_BACKWARD | _STEP | _OTHER_FILE) or not function.used_names.isdisjoint(CLIP_FUNCTIONS)
        function.is_entry_point = _may_violate(does[function]) or _is_run_by_a_trainer(module, function, does[function])
        function.has_scaler_siblings = function.cls in scaling and bool(part)
        function.may_save_checkpoint = function.used_names >= _SAVING_NAMES
        function.may_lose_precision = (
            small or not FRAGILE_NAMES.isdisjoint(function.used_names) or function.cls in keeping
        )
    amp = {word for word, does in bits.items() if does & (_AMP | _OLD)}
    words, contexts = RELEVANT_NAMES | amp | foreign, CONTEXT_NAMES | amp
    _restrict_names(module, words | _users_of(used, words), contexts | _users_of(used, contexts))


def _is_of_another_framework(module: Module) -> bool:
    """Whether a file trains with what has calls of the same names, and not with torch."""
    roots = {imported.module.partition(".")[0] for imported in module.imports.values() if not imported.level}
    return "torch" not in roots and not OTHER_FRAMEWORKS.isdisjoint(roots)


def _bits_by_name(module: Module, foreign: frozenset[str]) -> dict[str, int]:
    """What it tells of a function of this file to use a name."""
    bits = dict(_BITS)
    scalers = {text.rpartition(".")[2] for text, role in module.role_by_text.items() if role == "scaler"}
    engines = {text.rpartition(".")[2] for text, role in module.role_by_text.items() if role in FRAMEWORKS}
    bits.update(dict.fromkeys(scalers | engines | ENGINE_NAMES, _AMP))
    if "FullyShardedDataParallel" in module.identifiers:
        bits["clip_grad_norm_"] = _AMP
    if module.may_train:
        bits = dict.fromkeys(foreign, _OTHER_FILE) | bits
    if scalers or module.identifiers & {"GradScaler", "ShardedGradScaler"}:
        bits["state_dict"] = bits["load_state_dict"] = _STATE
    elif foreign:
        bits["state_dict"] = bits["load_state_dict"] = _TAKES
        owners = {text.rpartition(".")[2] for text, role in module.role_by_text.items() if role == "optimizer"}
        for word in owners.union(filter(_OWNER_NAME.search, module.identifiers)):
            bits[word] = bits.get(word, 0) | _OWNER
    return bits


def _restrict_names(module: Module, words: frozenset[str], contexts: frozenset[str]) -> None:
    """Leave each function and class the words that matter; a class has those of its methods as well."""
    for function in module.functions.values():
        names = function.used_names
        function.used_names, function.context_names = names & words, names & contexts
    for cls in module.classes.values():
        names = cls.used_names
        cls.used_names = (names & words).union(*(m.used_names for m in cls.methods.values()))
        cls.context_names = (names & contexts).union(*(m.context_names for m in cls.methods.values()))


def _is_run_by_a_trainer(module: Module, function: Function, does: int) -> bool:
    """Whether a Trainer runs a function that may make a mistake by itself.

    It is the step of a LightningModule that may compute a banned loss, divides what it returns or optimizes by hand, or
    its hook on gradients that are still scaled; or the loss of Hugging Face's, which is given the model, and may cast.
    """
    if function.cls is not None and function.name == "compute_loss" and does & _CASTS:
        return True
    if function.cls is None or "LightningModule" not in module.identifiers:
        return False
    if function.name == "on_after_backward":
        return "grad" in function.used_names or not function.used_names.isdisjoint(CLIP_FUNCTIONS)
    if not function.name.endswith("_step"):
        return False
    if does & (_BACKWARD | _STEP) == _BACKWARD | _STEP:
        return True  # it optimizes by hand
    banned = any(method.used_names & BANNED_LOSSES for method in function.cls.methods.values())
    return banned or "accumulate_grad_batches" in module.text


def _names_by_callee(module: Module) -> dict[str, frozenset[str]]:
    """The words of what each name of the file may call: functions of that name, methods of a class of that name."""
    holders = {name: list(functions) for name, functions in module.functions_by_name.items()}
    for cls in module.classes.values():
        holders.setdefault(cls.name, []).extend(cls.methods.values())
    return {name: frozenset().union(*(each.used_names for each in functions)) for name, functions in holders.items()}


def _bits_by_callee(used: dict[str, frozenset[str]], bits: dict[str, int]) -> dict[str, int]:
    """What calling each name of the file may do, through whatever it calls in turn."""
    own = {name: _own_bits(words, bits) for name, words in used.items()}
    callers: dict[str, list[str]] = {}
    for name, words in used.items():
        for callee in words & used.keys():
            callers.setdefault(callee, []).append(name)
    # Whatever has come to do more is looked at again by those that call it, and by nobody else.
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
    """What a function does by itself and by what it calls.

    What may matter in another file may be all of a training for a function that counts or casts, by either way, where
    it does one of both itself: half of a project uses such names.
    """
    does = own | called
    if own & (_OTHER_FILE | _COUNTS | _CASTS) and does & _OTHER_FILE and does & (_COUNTS | _CASTS):
        does |= _BACKWARD | _STEP
    return does


def _own_bits(names: Iterable[str], bits: dict[str, int]) -> int:
    """What the names in one function tell of it by itself.

    A state that is taken or loaded matters where its owner is spoken of: who loads a model alone has nothing to do with
    the scaler of another file.
    """
    does = _combine_bits(names, bits)
    if does & _TAKES and does & _OWNER:
        does |= _STATE
    return does


def _combine_bits(names: Iterable[str], bits: dict[str, int]) -> int:
    """What all of some names tell."""
    does = 0
    for name in names:
        does |= bits.get(name, 0)
    return does


def _users_of(used: dict[str, frozenset[str]], words: frozenset[str]) -> frozenset[str]:
    """Names of the functions and classes that use one of some words, or the name of one that does."""
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
