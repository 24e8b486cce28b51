"""What each rule's bad example did beside its good one, measured: written by benchmarks/harm.py."""

#: The torch that ran them, on the CPU.
TORCH = "2.13.0"
#: Code -> what the bad example did. Where nothing could be told apart, there is no entry.
MEASURED = {
    "AMP101": (
        "the gradients that the optimizer sees are 1.75 times larger in the median step; the parameters move "
        "1.72 times further"
    ),
    "AMP102": "autocast is still enabled when it is over",
    "AMP104": (
        "steps taken are 2 and skipped 1, where they would be 3 and 0; the gradients that the optimizer sees "
        "are 1.16 times larger in the median step; the parameters move 1.40 times less far; the loss scale "
        "ends at 32768, not 65536"
    ),
    "AMP106": "warnings: 2, where the good example gives none",
    "AMP201": (
        "the gradients that the optimizer sees are 65,536 times smaller in the median step; the parameters "
        "move 1.41 times less far"
    ),
    "AMP202": "the parameters move 1.07 times less far",
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
    "AMP501": "the parameters move 4.18 times less far",
    "AMP502": "13% of the gradients are exactly zero, not 0%",
    "AMP801": (
        "steps taken are 0 and skipped 20, where they would be 18 and 2; the loss scale ends at 0.0625, not 16384"
    ),
    "AMP901": "warnings: 4, where the good example gives none",
}
