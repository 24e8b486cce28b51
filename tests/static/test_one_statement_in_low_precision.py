"""Effects of low precision on values, one statement at a time: the violation, and the source text in the message."""

from __future__ import annotations

import re

import pytest
from case_groups import check_each, in_groups

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = """\
import math
import torch
import torch.nn.functional as F
from torch import nn

net = nn.Linear(8, 8)
mem = torch.zeros(8, 8)
with torch.autocast({region}):
    out = net(x)
"""
#: The regions of the statements. The statements of the last region are after it.
REGIONS = {
    "cuda": '"cuda", dtype=torch.float16',
    "cpu16": '"cpu", dtype=torch.float16',
    "bf16": '"cuda", dtype=torch.bfloat16',
    "out": '"cuda", dtype=torch.float16',
}
#: The region, the statements, the label of the last statement's violation ("" for none), and the quoted texts.
Case = tuple[str, str, str, list[str]]
#: Code in the help of positions that are cast.
WIDE = ["dtype=torch.float32", ".float()", ".float()"]
STATEMENTS: list[Case] = [
    ("cuda", "y = 1e-8 + out", "epsilon:added", ["1e-08 + out", ".float()"]),
    ("cuda", "y = torch.add(out, 1e-8)", "epsilon:added", ["torch.add(out, 1e-08)", ".float()"]),
    ("cuda", "y = out.add(1e-8)", "epsilon:added", ["out.add(1e-08)", ".float()"]),
    ("cuda", "y = x / (out.sum() + 1e-8)", "", []),
    ("cuda", "y = out.clamp(1e-8)", "epsilon:clamped", ["out.clamp(1e-08)", ".float()"]),
    ("cuda", "y = out.clamp_min(1e-8)", "epsilon:clamped", ["out.clamp_min(1e-08)", ".float()"]),
    ("cuda", "y = torch.clamp(out, 1e-8, 1)", "epsilon:clamped", ["torch.clamp(out, 1e-08, 1)", ".float()"]),
    ("cuda", "y = out.clip(1e-8, 0.99999)", "epsilon:to-one", ["out.clip(1e-08, 0.99999)", ".float()"]),
    ("cuda", "y = torch.clamp_max(out, 0.99999)", "epsilon:to-one", ["torch.clamp_max(out, 0.99999)", ".float()"]),
    ("cuda", "y = out.clamp(max=0.9999999)", "epsilon:to-one", ["out.clamp(max=0.9999999)", ".float()"]),
    ("cuda", "y = out.clamp(0.0, 0.999)", "", []),
    (
        "cuda",
        "y = out.clamp(-1e6, 1e6)",
        "fill:bound",
        ["out.clamp(-1000000.0, 1000000.0)", "torch.finfo(out.dtype).min"],
    ),
    ("cuda", "y = torch.clamp(out, min=-65504.0)", "", []),
    ("cuda", "y = torch.log(out.sigmoid())", "fragile:log-sigmoid", ["torch.log(out.sigmoid())", "logsigmoid"]),
    ("cuda", "y = out.sigmoid().log()", "fragile:log-sigmoid", ["out.sigmoid().log()", "logsigmoid"]),
    (
        "cuda",
        "y = torch.log2(torch.sigmoid(out))",
        "fragile:log-sigmoid",
        ["torch.log2(torch.sigmoid(out))", "logsigmoid"],
    ),
    ("cuda", "y = out.sigmoid().log10()", "fragile:log-sigmoid", ["out.sigmoid().log10()", "logsigmoid"]),
    ("cuda", "y = out.sigmoid().log1p()", "", []),
    ("cuda", "y = out.sigmoid().exp()", "", []),
    (
        "cuda",
        "y = torch.log(1 - out.sigmoid())",
        "fragile:log-complement",
        ["torch.log(1 - out.sigmoid())", "logsigmoid", ".float()"],
    ),
    ("cuda", "y = torch.log(1 + out.sigmoid())", "", []),
    (
        "cuda",
        "y = torch.log1p(-out.sigmoid())",
        "fragile:log-complement",
        ["torch.log1p(-out.sigmoid())", "logsigmoid", ".float()"],
    ),
    ("cuda", "y = torch.log1p(-out)", "", []),
    ("cuda", "y = out.var()", "fragile:variance", ["out.var()", ".float()"]),
    ("cuda", "y = torch.var(out, 0)", "fragile:variance", ["torch.var(out, 0)", ".float()"]),
    # Joined values are as large as the largest of them.
    (
        "cuda",
        "y = torch.cat([out.tanh(), out]).var()",
        "fragile:variance",
        ["torch.cat([out.tanh(), out]).var()", ".float()"],
    ),
    (
        "cuda",
        "y = torch.stack([out, out.tanh()]).var()",
        "fragile:variance",
        ["torch.stack([out, out.tanh()]).var()", ".float()"],
    ),
    ("cuda", "y = (out * out).mean()", "fragile:squares", ["(out * out).mean()", "out.float()", "out"]),
    ("cuda", "y = (out * out).max()", "", []),
    ("cuda", "y = (out ** 2).sum()", "", []),
    ("cuda", "y = torch.fft.rfft(out)", "op:lengths", ["torch.fft.rfft(out)", ".float()"]),
    ("cuda", "y = torch.fft.fft(out, 100)", "op:lengths", ["torch.fft.fft(out, 100)", ".float()"]),
    ("cuda", "y = torch.fft.fft(out, n=128)", "", []),
    ("cuda", "y = torch.fft.fft(out, n=size)", "", []),
    ("cuda", "y = torch.linalg.inv(out)", "op:refused", ["torch.linalg.inv(out)", ".float()"]),
    ("cuda", "y = out.inverse()", "op:refused", ["out.inverse()", ".float()"]),
    ("cuda", "y = torch.svd_lowrank(out)", "op:inner", ["torch.svd_lowrank(out)", ".float()"]),
    ("cuda", "y = torch.svd_lowrank(x)", "op:inner", ["torch.svd_lowrank(x)", ".float()"]),
    ("cuda", "y = torch.quantile(out, 0.5)", "op:refused", ["torch.quantile(out, 0.5)", ".float()"]),
    ("cuda", "mem.index_add_(0, i, out)", "clash:write", ["mem.index_add_", ".to(buffer.dtype)"]),
    ("cuda", "mem.index_copy_(0, i, source=out)", "clash:write", ["mem.index_copy_", ".to(buffer.dtype)"]),
    ("cuda", "mem.scatter_(1, i, out)", "clash:write", ["mem.scatter_", ".to(buffer.dtype)"]),
    ("cuda", "mem.scatter_(1, i, 1.0)", "", []),
    ("cuda", "mem.scatter_add_(1, i, src=out)", "clash:write", ["mem.scatter_add_", ".to(buffer.dtype)"]),
    ("cuda", "mem.scatter_add_(1, i, src=out.float())", "", []),
    ("cuda", "mem.masked_scatter_(i, out)", "clash:write", ["mem.masked_scatter_", ".to(buffer.dtype)"]),
    ("cuda", "mem.index_put_((i,), out)", "clash:write", ["mem.index_put_", ".to(buffer.dtype)"]),
    ("cuda", "mem.index_put_((i,), values=out)", "clash:write", ["mem.index_put_", ".to(buffer.dtype)"]),
    ("cuda", "out.index_add_(0, i, out)", "", []),
    ("cuda", "y = mem.index_add(0, i, out)", "clash:write", ["mem.index_add", ".to(buffer.dtype)"]),
    ("cuda", "mem.addmm_(out, out)", "clash:in-place", ["mem.addmm_(out, out)", ".float()", "@"]),
    ("cuda", "mem.addmm_(x, x)", "", []),
    ("cuda", "out.addmm_(out, out)", "", []),
    ("cuda", "torch.mm(out, out, out=mem)", "clash:out", ["torch.mm(out, out, out=mem)", "out=", "out="]),
    ("cuda", "torch.relu(out, out=mem)", "", []),
    (
        "cuda",
        "y = (out @ out.transpose(-2, -1)) / 8",
        "scores:scaled-late",
        ["out @ out.transpose(-2, -1) / 8", "scaled_dot_product_attention"],
    ),
    (
        "cuda",
        "y = (out @ out.transpose(-2, -1)) / x",
        "scores:scaled-late",
        ["out @ out.transpose(-2, -1) / x", "scaled_dot_product_attention"],
    ),
    ("cuda", "y = (out @ out) / 8", "", []),
    ("cuda", "y = 8 * (out @ out.mT)", "scores:scaled-late", ["8 * (out @ out.mT)", "scaled_dot_product_attention"]),
    (
        "cuda",
        "y = (mem @ mem.mT) * 0.125",
        "scores:scaled-late",
        ["mem @ mem.mT * 0.125", "scaled_dot_product_attention"],
    ),
    (
        "cuda",
        "y = torch.matmul(out, out.mT) * 0.125",
        "scores:scaled-late",
        ["torch.matmul(out, out.mT) * 0.125", "scaled_dot_product_attention"],
    ),
    (
        "cuda",
        'y = torch.einsum("bd,cd->bc", out, x) * 0.125',
        "scores:scaled-late",
        ["torch.einsum('bd,cd->bc', out, x) * 0.125", "scaled_dot_product_attention"],
    ),
    ("cuda", 'y = torch.einsum("bd,cd->bc", out, out) * 0.125', "", []),
    (
        "cuda",
        "y = torch.masked_fill(out, m, -1e9)",
        "fill:overflow",
        ["torch.masked_fill", "torch.finfo(out.dtype).min"],
    ),
    ("cuda", "y = torch.where(m, out, -1e9)", "fill:overflow", ["torch.where", "torch.finfo(x.dtype).min"]),
    ("cuda", "y = torch.full_like(out, 1e5)", "fill:overflow", ["torch.full_like", "torch.finfo(out.dtype).max"]),
    ("cuda", "out.fill_(1e5)", "fill:overflow", ["out.fill_", "torch.finfo(out.dtype).max"]),
    ("cuda", "out.fill_(65504)", "", []),
    ("cuda", 'out.fill_(float("inf"))', "", []),
    ("cuda", "t = torch.arange(4096).half()\ny = t.sin()", "positions:cast", ["torch.arange(4096).half()", *WIDE]),
    ("cuda", "t = torch.arange(256).half()\ny = t.sin()", "", []),
    ("cuda", "t = torch.arange(257).half()\ny = t.sin()", "positions:cast", ["torch.arange(257).half()", *WIDE]),
    (
        "cuda",
        "t = torch.arange(4096, dtype=torch.float16)\ny = torch.cos(t)",
        "positions:cast",
        ["torch.arange(4096, dtype=torch.float16)", *WIDE],
    ),
    ("cuda", "t = torch.arange(4096, dtype=torch.float32)\ny = torch.cos(t)", "", []),
    ("cuda", "t = torch.ones(4096).half()\ny = t.sin()", "", []),
    ("cuda", "t = torch.arange(4096).to(out.dtype).long()", "positions:index", ["torch.arange(4096).to(out.dtype)"]),
    (
        "cuda",
        "y = torch.arange(4096, dtype=torch.float16).int()",
        "positions:index",
        ["torch.arange(4096, dtype=torch.float16)"],
    ),
    ("cuda", "y = torch.arange(4096, dtype=torch.int32).int()", "", []),
    (
        "cuda",
        "y = torch.clamp(out, min=-100000.0)",
        "fill:bound",
        ["torch.clamp(out, min=-100000.0)", "torch.finfo(out.dtype).min"],
    ),
    (
        "cuda",
        "y = torch.clamp(input=out, min=-100000.0)",
        "fill:bound",
        ["torch.clamp(input=out, min=-100000.0)", "torch.finfo(x.dtype).min"],
    ),
    ("cuda", "y = out.clamp(min=-100000.0)", "fill:bound", ["out.clamp(min=-100000.0)", "torch.finfo(out.dtype).min"]),
    ("cuda", "y = out.index_fill(0, i, value=-1e9)", "fill:overflow", ["out.index_fill", "torch.finfo(out.dtype).min"]),
    ("cuda", "y = out.masked_fill(m, value=-1e9)", "fill:overflow", ["out.masked_fill", "torch.finfo(out.dtype).min"]),
    ("cuda", "y = x.masked_fill(m, value=-1e9)", "", []),
    ("cuda", "y = (out.sigmoid() * 2).log()", "", []),
    (
        "cuda",
        "y = (-out.sigmoid()).log1p()",
        "fragile:log-complement",
        ["(-out.sigmoid()).log1p()", "logsigmoid", ".float()"],
    ),
    ("cuda", "y = (1 - out.softmax(-1)).log()", "", []),
    ("cuda", "y = out.tanh().var()", "", []),
    ("cuda", "y = torch.cat([out.tanh(), out.sigmoid()]).var()", "", []),
    ("cuda", "y = (out * x).mean()", "", []),
    ("cuda", "y = out.float().var()", "", []),
    ("cuda", "y = (out.sigmoid() * out.sigmoid()).mean()", "", []),
    ("cuda", "y = torch.stack([out, out]) + 1e-8", "epsilon:added", ["torch.stack([out, out]) + 1e-08", ".float()"]),
    ("cuda", "y = torch.cat((out, mem)) + 1e-8", "", []),
    ("cuda", "y = F.relu(out) + 1e-8", "epsilon:added", ["F.relu(out) + 1e-08", ".float()"]),
    ("cuda", "y = F.dropout(out, 0.1) + 1e-8", "epsilon:added", ["F.dropout(out, 0.1) + 1e-08", ".float()"]),
    ("cuda", "y = F.layer_norm(out, (8,)) + 1e-8", "", []),
    ("cuda", "y = torch.nn.utils.parametrize.x(out) + 1e-8", "", []),
    ("cuda", "y = torch.distributed.nn.all_gather(out) + 1e-8", "", []),
    ("cuda", "y = torch.special.expit(out) + 1e-8", "", []),
    (
        "cuda",
        "y = torch.zeros(8, dtype=torch.float16) + 1e-8",
        "epsilon:added",
        ["torch.zeros(8, dtype=torch.float16) + 1e-08", ".float()"],
    ),
    ("cuda", "y = torch.zeros(8) + 1e-8", "", []),
    ("cuda", "y = out.new_zeros(8) + 1e-8", "epsilon:added", ["out.new_zeros(8) + 1e-08", ".float()"]),
    ("cuda", "y = torch.ones_like(out) + 1e-8", "epsilon:added", ["torch.ones_like(out) + 1e-08", ".float()"]),
    ("cuda", "y = torch.full_like(out, 1, dtype=torch.float32) + 1e-8", "", []),
    ("cuda", "y = out.T + 1e-8", "epsilon:added", ["out.T + 1e-08", ".float()"]),
    ("cuda", "y = out.data + 1e-8", "epsilon:added", ["out.data + 1e-08", ".float()"]),
    ("cuda", "y = out.grad + 1e-8", "", []),
    ("cuda", "y = out.shape[0] + 1e-8", "", []),
    ("cuda", "y = out[0, 0] + 1e-8", "epsilon:added", ["out[0, 0] + 1e-08", ".float()"]),
    ("cuda", "y = out[m > 0] + 1e-8", "epsilon:added", ["out[m > 0] + 1e-08", ".float()"]),
    ("cuda", "y = out[:, 1] + 1e-8", "epsilon:added", ["out[:, 1] + 1e-08", ".float()"]),
    ("cuda", "y = -out + 1e-8", "epsilon:added", ["-out + 1e-08", ".float()"]),
    ("cuda", "y = (not out) + 1e-8", "", []),
    ("cuda", "y = (out > 1) + 1e-8", "", []),
    ("cuda", "y = out.item() + 1e-8", "", []),
    ("cuda", "y = out.size(0) + 1e-8", "", []),
    ("cuda", "y = len(out) + 1e-8", "", []),
    ("cuda", "y = float(out) + 1e-8", "", []),
    ("cuda", "y = math.sqrt(out) + 1e-8", "", []),
    ("cuda", "y = (2 - out) + 1e-8", "epsilon:added", ["2 - out + 1e-08", ".float()"]),
    ("cuda", "y = (2 / out) + 1e-8", "", []),
    ("cuda", "y = (out / 2) + 1e-8", "epsilon:added", ["out / 2 + 1e-08", ".float()"]),
    ("cuda", "y = (out // 2) + 1e-8", "epsilon:added", ["out // 2 + 1e-08", ".float()"]),
    ("cuda", "y = (out % 2) + 1e-8", "epsilon:added", ["out % 2 + 1e-08", ".float()"]),
    ("cuda", "y = 2 ** out + 1e-8", "", []),
    ("cuda", "y = out ** 2 + 1e-8", "", []),
    ("cuda", "y = out @ x + 1e-8", "epsilon:added", ["out @ x + 1e-08", ".float()"]),
    ("cuda", "y = out.long() + 1e-8", "", []),
    ("cuda", "y = out.int() + 1e-8", "", []),
    ("cuda", "y = out.type(torch.float16) + 1e-8", "epsilon:added", ["out.type(torch.float16) + 1e-08", ".float()"]),
    ("cuda", "y = out.type_as(mem) + 1e-8", "", []),
    ("cuda", "y = mem.type_as(out) + 1e-8", "epsilon:added", ["mem.type_as(out) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(mem) + 1e-8", "", []),
    ("cuda", "y = out.to(x.device) + 1e-8", "epsilon:added", ["out.to(x.device) + 1e-08", ".float()"]),
    ("cuda", 'y = out.to("cuda") + 1e-8', "epsilon:added", ["out.to('cuda') + 1e-08", ".float()"]),
    ("cuda", "y = out.to(rank) + 1e-8", "epsilon:added", ["out.to(rank) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(device=dev) + 1e-8", "epsilon:added", ["out.to(device=dev) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(other) + 1e-8", "", []),
    (
        "cuda",
        'y = out.to(torch.device("cpu")) + 1e-8',
        "epsilon:added",
        ["out.to(torch.device('cpu')) + 1e-08", ".float()"],
    ),
    ("cuda", "y = out.to(0) + 1e-8", "epsilon:added", ["out.to(0) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(torch.long) + 1e-8", "", []),
    ("cuda", "y = out.to(torch.bool) + 1e-8", "", []),
    ("cuda", "y = out.argmax(0) + 1e-8", "", []),
    ("cuda", "y = out.isnan() + 1e-8", "", []),
    ("cuda", "y = out.eq(0) + 1e-8", "", []),
    ("cuda", "y = out.cumsum(0) + 1e-8", "", []),
    ("cuda", "y = out.norm() + 1e-8", "", []),
    ("cuda", "y = out.mean() + 1e-8", "epsilon:added", ["out.mean() + 1e-08", ".float()"]),
    ("cuda", "y = out.std() + 1e-8", "epsilon:added", ["out.std() + 1e-08", ".float()"]),
    ("cuda", "y = out + 2e-8", "epsilon:added", ["out + 2e-08", ".float()"]),
    ("cuda", "y = out + 3e-8", "", []),
    ("cuda", "y = out + 6e-5", "", []),
    ("cuda", "y = out + 1.0", "", []),
    ("cuda", "y = out + 0", "", []),
    ("cuda", "eps = 1e-8\ny = out + eps", "epsilon:added", ["out + eps", ".float()"]),
    ("cuda", "y = x + out + 1e-8", "", []),
    ("cuda", "y = x / torch.sqrt(out + 1e-8)", "epsilon:added", ["out + 1e-08", ".float()"]),
    ("cuda", "y = x / (out + 6e-5)", "", []),
    ("cuda", "y = x / (out + 7e-5)", "", []),
    (
        "cpu16",
        "y = torch.log(torch.exp(out).sum())",
        "fragile:logsumexp",
        ["torch.log(torch.exp(out).sum())", "torch.logsumexp"],
    ),
    ("cpu16", "y = out.exp().sum(-1).log()", "fragile:logsumexp", ["out.exp().sum(-1).log()", "torch.logsumexp"]),
    ("cpu16", "y = torch.exp(out - out.max()).sum().log()", "", []),
    ("cpu16", "y = torch.log(out.softmax(-1))", "fragile:log-softmax", ["torch.log(out.softmax(-1))", "log_softmax"]),
    ("cpu16", "y = F.softmax(out, -1).log()", "fragile:log-softmax", ["F.softmax(out, -1).log()", "log_softmax"]),
    ("cpu16", "y = (out ** 2).sum()", "fragile:squares", ["(out ** 2).sum()", "out.float()", "out"]),
    ("cpu16", "y = out.square().mean()", "fragile:squares", ["out.square().mean()", "out.float()", "out"]),
    ("cpu16", "y = torch.square(out).sum(1)", "fragile:squares", ["torch.square(out).sum(1)", "out.float()", "out"]),
    ("cpu16", "y = out.pow(2).mean()", "fragile:squares", ["out.pow(2).mean()", "out.float()", "out"]),
    ("cpu16", "y = out.pow(3).mean()", "", []),
    ("cpu16", "y = torch.fft.rfft(out)", "", []),
    ("cpu16", "y = torch.linalg.inv(out)", "", []),
    ("cpu16", "y = torch.cat([out, out.bfloat16()])", "clash:mixed", ["torch.cat([out, out.bfloat16()])"]),
    ("bf16", "y = out.detach().numpy()", "clash:numpy", ["out.detach().numpy", ".float()"]),
    ("bf16", "y = out.float().numpy()", "", []),
    ("bf16", "y = torch.linalg.svd(out)", "op:refused", ["torch.linalg.svd(out)", ".float()"]),
    ("bf16", "y = out.clamp(max=0.999)", "epsilon:to-one", ["out.clamp(max=0.999)", ".float()"]),
    ("bf16", "y = out.clamp(max=0.99)", "", []),
    ("bf16", "y = torch.fft.fft(out)", "op:refused", ["torch.fft.fft(out)", ".float()"]),
    ("bf16", "y = torch.fft.fft(out, n=128)", "op:refused", ["torch.fft.fft(out, n=128)", ".float()"]),
    ("bf16", "y = out + 1e-8", "", []),
    ("bf16", "y = (out * out).mean()", "", []),
    ("bf16", "y = torch.log(out.sigmoid())", "", []),
    ("out", "y = net(out)", "clash:module", ["net", ".float()"]),
    ("out", "y = net(out.float())", "", []),
    ("out", "y = out @ mem", "clash:matmul", ["out @ mem", ".float()"]),
    ("out", "y = out @ out", "", []),
    ("out", "y = torch.mm(mem, out)", "clash:matmul", ["torch.mm(mem, out)", ".float()"]),
    ("out", "y = F.linear(mem, out)", "clash:matmul", ["F.linear(mem, out)", ".float()"]),
    ("out", "y = out * mem", "", []),
    ("out", "mem[out > 0] = out[out > 0]", "clash:write", ["mem[out > 0]", ".to(buffer.dtype)"]),
    ("out", "out[out > 0] = mem[out > 0]", "clash:write-wide", ["out[out > 0]", ".to(buffer.dtype)"]),
    ("out", "y = out + 1e-8", "epsilon:added", ["out + 1e-08", ".float()"]),
    ("out", "y = out.float() + 1e-8", "", []),
    ("out", "y = out.exp() + 1e-8", "epsilon:added", ["out.exp() + 1e-08", ".float()"]),
    ("out", "y = torch.linalg.inv(out)", "op:refused", ["torch.linalg.inv(out)", ".float()"]),
    ("out", "y = torch.log(out.sigmoid())", "fragile:log-sigmoid", ["torch.log(out.sigmoid())", "logsigmoid"]),
    # The first statement is reported once, and its result is unknown.
    ("cpu16", "y = torch.cat([out, out.bfloat16()]) + 1e-8", "clash:mixed", ["torch.cat([out, out.bfloat16()])"]),
    ("cuda", "y = torch.cat([out, out.bfloat16()])", "", []),
    ("cpu16", "y = torch.cat([out, mem.half()])", "", []),
    ("out", "y = (out @ mem) + 1e-8", "clash:matmul", ["out @ mem", ".float()"]),
    ("cuda", "mem.index_add_(0, i, out).add(1e-8)", "clash:write", ["mem.index_add_", ".to(buffer.dtype)"]),
    (
        "cuda",
        "y = out.index_add_(0, i, out) + 1e-8",
        "epsilon:added",
        ["out.index_add_(0, i, out) + 1e-08", ".float()"],
    ),
    ("cuda", "y = out.addmm_(out, out) + 1e-8", "epsilon:added", ["out.addmm_(out, out) + 1e-08", ".float()"]),
    # Divisors: ordinary numbers over a sum below 1 / 65504 are infinite. Other uses of the sum are harmless.
    ("cuda", "y = x / (out + 1e-6)", "epsilon:small", ["out + 1e-06", ".float()"]),
    ("cuda", "y = x / (1e-6 + out)", "epsilon:small", ["1e-06 + out", ".float()"]),
    ("cuda", "y = x * (out + 1e-6)", "", []),
    ("cuda", "y = torch.add(out, 1e-6)", "", []),
    ("cuda", "y = out.add(1e-6)", "", []),
    ("cuda", "y = out.clamp(min=1e-6)", "", []),
    ("cuda", "y = out.clamp_min(1e-6)", "", []),
    ("cuda", "y = x / (out + 1.6e-5)", "", []),
    ("cuda", "y = x / (out.float() + 1e-8)", "", []),
    ("bf16", "y = x / (out + 1e-6)", "", []),
    # Bounds by name and by position.
    ("cuda", "y = out.clamp(1e-3, 0.99999)", "epsilon:to-one", ["out.clamp(0.001, 0.99999)", ".float()"]),
    (
        "cuda",
        "y = out.clamp(min=1e-3, max=0.99999)",
        "epsilon:to-one",
        ["out.clamp(min=0.001, max=0.99999)", ".float()"],
    ),
    ("cuda", "y = out.clamp(1e-3, max=0.99999)", "epsilon:to-one", ["out.clamp(0.001, max=0.99999)", ".float()"]),
    ("cuda", "y = out.clamp_(max=0.99999)", "epsilon:to-one", ["out.clamp_(max=0.99999)", ".float()"]),
    ("cuda", "y = torch.clip(out, max=0.99999)", "epsilon:to-one", ["torch.clip(out, max=0.99999)", ".float()"]),
    ("cuda", "y = out.clamp_min(0.99999)", "", []),
    ("cuda", "y = out.clamp(0.99999)", "", []),
    ("cuda", "y = out.clamp(max=1.0)", "", []),
    ("cuda", "y = out.clamp(max=1)", "", []),
    ("cuda", "y = out.clamp(0, 1)", "", []),
    ("cuda", "y = out.clamp(max=0.9995)", "", []),
    ("cuda", "y = x.clamp(max=0.99999)", "", []),
    ("cuda", "y = out.clamp(max=limit)", "", []),
    ("cuda", "y = out.clamp(65504)", "", []),
    ("cuda", "y = out.clamp(max=65505)", "fill:bound", ["out.clamp(max=65505)", "torch.finfo(out.dtype).max"]),
    ("cuda", 'y = out.clamp(max=float("inf"))', "", []),
    ("bf16", "y = out.clamp(max=1e6)", "", []),
    # An einsum that is not a matrix product: on the CPU, its products stay in float32.
    (
        "cuda",
        'y = torch.einsum("bi,ij->bj", x, mem) + 1e-8',
        "epsilon:added",
        ["torch.einsum('bi,ij->bj', x, mem) + 1e-08", ".float()"],
    ),
    # Target devices and dtypes of `to`.
    ("cuda", "y = out.to(my_device) + 1e-8", "epsilon:added", ["out.to(my_device) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(self.rank) + 1e-8", "epsilon:added", ["out.to(self.rank) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(pick_device()) + 1e-8", "epsilon:added", ["out.to(pick_device()) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(pick()) + 1e-8", "", []),
    ("cuda", "y = out.to(x.dtype) + 1e-8", "", []),
    ("cuda", "y = out.to(mem.dtype) + 1e-8", "", []),
    ("cuda", "y = mem.to(out.dtype) + 1e-8", "epsilon:added", ["mem.to(out.dtype) + 1e-08", ".float()"]),
    ("cuda", "y = mem.to(out) + 1e-8", "epsilon:added", ["mem.to(out) + 1e-08", ".float()"]),
    ("cuda", "y = mem.to(0, torch.half) + 1e-8", "epsilon:added", ["mem.to(0, torch.half) + 1e-08", ".float()"]),
    ("cuda", "y = mem.to(dtype=torch.half) + 1e-8", "epsilon:added", ["mem.to(dtype=torch.half) + 1e-08", ".float()"]),
    ("cuda", "y = out.to(device=dev, dtype=torch.float32) + 1e-8", "", []),
    ("cuda", "y = out.to(torch.float64) + 1e-8", "", []),
    ("cuda", "y = out.double() + 1e-8", "", []),
    ("cuda", "y = out.bfloat16() + 1e-8", "", []),
    ("cuda", "y = out.type(torch.float32) + 1e-8", "", []),
    # Positions that are multiplied in low precision, and positions that are not.
    (
        "cuda",
        't = torch.arange(4096).float()\ny = torch.einsum("i,j->ij", t, inv).sin()',
        "positions:angles",
        [
            "torch.einsum('i,j->ij', t, inv)",
            "torch.einsum('i,j->ij', t.float(), inv.float())",
            'with torch.autocast("cuda", enabled=False):',
        ],
    ),
    ("cpu16", 't = torch.arange(4096).float()\ny = torch.einsum("i,j->ij", t, inv).sin()', "", []),
    ("cuda", "t = torch.arange(4096).float()\ny = torch.outer(t, inv).sin()", "", []),
    (
        "cuda",
        "t = torch.arange(4096).float()\ny = (t[:, None] @ inv).cos()",
        "positions:angles",
        ["t[:, None] @ inv", "t[:, None].float() @ inv.float()", 'with torch.autocast("cuda", enabled=False):'],
    ),
    (
        "cpu16",
        "t = torch.arange(4096).float()\ny = (t[:, None] @ inv).cos()",
        "positions:angles",
        ["t[:, None] @ inv", "t[:, None].float() @ inv.float()", 'with torch.autocast("cpu", enabled=False):'],
    ),
    ("cuda", "t = torch.arange(4096).float()\ny = (t[:, None] @ inv).exp()", "", []),
    # Attention of other packages takes three tensors of one dtype.
    (
        "cuda",
        "from flash_attn import flash_attn_func\ny = flash_attn_func(out, out, mem)",
        "clash:attention",
        ["flash_attn_func(out, out, mem)", ".to(value.dtype)"],
    ),
    ("cuda", "from flash_attn import flash_attn_func\ny = flash_attn_func(out, out, out)", "", []),
    # Logarithms of values close to zero or one.
    (
        "cuda",
        "y = (1 - torch.sigmoid(out)).log()",
        "fragile:log-complement",
        ["(1 - torch.sigmoid(out)).log()", "logsigmoid", ".float()"],
    ),
    (
        "cuda",
        "y = (2 - torch.sigmoid(out)).log()",
        "fragile:log-complement",
        ["(2 - torch.sigmoid(out)).log()", "logsigmoid", ".float()"],
    ),
    ("cuda", "y = (torch.sigmoid(out) - 1).log()", "", []),
    ("cuda", "y = torch.sigmoid(out).float().log()", "", []),
    ("cuda", "y = torch.log(torch.tanh(out))", "", []),
    (
        "cuda",
        "act = nn.Sigmoid()\ny = torch.log(act(out))",
        "fragile:log-sigmoid",
        ["torch.log(act(out))", "logsigmoid"],
    ),
    ("cuda", "act = nn.Tanh()\ny = torch.log(act(out))", "", []),
    ("cuda", "act = nn.Softmax(-1)\ny = torch.log(act(out))", "", []),
    (
        "cpu16",
        "act = nn.Softmax(-1)\ny = torch.log(act(out))",
        "fragile:log-softmax",
        ["torch.log(act(out))", "log_softmax"],
    ),
    ("cpu16", "y = torch.exp(-out).sum().log()", "", []),
    ("cpu16", "y = torch.exp(out).mean().log()", "", []),
    ("cpu16", "y = torch.exp(out).sum().log1p()", "", []),
    # Modules of torch in and behind the region.
    ("cuda", "norm = nn.LayerNorm(8)\ny = norm(out) + 1e-8", "", []),
    ("cpu16", "norm = nn.LayerNorm(8)\ny = norm(out) + 1e-8", "epsilon:added", ["norm(out) + 1e-08", ".float()"]),
    ("cuda", "act = nn.ReLU()\ny = act(out) + 1e-8", "epsilon:added", ["act(out) + 1e-08", ".float()"]),
    ("cuda", "act = nn.ReLU()\ny = act(mem) + 1e-8", "", []),
    ("cuda", "conv = nn.Conv1d(8, 8, 1)\ny = conv(mem) + 1e-8", "epsilon:added", ["conv(mem) + 1e-08", ".float()"]),
    ("out", "act = nn.ReLU()\ny = act(out)", "", []),
    ("out", "conv = nn.Conv1d(8, 8, 1)\ny = conv(out)", "clash:module", ["conv", ".float()"]),
    ("out", "conv = nn.Conv1d(8, 8, 1).half()\ny = conv(out)", "", []),
    ("out", "y = net(out.to(torch.float32))", "", []),
    ("out", "y = net(out.detach())", "clash:module", ["net", ".float()"]),
    ("out", "y = net(out[:4])", "clash:module", ["net", ".float()"]),
    ("out", "y = net(out.long())", "", []),
]


@in_groups((f"{number} {case[0]}: {case[1]}", case) for number, case in enumerate(STATEMENTS))
def test_one_statement(cases: dict[str, Case]) -> None:
    check_each(cases, check_statement)


def check_statement(name: str, case: Case) -> None:
    region, statements, label, words = case
    indent = "" if region == "out" else "    "
    source = HEAD.format(region=REGIONS[region]) + "".join(f"{indent}{line}\n" for line in statements.split("\n"))
    # Sizes that are unfavorable for Tensor Cores are not tested here.
    found = check_source(source, "train.py", Settings(select=frozenset(RULES) - {"AMP702"}))
    assert [each.label for each in found] == ([label] if label else [])
    for each in found:
        assert re.findall(r"`([^`]*)`", each.message) == words
        assert each.certain


#: The region and an expression of more than 60 characters, shortened as in a message.
LONG = [
    ("out", f"torch.mm(out[:{'1' * 60}], mem)"),
    ("cuda", f"out.clamp(max=1000000.0, min={'x' * 40})"),
    ("cuda", f"out.clamp(max=0.99999, min={'x' * 40})"),
    ("cuda", f"out.clamp(min=1e-08, max={'x' * 40})"),
    ("cuda", f"out.add(1e-08, alpha={'x' * 50})"),
    ("cuda", f"out.var({'x' * 60})"),
    ("cuda", f"torch.log(torch.sigmoid(out[{'1' * 40}:]))"),
    ("cuda", f"torch.linalg.inv(out[{'1' * 40}:])"),
    ("cuda", f"out @ out.mT / {'8' * 50}"),
    ("bf16", f"out[{'1' * 50}:].detach().cpu().numpy()"),
]


@pytest.mark.parametrize(("region", "expression"), LONG)
def test_a_long_expression_is_quoted_by_its_beginning(region: str, expression: str) -> None:
    indent = "" if region == "out" else "    "
    source = f"{HEAD.format(region=REGIONS[region])}{indent}y = {expression}\n"
    (found,) = check_source(source, "train.py", Settings(select=frozenset(RULES) - {"AMP702"}))
    assert found.message.split("`")[1] == f"{expression[:57]}..."
