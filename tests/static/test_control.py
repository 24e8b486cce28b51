"""Control flow between a backward and a step: calls that each path skips, or runs too early."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

HEAD = """\
import torch
from torch.nn.utils import clip_grad_norm_

def train(model, loader, criterion, args, other):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
"""
TAIL = """\
scaler.step(optimizer)
scaler.update()
"""
CLIP = "clip_grad_norm_(model.parameters(), 1.0)"
WAYS = {
    "clear after an except": """\
try:
    print(loss)
except RuntimeError:
    print('no')
scaler.scale(loss).backward()
optimizer.zero_grad()  # AMP215
""",
    "clear in an except": """\
try:
    scaler.scale(loss).backward()
except RuntimeError:
    optimizer.zero_grad()
""",
    "match value unscale, same if": f"""\
scaler.scale(loss).backward()
match args.mode:
    case 'a':
        scaler.unscale_(optimizer)
if args.mode == 'a':
    {CLIP}
""",
    "match value unscale, other if": f"""\
scaler.scale(loss).backward()
match args.mode:
    case 'a':
        scaler.unscale_(optimizer)
if args.mode == 'b':
    {CLIP}  # AMP201
""",
    "match None": f"""\
scaler.scale(loss).backward()
match args.clip:
    case None:
        pass
    case _:
        scaler.unscale_(optimizer)
if args.clip is not None:
    {CLIP}
""",
    "match None, clip where none": f"""\
scaler.scale(loss).backward()
match args.clip:
    case None:
        pass
    case _:
        scaler.unscale_(optimizer)
if args.clip is None:
    {CLIP}  # AMP201
""",
    "match guard": f"""\
scaler.scale(loss).backward()
match args.mode:
    case 'a' if args.clip:
        scaler.unscale_(optimizer)
if args.mode == 'a' and args.clip:
    {CLIP}
""",
    "match guard less": f"""\
scaler.scale(loss).backward()
match args.mode:
    case 'a' if args.clip:
        scaler.unscale_(optimizer)
if args.mode == 'a':
    {CLIP}  # AMP201
""",
    "match catch all": f"""\
scaler.scale(loss).backward()
match args.mode:
    case mode:
        scaler.unscale_(optimizer)
{CLIP}
""",
    "match pattern twice": f"""\
scaler.scale(loss).backward()
match args.mode:
    case [a, b]:
        scaler.unscale_(optimizer)
match args.mode:
    case [a, b]:
        {CLIP}
""",
    "match pattern other": f"""\
scaler.scale(loss).backward()
match args.mode:
    case [a, b]:
        scaler.unscale_(optimizer)
match args.mode:
    case [a, b, c]:
        {CLIP}  # AMP201
""",
    "assert then if": f"""\
scaler.scale(loss).backward()
assert args.clip
if args.clip:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "no assert": f"""\
scaler.scale(loss).backward()
if args.clip:
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "assert not": f"""\
scaler.scale(loss).backward()
assert not args.clip
if args.clip:
    {CLIP}
""",
    "del a name": f"""\
scaler.scale(loss).backward()
kind = 1
del kind
if args.clip:
    scaler.unscale_(optimizer)
    {CLIP}
""",
    "dict then del": f"""\
scaler.scale(loss).backward()
kinds = {{'a': True}}
if kinds.get('a'):
    scaler.unscale_(optimizer)
{CLIP}
""",
    "dict del before": f"""\
scaler.scale(loss).backward()
kinds = {{'a': True}}
del kinds['a']
if kinds.get('a'):
    scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
    "dict updated by what is not known": f"""\
scaler.scale(loss).backward()
kinds = {{'a': False}}
kinds.update(other)
if kinds['a']:
    {CLIP}  # AMP201
""",
    "dict with no update": f"""\
scaler.scale(loss).backward()
kinds = {{'a': 0}}
if kinds['a']:
    {CLIP}
""",
    "dict updated by pairs": f"""\
scaler.scale(loss).backward()
kinds = {{'a': 0}}
kinds.update([('a', 1)])
if kinds['a']:
    {CLIP}  # AMP201
""",
    "dict updated by dict": f"""\
scaler.scale(loss).backward()
kinds = {{'a': 0}}
kinds.update({{'a': 1}})
if kinds['a']:
    {CLIP}  # AMP201
""",
    "dict updated by another": f"""\
scaler.scale(loss).backward()
kinds = {{'a': 0}}
kinds.update({{'b': 1}})
if kinds['a']:
    {CLIP}
""",
    "loop over two, break": f"""\
scaler.scale(loss).backward()
for each in (optimizer, None):
    if each is None:
        break
    scaler.unscale_(each)
{CLIP}
""",
    "loop over two, continue": f"""\
scaler.scale(loss).backward()
for each in (None, optimizer):
    if each is None:
        continue
    scaler.unscale_(each)
{CLIP}
""",
    "loop over two, break at once": f"""\
scaler.scale(loss).backward()
for each in (None, optimizer):
    if each is None:
        break
    scaler.unscale_(each)
{CLIP}  # AMP201
""",
    "loop over two, else": f"""\
scaler.scale(loss).backward()
for each in (None, None):
    print(each)
else:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "loop over dict": f"""\
scaler.scale(loss).backward()
tools = {{'o': optimizer}}
for name in tools:
    scaler.unscale_(tools[name])
{CLIP}
""",
    "loop over enumerate": f"""\
scaler.scale(loss).backward()
for n, each in enumerate([optimizer]):
    if n == 0:
        scaler.unscale_(each)
{CLIP}
""",
    "loop over enumerate 1": f"""\
scaler.scale(loss).backward()
for n, each in enumerate([optimizer]):
    if n == 1:
        scaler.unscale_(each)
{CLIP}  # AMP201
""",
    "loop over enumerate from 1": f"""\
scaler.scale(loss).backward()
for n, each in enumerate([optimizer], 1):
    if n == 1:
        scaler.unscale_(each)
{CLIP}
""",
    "nested def decorated by unknown": f"""\
scaler.scale(loss).backward()
@args.wrap
def clip():
    {CLIP}  # AMP201
clip()
""",
    "nested def staticmethod": f"""\
scaler.scale(loss).backward()
class Tool:
    @staticmethod
    def clip():
        {CLIP}  # AMP201
Tool.clip()
""",
    "nested def no_grad": f"""\
scaler.scale(loss).backward()
@torch.no_grad()
def clip():
    {CLIP}  # AMP201
clip()
""",
    "return in with": """\
scaler.scale(loss).backward()
if args.stop:
    return
""",
    "try finally unscale": f"""\
try:
    scaler.scale(loss).backward()
finally:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "try finally clip": f"""\
try:
    scaler.scale(loss).backward()
finally:
    {CLIP}  # AMP201
""",
    "try else": f"""\
try:
    scaler.scale(loss).backward()
except RuntimeError:
    continue
else:
    scaler.unscale_(optimizer)
{CLIP}
""",
    "try else pass": f"""\
try:
    scaler.scale(loss).backward()
except RuntimeError:
    pass
else:
    {CLIP}  # AMP201
""",
    "while true break": f"""\
scaler.scale(loss).backward()
while True:
    scaler.unscale_(optimizer)
    break
{CLIP}
""",
    "while test": f"""\
scaler.scale(loss).backward()
while args.more():
    {CLIP}  # AMP201
    break
""",
    "while else": f"""\
scaler.scale(loss).backward()
while args.more():
    print()
else:
    {CLIP}  # AMP201
""",
    "a capture with a guard asks for the guard alone": f"""\
scaler.scale(loss).backward()
match args.mode:
    case mode if args.clip:
        scaler.unscale_(optimizer)
if args.clip:
    {CLIP}
""",
    "a guard of a capture is asked": f"""\
scaler.scale(loss).backward()
match args.mode:
    case _ if args.clip:
        scaler.unscale_(optimizer)
{CLIP}  # AMP201
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_what_comes_before_a_step_on_each_way(way: str) -> None:
    source = HEAD + indent(WAYS[way] + TAIL, "        ")
    assert places(check_source(source)) == marks(source), shown(check_source(source))
