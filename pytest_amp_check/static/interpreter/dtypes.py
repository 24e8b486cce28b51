"""Dtype info of tensors, and the result dtype of an op under an autocast region."""

from __future__ import annotations

from ...protocol import optable
from ...protocol.fast_namedtuple import NamedTuple

#: Float16 or bfloat16: the dtype of a region that is chosen at run time.
HALF = "half"
LOW_DTYPES = frozenset(("float16", "bfloat16", HALF))
INTEGERS = frozenset(("int", "bool"))
#: Python number instead of a tensor; such a number promotes no tensor.
NUMBER = "number"

# Traits of a tensor.
SOFTMAX = "softmax"
SIGMOID = "sigmoid"
COMPLEMENT = "complement"  # one minus a probability
NEGATED = "negated"  # minus a probability
EXP = "exp"  # exponentials without a subtracted maximum
EXPONENTIAL = "exponential"  # any exponentials
EXP_SUM = "exp-sum"
SQUARE = "square"
SQUARE_SUM = "square-sum"
MEAN_SQUARE = "mean-square"
WEIGHTED_SQUARE = "weighted-square"  # squares multiplied by weights
MOMENT = "moment"  # a sum of weighted squares
VARIANCE = "variance"  # a variance or standard deviation
MEAN = "mean"  # a mean that keeps the dtype of its input
ROUNDED_SQUARE = "rounded-square"  # square of a low-precision mean, also if the square is float32
PRODUCT = "product"  # result of a matmul
TWICE = "twice"  # multiplied by 2 or -2
DOUBLED = "doubled"  # twice the result of a matmul, with either sign
LOG_PROBABILITY = "log-probability"
BOUNDED = "bounded"  # at most about one
POSITIONS = "positions"  # consecutive integers
ANGLES = "angles"  # positions multiplied by frequencies in an op that autocast runs in low precision
FREQUENCIES = "frequencies"  # a number to the power of positions, or an exponential of positions
FLOAT32_ANGLES = "float32-angles"  # float32 product of positions and frequencies
CAST = "cast"  # cast to a low dtype by the code itself
ROUNDED_PROBABILITY = "rounded-probability"  # a probability in float32 that was cast to a low dtype
ROUNDED = "rounded"  # positions that were cast to a low dtype
REGION = "region"  # low because of a region, not because of a cast
GUESSED_LOW = "guess"  # result of an unknown model in a region: nearly always low
SCALAR = "scalar"  # without dimensions, as far as is known
REGION_LEFT = "left"  # computed in a region that has ended
BEYOND_FLOAT16 = "beyond-float16"  # filled with a finite number beyond the range of float16
ZEROS = "zeros"  # zeros, as the start of a sum
ON_CPU = "on-cpu"  # created on the CPU, whose ops a region of another device leaves alone
SCALED = "scaled"  # multiplied in low precision by a number with more integers below it than the dtype has
UNIFORM = "uniform"  # uniform random numbers between zero and one
NARROWED = "narrowed"  # float32 values that the code has cast to a low dtype
SCHEDULE = "schedule"  # a running product, as the levels of a noise schedule: close to one at its beginning
WHOLE = "whole"  # integers that were cast to a low dtype
WITH_INDEXES = "with-indexes"  # the largest values, or sorted ones, followed by their indexes
CODES = "codes"  # products of a low tensor and integers, as the digits of an index
STORED = "stored"  # a weight of another layer as it is stored, not computed from it


class DtypeInfo(NamedTuple):
    """Dtype info of a value: dtype, "" if not known, and traits.

    ``trait_node`` is the syntax node that gave the value a trait. ``assigned_loops`` are the keys of the loops in whose
    iterations the value was assigned.
    """

    dtype: str = ""
    traits: frozenset[str] = frozenset()
    trait_node: object = None
    assigned_loops: frozenset[int] = frozenset()

    @property
    def part_info(self) -> DtypeInfo:
        """Dtype info of a part of the value."""
        return self.restrict_traits(REGION, GUESSED_LOW, REGION_LEFT, VARIANCE, SCHEDULE) if self.traits else self

    def item_info(self, number: int) -> DtypeInfo:
        """Dtype info of an item that is unpacked from the value, counted from zero."""
        return DtypeInfo("int") if number == 1 and WITH_INDEXES in self.traits else self.part_info

    @property
    def is_low(self) -> bool:
        return self.dtype in LOW_DTYPES

    @property
    def is_stored_low(self) -> bool:
        """True for the output of a model whose weights are low, or what is computed from it, without any region."""
        return GUESSED_LOW in self.traits and REGION not in self.traits

    @property
    def may_underflow(self) -> bool:
        """True if the dtype may be float16."""
        return self.dtype in ("float16", HALF)

    def with_traits(self, *traits: str) -> DtypeInfo:
        return self._replace(traits=self.traits.union(traits))

    def restrict_traits(self, *kept: str) -> DtypeInfo:
        return self._replace(traits=self.traits.intersection(kept))


NO_DTYPE_INFO = DtypeInfo()
NUMBER_INFO = DtypeInfo(NUMBER)


def is_known_low(info: DtypeInfo) -> bool:
    """Return True for a tensor that a region, a cast or low weights made low.

    The output of an unknown model in a region is a guess.
    """
    return info.is_low and (GUESSED_LOW not in info.traits or info.is_stored_low)


def join(a: DtypeInfo, b: DtypeInfo) -> DtypeInfo:
    """Join the dtype info of two paths."""
    if a == b:
        return a
    dtype = a.dtype if a.dtype == b.dtype else HALF if a.is_low and b.is_low else ""
    traits = a.traits & b.traits | (a.traits | b.traits) & {GUESSED_LOW}
    return DtypeInfo(
        dtype, traits, a.trait_node if a.trait_node is b.trait_node else None, a.assigned_loops | b.assigned_loops
    )


class AutocastState(NamedTuple):
    """Autocast state at a node: "on", "off", "out" of all visible regions, or "" if not known.

    ``device`` and ``dtype`` belong to the region; "" and "half" if not known.
    """

    mode: str = ""
    device: str = ""
    dtype: str = HALF


#: Ops that keep the dtype and the traits. No device lists these ops (RULEBOOK 3.3).
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
#: Ops and casts that keep the traits of a tensor.
KEEP_TRAITS = _SHAPE_OPS | frozenset(("float", "double", "to", "type", "type_as", "half", "bfloat16"))
#: Ops that round or limit numbers before a cast to integers.
ROUNDINGS = frozenset("round floor ceil trunc clamp clip clamp_min clamp_max".split())
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
#: Modules of ``torch.nn``, and the op that decides their result dtype. Other modules use their name in lower case.
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


#: Namespaces of torch functions that are ops.
_NAMESPACES = ("torch", "torch.linalg", "torch.nn.functional", "torch.Tensor")
#: Low-precision ops whose name is also a method of modules and other objects.
_NAMES_OF_MODULES = frozenset("linear prelu addr".split())


def is_low(op: str, device: str = "") -> bool:
    """Return True if autocast runs an op in low precision on a device type; CUDA if the device is not known.

    An op has the name of the function or method, independent of the namespace.
    """
    return optable.find_policy(device or "cuda", _OPS.get(op, op)) == "low"


def is_wide(op: str, device: str = "") -> bool:
    """Return True if autocast runs an op in float32 on a device type, unless a dtype argument says otherwise."""
    return optable.find_policy(device or "cuda", _OPS.get(op, op)).startswith("fp32")


def is_shape_op(name: str) -> bool:
    """Return True if a method of this name, or a function of torch, selects or arranges the elements of a tensor."""
    return name in _SHAPE_OPS


def is_tensor_op(name: str) -> bool:
    """Return True if a method of this name is a method of tensors, or a function of torch, that computes a tensor."""
    return name in KEEP_TRAITS or name in _DTYPE_KEEPING_OPS or any(name in table for table in optable.OPS.values())


def op_of(name: str) -> str:
    """Return the op with this dotted torch name, or "" if the name is no op."""
    space, _, op = name.rpartition(".")
    return op if space in _NAMESPACES else ""


def low_function(name: str) -> str:
    """Return the op with this dotted torch name if autocast runs the op in low precision on any device, else ""."""
    op = op_of(name)
    return op if op and any(is_low(op, device) for device in optable.OPS) else ""


def is_low_method(name: str) -> bool:
    """Return True if a method of an unknown object is a tensor method that autocast runs in low precision."""
    return is_low(name) and name not in _NAMES_OF_MODULES


def op_of_module(kind: str) -> str:
    """Return the op that decides the result dtype of a ``torch.nn`` module, or "" if not known."""
    return _MODULES.get(kind, "")


def result_dtype(op: str, input_info: DtypeInfo, state: AutocastState) -> str:
    """Return the result dtype of an op for the given first argument, or "" if not known."""
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
    if plain or state.mode == "off" or REGION_LEFT in input_info.traits or input_info.is_stored_low:
        return input_info.dtype
    # The region of the caller decides, unless the op keeps a low dtype and the region chooses one as well.
    return input_info.dtype if input_info.is_low and is_low(op, state.device) else ""


def promote_dtypes(a: DtypeInfo, b: DtypeInfo) -> str:
    """Return the result dtype of an operator on two values, or "" if not known."""
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
