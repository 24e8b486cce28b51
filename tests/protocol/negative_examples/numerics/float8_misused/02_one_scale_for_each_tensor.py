# gradients with one scale for each tensor, which need the range of E5M2

from transformer_engine.common.recipe import DelayedScaling, Format, MXFP8BlockScaling

recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16)
blocks = MXFP8BlockScaling(fp8_format=Format.E4M3)
