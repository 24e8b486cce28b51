"""Frameworks that wrap torch's mixed precision, as data: names, and effects of calls on gradients.

Taken from accelerate 1.15, Lightning 2.6, timm 1.0, mmengine 0.10, DeepSpeed 0.19, ignite 0.5 and the last apex with
``apex.amp``.
"""

from __future__ import annotations

from .torch_api import ApiEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Roles of framework callables.
ENGINE = "engine"  # creates the object that scales, unscales and steps
WRAP = "wrap"  # returns the argument
APEX_INITIALIZE = "apex-initialize"
APEX_SCALE = "apex-scale"
APEX_MASTER = "apex-master"
DEEPSPEED = "deepspeed"
SAVES = "saves"  # saves the states of the objects in the argument ``to_save``
SAVER = "saver"  # creates a handler that is called with such objects
TRAINER = "trainer"  # creates a trainer, with a separate scaler if ``scaler`` is true

# Effects of engine methods.
BACKWARD = "backward"
UPDATE_PARAMS = "update-params"  # backward, step and zero_grad in one
UNSCALE = "unscale"  # of every optimizer, or of the optimizer argument
UNSCALE_ONE = "unscale-one"  # of the optimizer argument
STEP = "step"
ZERO_GRAD = "zero-grad"
PREPARE = "prepare"  # returns the arguments, which then step through the engine
GIVE_BACK = "give-back"
AUTOCAST = "autocast"
NO_EFFECT = "no-effect"  # a context or call without effect on the protocol
STATE = "state"
LOAD = "load"  # loads the state of the engine's scaler
SAVE = "save"


#: Context managers in which modules of TransformerEngine compute in float8, and the state of float8 in each release.
FLOAT8 = (
    "transformer_engine.pytorch.autocast",
    "transformer_engine.pytorch.fp8_autocast",
    "transformer_engine.pytorch.quantization.autocast",
    "transformer_engine.pytorch.fp8.fp8_autocast",
)
FLOAT8_STATES = ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8")


class Framework:
    """Data of one framework.

    - ``title``: name in messages.
    - ``precision_parameter``: constructor parameter for mixed precision, "" if the engine always scales.
    - ``scaled_precisions``: parameter values with loss scaling.
    - ``autocast_precisions``: parameter values with autocast.
    - ``default_precision``: value without an argument; None if decided outside the program.
    - ``accumulation_parameter``: parameter with the number of microbatches that divides losses, "" if losses are never
      divided.
    - ``other_accumulation_parameters``: parameters that may also hold this number, in another form.
    - ``methods``: effects of the engine's methods.
    - ``wraps_optimizer_step``: True if optimizers step through the engine: ``step`` is then the scaler's step, with
      update.
    - ``always_unscales``: True if such a step always unscales first.
    - ``signature_names``: methods and attributes, beside ``backward``, of this engine only.
    - ``scaler_attribute``: attribute of the engine with the torch scaler; "" if not accessible.
    - ``usual_name``: usual variable name of the engine.
    - ``own_violations``: violation labels that the framework's code causes and that users cannot correct.
    - ``advice``: violation label -> remedy with this framework.
    """

    __slots__ = (
        "accumulation_parameter",
        "advice",
        "always_unscales",
        "autocast_precisions",
        "default_precision",
        "methods",
        "other_accumulation_parameters",
        "own_violations",
        "precision_parameter",
        "scaled_precisions",
        "scaler_attribute",
        "signature_names",
        "title",
        "usual_name",
        "wraps_optimizer_step",
    )

    def __init__(
        self,
        title: str,
        methods: Mapping[str, str],
        *,
        precision_parameter: str = "",
        scaled_precisions: tuple[object, ...] = (),
        autocast_precisions: tuple[object, ...] = (),
        default_precision: object = None,
        accumulation_parameter: str = "",
        other_accumulation_parameters: tuple[str, ...] = (),
        wraps_optimizer_step: bool = False,
        always_unscales: bool = False,
        signature_names: frozenset[str] = frozenset(),
        scaler_attribute: str = "",
        usual_name: str = "",
        own_violations: frozenset[str] = frozenset(),
        advice: Mapping[str, str] | None = None,
    ) -> None:
        self.title = title
        self.methods = dict(methods)
        self.precision_parameter = precision_parameter
        self.scaled_precisions = scaled_precisions
        self.autocast_precisions = autocast_precisions
        self.default_precision = default_precision
        self.accumulation_parameter = accumulation_parameter
        self.other_accumulation_parameters = other_accumulation_parameters
        self.wraps_optimizer_step = wraps_optimizer_step
        self.always_unscales = always_unscales
        self.signature_names = signature_names
        self.scaler_attribute = scaler_attribute
        self.usual_name = usual_name
        self.own_violations = own_violations
        self.advice = dict(advice or {})


def _parse_methods(**does: str) -> dict[str, str]:
    """Convert ``backward="backward", clip="a b"`` to a map of methods to effects. Values are lists of method names."""
    return {name: what.replace("_", "-") for what, names in does.items() for name in names.split()}


#: Lightning's precision values for float16 with a scaler, and for autocast of either dtype.
FLOAT16_MIXED = ("16-mixed", 16, "16")
MIXED = (*FLOAT16_MIXED, "bf16-mixed", "bf16")

FRAMEWORKS = {
    "accelerate": Framework(
        "accelerate",
        _parse_methods(
            backward="backward",
            unscale="clip_grad_norm_ clip_grad_value_ unscale_gradients",
            prepare="prepare prepare_optimizer",
            give_back="prepare_model prepare_data_loader prepare_scheduler unwrap_model",
            autocast="autocast",
            no_effect="accumulate no_sync main_process_first local_main_process_first save_state load_state print",
            save="save",
        ),
        precision_parameter="mixed_precision",
        scaled_precisions=("fp16",),
        autocast_precisions=("fp16", "bf16"),
        accumulation_parameter="gradient_accumulation_steps",
        other_accumulation_parameters=("gradient_accumulation_plugin", "deepspeed_plugin", "deepspeed_plugins"),
        wraps_optimizer_step=True,
        signature_names=frozenset(
            "accumulate sync_gradients unwrap_model unscale_gradients gather_for_metrics".split()
        ),
        scaler_attribute="scaler",
        usual_name="accelerator",
        advice={
            "clip@scaled": (
                "call `{scaler}.clip_grad_norm_`, which unscales them first, where `{scaler}.sync_gradients` is true"
            ),
            "step@raw": "call `{scaler}.backward({loss})`",
            "plain-step@scaled": "step what `{scaler}.prepare()` gives, which steps through the scaler",
            "update@pending": "let each `optimizer.step()` follow its own `{scaler}.backward()`, before the next one",
            "backward@unscaled": (
                "unscale and clip only where `{scaler}.sync_gradients` is true, and let `optimizer.step()` follow, "
                "which skips gradients that are not finite by itself"
            ),
        },
    ),
    "fabric": Framework(
        "Fabric",
        _parse_methods(
            backward="backward",
            unscale_one="clip_gradients",
            prepare="setup setup_optimizers",
            give_back="setup_module setup_dataloaders",
            autocast="autocast",
            no_effect="no_backward_sync init_module init_tensor launch barrier print log log_dict save load",
        ),
        precision_parameter="precision",
        scaled_precisions=FLOAT16_MIXED,
        autocast_precisions=MIXED,
        default_precision="32-true",
        wraps_optimizer_step=True,
        signature_names=frozenset({"no_backward_sync", "setup_dataloaders"}),
        usual_name="fabric",
        advice={
            "clip@scaled": "call `{scaler}.clip_gradients`, which unscales them first",
            "step@raw": "call `{scaler}.backward({loss})`",
            "plain-step@scaled": "step what `{scaler}.setup()` gives, which steps through the scaler",
            "backward@unscaled": "let `optimizer.step()` follow, which skips gradients that are not finite by itself",
            "update@pending": "let each loss run backward just before its own optimizer steps",
        },
    ),
    "lightning": Framework(
        "Lightning",
        {"manual_backward": BACKWARD},
        precision_parameter="precision",
        scaled_precisions=FLOAT16_MIXED,
        autocast_precisions=MIXED,
        default_precision="32-true",
        wraps_optimizer_step=True,
        always_unscales=True,
        scaler_attribute="trainer.precision_plugin.scaler",
        # Lightning enters autocast around the whole `training_step`.
        own_violations=frozenset({"backward@region", "step@region"}),
        advice={
            "clip@scaled": "clip in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "edit@scaled": "edit them in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "read@scaled": "read them in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "step@raw": "call `self.manual_backward({loss})`",
            "plain-step@scaled": "step what `self.optimizers()` gives, which steps through Lightning's scaler",
            "update@pending": "let each loss run backward just before its own optimizer steps",
        },
    ),
    "timm": Framework("timm", _parse_methods(state="state_dict", load="load_state_dict")),
    "mmengine": Framework(
        "mmengine",
        _parse_methods(
            backward="backward",
            update_params="update_params",
            step="step",
            zero_grad="zero_grad",
            autocast="optim_context",
            no_effect="state_dict load_state_dict scale_loss should_update should_sync initialize_count_status get_lr",
        ),
        accumulation_parameter="accumulative_counts",
        advice={"clip@scaled": "give `clip_grad=dict(max_norm=...)` to the wrapper, which unscales them first"},
    ),
    "apex": Framework(
        "apex",
        {},
        advice={
            "clip@scaled": "clip after the `with amp.scale_loss(...)` block, which unscales them at its end",
            "plain-step@scaled": (
                "step after a `with amp.scale_loss(...)` block without `delay_unscale`, which unscales them at its end"
            ),
        },
    ),
}

_ACCELERATOR = (
    "device_placement",
    "split_batches",
    "mixed_precision",
    "gradient_accumulation_steps",
    "cpu",
    "dataloader_config",
    "deepspeed_plugin",
)
_SCALE_LOSS = ("loss", "optimizers", "loss_id", "model", "delay_unscale", "delay_overflow_check")
_ENTRIES = (
    ApiEntry("accelerate.Accelerator", ENGINE, _ACCELERATOR, framework="accelerate"),
    ApiEntry(
        "lightning.Fabric",
        ENGINE,
        ("accelerator", "strategy", "devices", "num_nodes", "precision", "plugins"),
        framework="fabric",
    ),
    ApiEntry("timm.utils.NativeScaler", ENGINE, ("device",), framework="timm"),
    ApiEntry(
        "mmengine.optim.AmpOptimWrapper",
        ENGINE,
        ("loss_scale", "dtype", "use_fsdp"),
        framework="mmengine",
    ),
    ApiEntry("apex.amp.initialize", APEX_INITIALIZE, ("models", "optimizers", "enabled", "opt_level")),
    ApiEntry("apex.amp.scale_loss", APEX_SCALE, _SCALE_LOSS),
    ApiEntry("apex.amp.master_params", APEX_MASTER, ("optimizer",)),
    ApiEntry("apex.parallel.DistributedDataParallel", WRAP, ("module",)),
    ApiEntry("apex.parallel.convert_syncbn_model", WRAP, ("module",)),
    ApiEntry("fairscale.nn.FullyShardedDataParallel", WRAP, ("module",)),
    ApiEntry("fairscale.nn.ShardedDataParallel", WRAP, ("module",)),
    ApiEntry("deepspeed.initialize", DEEPSPEED, ("args", "model", "optimizer", "model_parameters")),
    ApiEntry("ignite.handlers.Checkpoint", SAVES, ("to_save", "save_handler")),
    ApiEntry("ignite.handlers.ModelCheckpoint", SAVER),
    ApiEntry(
        "ignite.contrib.engines.common.setup_common_training_handlers", SAVES, ("trainer", "train_sampler", "to_save")
    ),
    ApiEntry("ignite.engine.create_supervised_trainer", TRAINER, ("model", "optimizer")),
)
NAMES: dict[str, ApiEntry] = {entry.name: entry for entry in _ENTRIES}

#: Base classes whose methods a Trainer runs, and the trainers.
LIGHTNING_MODULE = "lightning.LightningModule"
HUGGING_FACE_TRAINER = "transformers.Trainer"

#: Alias paths of the same objects. A prefix ends in a dot and maps to a prefix.
ALIASES = {
    "accelerate.accelerator.": "accelerate.",
    "apex.amp.handle.": "apex.amp.",
    "fairscale.nn.data_parallel.": "fairscale.nn.",
    "ignite.handlers.checkpoint.": "ignite.handlers.",
    "lightning.fabric.": "lightning.",
    "lightning.fabric.fabric.": "lightning.",
    "lightning.pytorch.": "lightning.",
    "lightning.pytorch.core.": "lightning.",
    "lightning.pytorch.core.module.": "lightning.",
    "lightning_fabric.": "lightning.",
    "mmengine.optim.optimizer.": "mmengine.optim.",
    "mmengine.optim.optimizer.amp_optimizer_wrapper.": "mmengine.optim.",
    "pytorch_lightning.": "lightning.",
    "pytorch_lightning.core.": "lightning.",
    "pytorch_lightning.core.lightning.": "lightning.",
    "pytorch_lightning.core.module.": "lightning.",
    "timm.utils.cuda.": "timm.utils.",
    "transformers.trainer.": "transformers.",
    "transformers.Seq2SeqTrainer": "transformers.Trainer",
}
#: Top-level packages of all names.
PACKAGES = frozenset(name.partition(".")[0] for name in (*NAMES, *ALIASES))

#: Attribute of a Trainer that divides the loss in automatic optimization.
TRAINER_STEPS = "trainer.accumulate_grad_batches"


def canonical_name(name: str) -> str:
    """Return the canonical path of a dotted name.

    For example, ``pytorch_lightning.LightningModule`` becomes ``lightning.LightningModule``.
    """
    found = ALIASES.get(name)
    if found is not None:
        return found
    head, dot, tail = name.rpartition(".")
    prefix = ALIASES.get(head + dot)
    return prefix + tail if prefix is not None else name


def find_entry(name: str) -> ApiEntry | None:
    """Return the table entry of a dotted name, or None."""
    return NAMES.get(canonical_name(name)) if name.partition(".")[0] in PACKAGES else None


def is_known_name(name: str) -> bool:
    """Return True if the table contains a dotted name, or names inside."""
    place = canonical_name(name) + "."
    return any(other == place[:-1] or other.startswith(place) for other in _SPOKEN) if place.count(".") > 1 else False


#: All names in the table, including base classes.
_SPOKEN = (*NAMES, LIGHTNING_MODULE, HUGGING_FACE_TRAINER)

__all__ = ["FRAMEWORKS", "NAMES", "Framework", "canonical_name", "find_entry"]
