"""Messages about dtypes: different operand dtypes, missing low-precision kernels, values out of range."""

from __future__ import annotations

from .message import Message

_DOCS = "docs.pytorch.org/docs/stable/amp.html: the lists of ops that autocast casts"
_RAISED = "raised with torch 2.13 on the CPU"
#: Pattern of a dtype in torch messages.
_TYPE = r"(?:(?:c10::|at::|torch\.)?(?:cuda\.)?\w+|\.\.\.)"

_OUTSIDE = (
    (
        "The forward runs outside the autocast region: the region ended before it, or does not cover this call "
        "(`generate`, an evaluation, `model.module`, a thread)."
    ),
    "Run the whole forward and the loss in `with torch.autocast(...)`.",
)
_CAST = (
    (
        "The model, or a part of it, was cast to half precision (`half()`, `to(torch.float16)`, "
        "`from_pretrained(torch_dtype=...)`) but gets float32 inputs, or the reverse."
    ),
    (
        "Keep trained weights in float32 and run the forward under `torch.autocast`. For inference only, cast "
        "the input: `model(x.to(next(model.parameters()).dtype))`."
    ),
)
_LEFT = (
    "A low-precision tensor from a region meets float32 outside the region.",
    "Call `.float()` on tensors that leave the region.",
)
_UNLISTED = (
    "Autocast does not cast the operands of this op.",
    "Cast one operand, `b.to(a.dtype)`, or both with `.float()` if precision matters.",
)

MESSAGES = (
    Message(
        "half-overflow",
        "value cannot be converted to type at::Half without overflow",
        (r"value cannot be converted to type (?:c10|at)::(?:half|bfloat16) without overflow",),
        "`RuntimeError`, raised by `masked_fill`, `full`, `clamp` and other ops that take a number",
        "The number is beyond the float16 limit of 65504. Under autocast the target tensor has become float16.",
        (
            (
                "An attention mask is filled with `-1e9` or similar.",
                'Write `float("-inf")` or `torch.finfo(scores.dtype).min`, or compute the scores in float32.',
            ),
        ),
        ("AMP506",),
        (_RAISED, "docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo"),
    ),
    Message(
        "expected-scalar-type",
        "expected scalar type Half but found Float",
        (
            rf"expected scalar type {_TYPE} but found {_TYPE}",
            rf"expected object of (?:scalar )?type {_TYPE} but got (?:scalar )?type {_TYPE}",
            r"expected tensor for argument #\d+ '\w+' to have the same type as tensor for argument",
            r"expect parameter to have scalar type of float",
            rf"expected dtype {_TYPE} for `\w+` but got dtype {_TYPE}",
        ),
        "`RuntimeError`, raised by matrix products of three dimensions, losses with weights, `grid_sample`, "
        "normalisations and custom C++ ops",
        "An op got tensors of two dtypes, but takes only one.",
        (
            _OUTSIDE,
            _CAST,
            (
                "A custom op (C++, CUDA, Triton) or an `autograd.Function` gets a half-precision tensor from autocast.",
                (
                    'Decorate its forward with `torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)` '
                    'and its backward with `torch.amp.custom_bwd(device_type="cuda")`.'
                ),
            ),
            _UNLISTED,
        ),
        ("AMP107", "AMP108"),
        (_RAISED, _DOCS),
    ),
    Message(
        "custom-bwd-alone",
        "'...Backward' object has no attribute '_fwd_used_autocast'",
        (r"'[\w.]+Backward\w*' object has no attribute '_(?:fwd_used_autocast|dtype)'",),
        "`AttributeError`, raised by `backward()`",
        (
            "The backward of an `autograd.Function` is decorated with `custom_bwd`, which needs the autocast state "
            "of its forward. Nothing has recorded this state."
        ),
        (
            (
                "The forward has no `custom_fwd`, or another decorator replaces it.",
                (
                    'Decorate it with `torch.amp.custom_fwd(device_type="cuda")`, with the device type of '
                    "`custom_bwd`, below `@staticmethod`."
                ),
            ),
            (
                "The Function has a `setup_context`, so its forward gets no `ctx`.",
                "Write forward and context in one method, or enter autocast explicitly in backward.",
            ),
        ),
        ("AMP107",),
        (_RAISED, "torch/amp/autocast_mode.py: custom_fwd writes to ctx what custom_bwd reads"),
    ),
    Message(
        "found-dtype",
        "Found dtype Float but expected Half",
        (rf"found dtype {_TYPE} but expected {_TYPE}",),
        "`RuntimeError`, raised by `backward()`, or by a loss such as `F.binary_cross_entropy`",
        (
            "A loss was computed from a prediction and a target of different dtypes. Some losses promote them in the "
            "forward but not in the backward; others never do."
        ),
        (
            (
                (
                    "The prediction left the autocast region in float16 and the target is float32 (or float64, from "
                    "NumPy)."
                ),
                "Compute the loss in the region, or call `.float()` on both.",
            ),
        ),
        ("AMP104",),
        (_RAISED,),
    ),
    Message(
        "matrix-dtypes",
        "expected mat1 and mat2 to have the same dtype, but got: ... != ...",
        (
            r"expected m(?:at)?1 and m(?:at)?2 to have the same dtype",
            r"mat1 and mat2 must have the same dtype",
            r"self and mat2 must have the same dtype",
            r"addmv input tensors must have the same dtype",
            r"expected both vectors to have same dtype",
            r"input dtypes must be the same, got: input \S+, batch1",
            r"all tensors must have the same dtype, got input1",
        ),
        "`RuntimeError`, raised by `nn.Linear`, `torch.mm`, `torch.matmul` and the like",
        (
            "A matrix product takes operands of one dtype. Autocast would cast both, so no region is open here, or "
            "only a region for another device."
        ),
        (
            _OUTSIDE,
            _CAST,
            _LEFT,
            (
                'The region is for another device: `torch.autocast("cuda")` around tensors on the CPU or on `mps`.',
                "Give autocast the device of the tensors.",
            ),
        ),
        ("AMP108", "AMP105"),
        (_RAISED, _DOCS),
    ),
    Message(
        "input-and-weight-types",
        "Input type (...) and weight type (...) should be the same",
        (
            rf"input type \({_TYPE}\) and (?:weight|bias) type \({_TYPE}\) should be the same",
            r"rnn input dtype \(\S+\) does not match weight dtype",
            r"input must have the type torch\.\w+, got type torch\.\w+",
            r"input and hidden tensors are not the same dtype",
            r"prelu: type promoting not supported",
        ),
        "`RuntimeError`, raised by convolutions and `nn.PReLU`; `ValueError` by `nn.LSTM`, `nn.GRU` and `nn.RNN`",
        (
            "The weights and the input have different dtypes. Autocast would cast both, so no region is open here. "
            "(With `cuda.FloatTensor` beside `FloatTensor` the device differs, not the dtype.)"
        ),
        (_CAST, _OUTSIDE, _LEFT),
        ("AMP108", "AMP501"),
        (_RAISED, _DOCS),
    ),
    Message(
        "not-implemented-for-half",
        "\"...\" not implemented for 'Half'",
        (
            r"\"?[\w.]+\"? not implemented for '(?:half|bfloat16)'",
            r"low precision dtypes not supported\. got (?:half|bfloat16)",
            r"input tensor must be either float or double dtype",
        ),
        "`NotImplementedError`, in older versions `RuntimeError`, raised by decompositions, `inv`, `cdist`, `quantile` "
        "and others",
        (
            "This op has no half-precision kernel on this device. Autocast does not cast its inputs, so it gets the "
            "half-precision result of an earlier matrix product."
        ),
        (
            (
                (
                    "An op of linear algebra (`svd`, `qr`, `inv`, `eigh`, `det`, `cholesky`, `lstsq`) runs in a "
                    "region, on the result of a matrix product."
                ),
                'Disable autocast for it: `with torch.autocast("cuda", enabled=False): torch.linalg.svd(x.float())`.',
            ),
            (
                (
                    "A float16 model runs on the CPU, where many kernels exist only for float32 and bfloat16 "
                    "(`\"LayerNormKernelImpl\" not implemented for 'Half'`)."
                ),
                "Use float32 or bfloat16 on the CPU; choose the dtype by the device.",
            ),
            (
                (
                    "A GradScaler unscales the gradients of parameters in bfloat16 on CUDA "
                    "(`\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'`), after "
                    "`model.to(torch.bfloat16)` or `from_pretrained(..., torch_dtype=torch.bfloat16)`."
                ),
                (
                    "Keep the parameters in float32 and let autocast choose the dtype, or train in bfloat16 without a "
                    "scaler: `bf16=True` in place of `fp16=True`."
                ),
            ),
        ),
        ("AMP507", "AMP501", "AMP503"),
        (_RAISED, _DOCS),
    ),
    Message(
        "no-kernel-on-this-processor",
        "could not create a primitive descriptor for the LSTM forward propagation primitive",
        (r"could not create a primitive(?: descriptor)? for (?:the|an?) [\w ]{1,80}? primitive",),
        "`RuntimeError`, raised by `nn.LSTM` in an `autocast` region of the CPU",
        (
            "On the CPU torch runs this op with oneDNN, which has no kernel of this dtype for this processor. A "
            "bfloat16 LSTM needs AVX512; a float16 LSTM needs AVX512-FP16 or AMX-FP16."
        ),
        (
            (
                'An `nn.LSTM` runs under `torch.autocast("cpu")`, which casts it to low precision on any processor.',
                'Disable autocast for it: `with torch.autocast("cpu", enabled=False): lstm(x.float())`.',
            ),
            (
                "The tests of a project that trains on GPUs run on a CPU without AVX512.",
                "Emulate CUDA in them: `pytest --amp-device emulate`, `amp-check run --device emulate`.",
            ),
        ),
        (),
        (
            "raised with torch 2.13 and ONEDNN_MAX_CPU_ISA=AVX2",
            "github.com/uxlfoundation/oneDNN: the data types of RNN",
        ),
    ),
    Message(
        "fft-of-half",
        "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision",
        (
            r"cufft only supports dimensions whose sizes are powers of two",
            r"unsupported dtype (?:half|bfloat16)",
            r"cufft doesn't support tensor of type",
        ),
        "`RuntimeError`, raised by `torch.fft.*` and `torch.stft`: the first on CUDA, `Unsupported dtype Half` on the "
        "CPU and for bfloat16",
        (
            "In half precision CUDA transforms only lengths that are powers of two; the CPU transforms none. "
            "Autocast does not cast `torch.fft`, so it gets the half-precision result of an earlier layer."
        ),
        (
            (
                "A Fourier transform in a region, after a linear layer or a convolution.",
                (
                    'Transform in float32: `with torch.autocast("cuda", enabled=False): torch.fft.rfft(x.float())`. '
                    "Padding to a power of two works too, but sums of many values overflow in float16."
                ),
            ),
        ),
        (),
        ("aten/src/ATen/native/cuda/CuFFTPlanCache.h", "aten/src/ATen/native/SpectralOps.cpp", _DOCS),
    ),
    Message(
        "bce-unsafe",
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
        (r"binary_cross_entropy and torch\.nn\.BCELoss are unsafe to autocast",),
        "`RuntimeError`, raised by `nn.BCELoss` and `F.binary_cross_entropy` under autocast on CUDA",
        (
            "A float16 sigmoid rounds to 0 or 1, where the logarithm of it or its complement is infinite, so the "
            "gradients cannot be correct."
        ),
        (
            (
                "A sigmoid and `BCELoss` run in a region.",
                (
                    "Remove the sigmoid and use `nn.BCEWithLogitsLoss`; or leave the region for the loss and "
                    "call `.float()` on the input of the sigmoid."
                ),
            ),
        ),
        ("AMP504",),
        (
            "aten/src/ATen/autocast_mode.cpp",
            "docs.pytorch.org/docs/stable/amp.html: prefer binary_cross_entropy_with_logits",
        ),
    ),
    Message(
        "write-dtypes",
        "Index put requires the source and destination dtypes match, got Float for the destination and Half for the "
        "source.",
        (
            r"index put requires the source and destination dtypes match",
            r"got \w+ for the destination and \w+ for the source",
            r"scatter\(\): expected self\.dtype to be equal to src\.dtype",
            (
                r"index_\w+\(\): self (?:\(\w+\) )?and source (?:\(\w+\) )?(?:must have the same scalar type|expected "
                r"to have the same dtype)"
            ),
            r"put_\(\): self and source expected to have the same dtype",
            r"masked_scatter: expected self and source to have same dtypes",
            rf"expected out tensor to have dtype {_TYPE}, but got",
        ),
        "`RuntimeError`, raised by `a[index] = b`, `scatter_`, `index_add_`, `index_copy_`, `masked_scatter_`, `out=`",
        (
            "A tensor is written into a tensor of another dtype. Writes into views (`a[0] = b`) cast; writes by an "
            "index tensor or a mask do not."
        ),
        (
            (
                (
                    "A float32 buffer (`torch.zeros(...)`) is created in a region, and filled with the "
                    "half-precision output of a layer."
                ),
                (
                    "Create the buffer with the same dtype, `torch.zeros(..., dtype=out.dtype)`, or cast the "
                    "source: `a[index] = b.to(a.dtype)`. Keep sums over many values in float32."
                ),
            ),
        ),
        ("AMP108",),
        (_RAISED,),
    ),
    Message(
        "attention-dtypes",
        "Expected query, key, and value to have the same dtype, but got query.dtype: ... key.dtype: ... and "
        "value.dtype: ... instead.",
        (
            r"expected query, key, and value to have the same dtype",
            r"query/key/value should either all have the same dtype",
            r"flashattention only supports? fp16(?:,| and) bf16",
        ),
        "`RuntimeError` of `scaled_dot_product_attention` outside a region, `ValueError` of xformers, `RuntimeError` "
        "of flash-attn",
        (
            "Query, key and value have different dtypes. Autocast casts `scaled_dot_product_attention`, but not the "
            "attention of other libraries."
        ),
        (
            (
                (
                    "Query and key went through a LayerNorm or RMSNorm, which autocast runs in float32, or through "
                    "rotary embeddings; the value did not."
                ),
                "Cast them back before attention: `q, k = q.to(v.dtype), k.to(v.dtype)`.",
            ),
            _OUTSIDE,
        ),
        ("AMP108",),
        (_RAISED, _DOCS, "xformers/ops/fmha/common.py"),
    ),
    Message(
        "solver-dtypes",
        "linalg.solve: Expected A and B to have the same dtype, but found A of type ... and B of type ... instead",
        (r"linalg\.\w+: expected \w+ and \w+ to have the same dtype", r"expected b and a to have the same dtype"),
        "`RuntimeError`, raised by `torch.linalg.solve` and the like",
        "A linear solver takes operands of one dtype, which must not be half.",
        (
            (
                "One operand is the half-precision result of a matrix product in a region.",
                (
                    'Solve in float32: `with torch.autocast("cuda", enabled=False): '
                    "torch.linalg.solve(a.float(), b.float())`."
                ),
            ),
        ),
        ("AMP507",),
        (_RAISED,),
    ),
    Message(
        "result-type",
        "result type Half can't be cast to the desired output type Long",
        (rf"result type {_TYPE} can't be cast to the desired output type {_TYPE}",),
        "`RuntimeError`, raised by ops in place and by `out=`",
        "Floating values are written into a tensor of integers.",
        (
            (
                "A counter or an index is updated in place with a floating-point value: `count += weight`.",
                "Use a floating tensor (float32 for a sum), or convert the added value.",
            ),
        ),
        (),
        (_RAISED,),
    ),
    Message(
        "gradient-dtype",
        "attempting to assign a gradient with dtype 'c10::Half' to a tensor with grad_dtype 'Float'.",
        (
            r"attempting to assign a gradient with dtype '\S+' to a tensor with (?:grad_)?dtype",
            r"assigned grad has data of a different type",
        ),
        "`RuntimeError`, raised by `p.grad = ...`; older versions say `assigned grad has data of a different type`",
        "A gradient must have the dtype of its parameter.",
        (
            (
                "Gradients of a half-precision copy are assigned to float32 master weights, or the reverse.",
                "Convert: `master.grad = p.grad.to(master.dtype)`. Autocast with float32 parameters needs no copies.",
            ),
            (
                "A module was cast after its gradients were computed.",
                "Cast before training, and call `zero_grad(set_to_none=True)` after a cast.",
            ),
        ),
        ("AMP501",),
        (_RAISED,),
    ),
    Message(
        "optimizer-state-dtypes",
        "params, grads, exp_avgs, and exp_avg_sqs must have same dtype, device, and layout",
        (
            r"params, grads, [\w, ]{1,200} must have same dtype, device, and layout",
            r"tensors of the same index must be on the same device and the same dtype except step",
        ),
        "`RuntimeError`, raised by `optimizer.step()` of a fused or foreach optimizer",
        "The state of the optimizer has another dtype than its parameters.",
        (
            (
                "The model was cast after the optimizer had stepped, or a checkpoint of another precision was loaded.",
                "Cast first, then create the optimizer; load its state into parameters of the saved dtype.",
            ),
        ),
        ("AMP501",),
        (_RAISED,),
    ),
    Message(
        "numpy-of-bfloat16",
        "Got unsupported ScalarType BFloat16",
        (r"got unsupported scalartype (?:bfloat16|half)",),
        "`TypeError`, raised by `tensor.numpy()`",
        "NumPy has no bfloat16.",
        (
            (
                "An output of a bfloat16 region is passed to NumPy, matplotlib or scikit-learn.",
                "Call `.float()` before `.numpy()`.",
            ),
        ),
        ("AMP108",),
        (_RAISED,),
    ),
)
