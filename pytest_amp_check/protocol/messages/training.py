"""Messages about other areas of mixed precision: non-finite values, checkpointing, schedules, sharding."""

from __future__ import annotations

from .message import Message

_RAISED = "raised with torch 2.13 on the CPU"

MESSAGES = (
    Message(
        "anomaly-nan",
        "Function '...Backward0' returned nan values in its 0th output.",
        (r"function '[\w.]+' returned nan values in its \d+\w* output",),
        "`RuntimeError`, raised by `backward()` while `torch.autograd.set_detect_anomaly(True)` or "
        "`detect_anomaly()` is on",
        "Anomaly mode stops at the first op whose gradient is NaN. The traceback that it prints above the exception "
        "shows the forward of that op.",
        (
            (
                (
                    "A scaler is live and the scaled gradients overflowed to infinities, which then became NaN. "
                    "This is normal in the first steps of a scaler and occasionally later: the scaler skips the "
                    "step."
                ),
                (
                    "Disable anomaly mode while a scaler calibrates. To look for a real NaN, run with "
                    "`GradScaler(enabled=False)` in float32 or bfloat16."
                ),
            ),
            (
                (
                    "The op has no finite gradient at its input: `sqrt(0)`, `norm()` of zeros, `log(0)`, a "
                    "division by zero, a softmax over a fully masked row."
                ),
                (
                    "Keep the input away from that point with an epsilon that the dtype can represent (1e-8 is 0 "
                    "in float16), and compute the op in float32."
                ),
            ),
        ),
        ("AMP213", "AMP505", "AMP507", "AMP801"),
        (_RAISED, "torch/csrc/autograd/engine.cpp"),
    ),
    Message(
        "no-graph",
        "element 0 of tensors does not require grad and does not have a grad_fn",
        (r"element \d+ of (?:tensors|variables) does not require grad and does not have a grad_fn",),
        "`RuntimeError`, raised by `backward()`",
        "No input of the loss requires a gradient, so `backward()` has nothing to differentiate.",
        (
            (
                (
                    "The loss was removed from the graph by `.item()`, `.detach()`, `.data`, `argmax`, NumPy, or "
                    "a new tensor."
                ),
                (
                    "Compute the loss from the model's output with differentiable operations. "
                    "`requires_grad=True` on the loss hides the mistake: the scaler then finds no gradients."
                ),
            ),
            (
                "The forward ran under `torch.no_grad()` or `inference_mode()`, or every parameter is frozen.",
                "Run the forward with gradients enabled, and leave `requires_grad` of trained parameters at True.",
            ),
            (
                "A reentrant checkpoint gets an input that requires no gradient, for example after a frozen embedding.",
                "Use `checkpoint(..., use_reentrant=False)`, or transformers' `model.enable_input_require_grads()`.",
            ),
        ),
        (),
        ("torch/csrc/autograd/python_function.cpp", _RAISED),
    ),
    Message(
        "nonfinite-norm",
        "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.",
        (r"the total norm (?:of order \S+ )?for gradients from parameters is non-finite",),
        "`RuntimeError`, raised by `clip_grad_norm_(..., error_if_nonfinite=True)`",
        "The gradients hold an infinity or a NaN.",
        (
            (
                "A scaler is live: it expects such an overflow, and would have skipped the step.",
                "Leave `error_if_nonfinite` at False and let `scaler.step(optimizer)` skip.",
            ),
            (
                "There is no scaler, and the loss or its gradients are non-finite.",
                "Find the first non-finite value.",
            ),
        ),
        ("AMP213",),
        ("torch/nn/utils/clip_grad.py", _RAISED),
    ),
    Message(
        "invalid-probabilities",
        "probability tensor contains either `inf`, `nan` or element < 0",
        (
            r"probability tensor contains either inf, nan or element < 0",
            (
                r"expected parameter \w+ \(tensor of shape .{0,60}\) of distribution .{0,4000}?to satisfy the "
                r"constraint .{0,80}?but found invalid values"
            ),
        ),
        "`RuntimeError` of `torch.multinomial`, `ValueError` of `torch.distributions`",
        "The probabilities contain NaN, because the network gave NaN or an infinity.",
        (
            (
                "Activations or logits overflowed in float16, or the weights have been NaN since an earlier step.",
                (
                    "Find the first step with a non-finite value; compute logits and softmax in float32, or use "
                    "bfloat16."
                ),
            ),
        ),
        ("AMP801",),
        (_RAISED,),
    ),
    Message(
        "checkpoint-metadata",
        "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the "
        "forward pass.",
        (
            r"recomputed values for the following tensors have different metadata",
            r"a different number of tensors was saved during the original forward and recomputation",
        ),
        "`CheckpointError`, raised by `backward()` through `torch.utils.checkpoint.checkpoint(use_reentrant=False)`",
        (
            "The checkpointed part gave tensors of other shapes or dtypes when the backward pass recomputed it. If "
            "the dtypes differ, the recomputation ran in another precision than the forward."
        ),
        (
            (
                (
                    "A condition, a global or a cache decides about an autocast region, and differs in the "
                    "backward pass."
                ),
                "Set the precision inside the checkpointed function, the same way each time.",
            ),
            (
                (
                    "The cast cache of autocast held a weight in only one of the two runs (a forward under "
                    "`no_grad` in the same region, a module used inside and outside)."
                ),
                (
                    "Run evaluation in a separate region, or disable the cache with `torch.autocast(..., "
                    "cache_enabled=False)`."
                ),
            ),
            (
                "A custom function saves tensors that depend on state: dropout masks, lazily created buffers.",
                "Compute these tensors from the inputs only, and leave `preserve_rng_state` at True.",
            ),
        ),
        ("AMP101", "AMP109"),
        ("torch/utils/checkpoint.py", _RAISED),
    ),
    Message(
        "scheduler-before-optimizer",
        "Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
        (r"detected call of lr_scheduler\.step\(\) before optimizer\.step\(\)",),
        "`UserWarning`, given by `scheduler.step()`",
        "The schedule moved on before the optimizer's first step.",
        (
            (
                (
                    "The scaler skipped the first step: its first scale, 65536, is too large for most models, "
                    "and each skipped step lowers it. The order of the calls is correct."
                ),
                (
                    "Step the scheduler only if the optimizer stepped: `scale = scaler.get_scale(); "
                    "scaler.update(); if scaler.get_scale() >= scale: scheduler.step()`."
                ),
            ),
            ("`scheduler.step()` stands above `scaler.step(optimizer)`.", "Put it below `scaler.update()`."),
        ),
        ("AMP403",),
        ("torch/optim/lr_scheduler.py", _RAISED),
    ),
    Message(
        "unsupported-autocast-dtype",
        "In CPU autocast, but the target dtype is not supported. Disabling autocast.",
        (
            r"in \w+ autocast, but the target dtype(?: \S+)? is not supported",
            r"\w+ autocast only supports dtypes? of",
            r"user specified an unsupported autocast device_type",
        ),
        "`UserWarning` (`RuntimeError` for the device), given by `torch.autocast(...)`",
        "The region is switched off, and its code runs in float32.",
        (
            (
                "Autocast does not support the dtype or the device.",
                'Use `torch.bfloat16` or `torch.float16`, and the device type alone: `"cuda"`, not `"cuda:0"`.',
            ),
        ),
        ("AMP106",),
        ("torch/amp/autocast_mode.py", _RAISED),
    ),
    Message(
        "sharded-dtypes",
        "FSDP expects uniform original parameter dtype but got {torch.float32, torch.float16}",
        (
            r"fsdp expects uniform original parameter dtype but got",
            r"must flatten tensors with uniform dtype but got",
        ),
        "`AssertionError` of `fully_shard` at the first forward, `ValueError` of `FullyShardedDataParallel(...)`",
        "Parameters that are sharded together are flattened into one buffer, which has a single dtype.",
        (
            (
                (
                    "A part of the model has another dtype: float32 adapters or norms beside a base loaded in "
                    "half precision, or a single cast layer."
                ),
                (
                    "Convert all parameters to float32 and pass FSDP the compute dtype "
                    "(`MixedPrecisionPolicy(param_dtype=torch.bfloat16)`, `MixedPrecision`), or wrap the two "
                    "parts separately."
                ),
            ),
        ),
        ("AMP501",),
        (
            "torch/distributed/fsdp/_flat_param.py",
            "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py",
            "raised with torch 2.13 and one process of gloo",
        ),
    ),
)
