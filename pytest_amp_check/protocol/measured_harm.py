"""Measured effects of each rule's mistake, written by benchmarks/harm.py."""

#: Version of torch for the measurements, on the CPU.
TORCH = "2.13.0"
#: Rule code -> measured difference between the bad example and the good example.
MEASURED = {
    "AMP101": (
        "the gradients that the optimizer sees are 1.75 times larger in the median step; the parameters move "
        "1.72 times further; it prints `9 0.7379008531570435`, where the good example prints `9 "
        "0.6749772429466248`"
    ),
    "AMP102": (
        "autocast is still enabled when it is over; it prints `autocast after the region: True "
        "torch.bfloat16`, where the good example prints `autocast after the region: False torch.float32`"
    ),
    "AMP104": (
        "steps taken are 2 and skipped 1, where they would be 3 and 0; the gradients that the optimizer sees "
        "are 1.16 times larger in the median step; the parameters move 1.40 times less far; the loss scale "
        "ends at 32768, not 65536; it prints `torch.float16 32768.0`, where the good example prints "
        "`torch.float32 65536.0`"
    ),
    "AMP105": (
        "it prints `bare call: torch.float32`, `decorated generator: [torch.float32, torch.float32]`, "
        "`consumer of a yield: [torch.bfloat16, torch.bfloat16]`, where the good example prints `region: "
        "torch.bfloat16`, `generator: [torch.bfloat16, torch.bfloat16]`, `consumer: [torch.float32, "
        "torch.float32]`"
    ),
    "AMP106": (
        "it prints `device_object Expected 'device_type' of type 'str', got: '<class 'torch.device'>'`, "
        "`no_device autocast.__init__() missing 1 required positional argument: 'device_type'`, "
        "`bool_in_the_dtype set_autocast_dtype(): argument 'dtype' (position 2) must be torch.dty...`, "
        "`unsupported_dtype torch.float32`, where the good example prints `device_type torch.bfloat16`, "
        "`named_device torch.bfloat16`, `named_enabled torch.bfloat16`; warnings: 2, where the good example "
        "gives none"
    ),
    "AMP107": "it prints `expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float`",
    "AMP108": (
        "it prints `predict mat1 and mat2 must have the same dtype, but got BFloat16 and Float`, `remember "
        "index_add_(): self (Float) and source (BFloat16) must have the same scalar type`, where the good "
        "example prints `predict ran`, `remember ran`"
    ),
    "AMP201": (
        "the gradients that the optimizer sees are 65,536 times smaller in the median step; the parameters "
        "move 1.41 times less far"
    ),
    "AMP202": (
        "the gradients that the optimizer sees are 1.08 times smaller in the median step; the parameters move "
        "1.56 times less far"
    ),
    "AMP203": (
        "steps taken are 16 and skipped 0, where they would be 15 and 1; the gradients that the optimizer "
        "sees are 61,006 times smaller in the median step; the parameters move 1.10 times further; the loss "
        "scale ends at 65536, not 32768"
    ),
    "AMP204": "the gradients that the optimizer sees are 65,536 times larger in the median step",
    "AMP206": "it ends with `RuntimeError: step() has already been called since the last update().`",
    "AMP208": "steps taken are 0 and skipped 8, where they would be 2 and 6; the loss scale ends at 32768, not 1024",
    "AMP209": (
        "it ends with `RuntimeError: unscale_() has already been called on this optimizer since the last update().`"
    ),
    "AMP210": (
        "the gradients that the optimizer sees are 65,545 times smaller in the median step; the parameters "
        "move 1.08 times less far"
    ),
    "AMP211": "the gradients that the optimizer sees are 1.41 times larger in the median step",
    "AMP212": "the gradients that the optimizer sees are 29,334 times smaller in the median step",
    "AMP213": (
        "it ends with `RuntimeError: The total norm of order 2.0 for gradients from `parameters` is "
        "non-finite, so it cannot be clipped. To disable this error and scale the gradien...`"
    ),
    "AMP214": (
        "steps taken are 1 and skipped 7, where they would be 8 and 0; the gradients that the optimizer sees "
        "are 102 times larger in the median step; the parameters move 3.54 times less far; the loss scale "
        "ends at 512, not 65536"
    ),
    "AMP215": (
        "the gradients that the optimizer sees are zero in the median step; the parameters move 309 times less far"
    ),
    "AMP216": "the loss scale ends at 65536, not 1024",
    "AMP217": "the loss scale ends at 1, not 65536; warnings: 1, where the good example gives none",
    "AMP218": (
        "parameters end as values that are not finite; steps taken are 1 and skipped 3, where they would be 4 "
        "and 0; the loss scale ends at 512, not 4096"
    ),
    "AMP301": (
        "steps taken are 3 and skipped 1, where they would be 4 and 0; the parameters move 1.20 times less "
        "far; the loss scale ends at 32768, not 65536"
    ),
    "AMP303": (
        "it ends with `RuntimeError: unscale_() has already been called on this optimizer since the last update().`"
    ),
    "AMP304": (
        "the gradients that the optimizer sees are 2.11 times smaller in the median step; 3% of the gradients "
        "are exactly zero, not 0%; the parameters move 1.75 times less far"
    ),
    "AMP403": "the parameters move 1.59 times further; warnings: 1, where the good example gives none",
    "AMP501": (
        "the parameters move 4.18 times less far; it prints `unchanged weights: 0.97998046875`, where the "
        "good example prints `unchanged weights: 0.0`"
    ),
    "AMP502": (
        "13% of the gradients are exactly zero, not 0%; it prints `zero gradients: 0.1640625`, where the good "
        "example prints `zero gradients: 0.0`"
    ),
    "AMP505": "it prints `finite: False False`, where the good example prints `finite: True True`",
    "AMP506": (
        "it prints `attend_where finite: False`, `attend_masked_fill value cannot be converted to type "
        "c10::Half without overflow`, where the good example prints `attend_where finite: True`, "
        "`attend_masked_fill finite: True`"
    ),
    "AMP507": "it prints `finite: False False`, where the good example prints `finite: True True`",
    "AMP508": "it prints `sum of 1000 ones: 256.0`, where the good example prints `sum of 1000 ones: 1000.0`",
    "AMP509": "it prints `largest error: 1.9999994039535522`, where the good example prints `largest error: 0.0`",
    "AMP510": (
        "it prints `logdet: Low precision dtypes not supported. Got BFloat16`, where the good example prints "
        "`log-determinant: -6.758321285247803`"
    ),
    "AMP511": "it prints `finite: False`, where the good example prints `finite: True`",
    "AMP605": (
        "it prints `Cannot insert a Tensor that requires grad as a constant. Consider making it a "
        "parameter...`, where the good example prints `torch.bfloat16`"
    ),
    "AMP606": "it prints `torch.float32`, where the good example prints `torch.bfloat16`",
    "AMP608": (
        "the parameters do not move at all; it prints `the weights move: False`, where the good example prints "
        "`the weights move: True`"
    ),
    "AMP801": (
        "steps taken are 0 and skipped 20, where they would be 18 and 2; the loss scale ends at 0.0625, not 16384"
    ),
    "AMP802": "parameters end as values that are not finite",
    "AMP803": (
        "the gradients that the optimizer sees are 1.07 times smaller in the median step; the parameters move "
        "1.13 times less far; warnings: 3, where the good example gives none"
    ),
    "AMP810": "it ends with `AssertionError: No inf checks were recorded for this optimizer.`",
    "AMP901": "warnings: 4, where the good example gives none",
}
#: Rule code -> measured difference of a demonstration program with and without the mistake.
SHOWN = {
    "AMP103": (
        "20 steps of a model with a float32 island, a loss of about 25: steps skipped 3, not 1; loss scale at "
        "the end 8,192, not 32,768"
    ),
    "AMP110": "one forward of four layers of 256 units on 512 rows: MiB kept for backward 4, not 2.38",
    "AMP205": (
        "one step of SGD on a loss whose gradient is zero and a penalty: the penalty moves the parameters by "
        "1.54e-06, not 0.101"
    ),
    "AMP207": (
        "two optimizers of one scaler, of which the first overflows: the second optimizer moves its "
        "parameters by 0.447, not 0.224"
    ),
    "AMP305": (
        "two processes of gloo, windows of 4 micro-batches, 10 steps of SGD: difference between the "
        "parameters of the two 0.0504, not 0; the same with the flag set after the forward 0.0821, not 0"
    ),
    "AMP306": (
        "two processes of gloo, windows of 4 micro-batches, 10 steps of SGD: times that gradients are "
        "averaged 40, not 10"
    ),
    "AMP401": "a run that has settled at a low loss scale, resumed: steps skipped after resuming 12, not 0",
    "AMP402": "a checkpoint in an iteration that overflowed: loss scale after resuming 65,536, not 32,768",
    "AMP503": (
        "one step of SGD on eight layers, after a forward in bfloat16 and a backward: operations 27, not 18; "
        "of these, reads that wait for the device 1, not 0"
    ),
    "AMP504": "a logit of -20 whose target is 1, in float16 on the CPU: loss 100, not 20; gradient nan, not -1",
    "AMP601": (
        "one backward of a model with a float32 island, compiled with aot_eager, loss 25 and scale 65536: "
        "gradients of the island that are not finite 32, not 0"
    ),
    "AMP602": (
        "two processes, one infinity in the shard of the second: loss scale of the first 65,536, not 32,768; "
        "loss scale of the second 32,768"
    ),
    "AMP603": (
        "two processes, each with one half of the gradients, clipped at a norm of 0.05: norm after clipping "
        "0.0707, not 0.05"
    ),
    "AMP604": (
        "two processes of gloo, 30 steps whose gradients, in float32, are about 10: steps skipped 5, not 0; "
        "loss scale at the end 2,048, not 65,536"
    ),
    "AMP607": (
        "two processes of gloo, 8 batches each, the loss of the third NaN on the second: batches whose "
        "gradients were averaged with those of another batch 5, not 0"
    ),
    "AMP701": "one step on 16 timesteps of two layers of 256 units: operations 524, not 404",
}
#: Rule code -> reason for a missing measurement.
NOT_HERE = {
    "AMP109": "torch 2.11 and later put it right, so that the figures of older versions stand",
    "AMP302": "it takes accelerate or another framework, which the benchmark does without",
    "AMP512": "it takes torchao or TransformerEngine, and a GPU with float8",
    "AMP702": "a CPU has no Tensor Cores",
    "AMP902": "a comment does nothing when a program runs",
    "AMP903": "what cannot be parsed cannot be run",
    "AMP904": "what is not checked does nothing by itself",
}
