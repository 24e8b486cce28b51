"""Byte patterns of expressions that low precision may spoil."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....protocol import kernels
from .large_fills import FILL_WORDS, ITEM_WRITE, fills_large_number
from .lines import lines_containing, lines_of_words

#: Calls and numbers that a low dtype spoils, beside this cast, and the start of a sum in a low dtype.
_ROUNDED_MATH = (
    rb"\b(?:arange|cumsum|topk|torch\.log|log_softmax|kl_div|rsqrt)\(|\.log\(\)"
    rb"|\de-(?:0?[89]|1\d)\b|zeros\([^\n]{0,80}dtype\s*=\s*(?:torch\.(?:b?float16|half)\b|[^\n]{0,60}dtype\b)"
)
#: Positions in the dtype of another tensor, and a number that float16 rounds to zero.
_ROUNDED_INPUTS = (
    rb"arange\([^\n]{0,200}(?:dtype\s*=\s*\w+\.dtype|\.(?:to|type_as)\()|\de-(?:0?[89]|1\d)\b"
    rb"|register_buffer\([^\n]{0,40}freq|\bexp\(self\.\w*log|zeros\([^\n]{0,80}dtype\s*=\s*[a-z_.]{0,40}dtype\b"
)
#: Logarithms, which low probabilities spoil, and ops without a kernel for low inputs.
_LOGARITHM_WORDS = (b"torch.log(", b".log()")
_KERNEL_OPS = rb"(?:torch|linalg|fft|F)\.(?:" + "|".join(sorted(kernels.NAMES)).encode() + rb")\("
#: Largest definition, in bytes, that is followed only because it may round its inputs. Larger ones take long.
_LARGEST_ROUNDING = 6_000
#: Words of code that computes with tensors, and words of which each match of :data:`_ROUNDED_INPUTS` has one.
_TENSOR_WORDS = (b"torch", b"nn.", b"F.", b"forward(")
_ROUNDED_WORDS = (b"arange(", b"e-", b"freq", b"exp(self.", b"zeros(")
#: Functions of logits that keep their dtype, and words of code that makes float32 of it.
_LOG_WORDS = (b"log_softmax(", b"logsumexp(", b"kl_div(")
_WIDE_WORDS = (b".float()", b"float32")
#: A square: ``x * x``, ``x**2``, ``x.pow(2)`` or ``x.square()``.
_SQUARE = rb"(?:\b([\w.]+) ?\* ?\1\b|\*\* ?2\b|pow\([^()]*\b2\)|square\()"
#: Positions in the dtype of a buffer of frequencies.
_ROUNDED_POSITIONS = rb"(?:dtype\s*=\s*|type_as\(|\.to\()self\.\w*freq"
#: The second operand of a difference of log-probabilities.
_LOG_OPERAND = rb"[\w.(]*log_?p"


def has_rounded_math(data: bytes) -> bool:
    """Return True if code has a call or a number that a low dtype spoils."""
    return re.search(_ROUNDED_MATH, data) is not None


def has_fragile_math(data: bytes) -> bool:
    """Return True if code has an expression that low precision may spoil for any tensor of its arguments."""
    if b"torch" not in data:
        return False
    return any(_is_fragile(line, data) for _, line in lines_of_words(_FRAGILE_WORDS, data))


def has_loss_math(data: bytes) -> bool:
    """Return True if code has an expression that low inputs spoil, and that a region would compute in float32."""
    lines = lines_of_words((*_LOSS_WORDS, b"exp(", b" + ("), data) if b"torch" in data else ()
    return any(_computes_of_low_outputs(line) for _, line in lines)


def has_epsilons(data: bytes) -> bool:
    """Return True if code has a small number that float16 rounds to zero, where zero is no value."""
    lines = lines_containing(b"1e-", data) if b"torch" in data else ()
    return any(re.search(_SMALL_NUMBER, line) for _, line in lines)


def fragile_lines(data: bytes, *, losses: bool = True, epsilons: bool = True) -> list[int]:
    """Return the numbers of the lines, from 1, with an expression that low precision may spoil for any tensor.

    ``losses`` and ``epsilons`` include those that matter without a region and in float16 alone.
    """
    numbers: list[int] = []
    number, counted = 1, 0
    for start in sorted(set(_iterate_fragile_lines(data, losses=losses, epsilons=epsilons))):
        number += data.count(b"\n", counted, start)
        counted = start
        numbers.append(number)
    return numbers


#: Text of a product of matrices, and words of uses that need its digits.
_PRODUCT = rb" @ |\b(?:b?mm|matmul|einsum|baddbmm|multi_dot|chain_matmul)\("
_PRODUCT_WORDS = (b" @ ", b"mm(", b"matmul(", b"einsum(", b"multi_dot(")
_START_OF_FUNCTION = rb"\n[ \t]*(?:async )?def "
_SQUARED = rb"(?:\*\* ?2\b|\bpow\(|\bsquare\()"
_USE_OF_DIGITS = (
    rb"\b(?:arc|a)(?:cos|sin|tan2)\(|grid_sample\(|\b(?:p?inv|inverse|pinverse|solve|cholesky|svd|eigh|det)\(|\bcdist\("
    rb"|norm\([^\n]{0,200}(?:\bdim\b|\baxis\b|, ?-?\d)"
    rb"|\bsum\([^\n]{0,200}" + _SQUARED + rb"|" + _SQUARED + rb"[^\n]{0,200}\bsum\("
    rb"|(?<!math)(?<!np)\.(?:floor|round|ceil|trunc)_?\(|\bunbind\((?:dim=)?-1|\] ?/ "
    rb"|@[^@\n]*@[^@\n]*@|mm\([^\n]{0,80}mm\([^\n]{0,80}mm\("
)


def multiplies_coordinates(data: bytes) -> bool:
    """Return True if a function may multiply matrices of coordinates, and use their digits."""
    if b"torch" not in data or not any(word in data for word in _PRODUCT_WORDS):
        return False
    return any(
        re.search(_PRODUCT, function) is not None and re.search(_USE_OF_DIGITS, function) is not None
        for function in re.split(_START_OF_FUNCTION, data)
        if any(word in function for word in _PRODUCT_WORDS)
    )


def product_lines(data: bytes) -> list[int]:
    """Return the numbers of the lines, from 1, with a product of matrices."""
    return [number for number, line in enumerate(data.split(b"\n"), 1) if re.search(_PRODUCT, line) is not None]


#: Words of expressions that need more digits or more range than low precision has: a bound just below one, a table that
#: a method casts, a sum by index, levels of a noise schedule, integers of a sum, and areas of boxes.
_DIGIT_WORDS = (b"clamp", b"clip(", b".to(", b"scatter_", b"index_add", b"cumprod(", b"sum(", b") * (")
_LOST_DIGITS = (
    rb"cl(?:amp|ip)\w{0,8}\([^\n]{0,80}\b1(?:\.0?)? ?- ?\w{0,20}(?:\de-|eps)"
    rb"|self\.(\w{1,60}) = self\.\1\.to\([^\n]{0,80}dtype"
    rb"|\b(?:scatter_(?:add|reduce)|index_add)_?\(|\bcumprod\(|\bsum\([^\n]{0,60}\)\.(?:long\(|int\(|to\((?:torch\.)?(?:int|long))"
    rb"|\((\w{1,40}) - \w[^()\n]{0,40}\) \* \((?!\2 - )\w[^()\n]{0,40} - \w"
)
#: Functions of logits or embeddings that a region computes in float32, or that need its range.
_LOSS_WORDS = (b"log_softmax(", b"cross_entropy(", b"F.normalize(", b"functional.normalize(")
#: Words of fragile expressions. A fragile line has at least one of them.
_FRAGILE_WORDS = (
    b" - ",
    b"mean(",
    b"freq",
    b"softmax(",
    b"autocast(",
    b"exp(",
    b"Function)",
    b"register_buffer(",
    b"sigmoid(",
    b"fft",
    *_DIGIT_WORDS,
)
#: A transform, whose lengths the kernels of float16 restrict.
_TRANSFORM = rb"\bfft\.\w+\((?![^\n]{0,80}\.float\(\))"
#: A number that float16 rounds to zero: as the default of a parameter, or beside a root, a logarithm or a division.
_SMALL_NUMBER = (
    rb"^[ \t]*def [^\n]{1,300}eps\w*(?:\s*:\s*float)?\s*=\s*1e-(?:0?[89]|1\d)\b"
    rb"|(?:sqrt|log)\([^\n]{1,80}\b1e-(?:0?[89]|1\d)\b| / [^\n]{1,80}\+ 1e-(?:0?[89]|1\d)\b"
    rb"|\+ 1e-(?:0?[89]|1\d)\)\.(?:sqrt|log|rsqrt)\("
)
#: A running mean: ``mean = mean + (x - mean) / n``.
_RUNNING_MEAN = rb"(?<![\w.])([\w.]{1,60}) = \1 \+ \([^\n]{1,80} - \1\)"
#: Words of small updates in place, as those of a moving average.
_UPDATE_WORDS = (b"lerp_(", b".mul_(", b"alpha=", b"momentum", b"decay")
_DECAYED_ATTRIBUTE = rb"self\.(\w+) = (?:[^\n]{1,60}\* ?self\.\1\b|self\.\1 ?\*)"
#: The name of a buffer. Its small updates: in place, by an expression with its old value, by a function of averages,
#: or under another name.
_BUFFER_NAME = rb"register_buffer\(\s*[\"'](\w+)[\"']"
_UPDATE = (
    rb"\.%(name)s(?:\.data)?"
    rb"(?:\.(?:lerp|mul|add|sub)_\(|\.copy_\([^#]{0,120}?(?:\*|lerp)| [-+*]= | = [^=]{0,160}?\.%(name)s\b)"
    rb"|(?i:ema|average|update|moving)\w{0,30}\((?:\w{1,30}\.){1,3}%(name)s\s*,"
    rb"|\b(\w{1,30}) = (?:\w{1,30}\.){1,3}%(name)s(?:\.data)?\n[^#]{0,400}?\b\1\.(?:lerp|mul|add|sub)_\("
)
#: Products that autocast computes in low precision, in the backward of a Function.
_PRODUCT_CALLS = (b"mm(", b"matmul(", b"linear(", b"einsum(", b" @ ", b"conv")
#: The difference of an exponential and one.
_EXP_COMPLEMENT = rb"(?<![\w.])1(?:\.0?)? ?- ?[^\n]{0,60}\bexp\(|\bexp\([^\n]{0,60}\) ?- ?1(?:\.0?)?(?![\w.])"
#: The exponential of a parameter that holds logarithms.
_EXP_OF_PARAMETER = rb"\bexp\(-?self\.\w*(?i:log)\w*\)"
#: A call that switches autocast off.
_SWITCHED_OFF = rb"autocast\([^)\n]{0,100}\bFalse\b"


def _iterate_fragile_lines(data: bytes, *, losses: bool, epsilons: bool) -> Iterator[int]:
    """Yield the positions of the lines with an expression that low precision may spoil for any tensor."""
    for start, line in sorted(set(lines_of_words(_FRAGILE_WORDS, data))):
        if _is_fragile(line, data):
            yield start
    for start, line in sorted(set(lines_of_words((*_LOSS_WORDS, b"exp(", b" + ("), data))) if losses else ():
        if _computes_of_low_outputs(line):
            yield start
    for start, line in lines_containing(b"1e-", data) if epsilons else ():
        if re.search(_SMALL_NUMBER, line):
            yield start


def _is_fragile(line: bytes, data: bytes) -> bool:
    """Return True if a line may average squares, subtract squares or log-probabilities, or transform low values.

    A line that switches autocast off counts as well: it casts nothing.
    """
    if _rounds_scores(line) and b"topk(" in data:
        return True
    if any(word in line for word in _DIGIT_WORDS) and _loses_digits(line):
        return True
    if b"autocast(" in line and re.search(_SWITCHED_OFF, line):
        return True
    if b"exp(" in line and re.search(_EXP_COMPLEMENT, line):
        return True
    if b"mean(" in line and re.search(_SQUARE, line):
        return True
    if b"sigmoid(" in line and (b"torch.log(" in line or b".log()" in line):
        return True
    if b"fft." in line and re.search(_TRANSFORM, line):
        return True
    if b"Function)" in line:
        return b"class " in line and (b"save_for_backward(" in data or any(word in data for word in _PRODUCT_CALLS))
    if b"register_buffer(" in line and _updates_slowly(line, data):
        return True
    if b"freq" in line and (b"register_buffer(" in line or re.search(_ROUNDED_POSITIONS, line)):
        return True
    before, dash, _ = line.partition(b" - ")
    if not dash:
        return False
    return (b"(" in before and re.search(_SQUARE, before) is not None) or (
        b"log" in before and any(re.match(_LOG_OPERAND, part) for part in line.split(b" - ")[1:])
    )


def _loses_digits(line: bytes) -> bool:
    """Return True if a line may need more digits or more range than low precision has."""
    return re.search(_LOST_DIGITS, line) is not None


def _computes_of_low_outputs(line: bytes) -> bool:
    """Return True if a line may compute a loss, a running mean or the exponential of a parameter."""
    if any(word in line for word in _LOSS_WORDS):
        return b".float()" not in line
    if b"exp(" in line and re.search(_EXP_OF_PARAMETER, line):
        return True
    return b" + (" in line and re.search(_RUNNING_MEAN, line) is not None


def _updates_slowly(line: bytes, data: bytes) -> bool:
    """Return True if code may change the buffer of a line in small steps, as a moving average."""
    if not any(word in data for word in _UPDATE_WORDS) and re.search(_DECAYED_ATTRIBUTE, data) is None:
        return False
    # The name may stand in the next line.
    ends_with_name = line.rstrip().endswith(b"register_buffer(")
    names = set(re.findall(_BUFFER_NAME, data if ends_with_name else line))
    return not names or any(re.search(_UPDATE % {b"name": re.escape(name)}, data) for name in names)


def _rounds_scores(line: bytes) -> bool:
    """Return True if a line may cast the result of a softmax."""
    return b"softmax(" in line and (b").to(" in line or b").type_as(" in line)


def may_round_inputs(data: bytes) -> bool:
    """Return True if a definition may compute what the low dtype of its inputs spoils.

    Positions take the dtype of another tensor, a small number bounds a divisor, a fill is beyond float16, scores
    are cast before they are ranked, or log-probabilities have the dtype of the logits.
    """
    if len(data) > _LARGEST_ROUNDING:
        return False
    if any(word in data for word in _LOG_WORDS) and not any(word in data for word in _WIDE_WORDS):
        return True
    if not any(word in data for word in _TENSOR_WORDS):
        return False
    if any(word in data for word in _LOGARITHM_WORDS) or re.search(_KERNEL_OPS, data) is not None:
        return True
    if any(word in data for word in _ROUNDED_WORDS) and re.search(_ROUNDED_INPUTS, data) is not None:
        return True
    if any(_loses_digits(line) for _, line in lines_of_words(_DIGIT_WORDS, data)):
        return True
    if b"topk(" in data and any(_rounds_scores(line) for _, line in lines_containing(b"softmax(", data)):
        return True
    return any(word in data for word in (*FILL_WORDS, ITEM_WRITE)) and fills_large_number(data)
