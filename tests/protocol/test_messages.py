"""The catalogue of torch's messages: recognition in pasted text, and suggestions without a match."""

from __future__ import annotations

import re

import pytest

from pytest_amp_check.protocol.messages import MESSAGES, Message, find_messages, find_similar
from pytest_amp_check.protocol.rules import RULES

every_message = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 21, in <module>
    scaler.step(optimizer)
  File "/usr/lib/python3/site-packages/torch/amp/grad_scaler.py", line 457, in step
    len(optimizer_state["found_inf_per_device"]) > 0
AssertionError: No inf checks were recorded for this optimizer.
"""
CHAINED = """\
E   RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float

During handling of the above exception, another exception occurred:

\x1b[31mE   ValueError\x1b[0m: Attempting to unscale
    FP16 gradients.
"""


def names(found: list[Message]) -> list[str]:
    return [message.name for message in found]


@every_message
def test_a_message_is_found_by_its_own_text_and_by_its_name(message: Message) -> None:
    assert names(find_messages(message.text)) == [message.name]
    assert names(find_messages(message.name)) == [message.name]


@every_message
def test_a_message_is_complete(message: Message) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", message.name)
    assert message.patterns and message.sources and message.causes
    assert all(code in RULES for code in message.rule_codes)
    for sentence in (message.meaning, *(text for pair in message.causes for text in pair)):
        assert sentence.endswith(("`.", ".", ".)")) and "  " not in sentence
        assert sentence.count("`") % 2 == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TRACEBACK, ["no-inf-checks"]),
        # The exception that ended the program comes first.
        (CHAINED, ["unscale-float16-gradients", "matrix-dtypes"]),
        ("  attempting to UNSCALE fp16 gradients", ["unscale-float16-gradients"]),
        ("RuntimeError: value cannot be converted to type at::Half without overflow: -1e+09", ["half-overflow"]),
        ("value cannot be converted to type c10::BFloat16 without overflow", ["half-overflow"]),
        ("expected scalar type Float but found BFloat16", ["expected-scalar-type"]),
        (
            "Expected object of scalar type Float but got scalar type Half for argument #2 'mat2'",
            ["expected-scalar-type"],
        ),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
            ["input-and-weight-types"],
        ),
        ("Input type (float) and bias type (c10::Half) should be the same", ["input-and-weight-types"]),
        ("\u201csvd_cpu\u201d not implemented for \u2018Half\u2019", ["not-implemented-for-half"]),
        ("linalg.inv: Low precision dtypes not supported. Got BFloat16", ["not-implemented-for-half"]),
        (
            (
                "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but "
                "got a signal size of[192]"
            ),
            ["fft-of-half"],
        ),
        ("scatter(): Expected self.dtype to be equal to src.dtype", ["write-dtypes"]),
        ("got BFloat16 for the destination and Float for the source.", ["write-dtypes"]),
        (
            (
                "Query/Key/Value should either all have the same dtype, or (in the quantized case) Key/Value should "
                "have dtype torch.int32"
            ),
            ["attention-dtypes"],
        ),
        ("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast", ["bce-unsafe"]),
        ("User provided device_type of 'cuda', but CUDA is not available. Disabling", ["scaler-without-its-device"]),
        ("assigned grad has data of a different type", ["gradient-dtype"]),
        # The message of torch 2.4.
        (
            "attempting to assign a gradient with dtype 'c10::Half' to a tensor with dtype 'float'.",
            ["gradient-dtype"],
        ),
        ("input must have the type torch.float16, got type torch.float32", ["input-and-weight-types"]),
        ("the scale of the inf checks of this optimizer", []),
        ("AMP201", []),
        ("", []),
    ],
)
def test_what_a_text_shows(text: str, found: list[str]) -> None:
    assert names(find_messages(text)) == found


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("no inf checks recorded", "no-inf-checks"),
        ("unscale FP16 error", "unscale-float16-gradients"),
        ("cufft half powers of two", "fft-of-half"),
        ("svd not implemented half", "not-implemented-for-half"),
        ("lr_scheduler.step before optimizer.step warning", "scheduler-before-optimizer"),
        ("unscale_() already called on this optimizer", "unscaled-twice"),
    ],
)
def test_what_is_offered_where_nothing_is_recognised(text: str, first: str) -> None:
    assert find_messages(text) == []
    assert names(find_similar(text))[0] == first


@pytest.mark.parametrize("text", ["", "hello world", "CUDA out of memory", "loss is nan", "index out of range in self"])
def test_nothing_is_offered_for_what_is_like_none(text: str) -> None:
    assert find_similar(text) == []
