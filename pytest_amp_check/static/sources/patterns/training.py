"""Byte patterns of training steps: autocast, scalers, backward, optimizers, windows and resumed states."""

from __future__ import annotations

import re

from .lines import START_OF_DEFINITION, WORD_BYTES

STEP_CALL = b".step("
BACKWARD_CALL = b"backward("
#: An item of a checkpoint: ``state["optimizer"]``.
_CHECKPOINT_ITEM = rb"[\"'](\w*)[\"']\s*[\])](?!\s*=[^=])"
_LOAD_METHOD = b".load_state_dict"
#: Beginnings of names that end in "backward" and run no backward: hooks, and what an autograd.Function keeps.
_NO_BACKWARD = frozenset({b"save_for_", b"on_before_", b"on_after_"})
#: Text before a call whose value the code uses.
_USES_VALUE = (b"=", b"(", b",", b"[", b"return")
_TYPE_TEST = b"isinstance("
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
    b"FullyShardedDataParallel",
    b"FSDP(",  # its usual alias
)
#: A generator of the parts of a batch: ``yield x[i : i + size]``.
_YIELDS_PARTS = rb"\byield\b[^\n]{0,200}\[[^\]\n]{1,80}:"
#: Losses that raise in the region of an importer, and derivatives that lose precision there.
_WORDS_OF_REGIONS = (b"binary_cross_entropy(", b"BCELoss(", b"create_graph")
#: A counter that is compared with the end of a window, as in ``i % self.every == 0``.
_COUNTS = rb"[\w)\]] ?% ?[\w.]{1,40}\)? ?(?:[=!]=|$)|\bnot [\w.]{1,40} ?% ?[\w.]"
#: The gradient of a parameter, but no call of ``torch.autograd.grad``.
_GRADIENT = rb"\.grad\b(?!\()"
#: Words of all classes that train.
_TRAINING_WORDS = (b"caler", b"backward(", b"zero_grad", b"unscale_", b"update_params")


def may_affect_importer(data: bytes) -> bool:
    """Return True if code may affect the protocol of a file that imports the code."""
    if any(word in data for word in (*_PROTOCOL_WORDS, *_WORDS_OF_REGIONS)):
        return True
    if b"yield" in data and re.search(_YIELDS_PARTS, data) is not None:
        return True
    if b".grad" in data and any(map(_uses_gradients, re.split(START_OF_DEFINITION, data))):
        return True
    return b"%" in data and re.search(_COUNTS, data) is not None


def _uses_gradients(data: bytes) -> bool:
    """Return True if a definition uses gradients of parameters. An optimizer does so in its own step."""
    return b"def step(" not in data and re.search(_GRADIENT, data) is not None


def may_do_training(data: bytes) -> bool:
    """Return True if code may do a part of a training itself."""
    return any(word in data for word in _TRAINING_WORDS)


def loads_optimizer_state(data: bytes) -> bool:
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
        if b"opt" in name[len(name.rstrip(WORD_BYTES)) :].lower():
            return True
    return b"optim" in data.lower() and any(b"optim" in name.lower() for name in re.findall(_CHECKPOINT_ITEM, data))


#: Functions of torch whose names end in "autocast" and that enter no region of the calling program.
_NO_REGION = (b"enter_autocast", b"exit_autocast", b"register_autocast")


def uses_autocast(data: bytes) -> bool:
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


def line_runs_backward(found: tuple[int, bytes]) -> bool:
    """Return True if a line, given with its position, may run backward.

    ``loss.backward()`` returns nothing: a function ``x_backward`` whose value is used computes a derivative.
    """
    _, line = found
    if line.lstrip().startswith(b"#"):
        return False
    for before in line.split(BACKWARD_CALL)[:-1]:
        rest = before.rstrip(WORD_BYTES)
        name = before[len(rest) :]
        if name in _NO_BACKWARD or rest.endswith(b"def "):
            continue
        receiver = rest.rstrip(WORD_BYTES + b".")
        if not name or name == b"manual_" or not receiver.rstrip().endswith(_USES_VALUE):
            return True
    return False


def steps_optimizer(data: bytes) -> bool:
    """Return True if code steps an object with any other name than a scheduler: pipelines for inference step those."""
    return not all(before.endswith(b"scheduler") for before in data.split(STEP_CALL)[:-1])


def uses_scaler(data: bytes) -> bool:
    """Return True if code uses a scaler: a name that ends in "scaler", or a method that only a scaler has."""
    # The group is optional, so that the search visits each name only once.
    if b"caler" in data and any(re.findall(rb"caler\w*\s*([.(\[,)=:]|as\b)?", data)):
        return True
    return b".unscale_" in data or (b"backward(" in data and b".scale(" in data)
