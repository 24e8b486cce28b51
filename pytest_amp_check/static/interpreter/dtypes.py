"""Dtypes: what is known of a tensor's, and what an op makes of it under the autocast region it runs in."""

from __future__ import annotations

from ...protocol import optable
from ...protocol.fast_namedtuple import NamedTuple

#: A dtype that is float16 or bfloat16: a region's that is chosen at run time.
HALF = "half"
LOW_DTYPES = frozenset(("float16", "bfloat16", HALF))
INTEGERS = frozenset(("int", "bool"))
#: Not a tensor: a Python number, with which no tensor is promoted.
NUMBER = "number"

# What else is known of a tensor.
SOFTMAX = "softmax"
SIGMOID = "sigmoid"
COMPLEMENT = "complement"  # one minus a probability
NEGATED = "negated"  # minus a probability
EXP = "exp"  # exponentials that nothing was subtracted from
EXP_SUM = "exp-sum"
SQUARE = "square"
BOUNDED = "bounded"  # about one at most
POSITIONS = "positions"  # consecutive integers
ANGLES = "angles"  # positions multiplied by frequencies in an op that autocast runs in low precision
ROUNDED = "rounded"  # positions that were cast to a low dtype
REGION = "region"  # made low by a region, not by a cast
GUESSED_LOW = "guess"  # what a model of unknown code gives in a region: nearly always low
SCALAR = "scalar"  # without dimensions, as far as is known
REGION_LEFT = "left"  # made in a region that is left
ZEROS = "zeros"  # made of zeros, as a sum begins


class DtypeInfo(NamedTuple):
    """What is known of a value: its dtype, "" where it is not known, and traits.

    ``place`` is the syntax node that made it what a trait says; ``made`` are the loops in whose turns it was assigned.
    """

    dtype: str = ""
    traits: frozenset[str] = frozenset()
    trait_node: object = None
    assigned_loops: frozenset[int] = frozenset()

    @property
    def part_info(self) -> DtypeInfo:
        """What is known of a part of it."""
        return self.restrict_traits(REGION, GUESSED_LOW, REGION_LEFT) if self.traits else self

    @property
    def is_low(self) -> bool:
        return self.dtype in LOW_DTYPES

    @property
    def may_underflow(self) -> bool:
        """Whether it may be a float16."""
        return self.dtype in ("float16", HALF)

    def with_traits(self, *traits: str) -> DtypeInfo:
        return self._replace(traits=self.traits.union(traits))

    def restrict_traits(self, *kept: str) -> DtypeInfo:
        return self._replace(traits=self.traits.intersection(kept))


NO_DTYPE_INFO = DtypeInfo()
NUMBER_INFO = DtypeInfo(NUMBER)


def join(a: DtypeInfo, b: DtypeInfo) -> DtypeInfo:
    """What is known where two ways meet."""
    if a == b:
        return a
    dtype = a.dtype if a.dtype == b.dtype else HALF if a.is_low and b.is_low else ""
    traits = a.traits & b.traits | (a.traits | b.traits) & {GUESSED_LOW}
    return DtypeInfo(
        dtype, traits, a.trait_node if a.trait_node is b.trait_node else None, a.assigned_loops | b.assigned_loops
    )


class AutocastState(NamedTuple):
    """The autocast state at a place: "on", "off", "out" of all that is in view, or "" where it is not known.

    ``device`` and ``dtype`` are those of the region, "" and "half" where they are not known.
    """

    mode: str = ""
    device: str = ""
    dtype: str = HALF


#: Ops that keep the dtype, on no list of any device (RULEBOOK 3.3), and the traits that they keep.
_SHAPE_OPS = frozenset(
    "view reshape permute transpose flatten unflatten squeeze unsqueeze expand expand_as repeat repeat_interleave "
    "contiguous clone detach t swapaxes movedim roll flip narrow select index_select gather take_along_dim tile "
    "unbind chunk split data T mT requires_grad_ cuda cpu view_as reshape_as to_dense values broadcast_to "
    "masked_select take unfold diagonal tril triu".split()
)
_DTYPE_KEEPING_OPS = frozenset(
    "relu relu_ relu6 leaky_relu elu selu celu gelu silu mish hardswish hardtanh tanh sigmoid sqrt abs neg sign "
    "mean var std var_mean std_mean max min amax amin median mode sort topk clamp clamp_ clamp_min clamp_max clip "
    "clip_ dropout dropout2d masked_fill masked_fill_ sin cos erf logsigmoid hardsigmoid sigmoid_ abs_ "
    "sqrt_ floor ceil round frac maximum minimum lerp mul mul_ add add_ sub sub_ div div_ true_divide batch_norm "
    "instance_norm max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_max_pool1d adaptive_max_pool2d glu logit nan_to_num pixel_shuffle pixel_unshuffle zeros_like "
    "ones_like empty_like rand_like randn_like full_like new_zeros new_ones new_empty new_full".split()
)
#: What keeps what is known of a tensor besides its dtype.
KEEP_TRAITS = _SHAPE_OPS | frozenset(("float", "double", "to", "type", "type_as", "half", "bfloat16"))
#: Python functions of torch, and the listed op that decides their dtype.
_OPS = {
    "cross_entropy": "nll_loss",
    "softmin": "softmax",
    "square": "pow",
    "normalize": "linalg_vector_norm",
    "interpolate": "upsample_nearest2d",
    "vector_norm": "linalg_vector_norm",
    "multi_dot": "linalg_multi_dot",
    "vecdot": "linalg_vecdot",
    "__matmul__": "matmul",
    "norm": "linalg_vector_norm",
    "einsum": "bmm",
    "__rpow__": "pow",
    "multi_head_attention_forward": "linear",
    "gumbel_softmax": "softmax",
}
#: Modules of ``torch.nn``, and the op whose dtype they give; those beside them go by their name in small letters.
_MODULES = {
    "Linear": "linear",
    "LazyLinear": "linear",
    **{f"Conv{n}d": f"conv{n}d" for n in "123"},
    **{f"ConvTranspose{n}d": f"conv_transpose{n}d" for n in "123"},
    **dict.fromkeys(("Softmax", "Softmin", "Softmax2d"), "softmax"),
    "LogSoftmax": "log_softmax",
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    "RMSNorm": "rms_norm",
    "PReLU": "prelu",
    "Softplus": "softplus",
    "Upsample": "upsample_nearest2d",
    "CosineSimilarity": "cosine_similarity",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d"), "batch_norm"),
    **dict.fromkeys(("Dropout", "Dropout2d", "Identity", "Flatten", "MaxPool2d", "AvgPool2d"), "dropout"),
    **dict.fromkeys(("AdaptiveAvgPool2d", "AdaptiveMaxPool2d"), "dropout"),
}
#: Modules with float32 weights that do not promote: they raise on a low-precision input outside a region.
WEIGHTED = frozenset(module for module, op in _MODULES.items() if op.startswith(("linear", "conv")))


#: Where the functions of torch are that are ops.
_NAMESPACES = ("torch", "torch.linalg", "torch.nn.functional", "torch.Tensor")
#: Low-precision ops by the names of methods that modules and other objects have, too.
_NAMES_OF_MODULES = frozenset("linear prelu addr".split())


def is_low(op: str, device: str = "") -> bool:
    """Whether autocast runs an op in low precision on a type of device; on CUDA, where none is known.

    An op goes by the name of the function or of the method, whatever it is reached by.
    """
    return optable.find_policy(device or "cuda", _OPS.get(op, op)) == "low"


def is_wide(op: str, device: str = "") -> bool:
    """Whether autocast runs an op in float32 on a type of device, where it is not told another dtype."""
    return optable.find_policy(device or "cuda", _OPS.get(op, op)).startswith("fp32")


def op_of(name: str) -> str:
    """The op that a dotted name of torch is, "" for what else it has."""
    space, _, op = name.rpartition(".")
    return op if space in _NAMESPACES else ""


def low_function(name: str) -> str:
    """The op that a dotted name of torch is, if autocast runs it in low precision on some device, else ""."""
    op = op_of(name)
    return op if op and any(is_low(op, device) for device in optable.OPS) else ""


def is_low_method(name: str) -> bool:
    """Whether a method of something that is not known is one of a tensor that autocast runs in low precision."""
    return is_low(name) and name not in _NAMES_OF_MODULES


def op_of_module(kind: str) -> str:
    """The op that decides the dtype of what a module of ``torch.nn`` gives, "" where none is known to."""
    return _MODULES.get(kind, "")


def result_dtype(op: str, input_info: DtypeInfo, state: AutocastState) -> str:
    """The dtype that an op gives of its first argument, "" where that is not known."""
    if op in _SHAPE_OPS:
        return input_info.dtype
    op = _OPS.get(op, op)
    plain = op in _DTYPE_KEEPING_OPS
    if not plain and not any(op in table for table in optable.OPS.values()):
        return ""
    if state.mode == "on":
        policy = optable.find_policy(state.device, op)
        if policy == "low":
            return state.dtype
        if policy.startswith("fp32"):
            return "float32"
        return input_info.dtype if policy == "" else ""
    if plain or state.mode == "off" or REGION_LEFT in input_info.traits:
        return input_info.dtype
    # What the caller has open decides.
    return ""


def promote_dtypes(a: DtypeInfo, b: DtypeInfo) -> str:
    """The dtype of what an operator makes of two."""
    for one, other in ((a, b), (b, a)):
        if one.dtype == NUMBER:
            return other.dtype
        if one.dtype in INTEGERS and other.dtype != NUMBER:
            return other.dtype
    if a.dtype == b.dtype:
        return a.dtype
    if "" in (a.dtype, b.dtype):
        return ""
    return "float64" if "float64" in (a.dtype, b.dtype) else "float32" if "float32" in (a.dtype, b.dtype) else ""
