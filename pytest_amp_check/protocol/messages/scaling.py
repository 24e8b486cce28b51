"""Messages of the gradient scaler: calls in the wrong order, or without gradients."""

from __future__ import annotations

from .message import Message

_SCALER = "torch/amp/grad_scaler.py"

MESSAGES = (
    Message(
        "no-inf-checks",
        "No inf checks were recorded for this optimizer.",
        (r"no inf checks were recorded for this optimizer",),
        "`AssertionError`, raised by `scaler.step(optimizer)`",
        (
            "`step()` unscales the gradients of the optimizer and checks them for infinities. It found no gradient "
            "at all: `.grad` is None for every parameter of the optimizer."
        ),
        (
            (
                (
                    "The loss is a new tensor, created from numbers (`torch.tensor(values, requires_grad=True)`, "
                    "`.item()`, `argmax`, `.detach()`, NumPy). Its backward pass ends in that tensor and reaches "
                    "no parameter."
                ),
                (
                    "Compute the loss from the model's output with differentiable operations. "
                    "`requires_grad=True` on a new tensor hides the mistake, but does not fix it."
                ),
            ),
            (
                (
                    "This batch contributes nothing to the loss: each target was masked or NaN, so the loss kept "
                    "its initial value."
                ),
                (
                    "Skip backward, step and update for such a batch, or add `0 * output.sum()` so that the "
                    "gradients are zeros (under DDP all ranks must do the same)."
                ),
            ),
            (
                "The gradients were cleared between backward and step; `zero_grad()` sets them to None.",
                "Call `zero_grad()` before backward or after step.",
            ),
            (
                (
                    "The loss reaches other parameters: the parameters of another optimizer (GAN, actor and "
                    "critic), or of a model that was replaced, wrapped or loaded after the optimizer was created."
                ),
                "Step the optimizer of the parameters in the loss, and create the optimizer from the final model.",
            ),
            (
                "All parameters of the optimizer are frozen (`requires_grad=False`), or ran under `torch.no_grad()`.",
                "Give the optimizer the trained parameters, and remove `no_grad` from their forward.",
            ),
        ),
        ("AMP215", "AMP207"),
        (_SCALER, "docs.pytorch.org/docs/stable/notes/amp_examples.html"),
    ),
    Message(
        "not-an-optimizer",
        "'function' object has no attribute 'param_groups'",
        (r"(?:object|method) has no attribute 'param_groups'",),
        "`AttributeError`, raised by `scaler.step(...)` or `scaler.unscale_(...)`",
        (
            "A scaler unscales and steps an optimizer. It was given another object: a method of the optimizer, a list "
            "of optimizers, or a wrapper that is no optimizer."
        ),
        (
            (
                (
                    "An optimizer with two passes (SAM) has its own step methods, and one of them was passed: "
                    "`scaler.step(optimizer.first_step)`."
                ),
                (
                    "In each pass call `scaler.unscale_(optimizer)`, then the step method itself unless a gradient is "
                    "not finite, then `scaler.update()`."
                ),
            ),
            (
                "A list of optimizers, or the module, was passed.",
                "Call `scaler.step(...)` once for each optimizer, and `scaler.update()` once after all of them.",
            ),
        ),
        (),
        (_SCALER, "github.com/davda54/sam issue 11"),
    ),
    Message(
        "no-inf-checks-before-update",
        "No inf checks were recorded prior to update.",
        (r"no inf checks were recorded prior to update",),
        "`AssertionError`, raised by `scaler.update()`",
        (
            "`update()` uses the inf checks of `unscale_()` and `step()` since the last update. Neither has run, or "
            "neither found a gradient."
        ),
        (
            (
                "The optimizer is stepped directly, `optimizer.step()`, so the gradients stay multiplied by the scale.",
                "Write `scaler.step(optimizer)`.",
            ),
            (
                "`update()` runs in every micro-batch of an accumulation window, or after a skipped batch.",
                "Put `update()` under the same condition as `step()`.",
            ),
            ("`update()` is called twice.", "Call it once in an iteration, after the last step."),
            (
                "A fused optimizer had no gradient at all: its step makes no check of its own.",
                "See `amp-check explain no-inf-checks`.",
            ),
        ),
        ("AMP204", "AMP207", "AMP303"),
        (_SCALER,),
    ),
    Message(
        "unscale-float16-gradients",
        "Attempting to unscale FP16 gradients.",
        (r"attempting to unscale fp16 gradients",),
        "`ValueError`, raised by `scaler.unscale_(optimizer)`, or by `scaler.step(optimizer)` and by what unscales for "
        "you (accelerate, Lightning, the Trainer of transformers)",
        (
            "A gradient has the dtype of its parameter. Float16 parameters have float16 gradients, and torch refuses "
            "to unscale them. Autocast never changes the dtype of a parameter: the program did."
        ),
        (
            (
                "The model was cast: `model.half()`, `model.to(torch.float16)`, `model.to(device, dtype)`.",
                "Remove the cast. Keep trained parameters in float32, and let `torch.autocast` choose the dtypes.",
            ),
            (
                (
                    "The model was loaded in float16: `from_pretrained(..., torch_dtype=torch.float16)` "
                    "(`dtype=` in newer versions), a `torch_dtype` of `auto`, or a checkpoint loaded with "
                    "`assign=True`."
                ),
                (
                    "Load the model in float32 and train under autocast. If only adapters are trained (LoRA), "
                    "cast the parameters with `requires_grad` to float32."
                ),
            ),
            (
                (
                    "A layer was created in float16, with `nn.Linear(8, 8, dtype=torch.float16)`, or all layers, "
                    "with `torch.set_default_dtype(torch.float16)`."
                ),
                "Remove the dtype.",
            ),
        ),
        ("AMP501",),
        (_SCALER, "docs.pytorch.org/docs/stable/amp.html: do not call half() on the model"),
    ),
    Message(
        "unscaled-twice",
        "unscale_() has already been called on this optimizer since the last update().",
        (r"unscale_\(\) has already been called on this optimizer",),
        "`RuntimeError`, raised by `scaler.unscale_(optimizer)`",
        "Gradients may be divided by the scale only once. The scaler remembers the division until `update()`.",
        (
            (
                "`unscale_()` runs in every micro-batch of an accumulation window.",
                "Call it, and clip, only where the window ends, before `scaler.step(optimizer)`.",
            ),
            (
                (
                    "`update()` is missing, or is skipped together with a step, so the next iteration finds the "
                    "old state."
                ),
                "Call `scaler.update()` whenever `unscale_()` was called, even after a skipped step.",
            ),
            (
                (
                    "`unscale_()` is called twice: by the program and by a framework that clips "
                    "(`accelerator.clip_grad_norm_`, a hook)."
                ),
                "Remove one of the two calls.",
            ),
        ),
        ("AMP209", "AMP210", "AMP303", "AMP206"),
        (_SCALER,),
    ),
    Message(
        "stepped-twice",
        "step() has already been called since the last update().",
        (r"step\(\) has already been called since the last update",),
        "`RuntimeError`, raised by `scaler.step(optimizer)`",
        "Each optimizer may step once per `update()`.",
        (
            ("`scaler.update()` is missing.", "Call it once in each iteration, after the last `scaler.step()`."),
            (
                "`update()` is under a condition that is false here, such as the condition of another micro-batch.",
                "Put it under the condition of the step.",
            ),
            ("The optimizer is stepped twice.", "Step each optimizer once in an iteration."),
        ),
        ("AMP206",),
        (_SCALER,),
    ),
    Message(
        "unscaled-after-step",
        "unscale_() is being called after step().",
        (r"unscale_\(\) is being called after step\(\)",),
        "`RuntimeError`, raised by `scaler.unscale_(optimizer)`",
        "The step has already unscaled and used these gradients, and the scaler was not updated since.",
        (
            (
                "`unscale_()` and the clip come after `scaler.step(optimizer)`.",
                "Put them between backward and step.",
            ),
            ("`scaler.update()` of the last iteration is missing.", "Call it after the last step of an iteration."),
        ),
        ("AMP206", "AMP209"),
        (_SCALER,),
    ),
    Message(
        "scale-is-none",
        "Attempted ... but _scale is None. This may indicate your script did not use scaler.scale(loss or outputs) "
        "earlier in the iteration.",
        (r"attempted (?:unscale_|step|update) but _scale is None", r"_scale is None"),
        "`AssertionError`, raised by `scaler.unscale_()`, `scaler.step()` or `scaler.update()`",
        "The scale exists from the first `scaler.scale(loss)` on, and this scaler has never scaled a loss.",
        (
            ("`loss.backward()` runs on the unscaled loss.", "Write `scaler.scale(loss).backward()`."),
            (
                (
                    "One scaler scales the loss and another one steps: the scaler was created twice, or once per "
                    "optimizer."
                ),
                "Use one scaler for the whole program.",
            ),
            (
                ("A framework runs backward (`manual_backward`, `accelerator.backward`), and another scaler steps."),
                "Let the framework do backward, step and update, or none of them.",
            ),
        ),
        ("AMP203",),
        (_SCALER,),
    ),
    Message(
        "closure-with-scaler",
        "Closure use is not currently supported if GradScaler is enabled.",
        (r"closure use is not currently supported if gradscaler is enabled",),
        "`RuntimeError`, raised by `scaler.step(optimizer, closure=...)`",
        "A closure recomputes loss and gradients inside the step, where the scaler cannot check for infinities.",
        (
            (
                "An optimizer that needs a closure, such as LBFGS, is stepped by a scaler.",
                (
                    "Train in float32 or bfloat16 and step the optimizer directly, or use an optimizer that needs no "
                    "closure."
                ),
            ),
        ),
        ("AMP211",),
        (_SCALER,),
    ),
    Message(
        "empty-scaler-state",
        "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.",
        (r"the source state dict is empty, possibly because it was saved from a disabled instance of gradscaler",),
        "`RuntimeError`, raised by `scaler.load_state_dict()`",
        "The checkpoint was written by a run with a disabled scaler, and an enabled scaler loads it.",
        (
            (
                "The earlier run trained in bfloat16 or float32, or without a GPU.",
                (
                    "Load the scaler's state only if it is not empty: `if state['scaler']: "
                    "scaler.load_state_dict(state['scaler'])`. The scale then starts at its initial value."
                ),
            ),
        ),
        ("AMP401", "AMP402"),
        (_SCALER,),
    ),
    Message(
        "scaler-without-its-device",
        "torch.cuda.amp.GradScaler is enabled, but CUDA is not available. Disabling.",
        (
            r"gradscaler is enabled, but \w+ is not available",
            r"(?:cuda|xpu|mps) is not available(?: or \w+ is imported)?\. ?disabling",
            r"user provided device_type of '\w+', but \w+ is not available",
        ),
        "`UserWarning`, given by `GradScaler(...)` or `torch.autocast(...)`",
        (
            "The scaler or the region is for a device that this process does not have. It switches itself off, and "
            "training continues without it."
        ),
        (
            (
                "The program runs on another device: a Mac (`mps`), an XPU, the CPU.",
                (
                    'Name the training device in both: `torch.amp.GradScaler("mps")` and `torch.autocast("mps", '
                    "dtype=torch.float16)`. float16 without a live scaler loses small gradients. If the device "
                    "has no scaler, train in bfloat16 or float32."
                ),
            ),
            (
                "The GPU is hidden: a driver, a container, `CUDA_VISIBLE_DEVICES`.",
                "Check `torch.cuda.is_available()` first.",
            ),
        ),
        ("AMP217",),
        (_SCALER, "torch/amp/autocast_mode.py"),
    ),
    Message(
        "device-not-there",
        "PyTorch is not linked with support for ... devices",
        (
            r"pytorch is not linked with support for \S+ devices",
            r"torch not compiled with \w+ enabled",
            r"found no nvidia driver on your system",
        ),
        "`RuntimeError` or `AssertionError`, raised by `.to(device)` and whatever makes a tensor on a device",
        "This build of torch, or this machine, does not have the requested device.",
        (
            (
                "The program hard-codes the device.",
                (
                    "Detect the device: `torch.accelerator.current_accelerator()`, or "
                    "`torch.cuda.is_available()` and `torch.backends.mps.is_available()`. Pass that device to "
                    "`torch.autocast` and to the scaler."
                ),
            ),
            (
                (
                    "The code uses another device than the scaler and autocast, for example code that was written "
                    "for CUDA."
                ),
                "Write `torch.amp.GradScaler(device)` and `torch.autocast(device)`; `torch.cuda.amp` is for CUDA only.",
            ),
        ),
        ("AMP217",),
        ("torch/cuda/__init__.py", "raised with torch 2.13 on the CPU"),
    ),
    Message(
        "mixed-sharded-gradients",
        "aten._amp_foreach_non_finite_check_and_unscale_.default: got mixed torch.Tensor and DTensor",
        (r"_amp_\w*unscale_\w*\.default: got mixed torch\.Tensor and DTensor",),
        "`RuntimeError`, raised by `scaler.unscale_(optimizer)` or `scaler.step(optimizer)`",
        "One optimizer holds sharded and unsharded parameters, and the scaler unscales them in one call.",
        (
            (
                "`fully_shard` was applied to a part of the model, or a head was added after it.",
                (
                    "Shard the whole model with `fully_shard(model)`, or use a separate optimizer for the unsharded "
                    "parameters."
                ),
            ),
        ),
        ("AMP602",),
        (_SCALER, "raised with torch 2.13 and one process of gloo"),
    ),
)
