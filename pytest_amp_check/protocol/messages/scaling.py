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
        "`step()` unscales the gradients of the optimizer and looks for infinities among them. It found no gradient at "
        "all: `.grad` is None for each parameter that the optimizer holds.",
        (
            (
                (
                    "The loss is a new tensor, made of numbers (`torch.tensor(values, requires_grad=True)`, `.item()`, "
                    "`argmax`, `.detach()`, NumPy). Its backward pass ends in that tensor and reaches no parameter."
                ),
                (
                    "Compute the loss from the model's output with operations that have a derivative. "
                    "`requires_grad=True` on a new tensor hides the mistake, it does not repair it."
                ),
            ),
            (
                (
                    "This batch contributes nothing to the loss: each target was masked or NaN, so it kept the value "
                    "that it was initialised with."
                ),
                (
                    "Skip backward, step and update of such a batch, or add `0 * output.sum()` so that the gradients "
                    "are zeros (under DDP all ranks have to do the same)."
                ),
            ),
            (
                "The gradients were cleared between backward and step; `zero_grad()` sets them to None.",
                "Call `zero_grad()` before backward or after step.",
            ),
            (
                (
                    "The loss reaches other parameters: those of another optimizer (GAN, actor and critic), or those "
                    "of a model that was replaced, wrapped or loaded after the optimizer was made."
                ),
                "Step the optimizer whose parameters the loss has used, and make the optimizer from the final model.",
            ),
            (
                "All parameters of the optimizer are frozen (`requires_grad=False`), or ran under `torch.no_grad()`.",
                "Give the optimizer the parameters that are trained, and take `no_grad` off their forward.",
            ),
        ),
        ("AMP215", "AMP207"),
        (_SCALER, "docs.pytorch.org/docs/stable/notes/amp_examples.html"),
    ),
    Message(
        "no-inf-checks-before-update",
        "No inf checks were recorded prior to update.",
        (r"no inf checks were recorded prior to update",),
        "`AssertionError`, raised by `scaler.update()`",
        "`update()` decides about the scale by what `unscale_()` and `step()` have found since the last update. "
        "Neither has run, or none of them found a gradient.",
        (
            (
                "The optimizer is stepped directly, `optimizer.step()`, so that the gradients stay multiplied.",
                "Write `scaler.step(optimizer)`.",
            ),
            (
                "`update()` runs in every micro-batch of an accumulation window, or after a batch that was skipped.",
                "Put `update()` under the same condition as `step()`.",
            ),
            ("`update()` is called twice.", "Call it once in an iteration, after the last step."),
            (
                "A fused optimizer had no gradient at all: its step checks nothing by itself.",
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
        "A gradient has the dtype of its parameter. Parameters in float16 have gradients in float16, which overflow "
        "when they are unscaled, so torch refuses. Autocast never makes a parameter float16: the program did.",
        (
            (
                "The model was cast: `model.half()`, `model.to(torch.float16)`, `model.to(device, dtype)`.",
                "Drop the cast of what is trained. Keep its parameters in float32, and let `torch.autocast` choose.",
            ),
            (
                (
                    "It was loaded in float16: `from_pretrained(..., torch_dtype=torch.float16)` (`dtype=` in newer "
                    "versions), a `torch_dtype` of `auto`, or a checkpoint that was assigned."
                ),
                (
                    "Load it in float32 and train under autocast. Where only adapters are trained (LoRA), cast those "
                    "that have `requires_grad` to float32."
                ),
            ),
            (
                (
                    "A layer was made in float16: `nn.Linear(8, 8, dtype=torch.float16)`, or everything was, by "
                    "`torch.set_default_dtype(torch.float16)`."
                ),
                "Leave the dtype out.",
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
        "Gradients may be divided by the scale once. The scaler remembers that it has done so until `update()`.",
        (
            (
                "`unscale_()` runs in every micro-batch of an accumulation window.",
                "Call it, and clip, only where the window ends, before `scaler.step(optimizer)`.",
            ),
            (
                (
                    "`update()` is missing, or is skipped together with a step, so that the next iteration finds the "
                    "state of the last."
                ),
                "Call `scaler.update()` whenever `unscale_()` was called, also after a step that was left out.",
            ),
            (
                (
                    "`unscale_()` is called twice: by the program and by what clips for it "
                    "(`accelerator.clip_grad_norm_`, a framework's hook)."
                ),
                "Leave one of the two out.",
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
        "One step of an optimizer belongs to one `update()`.",
        (
            ("`scaler.update()` is missing.", "Call it once in each iteration, after the last `scaler.step()`."),
            (
                "`update()` stands under a condition that does not hold, such as one for another micro-batch.",
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
        "The step has unscaled and used these gradients already, and the scaler was not updated since.",
        (
            (
                "`unscale_()` and the clip stand below `scaler.step(optimizer)`.",
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
            ("`loss.backward()` runs on the bare loss.", "Write `scaler.scale(loss).backward()`."),
            (
                "Another scaler scales the loss than the one that steps: it was made twice, or is one per optimizer.",
                "Use one scaler for the whole program.",
            ),
            (
                (
                    "A framework runs backward its own way (`manual_backward`, `accelerator.backward`) and another "
                    "scaler steps."
                ),
                "Leave the whole protocol to the framework, or none of it.",
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
        "A closure computes loss and gradients anew, between which the scaler cannot look for infinities.",
        (
            (
                "An optimizer that needs a closure, such as LBFGS, is stepped by a scaler.",
                "Train with it in float32 or bfloat16 and step it directly, or use one that needs no closure.",
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
        "The checkpoint was written by a run whose scaler was disabled, and an enabled one is to go on from it.",
        (
            (
                "The earlier run trained in bfloat16 or float32, or without a GPU.",
                (
                    "Load the scaler's state only where it is not empty: "
                    "`if state['scaler']: scaler.load_state_dict(state['scaler'])`. The scale starts anew."
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
        "The scaler or the region is for a device that this process does not have. It switches itself off, and the "
        "training goes on without it.",
        (
            (
                "The program runs on another device: a Mac (`mps`), an XPU, the CPU.",
                (
                    'Name the device that is trained on, in both: `torch.amp.GradScaler("mps")` and '
                    '`torch.autocast("mps", dtype=torch.float16)`. float16 without a live scaler loses small '
                    "gradients; where the device has no scaler, train in bfloat16 or float32."
                ),
            ),
            (
                "The GPU is hidden: a driver, a container, `CUDA_VISIBLE_DEVICES`.",
                "Look at `torch.cuda.is_available()` before anything else.",
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
        "This build of torch, or this machine, does not have the device that the program asks for.",
        (
            (
                "The device is written into the program.",
                (
                    "Ask what is there: `torch.accelerator.current_accelerator()`, or `torch.cuda.is_available()` and "
                    "`torch.backends.mps.is_available()`. Give that device to `torch.autocast` and to the scaler."
                ),
            ),
            (
                "Another device than that of the scaler and of autocast is used, as in code that was written for CUDA.",
                "Write `torch.amp.GradScaler(device)` and `torch.autocast(device)`; `torch.cuda.amp` is CUDA's.",
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
        "One optimizer holds parameters that are sharded and others that are not, and the scaler unscales them in one "
        "call.",
        (
            (
                "`fully_shard` was applied to a part of the model, or a head was added after it.",
                "Shard the whole model with `fully_shard(model)`, or give what is not sharded an optimizer of its own.",
            ),
        ),
        ("AMP602",),
        (_SCALER, "raised with torch 2.13 and one process of gloo"),
    ),
)
