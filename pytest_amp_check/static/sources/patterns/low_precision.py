"""Byte patterns of low precision: casts, dtypes of models, and options of frameworks."""

import re

from .lines import has_line, lines_containing, lines_of_words

#: A Lightning Trainer that trains in float16 with a scaler.
_LIGHTNING16 = rb"precision\s*=\s*[\"']?16(?!-true)"
#: A layer or a pretrained model created in low precision.
_LOW_DTYPE = (
    rb"(?:from_pretrained|nn\.[A-Z]\w*)\((?:[^()]|\([^()]*\)){0,300}?dtype\s*=\s*[\"']?(?:torch\.)?(?:half|b?float16)"
)
#: A pretrained model is loaded in a dtype that a variable or a dict names.
_NAMED_DTYPE = (
    rb"from_pretrained\((?:[^()]|\([^()]*\)){0,300}?dtype\s*=\s*(?!None\b)[A-Za-z_]|[\"']torch_dtype[\"']\s*[:\]]"
)
#: A pretrained model is loaded with unpacked keywords, and a call that passes a dtype.
_UNPACKED_KEYWORDS = rb"from_pretrained\((?:[^()]|\([^()]*\)){0,300}?\*\*"
_DTYPE_KEYWORD = rb"\b(?:torch_)?dtype\s*=\s*(?!None\b)[A-Za-z_]"
#: A dtype, or another attribute of torch, that a text names.
DTYPE_BY_NAME = b"getattr(torch, "
#: A model is loaded in the dtype of its checkpoint.
_DTYPE_OF_CHECKPOINT = rb"dtype\s*=\s*[\"']auto[\"']"

#: Low precision without autocast: layers that cast their weights, another default dtype, an FSDP policy, and apex.
MANUAL_LOW_WORDS = (
    b".weight.t",
    b"set_default_tensor_type",
    b"set_default_dtype",
    b"MixedPrecision",
    b"amp.initialize",
)
#: Dtype of a model as an argument of a loader, a precision of Lightning that casts the model, an engine of DeepSpeed,
#: and a policy of FSDP2. A cast of a model is no sign, because most are for inference.
_MODEL_DTYPE = rb"torch_dtype\s*=|16-true[\"']|deepspeed\.initialize\(|MixedPrecisionPolicy\("
_MODEL_DTYPE_WORDS = (b"torch_dtype", b"16-true", b"deepspeed.", b"MixedPrecisionPolicy")
_MODEL_DTYPE_BUT_BFLOAT16 = _MODEL_DTYPE.replace(rb"\s*=", rb"\s*=(?!\s*torch\.bfloat16\b)").replace(
    rb"Policy\(", rb"Policy\((?![^\n]{0,80}param_dtype\s*=\s*torch\.bfloat16\b)"
)
#: An option of accelerate, Lightning or Transformers for regions in float16.
_FLOAT16_OPTION = rb"precision\s*=\s*[\"'](?:fp16|16-mixed|16)[\"']|\bfp16\s*=\s*True"
#: An option of accelerate or Lightning for regions in any low dtype.
_REGION_OPTION = rb"precision\s*=\s*(?:[\"'](?:b?fp?16|16)(?:-mixed)?[\"']|16\b)"
#: Words of which each line with a literal low dtype, or with a cast to one, has one.
_LOW_DTYPE_WORDS = (b"half", b"float16")
#: A cast to a low dtype.
_LOW_CAST_WORDS = (b".half()", b".bfloat16()", b"torch.float16", b"torch.bfloat16", b"torch.half")
_LOW_CAST = rb"\.(?:half\(\)|bfloat16\(\)|to\([^()\n]*torch\.(?:b?float16|half))"
#: A low dtype as the default of a parameter.
_LOW_DEFAULT = rb"dtype\w{0,20}(?:\s{0,4}:[^=,()\n]{1,60})?\s{0,4}=\s{0,4}torch\.(?:b?float16|half)\b"
#: A tensor that the code itself makes low: a cast, or a constructor with a low dtype.
_LOW_TENSOR = _LOW_CAST + rb"|(?<!\w)dtype\s*=\s*torch\.(?:b?float16|half)\b"
#: A cast to a low dtype as a statement, and the assignment of a cast copy to the data of a parameter.
_CAST_STATEMENT = (
    rb"(?m)^[ \t]*[\w.]+(?:\[\w+\])?"
    + _LOW_CAST
    + rb"\)?[ \t]*(?:#.*)?$|\.data\s*=\s*[\w.]+"
    + _LOW_CAST
    # A part of a module, unless it is a tensor.
    + rb"|^[ \t]+self\.\w+ = (?!torch\.)[\w.]+[(\[][^\n]{0,160}\)"
    + _LOW_CAST
)
#: A policy of FSDP2 with a low compute dtype.
_LOW_POLICY = rb"MixedPrecisionPolicy\([^\n]{0,80}param_dtype\s*=\s*torch\.(?:b?float16|half)\b"
#: A line that enters autocast, and does not choose whether.
_REGION_LINE = rb"(?m)^[ \t]*(?:@|with[ \t]+)[\w.]*autocast\((?![^\n]*enabled)"
#: A low dtype that a function returns, that a table holds, or that is a constant.
_GIVEN_DTYPE = rb"(?m)(?:\breturn[ \t]+|[\"'\w)\]][ \t]*:[ \t]*|^[ \t]*\w+[ \t]*=[ \t]*)torch\.(?:b?float16|half)\b"
#: The data of a parameter, cast.
_WIDENED_PARAMETER = rb"(?<!\w)(\w{1,30})\.data = \1(?:\.data)?\.(?:float|to)\("
#: A return of something cast to a low dtype.
_RETURNED_CAST = rb"(?m)^[ \t]+return [^\n]{1,200}" + _LOW_CAST
#: The construction of an object with a low dtype.
_GIVEN_TO_CLASS = rb"\b[A-Z]\w*\([^\n]{0,200}\btorch\.b?float16\b"
#: The cast of a model to a dtype that a variable or a setting holds.
_CAST_TO_CHOICE = (
    rb"\b(?:model|module|self)\.to\((?:(?:device ?= ?)?[\w.\"']{1,40}, ?)?(?:dtype ?= ?)?[\w.]{0,60}dtype\b"
    # A cast as a statement of its own casts a module.
    rb"|(?m:^[ \t]*)[\w.]{1,60}\.to\([^()\n]{0,80}dtype\)[ \t]*(?m:$)"
)
#: Code before a cast of a model, or of the value that a model gets.
_CAST_OF_MODEL = rb"model\w*(?:\s*=.*\))?$"
#: Number of bytes before a cast in which the model stands.
_CAST_REACH = 200


def has_float16_option(data: bytes) -> bool:
    """Return True if code has an option of a framework for regions in float16."""
    return re.search(_FLOAT16_OPTION, data) is not None


def has_region_option(data: bytes) -> bool:
    """Return True if code has an option of a framework for regions in any low dtype."""
    return b"precision" in data and re.search(_REGION_OPTION, data) is not None


def has_lightning16(data: bytes) -> bool:
    """Return True if a Lightning Trainer in code that names a precision trains in float16."""
    return b"'16-mixed" in data or b'"16-mixed' in data or re.search(_LIGHTNING16, data) is not None


def chooses_model_dtype(data: bytes) -> bool:
    """Return True if code lets its user choose a low dtype for the weights of a model."""
    # The words only save time: the search of a file for the pattern takes several times as long.
    return any(word in data for word in _MODEL_DTYPE_WORDS) and re.search(_MODEL_DTYPE, data) is not None


def may_choose_float16(data: bytes) -> bool:
    """Return True if code lets its user choose a dtype for the weights of a model other than a literal bfloat16."""
    return re.search(_MODEL_DTYPE_BUT_BFLOAT16, data) is not None


def takes_dtype_of_checkpoint(data: bytes) -> bool:
    """Return True if code may load a model in the dtype of its checkpoint."""
    return (b"'auto'" in data or b'"auto"' in data) and re.search(_DTYPE_OF_CHECKPOINT, data) is not None


def casts_parameters(data: bytes) -> bool:
    """Return True if code may cast a module to a low dtype, create a module in one, or load a module in a named dtype.

    The method of a tensor has the same name.
    """
    if b".half(" in data or b".bfloat16(" in data or re.search(_LOW_DTYPE, data):
        return True
    if b"from_pretrained(" in data and (
        re.search(_NAMED_DTYPE, data)
        or (re.search(_UNPACKED_KEYWORDS, data) is not None and re.search(_DTYPE_KEYWORD, data) is not None)
    ):
        return True
    return any(re.search(name + rb"\([^)]{0,200}?(?:half|float16|dtype)", data) for name in (rb"\.to", rb"\.type"))


def returns_cast(data: bytes) -> bool:
    """Return True if a function may return a model in a low dtype."""
    return any(word in data for word in _LOW_CAST_WORDS) and _has_low_line(_RETURNED_CAST, data)


def _casts_model(line: bytes) -> bool:
    """Return True if a line casts a model to a low dtype: ``model.half()``, or ``model = Net().to(torch.half)``."""
    cast = re.search(_LOW_CAST, line) if b"model" in line else None
    return cast is not None and re.search(_CAST_OF_MODEL, line[: cast.start()][-_CAST_REACH:]) is not None


def casts_model(data: bytes) -> bool:
    """Return True if code casts a model to a low dtype."""
    return any(_casts_model(line) for _, line in lines_of_words(_LOW_DTYPE_WORDS, data))


def casts_weights(data: bytes) -> bool:
    """Return True if code may store the weights of a model in a low dtype, compute with low copies, or replace them.

    A cast as a statement of its own casts a module: the method of a tensor returns another tensor.
    """
    if b"fully_shard(" in data:
        return True
    if not any(word in data for word in _LOW_CAST_WORDS):
        return False
    return (
        _has_low_line(_CAST_STATEMENT, data)
        or re.search(_LOW_DTYPE, data) is not None
        or (b"MixedPrecisionPolicy" in data and re.search(_LOW_POLICY, data) is not None)
        or casts_model(data)
    )


def gives_low_precision(data: bytes) -> bool:
    """Return True if a definition may give its user a low dtype, or a model that computes in a low dtype.

    A dtype is given by a return, by a table or by a constant. The weights of a model may be low, or its forward may
    enter autocast. A definition that casts the data of parameters to float32 takes low precision back.
    """
    if enters_in_forward(data) or b"fully_shard(" in data:
        return True
    if b".data = " in data and b"requires_grad" in data and re.search(_WIDENED_PARAMETER, data) is not None:
        return True
    if takes_dtype_of_checkpoint(data):
        return True
    # A variable, a setting or the caller names the dtype.
    if b"dtype" in data and (re.search(_NAMED_DTYPE, data) is not None or casts_to_choice(data)):
        return True
    if not any(word in data for word in _LOW_CAST_WORDS):
        return False
    return _has_low_line(_GIVEN_DTYPE, data) or casts_weights(data) or _returns_cast(data)


def _has_low_line(pattern: bytes, data: bytes) -> bool:
    """Return True if a line that names a low dtype matches a pattern."""
    return has_line(pattern, _LOW_DTYPE_WORDS, data)


def has_low_tensor(data: bytes) -> bool:
    """Return True if a line may cast a tensor to a low dtype, or create a tensor in one."""
    return _has_low_line(_LOW_TENSOR, data)


def casts_to_choice(data: bytes) -> bool:
    """Return True if code casts a model to a dtype that a variable or a setting holds."""
    return has_line(_CAST_TO_CHOICE, (b".to(",), data)


def gives_dtype(data: bytes) -> bool:
    """Return True if code constructs an object with a low dtype, which may be a trainer of another file."""
    return b"float16" in data and _has_low_line(_GIVEN_TO_CLASS, data)


def makes_values_low(data: bytes) -> bool:
    """Return True if code enters autocast, casts to a low dtype, or lets a framework run a model in low precision."""
    if b"autocast" in data or b"MixedPrecision" in data or b"deepspeed.initialize(" in data:
        return True
    return has_low_tensor(data) or has_region_option(data)


def evaluates(data: bytes) -> bool:
    """Return True if code runs models without gradients, so that a cast of a model may be for that."""
    return any(word in data for word in (b"no_grad", b"inference_mode", b".eval()"))


def enters_in_forward(data: bytes) -> bool:
    return b"def forward" in data and b"autocast(" in data and re.search(_REGION_LINE, data) is not None


def _returns_cast(data: bytes) -> bool:
    """Return True if a definition casts what it returns, under the same name: ``net = net.half()``, ``return net``."""
    replaced: set[bytes] = set()
    for word in (b".half()", b".bfloat16()"):
        for _, line in lines_containing(word, data):
            match line.partition(word)[0].replace(b"=", b" = ").split():
                case [b"return", _]:
                    return True
                case [target, b"=", name] if target == name:
                    replaced.add(name)
    returned = b" ".join(line for _, line in lines_containing(b"return", data)) if replaced else b""
    return not replaced.isdisjoint(re.findall(rb"\w+", returned))


def _casts_copy(line: bytes) -> bool:
    """Return True if a line may cast an attribute or a copy to a low dtype."""
    is_copied = b"self." in line or b"deepcopy(" in line or b"clone()" in line
    return is_copied and re.search(_LOW_CAST, line) is not None


def may_average_low_copy(data: bytes) -> bool:
    """Return True if a class may keep an average in a low dtype: of weights, or in the state of an optimizer."""
    if b"param_groups" in data and b"zeros" in data and has_low_tensor(data):
        return True
    if not (b"deepcopy" in data or b"clone" in data) or b"self." not in data:
        return False
    decays = b"lerp" in data or b"mul_" in data or b"*=" in data or b"decay" in data
    if not decays:
        return False
    if any(_casts_copy(line) for word in _LOW_CAST_WORDS for _, line in lines_containing(word, data)):
        return True
    casts = [line for _, line in lines_containing(b".to(", data) if b"dtype" in line]
    return any(b"deepcopy(" in line or b"clone()" in line for line in casts) and bool(re.search(_LOW_DEFAULT, data))
