"""Frameworks that wrap torch's mixed precision: their names, and what their calls do to gradients. All of it is data.

Read in accelerate 1.15, Lightning 2.6, timm 1.0, mmengine 0.10, DeepSpeed 0.19, ignite 0.5 and the last apex with
``apex.amp``.
"""

from __future__ import annotations

from .surface import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Roles that a callable of a framework can play.
ENGINE = "engine"  # makes the object that scales, unscales and steps
WRAP = "wrap"  # gives back what it is given
APEX_INITIALIZE = "apex-initialize"
APEX_SCALE = "apex-scale"
APEX_MASTER = "apex-master"
DEEPSPEED = "deepspeed"
SAVES = "saves"  # saves the states of the objects that it is given as ``to_save``
SAVER = "saver"  # makes a handler that is called with such objects
TRAINER = "trainer"  # makes what trains, with a scaler of its own if ``scaler`` is true

# What a method of an engine does.
BACKWARD = "backward"
UPDATE_PARAMS = "update-params"  # backward, step and zero_grad in one
UNSCALE = "unscale"  # of every optimizer, or of the one that is given
UNSCALE_ONE = "unscale-one"  # of the optimizer that is given
STEP = "step"
ZERO_GRAD = "zero-grad"
PREPARE = "prepare"  # gives back what it is given, ready to be stepped through the engine
GIVE_BACK = "give-back"
AUTOCAST = "autocast"
NO_EFFECT = "no-effect"  # a context, or a call, that changes nothing of the protocol
STATE = "state"
LOAD = "load"  # of the state of its scaler
SAVE = "save"


#: Regions in which TransformerEngine's modules compute in float8, and where each of its releases keeps their state.
FLOAT8 = (
    "transformer_engine.pytorch.autocast",
    "transformer_engine.pytorch.fp8_autocast",
    "transformer_engine.pytorch.quantization.autocast",
    "transformer_engine.pytorch.fp8.fp8_autocast",
)
FLOAT8_STATES = ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8")


class Framework:
    """What the tool knows of one framework.

    title       what messages call it.
    precision   the parameter of the constructor that decides about mixed precision, "" if the engine always scales.
    scaled      values of it with which losses are scaled.
    regions     those with which it enters autocast.
    default     the value where none is given; None where that is decided outside of the program.
    steps       the parameter that holds the number of micro-batches by which it divides losses, "" if it never does.
    many        parameters that may hold that number as well, in another form.
    methods     what each method of its engine does.
    ambient     whether optimizers are stepped through it: their own ``step`` is then the scaler's, with its update.
    unscales    whether such a step always unscales first.
    signs       methods and attributes of which its engine alone has one beside ``backward``.
    scaler      where its torch scaler is, as an attribute of the engine; "" if it is the engine's own business.
    usual       what its engine is called as a rule.
    ordained    labels of faults that its own code commits and that nobody who uses it can put right.
    advice      label of a fault -> how to put it right with this framework.
    """

    __slots__ = (
        "advice",
        "ambient",
        "default",
        "many",
        "methods",
        "ordained",
        "precision",
        "regions",
        "scaled",
        "scaler",
        "signs",
        "steps",
        "title",
        "unscales",
        "usual",
    )

    def __init__(
        self,
        title: str,
        methods: Mapping[str, str],
        *,
        precision: str = "",
        scaled: tuple[object, ...] = (),
        regions: tuple[object, ...] = (),
        default: object = None,
        steps: str = "",
        many: tuple[str, ...] = (),
        ambient: bool = False,
        unscales: bool = False,
        signs: frozenset[str] = frozenset(),
        scaler: str = "",
        usual: str = "",
        ordained: frozenset[str] = frozenset(),
        advice: Mapping[str, str] | None = None,
    ) -> None:
        self.title = title
        self.methods = dict(methods)
        self.precision = precision
        self.scaled = scaled
        self.regions = regions
        self.default = default
        self.steps = steps
        self.many = many
        self.ambient = ambient
        self.unscales = unscales
        self.signs = signs
        self.scaler = scaler
        self.usual = usual
        self.ordained = ordained
        self.advice = dict(advice or {})


def _methods(**does: str) -> dict[str, str]:
    """``backward="backward", clip="a b"`` as method -> what it does; the words of a value are method names."""
    return {name: what.replace("_", "-") for what, names in does.items() for name in names.split()}


#: Lightning's names for float16 with a scaler, and for autocast of either kind.
FLOAT16_MIXED = ("16-mixed", 16, "16")
MIXED = (*FLOAT16_MIXED, "bf16-mixed", "bf16")

FRAMEWORKS = {
    "accelerate": Framework(
        "accelerate",
        _methods(
            backward="backward",
            unscale="clip_grad_norm_ clip_grad_value_ unscale_gradients",
            prepare="prepare prepare_optimizer",
            give_back="prepare_model prepare_data_loader prepare_scheduler unwrap_model",
            autocast="autocast",
            no_effect="accumulate no_sync main_process_first local_main_process_first save_state load_state print",
            save="save",
        ),
        precision="mixed_precision",
        scaled=("fp16",),
        regions=("fp16", "bf16"),
        steps="gradient_accumulation_steps",
        many=("gradient_accumulation_plugin", "deepspeed_plugin", "deepspeed_plugins"),
        ambient=True,
        signs=frozenset("accumulate sync_gradients unwrap_model unscale_gradients gather_for_metrics".split()),
        scaler="scaler",
        usual="accelerator",
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
        _methods(
            backward="backward",
            unscale_one="clip_gradients",
            prepare="setup setup_optimizers",
            give_back="setup_module setup_dataloaders",
            autocast="autocast",
            no_effect="no_backward_sync init_module init_tensor launch barrier print log log_dict save load",
        ),
        precision="precision",
        scaled=FLOAT16_MIXED,
        regions=MIXED,
        default="32-true",
        ambient=True,
        signs=frozenset({"no_backward_sync", "setup_dataloaders"}),
        usual="fabric",
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
        precision="precision",
        scaled=FLOAT16_MIXED,
        regions=MIXED,
        default="32-true",
        ambient=True,
        unscales=True,
        scaler="trainer.precision_plugin.scaler",
        # It enters autocast around the whole of `training_step`.
        ordained=frozenset({"backward@region", "step@region"}),
        advice={
            "clip@scaled": "clip in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "edit@scaled": "edit them in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "read@scaled": "read them in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "step@raw": "call `self.manual_backward({loss})`",
            "plain-step@scaled": "step what `self.optimizers()` gives, which steps through Lightning's scaler",
            "update@pending": "let each loss run backward just before its own optimizer steps",
        },
    ),
    "timm": Framework("timm", _methods(state="state_dict", load="load_state_dict")),
    "mmengine": Framework(
        "mmengine",
        _methods(
            backward="backward",
            update_params="update_params",
            step="step",
            zero_grad="zero_grad",
            autocast="optim_context",
            no_effect="state_dict load_state_dict scale_loss should_update should_sync initialize_count_status get_lr",
        ),
        steps="accumulative_counts",
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
    Entry("accelerate.Accelerator", ENGINE, _ACCELERATOR, framework="accelerate"),
    Entry(
        "lightning.Fabric",
        ENGINE,
        ("accelerator", "strategy", "devices", "num_nodes", "precision", "plugins"),
        framework="fabric",
    ),
    Entry("timm.utils.NativeScaler", ENGINE, ("device",), framework="timm"),
    Entry(
        "mmengine.optim.AmpOptimWrapper",
        ENGINE,
        ("loss_scale", "dtype", "use_fsdp"),
        framework="mmengine",
    ),
    Entry("apex.amp.initialize", APEX_INITIALIZE, ("models", "optimizers", "enabled", "opt_level")),
    Entry("apex.amp.scale_loss", APEX_SCALE, _SCALE_LOSS),
    Entry("apex.amp.master_params", APEX_MASTER, ("optimizer",)),
    Entry("apex.parallel.DistributedDataParallel", WRAP, ("module",)),
    Entry("apex.parallel.convert_syncbn_model", WRAP, ("module",)),
    Entry("fairscale.nn.FullyShardedDataParallel", WRAP, ("module",)),
    Entry("fairscale.nn.ShardedDataParallel", WRAP, ("module",)),
    Entry("deepspeed.initialize", DEEPSPEED, ("args", "model", "optimizer", "model_parameters")),
    Entry("ignite.handlers.Checkpoint", SAVES, ("to_save", "save_handler")),
    Entry("ignite.handlers.ModelCheckpoint", SAVER),
    Entry(
        "ignite.contrib.engines.common.setup_common_training_handlers", SAVES, ("trainer", "train_sampler", "to_save")
    ),
    Entry("ignite.engine.create_supervised_trainer", TRAINER, ("model", "optimizer")),
)
NAMES: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}

#: The classes whose methods a Trainer runs, and the trainers themselves.
LIGHTNING_MODULE = "lightning.LightningModule"
HUGGING_FACE_TRAINER = "transformers.Trainer"

#: Other places of the same objects. A prefix ends in a dot and maps to a prefix.
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
#: First parts of all these names.
PACKAGES = frozenset(name.partition(".")[0] for name in (*NAMES, *ALIASES))

#: Attributes of a Trainer by which it divides the loss of automatic optimization.
TRAINER_STEPS = "trainer.accumulate_grad_batches"


def canonical(name: str) -> str:
    """The canonical place of a dotted name: ``pytorch_lightning.LightningModule`` -> ``lightning.LightningModule``."""
    found = ALIASES.get(name)
    if found is not None:
        return found
    head, dot, tail = name.rpartition(".")
    prefix = ALIASES.get(head + dot)
    return prefix + tail if prefix is not None else name


def lookup(name: str) -> Entry | None:
    """What the table knows of a dotted name."""
    return NAMES.get(canonical(name)) if name.partition(".")[0] in PACKAGES else None


def known(name: str) -> bool:
    """Whether the table speaks of a dotted name, or of names in it."""
    place = canonical(name) + "."
    return any(other == place[:-1] or other.startswith(place) for other in _SPOKEN) if place.count(".") > 1 else False


#: The names of objects, of base classes too.
_SPOKEN = (*NAMES, LIGHTNING_MODULE, HUGGING_FACE_TRAINER)

__all__ = ["FRAMEWORKS", "NAMES", "Framework", "canonical", "lookup"]
