"""Table of torch names for both analyzer and recorder: ``static`` resolves calls, ``runtime`` patches the functions.

Names are strings, so the analyzer needs no torch. A name is the canonical public path of an object; :data:`ALIASES`
maps all other paths of the object to the canonical path. Signatures are valid for torch 2.4 to 2.13.
"""

from __future__ import annotations

from .fast_namedtuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Roles of torch callables.
AUTOCAST = "autocast"
SCALER = "scaler"
OPTIMIZER = "optimizer"
CLIP = "clip"
NORM = "norm"  # reads the norm of gradients, without changes
MODULE = "module"
AUTOGRAD_FUNCTION = "autograd-function"
LOSS_MODULE = "loss-module"
LOSS = "loss"
BACKWARD = "backward"
GRAD = "grad"
NULL_CONTEXT = "null-context"
EXIT_STACK = "exit-stack"
CONTEXT = "context"  # another context manager of torch, without effect on the protocol
CACHE_CLEAR = "cache-clear"
SAVE = "save"
LOAD = "load"
FILL = "fill"
WRAP_MODULE = "wrap-module"  # returns the module argument
COMPILE = "compile"
SCRIPT = "script"
DEVICE = "device"
PARTIAL = "partial"
ANOMALY = "anomaly"  # raises if a backward produces NaN
CAPTURE = "capture"  # traces a module, or captures CUDA kernels
REGISTER_HOOK = "register-hook"
GRADIENT_LOG = "gradient-log"  # logs gradients from hooks in the backward pass
COMPRESS = "compress"  # returns a hook that casts gradients to float16
THREAD = "thread"
POOL = "pool"  # thread pool


class ApiEntry:
    """Data of one torch name: the role, and the binding of arguments.

    ``parameters`` are the names of the positional parameters in order; ``attributes`` depend on the role.
    """

    __slots__ = ("attributes", "name", "parameters", "role")

    def __init__(self, name: str, role: str, parameters: tuple[str, ...] = (), **attributes: Any) -> None:
        self.name = name
        self.role = role
        self.parameters = parameters
        self.attributes = attributes

    def __repr__(self) -> str:
        return f"<{self.role} {self.name}>"


SCALER_ARGUMENTS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_ENTRIES = [
    ApiEntry("torch.autocast", AUTOCAST, ("device_type", "dtype", "enabled", "cache_enabled")),
    ApiEntry("torch.cuda.amp.autocast", AUTOCAST, ("enabled", "dtype", "cache_enabled"), device="cuda"),
    ApiEntry("torch.cpu.amp.autocast", AUTOCAST, ("enabled", "dtype", "cache_enabled"), device="cpu"),
    ApiEntry("torch.amp.GradScaler", SCALER, ("device", *SCALER_ARGUMENTS)),
    ApiEntry("torch.cuda.amp.GradScaler", SCALER, SCALER_ARGUMENTS, device="cuda"),
    ApiEntry("torch.cpu.amp.GradScaler", SCALER, SCALER_ARGUMENTS, device="cpu"),
    ApiEntry(
        "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
        SCALER,
        ("device", "init_scale", "backoff_factor", "growth_factor", "growth_interval", "enabled", "process_group"),
        sharded=True,
    ),
    ApiEntry(
        "torch.nn.utils.clip_grad_norm_",
        CLIP,
        ("parameters", "max_norm", "norm_type", "error_if_nonfinite", "foreach"),
        norm=True,
    ),
    ApiEntry(
        "torch.nn.utils.clip_grad_norm",
        CLIP,
        ("parameters", "max_norm", "norm_type", "error_if_nonfinite", "foreach"),
        norm=True,
    ),
    ApiEntry("torch.nn.utils.clip_grad_value_", CLIP, ("parameters", "clip_value", "foreach")),
    ApiEntry("torch.nn.utils.clip_grads_with_norm_", CLIP, ("parameters", "max_norm", "total_norm", "foreach")),
    ApiEntry("torch.nn.utils.get_total_norm", NORM, ("tensors", "norm_type", "error_if_nonfinite", "foreach")),
    ApiEntry("torch.autograd.backward", BACKWARD, ("tensors", "grad_tensors")),
    ApiEntry("torch.autograd.grad", GRAD, ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")),
    ApiEntry("contextlib.nullcontext", NULL_CONTEXT, ("enter_result",)),
    ApiEntry("contextlib.suppress", NULL_CONTEXT),
    ApiEntry("contextlib.ExitStack", EXIT_STACK),
    ApiEntry("torch.clear_autocast_cache", CACHE_CLEAR),
    ApiEntry("torch.save", SAVE, ("obj", "f")),
    ApiEntry("torch.load", LOAD, ("f",)),
    ApiEntry("torch.compile", COMPILE, ("model",)),
    ApiEntry("torch.jit.script", SCRIPT, ("obj",)),
    ApiEntry("torch.jit.trace", CAPTURE, ("func",), how="trace"),
    ApiEntry("torch.jit.trace_module", CAPTURE, ("mod",), how="trace"),
    ApiEntry("torch.cuda.make_graphed_callables", CAPTURE, ("callables",), how="graphed"),
    ApiEntry("torch.cuda.graph", CAPTURE, ("cuda_graph",), how="graph"),
    ApiEntry("torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_wrapper", COMPRESS, ("hook",)),
    ApiEntry(
        "torch.distributed.algorithms.ddp_comm_hooks.register_ddp_comm_hook",
        REGISTER_HOOK,
        ("comm_hook_type", "model", "state"),
    ),
    ApiEntry("wandb.watch", GRADIENT_LOG, ("models", "criterion", "log", "log_freq", "idx", "log_graph")),
    ApiEntry("threading.Thread", THREAD, ("group", "target", "name", "args")),
    ApiEntry("concurrent.futures.ThreadPoolExecutor", POOL),
    ApiEntry("multiprocessing.pool.ThreadPool", POOL),
    ApiEntry("torch.device", DEVICE, ("device",)),
    ApiEntry("functools.partial", PARTIAL),
    ApiEntry("torch.nn.DataParallel", WRAP_MODULE, ("module",), wraps="replicas"),
    ApiEntry("torch.nn.parallel.DataParallel", WRAP_MODULE, ("module",), wraps="replicas"),
    ApiEntry("torch.nn.parallel.DistributedDataParallel", WRAP_MODULE, ("module",), wraps="ddp"),
    ApiEntry("torch.nn.SyncBatchNorm.convert_sync_batchnorm", WRAP_MODULE, ("module",)),
    ApiEntry("torch.distributed.fsdp.FullyShardedDataParallel", WRAP_MODULE, ("module",), wraps="fsdp1"),
    ApiEntry("torch.distributed.fsdp.fully_shard", WRAP_MODULE, ("module",), wraps="fsdp2"),
    ApiEntry("fairscale.optim.grad_scaler.GradScaler", SCALER, SCALER_ARGUMENTS, device="cuda"),
    ApiEntry("fairscale.optim.grad_scaler.ShardedGradScaler", SCALER, SCALER_ARGUMENTS, device="cuda", sharded=True),
    ApiEntry("copy.deepcopy", WRAP_MODULE, ("x",), copies=True),
]
_ENTRIES += [
    ApiEntry(f"torch.{name}", CONTEXT, grad=name == "enable_grad")
    for name in ("no_grad", "inference_mode", "enable_grad", "set_grad_enabled")
]
_ENTRIES += [ApiEntry(f"torch.{name}", CONTEXT, grad=True) for name in ("profiler.profile", "profiler.record_function")]
_ENTRIES += [
    ApiEntry("torch.autograd.set_detect_anomaly", ANOMALY, ("mode", "check_nan")),
    ApiEntry("torch.autograd.detect_anomaly", ANOMALY, ("check_nan",)),
]

#: Losses in ``torch.nn.functional`` and the loss modules: functional name -> module name.
_LOSSES = {
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "NLLLoss",
    "kl_div": "KLDivLoss",
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss",
    "huber_loss": "HuberLoss",
    "ctc_loss": "CTCLoss",
    "cosine_embedding_loss": "CosineEmbeddingLoss",
    "hinge_embedding_loss": "HingeEmbeddingLoss",
    "margin_ranking_loss": "MarginRankingLoss",
    "multi_margin_loss": "MultiMarginLoss",
    "multilabel_margin_loss": "MultiLabelMarginLoss",
    "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
    "poisson_nll_loss": "PoissonNLLLoss",
    "gaussian_nll_loss": "GaussianNLLLoss",
    "soft_margin_loss": "SoftMarginLoss",
    "triplet_margin_loss": "TripletMarginLoss",
}
#: Losses without floating target of the output's shape. No target promotes a low-precision output.
_NO_PROMOTION = {"cross_entropy", "nll_loss", "ctc_loss"}
for _functional, _module in _LOSSES.items():
    _facts = {"kind": _functional, "promotes": _functional not in _NO_PROMOTION}
    _ENTRIES.append(ApiEntry(f"torch.nn.functional.{_functional}", LOSS, ("input", "target", "weight"), **_facts))
    _ENTRIES.append(ApiEntry(f"torch.nn.{_module}", LOSS_MODULE, (), **_facts))

_OPTIMIZERS = (
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam Optimizer RAdam RMSprop Rprop SGD SparseAdam"
)
_ENTRIES += [ApiEntry(f"torch.optim.{name}", OPTIMIZER, ("params", "lr")) for name in _OPTIMIZERS.split()]

#: Functions that write a constant into a tensor, with the parameter for the constant.
for _name, _parameters in {
    "masked_fill": ("input", "mask", "value"),
    "full_like": ("input", "fill_value"),
    "index_fill": ("input", "dim", "index", "value"),
    "where": ("condition", "input", "other"),
}.items():
    _ENTRIES.append(ApiEntry(f"torch.{_name}", FILL, _parameters))

SURFACE: dict[str, ApiEntry] = {entry.name: entry for entry in _ENTRIES}

#: Alias paths of the same objects. A prefix ends in a dot and maps to a prefix.
ALIASES = {
    "torch.amp.autocast": "torch.autocast",
    "torch.amp.autocast_mode.autocast": "torch.autocast",
    "torch.cuda.amp.autocast_mode.autocast": "torch.cuda.amp.autocast",
    "torch.cpu.amp.autocast_mode.autocast": "torch.cpu.amp.autocast",
    "torch.amp.grad_scaler.GradScaler": "torch.amp.GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.cpu.amp.grad_scaler.GradScaler": "torch.cpu.amp.GradScaler",
    "torch.GradScaler": "torch.amp.GradScaler",
    "torch.nn.utils.clip_grad.": "torch.nn.utils.",
    "torch.optim.adam.": "torch.optim.",
    "torch.optim.adamw.": "torch.optim.",
    "torch.optim.sgd.": "torch.optim.",
    "torch.optim.optimizer.": "torch.optim.",
    "torch.nn.modules.loss.": "torch.nn.",
    "torch.nn.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel.": "torch.distributed.fsdp.",
    "torch.distributed.fsdp.ShardedGradScaler": "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
    "torch.autograd.grad_mode.": "torch.",
    "torch.autograd.anomaly_mode.": "torch.autograd.",
    "torch.distributed._composable.fsdp.": "torch.distributed.fsdp.",
    "multiprocessing.dummy.Pool": "multiprocessing.pool.ThreadPool",
    "concurrent.futures.thread.": "concurrent.futures.",
    "torch.cuda.graphs.": "torch.cuda.",
    "torch.jit._trace.": "torch.jit.",
    "fairscale.optim.": "fairscale.optim.grad_scaler.",
}

#: DistributedDataParallel hooks that cast gradients to float16.
FP16_HOOKS = frozenset(
    {
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook",
        "torch.distributed.algorithms.ddp_comm_hooks.DDPCommHookType.FP16_COMPRESS",
    }
)

#: Roles of base classes, which subclasses share.
BASES = {
    "torch.nn.Module": MODULE,
    "torch.autograd.Function": AUTOGRAD_FUNCTION,
    "torch.autocast": AUTOCAST,
    "torch.cuda.amp.autocast": AUTOCAST,
    "torch.optim.Optimizer": OPTIMIZER,
    "torch.amp.GradScaler": SCALER,
    "torch.cuda.amp.GradScaler": SCALER,
}

#: Low-precision dtypes by all names in torch.
DTYPES = {
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float32": "float32",
    "torch.float": "float32",
    "torch.float64": "float64",
    "torch.double": "float64",
}

#: Largest finite float16 number.
FLOAT16_MAX = 65504.0
#: The largest finite bfloat16, below that of float32.
BFLOAT16_MAX = (2 - 2**-7) * 2.0**127
#: Largest number that rounds to zero in float16.
FLOAT16_ZERO = 2.0**-25

#: Dtype of a bfloat16 region that a flag may disable. A loss scale has no effect in either case.
BFLOAT16_OR_FLOAT32 = "bfloat16 or float32"
#: Dtypes of a float16 region that a flag may disable, and of a region whose dtype is float16 by choice.
FLOAT16_OR_FLOAT32, FLOAT16_BY_CHOICE = "float16 or float32", "float16 by choice"
#: Region dtypes that may be float16.
MAY_BE_FLOAT16 = frozenset({"float16", FLOAT16_OR_FLOAT32, FLOAT16_BY_CHOICE})
#: Region dtypes without low precision. CUDA, for example, then casts to float32 instead.
WIDE = frozenset({"float32", "float64"})
#: Functions that test numbers for NaN and infinity.
FINITE_CHECKS = frozenset({"isnan", "isinf", "isfinite"})
#: Dtypes with at least the range of float32.
FAR_REACHING = WIDE | {"bfloat16", BFLOAT16_OR_FLOAT32}


class AutocastDevice(NamedTuple):
    """A device type that ``torch.autocast`` accepts. The policies of its ops are in ``protocol/optable.py``.

    - ``default_dtype``: default dtype of a region, "" if not known.
    - ``has_own_dtypes``: the back end brings its own list of dtypes.
    """

    default_dtype: str = ""
    has_own_dtypes: bool = False


#: Name of the device type -> facts. A row makes rules, options and fixes accept the device type.
AUTOCAST_DEVICES = {
    "cuda": AutocastDevice("float16"),
    "cpu": AutocastDevice("bfloat16"),
    "xpu": AutocastDevice("float16"),
    "mps": AutocastDevice("float16"),
    **dict.fromkeys(("hpu", "ipu", "xla", "mtia", "maia"), AutocastDevice()),
    "npu": AutocastDevice(has_own_dtypes=True),
    "privateuseone": AutocastDevice(has_own_dtypes=True),
}
#: Device types with a known default dtype of autocast -> the dtype.
DEFAULT_AUTOCAST_DTYPE = {
    name: device.default_dtype for name, device in AUTOCAST_DEVICES.items() if device.default_dtype
}
#: Device types that compute in float16, with a scaler of torch that switches itself off if the device is missing.
SCALED_DEVICES = frozenset(name for name, dtype in DEFAULT_AUTOCAST_DTYPE.items() if dtype == "float16")

#: Deprecated AMP names and replacements (RULEBOOK, AMP901). ``{...}`` stands for the old arguments, bound again.
DEPRECATED = {
    "torch.cuda.amp.autocast": "torch.amp.autocast('cuda', ...)",
    "torch.cpu.amp.autocast": "torch.amp.autocast('cpu', ...)",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler('cuda', ...)",
    "torch.cpu.amp.GradScaler": "torch.amp.GradScaler('cpu', ...)",
    "torch.cuda.amp.custom_fwd": "torch.amp.custom_fwd(device_type='cuda')",
    "torch.cuda.amp.custom_bwd": "torch.amp.custom_bwd(device_type='cuda')",
    "torch.get_autocast_gpu_dtype": "torch.get_autocast_dtype('cuda')",
    "torch.set_autocast_gpu_dtype": "torch.set_autocast_dtype('cuda', ...)",
    "torch.get_autocast_cpu_dtype": "torch.get_autocast_dtype('cpu')",
    "torch.set_autocast_cpu_dtype": "torch.set_autocast_dtype('cpu', ...)",
    "torch.is_autocast_cpu_enabled": "torch.is_autocast_enabled('cpu')",
    "torch.set_autocast_cpu_enabled": "torch.set_autocast_enabled('cpu', ...)",
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
}
#: Versions of torch that introduced the replacements, by last name part. Other replacements apply from torch 2.4.
_BROUGHT = {"autocast": (2, 0), "GradScaler": (2, 3), "clip_grad_norm": (1, 0)}


def replacement_version(old: str) -> tuple[int, int]:
    """Return the first version of torch with the replacement of a deprecated name."""
    return _BROUGHT.get(old.rpartition(".")[2], (2, 4))


#: Methods of GradScaler with an event.
SCALER_METHODS = frozenset(
    {
        "scale",
        "unscale_",
        "step",
        "update",
        "get_scale",
        "is_enabled",
        "state_dict",
        "load_state_dict",
        "get_growth_factor",
        "get_backoff_factor",
        "get_growth_interval",
        "set_growth_factor",
        "set_backoff_factor",
        "set_growth_interval",
    }
)

#: Meaning of unqualified names in a snippet without imports.
BARE = {
    "GradScaler": "torch.amp.GradScaler",
    "autocast": "torch.autocast",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
    "clip_grad_value_": "torch.nn.utils.clip_grad_value_",
    "nullcontext": "contextlib.nullcontext",
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "optim": "torch.optim",
}


def canonical_name(name: str) -> str:
    """Return the canonical path of a dotted name: ``torch.amp.autocast`` -> ``torch.autocast``."""
    found = ALIASES.get(name)
    if found is not None:
        return found
    head, dot, tail = name.rpartition(".")
    if dot:
        prefix = ALIASES.get(head + ".")
        if prefix is not None:
            return prefix + tail
    return name


def find_entry(name: str) -> ApiEntry | None:
    """Return the table entry of a dotted name under any path in torch, or None."""
    return SURFACE.get(canonical_name(name))


def is_known_name(name: str) -> bool:
    """Return True if a dotted name belongs to torch, or is in the table."""
    name = canonical_name(name)
    return name == "torch" or name.startswith("torch.") or name in SURFACE
