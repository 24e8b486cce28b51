"""Frameworks that wrap torch's mixed precision, as data: names, and effects of calls on gradients.

Taken from accelerate 1.15, Lightning 2.6, timm 1.0, mmengine 0.10, mmcv 1.7, detectron2 0.6, DeepSpeed 0.19, ignite 0.5
and the last apex with ``apex.amp``.
"""

from __future__ import annotations

from .fast_namedtuple import NamedTuple
from .torch_api import ApiEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Roles of framework callables.
ENGINE = "engine"  # creates the object that scales, unscales and steps
WRAP = "wrap"  # returns the argument
APEX_INITIALIZE = "apex-initialize"
APEX_SCALE = "apex-scale"
APEX_MASTER = "apex-master"
APEX_STATE = "apex-state"
APEX_LOAD = "apex-load"
DEEPSPEED = "deepspeed"
SAVES = "saves"  # saves the states of the objects in the argument ``to_save``
SAVER = "saver"  # creates a handler that is called with such objects
TRAINER = "trainer"  # creates a trainer, with a separate scaler if ``scaler`` is true
#: Classes of the arguments of transformers' Trainers.
TRAINER_ARGUMENTS = frozenset(("TrainingArguments", "Seq2SeqTrainingArguments"))
#: Packages whose Trainers train the model that they are given.
TRANSFORMERS_PACKAGES = frozenset(("transformers", "trl"))
#: Packages with Trainers that run all steps of a training in one call.
TRAINER_PACKAGES = TRANSFORMERS_PACKAGES | {"lightning", "pytorch_lightning"}
#: Roles of callables in code that trains.
_TRAINING_ROLES = frozenset({ENGINE, TRAINER, APEX_SCALE})

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
ACCUMULATE = "accumulate"  # a context that ends a window every few microbatches
NO_SYNC = "no-sync"  # a context in which ranks do not average gradients, unless its argument ``enabled`` is false
NO_EFFECT = "no-effect"  # a context or call without effect on the protocol
STATE = "state"
LOAD = "load"  # loads the state of the engine's scaler
SAVE = "save"

# Values of engine attributes.
SCALER = "scaler"  # the scaler, None if the engine does not scale
ACCUMULATION = "accumulation"  # the number of microbatches
PRECISION = "precision"
ITSELF = "itself"  # an object with the same attributes
WINDOW_END = "window-end"  # true if the microbatch ends a window
NOTHING = "nothing"  # None wherever losses are scaled


_MEANINGS = frozenset(
    (
        *(BACKWARD, UPDATE_PARAMS, UNSCALE, UNSCALE_ONE, STEP, ZERO_GRAD, PREPARE, GIVE_BACK, AUTOCAST, ACCUMULATE),
        *(NO_SYNC, NO_EFFECT, STATE, LOAD, SAVE, SCALER, ACCUMULATION, PRECISION, ITSELF, WINDOW_END, NOTHING),
    )
)


class PrecisionOption(NamedTuple):
    """The constructor parameter of an engine for mixed precision.

    - ``parameter``: name of the parameter, "" if the engine always scales.
    - ``scaled``: values with loss scaling.
    - ``autocast``: values with autocast.
    - ``default``: value without an argument; None if decided outside the program.
    """

    parameter: str = ""
    scaled: tuple[object, ...] = ()
    autocast: tuple[object, ...] = ()
    default: object = None


class AccumulationOption(NamedTuple):
    """The constructor parameter of an engine for the number of microbatches of a window.

    - ``parameter``: name of the parameter, "" if losses are never divided.
    - ``other_parameters``: parameters that may also hold this number, in another form.
    - ``divides_losses``: True if the engine's backward divides losses by this number.
    """

    parameter: str = ""
    other_parameters: tuple[str, ...] = ()
    divides_losses: bool = False


_ALWAYS_SCALES = PrecisionOption()
_NEVER_DIVIDES = AccumulationOption()


class Engine:
    """The object of a framework that scales losses, or steps optimizers.

    - ``methods``, ``attributes``: effects of its methods, and values of its attributes.
    - ``precision``, ``accumulation``: constructor parameters for mixed precision, and for windows of microbatches.
    - ``call_parameters``: parameters of a call of the object itself, which does a whole step.
    - ``signature_names``: methods and attributes, beside ``backward``, of this engine only.
    - ``scaler_attribute``: attribute with the torch scaler; "" if not accessible.
    - ``usual_name``: usual variable name.
    - ``nonfinite_errors``: method that raises on infinite gradients -> its parameters, that with a threshold, and that
      which is true by default and enables this.
    - ``parameter_name``: name by which the framework passes its wrapper, which scales or not, to ``train_step``.
    """

    __slots__ = (
        "accumulation",
        "attributes",
        "call_parameters",
        "methods",
        "nonfinite_errors",
        "parameter_name",
        "precision",
        "scaler_attribute",
        "signature_names",
        "usual_name",
    )

    def __init__(
        self,
        methods: Mapping[str, str],
        *,
        attributes: Mapping[str, str] | None = None,
        precision: PrecisionOption = _ALWAYS_SCALES,
        accumulation: AccumulationOption = _NEVER_DIVIDES,
        call_parameters: tuple[str, ...] = (),
        signature_names: str = "",
        scaler_attribute: str = "",
        usual_name: str = "",
        nonfinite_errors: Mapping[str, tuple[tuple[str, ...], str, str]] | None = None,
        parameter_name: str = "",
    ) -> None:
        self.methods = dict(methods)
        self.attributes = dict(attributes or {})
        if unknown := {*self.methods.values(), *self.attributes.values()} - _MEANINGS:
            raise ValueError(f"{', '.join(sorted(unknown))}: no such effect of a method or value of an attribute")
        self.precision = precision
        self.accumulation = accumulation
        self.call_parameters = call_parameters
        self.signature_names = frozenset(signature_names.split())
        self.scaler_attribute = scaler_attribute
        self.usual_name = usual_name
        self.nonfinite_errors = dict(nonfinite_errors or {})
        self.parameter_name = parameter_name


class Steps:
    """How a framework steps optimizers.

    - ``through_engine``: True if optimizers step through the engine: ``step`` is then the scaler's step, with update.
    - ``always_unscale``: True if such a step always unscales first.
    - ``saves_scaler``: True if the framework saves the state of its scaler itself.
    - ``wrapper``: method of the engine that gives the optimizer to step, "" without one.
    """

    __slots__ = ("always_unscale", "saves_scaler", "through_engine", "wrapper")

    def __init__(
        self,
        *,
        through_engine: bool = False,
        always_unscale: bool = False,
        saves_scaler: bool = True,
        wrapper: str = "",
    ) -> None:
        self.through_engine = through_engine
        self.always_unscale = always_unscale
        self.saves_scaler = saves_scaler
        self.wrapper = wrapper


_NO_ENGINE = Engine({})
_PLAIN_STEPS = Steps()


class Framework:
    """All that is known of one framework. Everything else is derived from these rows.

    - ``title``: name in messages.
    - ``callables``: functions and classes that programs call, by their canonical path.
    - ``base_class``: class from which programs derive, or whose objects train a given model.
    - ``aliases``: alias paths of the same objects. A prefix ends in a dot and maps to a prefix.
    - ``packages``: names of the packages whose code runs the training loop for a program.
    - ``relevant_names``: further names that make a function worth inlining at a call.
    - ``entry_names``: further names that make a function an entry point.
    - ``engine``, ``steps``: the object that scales losses, and how it steps optimizers.
    - ``inner_engines``: attributes of objects of the base class -> framework of the engine in the attribute.
    - ``saving_methods``: methods of the base class, or an attribute, by which a subclass adds its own state to a
      checkpoint, the usual one first.
    - ``own_violations``: violation labels that the framework's code causes and that users cannot correct.
    - ``advice``: violation label -> remedy with this framework.
    """

    __slots__ = (
        "advice",
        "aliases",
        "base_class",
        "callables",
        "engine",
        "entry_names",
        "inner_engines",
        "own_violations",
        "packages",
        "relevant_names",
        "saving_methods",
        "steps",
        "title",
    )

    def __init__(
        self,
        title: str,
        *callables: ApiEntry,
        base_class: str = "",
        aliases: Mapping[str, str] | None = None,
        packages: tuple[str, ...] = (),
        relevant_names: str = "",
        entry_names: str = "",
        engine: Engine = _NO_ENGINE,
        steps: Steps = _PLAIN_STEPS,
        inner_engines: Mapping[str, str] | None = None,
        saving_methods: str = "",
        own_violations: frozenset[str] = frozenset(),
        advice: Mapping[str, str] | None = None,
    ) -> None:
        self.title = title
        self.callables = callables
        self.base_class = base_class
        self.aliases = dict(aliases or {})
        self.packages = packages
        self.relevant_names = frozenset(relevant_names.split())
        self.entry_names = frozenset(entry_names.split())
        self.engine = engine
        self.steps = steps
        self.inner_engines = dict(inner_engines or {})
        self.saving_methods = tuple(saving_methods.split())
        self.own_violations = own_violations
        self.advice = dict(advice or {})


def _parse_methods(**does: str) -> dict[str, str]:
    """Convert ``backward="backward", clip="a b"`` to a map of methods to effects. Values are lists of method names."""
    return {name: what.replace("_", "-") for what, names in does.items() for name in names.split()}


#: Lightning's precision values for float16 with a scaler, and for autocast of either dtype.
FLOAT16_MIXED = ("16-mixed", 16, "16")
MIXED = (*FLOAT16_MIXED, "bf16-mixed", "bf16")
#: Precision values of accelerate, Fabric and Lightning with regions around the forward -> dtype of the regions.
REGION_DTYPES: dict[object, str] = {
    "fp16": "float16",
    "bf16": "bfloat16",
    **dict.fromkeys(FLOAT16_MIXED, "float16"),
    "bf16-mixed": "bfloat16",
}
_LIGHTNING_PRECISION = PrecisionOption("precision", scaled=FLOAT16_MIXED, autocast=MIXED, default="32-true")
#: Precision value of Lightning that stores parameters, gradients and the optimizer's state in a low dtype -> the dtype,
#: and the value for mixed precision.
STORED_LOW = {"bf16-true": ("bfloat16", "bf16-mixed"), "16-true": ("float16", "16-mixed")}

#: Function of peft that adds the adapters to a model, which alone are trained then.
MAKES_ADAPTERS = "get_peft_model"
#: Dtype argument of ``from_pretrained`` that keeps the dtype of the checkpoint, which is low for most large models.
OF_CHECKPOINT = "auto"
#: Values in programs that may make parameters low; settings name dtypes by the last two.
LOW_VALUES = frozenset({*STORED_LOW, OF_CHECKPOINT, "bfloat16", "float16"})

_ACCELERATOR = (
    "device_placement",
    "split_batches",
    "mixed_precision",
    "gradient_accumulation_steps",
    "cpu",
    "dataloader_config",
    "deepspeed_plugin",
)
_APEX_INITIALIZE = (
    "models",
    "optimizers",
    "enabled",
    "opt_level",
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
)
_FABRIC_CLIP = ("module", "optimizer", "clip_val", "max_norm", "norm_type", "error_if_nonfinite")
_SCALE_LOSS = ("loss", "optimizers", "loss_id", "model", "delay_unscale", "delay_overflow_check")
_NATIVE_SCALER = ("loss", "optimizer", "clip_grad", "clip_mode", "parameters", "create_graph", "need_update")

FRAMEWORKS = {
    "accelerate": Framework(
        "accelerate",
        ApiEntry("accelerate.Accelerator", ENGINE, _ACCELERATOR),
        aliases={"accelerate.accelerator.": "accelerate."},
        packages=("accelerate",),
        relevant_names="accumulate prepare",
        entry_names="gradient_accumulation_steps",
        engine=Engine(
            _parse_methods(
                backward="backward",
                unscale="clip_grad_norm_ clip_grad_value_ unscale_gradients",
                prepare="prepare prepare_optimizer",
                give_back="prepare_model prepare_data_loader prepare_scheduler unwrap_model",
                autocast="autocast",
                accumulate="accumulate",
                no_sync="no_sync",
                no_effect="main_process_first local_main_process_first save_state load_state print",
                save="save",
            ),
            attributes=_parse_methods(
                scaler="scaler",
                accumulation="gradient_accumulation_steps",
                precision="mixed_precision",
                itself="state",
                window_end="sync_gradients",
                # DeepSpeed trains without a torch scaler, so nothing is checked.
                nothing="deepspeed_plugin",
            ),
            precision=PrecisionOption("mixed_precision", scaled=("fp16",), autocast=("fp16", "bf16")),
            accumulation=AccumulationOption(
                "gradient_accumulation_steps",
                other_parameters=("gradient_accumulation_plugin", "deepspeed_plugin", "deepspeed_plugins"),
                divides_losses=True,
            ),
            signature_names="accumulate sync_gradients unwrap_model unscale_gradients gather_for_metrics",
            scaler_attribute="scaler",
            usual_name="accelerator",
        ),
        steps=Steps(through_engine=True, wrapper="prepare"),
        advice={
            "clip@scaled": (
                "call `{scaler}.clip_grad_norm_`, which unscales them first, where `{scaler}.sync_gradients` is true"
            ),
            "step@raw": "call `{scaler}.backward({loss})`",
            "plain-step@scaled": "step what `{scaler}.prepare({optimizer})` returns, which steps through the scaler",
            "update@pending": "let each `optimizer.step()` follow its own `{scaler}.backward()`, before the next one",
            "update@nothing": "remove it, because `optimizer.step()` updates the scale",
            "unscale@window": "unscale and clip only where `{scaler}.sync_gradients` is true",
            "backward@unscaled": (
                "unscale and clip only where `{scaler}.sync_gradients` is true, and let `optimizer.step()` follow, "
                "which skips gradients that are not finite by itself"
            ),
        },
    ),
    "fabric": Framework(
        "Fabric",
        ApiEntry(
            "lightning.Fabric", ENGINE, ("accelerator", "strategy", "devices", "num_nodes", "precision", "plugins")
        ),
        aliases={
            "lightning.fabric.": "lightning.",
            "lightning.fabric.fabric.": "lightning.",
            "lightning_fabric.": "lightning.",
        },
        packages=("lightning.fabric", "lightning_fabric"),
        relevant_names="setup clip_gradients",
        engine=Engine(
            _parse_methods(
                backward="backward",
                unscale_one="clip_gradients",
                prepare="setup setup_optimizers",
                give_back="setup_module setup_dataloaders",
                autocast="autocast",
                no_sync="no_backward_sync",
                no_effect="init_module init_tensor launch barrier print log log_dict save load",
            ),
            precision=_LIGHTNING_PRECISION,
            signature_names="no_backward_sync setup_dataloaders",
            usual_name="fabric",
            nonfinite_errors={"clip_gradients": (_FABRIC_CLIP, "max_norm", "error_if_nonfinite")},
        ),
        steps=Steps(through_engine=True, wrapper="setup_optimizers"),
        advice={
            "clip@scaled": "call `{scaler}.clip_gradients`, which unscales them first",
            "step@raw": "call `{scaler}.backward({loss})`",
            "plain-step@scaled": (
                "step what `{scaler}.setup_optimizers({optimizer})` returns, which steps through the scaler"
            ),
            "backward@unscaled": "let `optimizer.step()` follow, which skips gradients that are not finite by itself",
            "update@pending": "let each loss run backward just before its own optimizer steps",
            "update@nothing": "remove it, because `optimizer.step()` updates the scale",
        },
    ),
    "lightning": Framework(
        "Lightning",
        base_class="lightning.LightningModule",
        aliases={
            "lightning.pytorch.": "lightning.",
            "lightning.pytorch.core.": "lightning.",
            "lightning.pytorch.core.module.": "lightning.",
            "pytorch_lightning.": "lightning.",
            "pytorch_lightning.core.": "lightning.",
            "pytorch_lightning.core.lightning.": "lightning.",
            "pytorch_lightning.core.module.": "lightning.",
        },
        packages=("lightning.pytorch", "pytorch_lightning"),
        relevant_names="optimizers clip_gradients",
        saving_methods="on_save_checkpoint state_dict get_extra_state",
        engine=Engine(
            {"manual_backward": BACKWARD},
            precision=_LIGHTNING_PRECISION,
            scaler_attribute="trainer.precision_plugin.scaler",
        ),
        steps=Steps(through_engine=True, always_unscale=True),
        # Lightning enters autocast around the whole `training_step`.
        own_violations=frozenset({"backward@region", "step@region"}),
        advice={
            "clip@scaled": "clip in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "edit@scaled": "edit them in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "read@scaled": "read them in `on_before_optimizer_step`, which runs after Lightning has unscaled them",
            "step@raw": "call `self.manual_backward({loss})`",
            "plain-step@scaled": "step what `self.optimizers()` gives, which steps through Lightning's scaler",
            "update@pending": "let each loss run backward just before its own optimizer steps",
            "update@nothing": "remove it, because Lightning updates the scale in each step",
        },
    ),
    "timm": Framework(
        "timm",
        ApiEntry("timm.utils.NativeScaler", ENGINE, ("device",)),
        aliases={"timm.utils.cuda.": "timm.utils."},
        engine=Engine(_parse_methods(state="state_dict", load="load_state_dict"), call_parameters=_NATIVE_SCALER),
        steps=Steps(saves_scaler=False),
        advice={"step@raw": "leave the backward pass to the call of `{scaler}`, which scales the loss"},
    ),
    "mmengine": Framework(
        "mmengine",
        ApiEntry("mmengine.optim.AmpOptimWrapper", ENGINE, ("loss_scale", "dtype", "use_fsdp")),
        aliases={
            "mmengine.optim.optimizer.": "mmengine.optim.",
            "mmengine.optim.optimizer.amp_optimizer_wrapper.": "mmengine.optim.",
        },
        relevant_names="optim_context",
        entry_names="optim_wrapper",
        engine=Engine(
            _parse_methods(
                backward="backward",
                update_params="update_params",
                step="step",
                zero_grad="zero_grad",
                autocast="optim_context",
                no_effect=(
                    "state_dict load_state_dict scale_loss should_update should_sync initialize_count_status get_lr"
                ),
            ),
            accumulation=AccumulationOption("accumulative_counts"),
            parameter_name="optim_wrapper",
        ),
        advice={
            "clip@scaled": "give `clip_grad=dict(max_norm=...)` to the wrapper, which unscales them first",
            "step@raw": "call `{scaler}.backward({loss})`",
        },
    ),
    "apex": Framework(
        "apex",
        ApiEntry("apex.amp.initialize", APEX_INITIALIZE, _APEX_INITIALIZE),
        ApiEntry("apex.amp.scale_loss", APEX_SCALE, _SCALE_LOSS),
        ApiEntry("apex.amp.master_params", APEX_MASTER, ("optimizer",)),
        ApiEntry("apex.amp.state_dict", APEX_STATE, ("destination",)),
        ApiEntry("apex.amp.load_state_dict", APEX_LOAD, ("state_dict",)),
        ApiEntry("apex.parallel.DistributedDataParallel", WRAP, ("module",)),
        ApiEntry("apex.parallel.convert_syncbn_model", WRAP, ("module",)),
        aliases={"apex.amp.handle.": "apex.amp."},
        advice={
            "clip@scaled": "clip after the `with amp.scale_loss(...)` block, which unscales them at its end",
            "plain-step@scaled": (
                "step after a `with amp.scale_loss(...)` block without `delay_unscale`, which unscales them at its end"
            ),
        },
    ),
    "deepspeed": Framework(
        "DeepSpeed",
        ApiEntry(
            "deepspeed.initialize",
            DEEPSPEED,
            (
                "args",
                "model",
                "optimizer",
                "model_parameters",
                "training_data",
                "lr_scheduler",
                "distributed_port",
                "mpu",
                "dist_init_required",
                "collate_fn",
                "config",
            ),
        ),
        entry_names="is_gradient_accumulation_boundary",
    ),
    "ignite": Framework(
        "ignite",
        ApiEntry("ignite.handlers.Checkpoint", SAVES, ("to_save", "save_handler")),
        ApiEntry("ignite.handlers.ModelCheckpoint", SAVER),
        ApiEntry(
            "ignite.contrib.engines.common.setup_common_training_handlers",
            SAVES,
            ("trainer", "train_sampler", "to_save"),
        ),
        ApiEntry("ignite.engine.create_supervised_trainer", TRAINER, ("model", "optimizer")),
        aliases={"ignite.handlers.checkpoint.": "ignite.handlers."},
    ),
    "fairscale": Framework(
        "fairscale",
        ApiEntry("fairscale.nn.FullyShardedDataParallel", WRAP, ("module",)),
        ApiEntry("fairscale.nn.ShardedDataParallel", WRAP, ("module",)),
        aliases={"fairscale.nn.data_parallel.": "fairscale.nn."},
    ),
    "transformers": Framework(
        "transformers",
        base_class="transformers.Trainer",
        aliases={
            "transformers.trainer.": "transformers.",
            "transformers.Seq2SeqTrainer": "transformers.Trainer",
        },
        inner_engines={"accelerator": "accelerate"},
        relevant_names="Trainer Seq2SeqTrainer",
        saving_methods="_save_optimizer_and_scheduler _save_checkpoint _save_scaler save_state",
    ),
    "mmcv": Framework(
        "mmcv",
        base_class="mmcv.runner.Hook",
        aliases={
            "mmcv.runner.hooks.": "mmcv.runner.",
            "mmcv.runner.hooks.hook.": "mmcv.runner.",
            "mmcv.runner.hooks.optimizer.OptimizerHook": "mmcv.runner.Hook",
            "mmcv.runner.hooks.OptimizerHook": "mmcv.runner.Hook",
            "mmcv.runner.OptimizerHook": "mmcv.runner.Hook",
        },
        saving_methods="runner.meta",
    ),
    "detectron2": Framework(
        "detectron2",
        base_class="detectron2.engine.SimpleTrainer",
        aliases={"detectron2.engine.train_loop.": "detectron2.engine."},
        saving_methods="state_dict",
    ),
}

#: Context managers in which modules of TransformerEngine compute in float8, and the state of float8 in each release.
FLOAT8 = (
    "transformer_engine.pytorch.autocast",
    "transformer_engine.pytorch.fp8_autocast",
    "transformer_engine.pytorch.quantization.autocast",
    "transformer_engine.pytorch.fp8.fp8_autocast",
)
FLOAT8_STATES = ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8")

#: Keys of the frameworks with a model of their own in ``static/libraries``.
LIGHTNING, HUGGING_FACE, DEEP_SPEED, APEX = "lightning", "transformers", "deepspeed", "apex"
#: Attribute of a Trainer that divides the loss in automatic optimization.
TRAINER_STEPS = "trainer.accumulate_grad_batches"

# Derived from the rows.
NAMES: dict[str, ApiEntry] = {}
#: The framework of each name.
FRAMEWORK_OF: dict[str, str] = {}
ALIASES: dict[str, str] = {}
#: Names of packages whose code runs the training loop -> framework.
RUN_PACKAGES: dict[str, str] = {}
for _key, _framework in FRAMEWORKS.items():
    for _entry in _framework.callables:
        NAMES[_entry.name], FRAMEWORK_OF[_entry.name] = _entry, _key
    ALIASES.update(_framework.aliases)
    RUN_PACKAGES.update(dict.fromkeys(_framework.packages, _key))
#: All names in the table, including base classes.
_SPOKEN = (*NAMES, *(framework.base_class for framework in FRAMEWORKS.values() if framework.base_class))
#: Top-level packages of all names.
PACKAGES = frozenset(name.partition(".")[0] for name in (*NAMES, *ALIASES))


def _last_names(roles: frozenset[str]) -> Iterator[str]:
    return (name.rpartition(".")[2] for name, entry in NAMES.items() if entry.role in roles)


#: Methods of engines, other than ``backward``, that run a loss backward.
BACKWARD_METHODS = frozenset(
    name
    for framework in FRAMEWORKS.values()
    for name, effect in framework.engine.methods.items()
    if effect in (BACKWARD, UPDATE_PARAMS)
) - {"backward"}
#: Names that make a function an entry point.
ENTRY_NAMES = BACKWARD_METHODS.union(
    _last_names(_TRAINING_ROLES), *(framework.entry_names for framework in FRAMEWORKS.values())
)
#: Names that make a function worth inlining at a call.
RELEVANT_NAMES = BACKWARD_METHODS.union(
    _last_names(frozenset(entry.role for entry in NAMES.values()) - {WRAP}),
    *(framework.relevant_names for framework in FRAMEWORKS.values()),
)


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


__all__ = ["FRAMEWORKS", "NAMES", "Framework", "canonical_name", "find_entry"]
