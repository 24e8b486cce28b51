"""Generator of ``protocol/optable.py``, the effects of autocast and in-place ops, from the installed torch.

CUDA's policies are macros in a header of every wheel. The dispatcher knows the other devices that share the policies.
The lists of the CPU, and the differences of MPS, are in sources that no wheel contains: they are stated here, and
applied to the registered ops. The in-place methods are the methods of tensors. The effect of a method on scaled
gradients follows from its computation, and is stated here if it is not simply an edit.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import torch

TARGET = Path(__file__).parents[1] / "pytest_amp_check" / "protocol" / "optable.py"

_C: Any = torch._C

#: Macro of ``ATen/autocast_mode.h`` -> policy.
MACROS = {
    "AT_FORALL_LOWER_PRECISION_FP": "low",
    "AT_FORALL_FP32": "fp32",
    "AT_FORALL_FP32_SET_OPT_DTYPE": "fp32 unless dtype",
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": "fp32 appended",
    "AT_FORALL_PROMOTE": "promote",
}
#: Ops that CUDA registers beside the macros (``aten/src/ATen/autocast_mode.cpp``).
CUDA_BESIDE = {
    "cudnn_convolution": "low",
    "cudnn_convolution_transpose": "low",
    "binary_cross_entropy": "banned",
}
#: Ops for which MPS has another policy than CUDA.
MPS_DIFFERS = {"_mps_convolution": "low", "batch_norm": "fp32", "conv_transpose3d": "fp32"}
#: The CPU's low-precision ops. Its other registered ops run in float32.
CPU_LOW = (
    "conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm _addmm_activation addbmm linear _convolution matmul "
    "conv_tbc mkldnn_rnn_layer conv_transpose1d conv_transpose2d conv_transpose3d prelu scaled_dot_product_attention "
    "_native_multi_head_attention"
).split()
CPU_PROMOTE = ("cat", "stack", "index_copy")
#: Devices that share CUDA's policies.
LIKE_CUDA = ("XPU", "MTIA", "MAIA")
ORDER = ("low", "fp32", "fp32 unless dtype", "fp32 appended", "promote", "banned")

#: Effects of in-place methods on gradients. The effect of other methods is an "edit".
EFFECTS = {
    "zero": "zero_",
    "multiply": "mul_ multiply_ __imul__",
    "divide": "div_ divide_ true_divide_ __itruediv__",
    "homogeneous": (
        "abs_ absolute_ neg_ negative_ relu_ tril_ triu_ conj_physical_ cumsum_ deg2rad_ rad2deg_ copysign_ ldexp_ "
        "xlogy_"
    ),
    "fill": "fill_ masked_fill_ index_fill_ __setitem__",
    "replace": "copy_",
}
#: In-place operators, beside the methods.
OPERATORS = "__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __setitem__".split()
#: Methods that change the view of values, not the values, and methods that no float32 tensor has.
NO_VALUES = (
    "as_strided_ detach_ rename_ requires_grad_ resize_ resize_as_ resize_as_sparse_ set_ share_memory_ "
    "sparse_resize_ sparse_resize_and_clear_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_"
).split()
NOT_FLOAT32 = (
    "bitwise_and_ bitwise_left_shift_ bitwise_not_ bitwise_or_ bitwise_right_shift_ bitwise_xor_ gcd_ lcm_ float_power_"
).split()

_HEAD = '''"""Autocast policies of ops for all device types, and the effects of in-place ops on gradients.

Ops have the names of aten, without overload names.

Written by ``benchmarks/optable.py`` from torch 2.13.0; do not edit. ``low``: floating arguments are cast to the
autocast dtype; ``fp32``: to float32; ``fp32 unless dtype``: the output is float32 unless the call names a dtype; ``fp32
appended``: the overload with a dtype is called, with float32; ``promote``: to the widest floating dtype of the
arguments; ``banned``: the op raises. Ops without policy run in the dtypes of the arguments.

On gradients scaled by a loss scale, ``zero`` clears the gradients, and ``multiply`` and ``divide`` may remove the
scale. ``homogeneous`` edits commute with scaling: the result is the edited unscaled gradient, times the scale. ``fill``
sets elements to a number, which is an edit unless the number is zero or infinite. ``replace`` copies other values,
scaled or not. ``edit`` compares with numbers, adds numbers or is nonlinear, and so has another effect on scaled
gradients.
"""

from __future__ import annotations

'''
_TAIL = '''

def find_policy(device: str, op: str) -> str:
    """Return the autocast policy of an aten op on a device type, or "" if the op has no policy.

    For an unknown device, return the policy if CUDA, the CPU and MPS have the same policy, else "?".
    """
    table = OPS.get(device)
    if table is not None:
        return table.get(op, "")
    found = {OPS[known].get(op, "") for known in ("cuda", "cpu", "mps")}
    return found.pop() if len(found) == 1 else "?"
'''


def registered(key: str) -> set[str]:
    """Return the ops, without overloads, with a separate kernel for a dispatch key."""
    return {
        name.removeprefix("aten::").partition(".")[0]
        for name in _C._dispatch_get_all_op_names()
        if name.startswith("aten::") and _C._dispatch_has_kernel_for_dispatch_key(name, key)
    }


def of_macros() -> dict[str, str]:
    """Return the policy of each op according to the header."""
    header = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for match in re.finditer(r"#define (AT_FORALL_\w+)\(_\)((?:.*\\\n)*.*\n)", header):
        if match[1] in MACROS:
            for name in re.findall(r"_\((?:ADD_NS\()?(\w+)", match[2]):
                found[name] = MACROS[match[1]]
    return found


def tables() -> dict[str, dict[str, str]]:
    """Return device type -> op -> policy for the installed torch."""
    # CUDA builds also register these ops; wheels for the CPU do not.
    recurrent = dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), "low")
    macros = of_macros() | CUDA_BESIDE | recurrent
    made = {"cuda": {name: macros[name] for name in registered("AutocastCUDA")}}
    for key in LIKE_CUDA:
        made[key.lower()] = {name: macros[name] for name in registered(f"Autocast{key}")}
    made["cuda"] |= recurrent
    made["mps"] = {name: (macros | MPS_DIFFERS)[name] for name in registered("AutocastMPS")}
    cpu = dict.fromkeys(CPU_LOW, "low") | dict.fromkeys(CPU_PROMOTE, "promote")
    made["cpu"] = {name: cpu.get(name, "fp32") for name in registered("AutocastCPU")}
    return made


def in_place() -> dict[str, str]:
    """Return the in-place methods of tensors, each with its effect on gradients."""
    effects = {name: effect for effect, words in EFFECTS.items() for name in words.split()}
    methods = [name for name in dir(torch.Tensor) if name.endswith("_") and not name.startswith("_")]
    found = [name for name in (*methods, *OPERATORS) if name not in (*NO_VALUES, *NOT_FLOAT32)]
    assert effects.keys() <= set(found)
    return {name: effects.get(name, "edit") for name in found}


def foreach_in_place() -> dict[str, str]:
    """Return the in-place functions of torch for lists of tensors, each with its effect on gradients."""
    effects = in_place()
    functions = [name for name in dir(torch) if name.startswith("_foreach_") and name.endswith("_")]
    return {name: effects.get(name.removeprefix("_foreach_"), "edit") for name in functions}


def names(table: dict[str, str], policy: str) -> list[str]:
    return sorted(name for name, of in table.items() if of == policy)


def literal(chosen: list[str]) -> str:
    lines = textwrap.wrap(" ".join(chosen), 106, break_long_words=False, break_on_hyphens=False)
    if len(lines) == 1:
        return f'"{lines[0]}"'
    body = "".join(f'        "{line}{" " if line is not lines[-1] else ""}"\n' for line in lines)
    return f"(\n{body}    )"


def render() -> str:
    """Return the source of the module."""
    made = tables()
    parts = [_HEAD.format(version=torch.__version__.partition("+")[0])]

    def table(title: str, ops: dict[str, str], order: tuple[str, ...] = ORDER) -> None:
        rows = [(policy, names(ops, policy)) for policy in order]
        parts.append(f"{title} = {{\n")
        parts.extend(f'    "{policy}": {literal(chosen)},\n' for policy, chosen in rows if chosen)
        parts.append("}\n")

    parts.append("#: Policy -> ops. Other accelerators share CUDA's list, except for the ops of cuDNN.\n")
    table("_CUDA", made["cuda"])
    table("_MPS", made["mps"])
    table("_CPU", made["cpu"])
    parts.append("#: Effect on gradients -> methods of tensors, and torch functions on lists of tensors.\n")
    table("_IN_PLACE", in_place(), (*EFFECTS, "edit"))
    table("_FOREACH_IN_PLACE", foreach_in_place(), (*EFFECTS, "edit"))
    only = sorted(made["cuda"].keys() - made["xpu"].keys())
    parts.append(f"_ONLY_CUDA = frozenset({literal(only)}.split())\n")
    assert all(made[key.lower()] == made["xpu"] for key in LIKE_CUDA)
    parts.append(
        "\n\ndef _index_by_op(table: dict[str, str]) -> dict[str, str]:\n"
        "    return {op: policy for policy, ops in table.items() for op in ops.split()}\n\n\n"
        "#: Device type -> op -> policy.\n"
        'OPS: dict[str, dict[str, str]] = {"cuda": _index_by_op(_CUDA), "mps": _index_by_op(_MPS), "cpu": '
        "_index_by_op(_CPU)}\n"
    )
    parts.append("#: Method of tensors, or torch function -> effect on gradients.\n")
    parts.append("IN_PLACE = _index_by_op(_IN_PLACE)\nFOREACH_IN_PLACE = _index_by_op(_FOREACH_IN_PLACE)\n")
    others = ", ".join(f'"{key.lower()}"' for key in LIKE_CUDA)
    parts.append(
        "#: Policies of all accelerators except MPS.\n"
        '_COMMON = {op: policy for op, policy in OPS["cuda"].items() if op not in _ONLY_CUDA}\n'
        f"OPS.update(dict.fromkeys(({others}), _COMMON))\n"
    )
    parts.append(_TAIL)
    return "".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET.name} from torch {torch.__version__}")
