"""Programs that write and read checkpoints as users do. The line of each expected finding carries a mark."""

IMPORTS = """\
import argparse
import copy
import os
import pickle

import torch
from torch import nn
from torch.nn import functional as F
"""
#: A training epoch, called by the programs of TRAINERS.
EPOCH = """\
def train_one_epoch(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


"""
#: Beginning of the programs of SCRIPTS.
SCRIPT = """\
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
"""


#: Statements that save the state that ``main`` has trained.
SCRIPTS = """\
## update method
checkpoint = {"args": vars(args)}
checkpoint.update({"model": model.state_dict(), "optimizer": optimizer.state_dict()})  # AMP401
torch.save(checkpoint, args.out)
## update method keywords with scaler
checkpoint = dict(model=model.state_dict(), optimizer=optimizer.state_dict())
checkpoint.update(scaler=scaler.state_dict())
torch.save(checkpoint, args.out)
## update with a list of pairs
checkpoint = {"model": model.state_dict()}
checkpoint.update([("optimizer", optimizer.state_dict()), ("scaler", scaler.state_dict())])
torch.save(checkpoint, args.out)
## dict call
torch.save(
    dict(
        model=model.state_dict(),
        optimizer=optimizer.state_dict(),  # AMP401
        args=args,
    ),
    args.out,
)
## dict of pairs
torch.save(dict([("model", model.state_dict()), ("optimizer", optimizer.state_dict())]), args.out)  # AMP401
## ordered dict
from collections import OrderedDict
state = OrderedDict()
state["model"] = model.state_dict()
state["optimizer"] = optimizer.state_dict()  # AMP401
torch.save(state, args.out)
## ordered dict with scaler
import collections
state = collections.OrderedDict(model=model.state_dict(), optimizer=optimizer.state_dict())
state["scaler"] = scaler.state_dict()
torch.save(state, args.out)
## unpacked
common = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}  # AMP401
torch.save({**common, "epoch": 3}, args.out)
## unpacked with scaler
common = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
torch.save({**common, "scaler": scaler.state_dict()}, args.out)
## merged with |
common = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
torch.save(common | {"scaler": scaler.state_dict()}, args.out)
## merged with | without
common = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}  # AMP401
common |= {"epoch": 1}
torch.save(common | {"args": vars(args)}, args.out)
## setdefault
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
state.setdefault("scaler", scaler.state_dict())
torch.save(state, args.out)
## comprehension over a dict with scaler
parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
torch.save({name: part.state_dict() for name, part in parts.items()}, args.out)
## comprehension over a dict without
parts = {"model": model, "optimizer": optimizer}
torch.save({name: part.state_dict() for name, part in parts.items()}, args.out)  # AMP401
## loop over named objects
state = {}
for name, thing in (("model", model), ("optimizer", optimizer)):
    state[name] = thing.state_dict()  # AMP401
torch.save(state, args.path)
## loop over named objects with scaler
state = {}
for name, thing in [("model", model), ("optimizer", optimizer), ("scaler", scaler)]:
    state[name] = thing.state_dict()
torch.save(state, args.path)
## copied state dicts with scaler
from copy import deepcopy
torch.save(deepcopy({
    "model": deepcopy(model).half().state_dict(),
    "optimizer": optimizer.state_dict(),
    "scaler": deepcopy(scaler.state_dict()),
}), args.path)
## distributed checkpoint
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
model_state, optimizer_state = get_state_dict(model, optimizer)
dcp.save({"model": model_state, "optimizer": optimizer_state, "scaler": scaler.state_dict()}, checkpoint_id=args.out)
## distributed checkpoint without
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
model_state, optimizer_state = get_state_dict(model, optimizer)  # AMP401
dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=args.out)
## distributed checkpoint of state dicts without
import torch.distributed.checkpoint as dcp
state = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),  # AMP401
}
dcp.save(state, storage_writer=dcp.FileSystemWriter(args.out))
## safetensors weights
from safetensors.torch import save_file
save_file(model.state_dict(), args.out)
## safetensors weights beside an optimizer file
from safetensors.torch import save_file
save_file(model.state_dict(), os.path.join(args.out, "model.safetensors"))
torch.save(optimizer.state_dict(), os.path.join(args.out, "optimizer.pt"))  # AMP401
## pickle dump
with open(args.out, "wb") as f:
    pickle.dump({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f)  # AMP401
## pickle dump with scaler
with open(args.out, "wb") as f:
    pickle.dump((model.state_dict(), optimizer.state_dict(), scaler.state_dict()), f)
## aliased save
from torch import save as torch_save
torch_save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)  # AMP401
## save assigned to a name
saver = accelerator_save if args.distributed else torch.save
saver({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)  # AMP401
## optimizer only under a flag
state = {"model": model.state_dict()}
if args.save_optimizer:
    state["optimizer"] = optimizer.state_dict()  # AMP401
torch.save(state, args.out)
## optimizer and scaler under a flag
state = {"model": model.state_dict()}
if args.save_optimizer:
    state["optimizer"] = optimizer.state_dict()
    state["scaler"] = scaler.state_dict()
torch.save(state, args.out)
## wandb of the same dict
import wandb
state = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),  # AMP401
}
torch.save(state, args.out)
artifact = wandb.Artifact("model", type="model", metadata={"lr": args.lr})
artifact.add_file(args.out)
wandb.log_artifact(artifact)
torch.save(state, os.path.join(wandb.run.dir, "model.pt"))
## optimizer state logged, not saved
import wandb
print({"lr": optimizer.state_dict()["param_groups"][0]["lr"]})
wandb.log({"lr": optimizer.param_groups[0]["lr"], "state": len(optimizer.state_dict()["state"])})
torch.save(model.state_dict(), args.out)
## learning rate of the state saved with weights
torch.save({"model": model.state_dict(), "lr": optimizer.state_dict()["param_groups"][0]["lr"]}, args.out)
## whole optimizer object
torch.save({"model": model, "optimizer": optimizer, "scaler": scaler}, args.out)  # AMP402
## state and scaler given to unanalyzed code
from project.checkpointing import save_checkpoint
save_checkpoint({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out, scaler=scaler)
## dict extended by an unknown function
from project.checkpointing import add_extras
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
add_extras(state, scaler)
torch.save(state, args.out)
## tuple saved
torch.save((model.state_dict(), optimizer.state_dict(), args), args.out)  # AMP401
## scale kept by number
torch.save({
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "scale": scaler.get_scale(),
}, args.out)
## state given to a thread
import threading
state = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),  # AMP401
}
threading.Thread(target=torch.save, args=(state, args.out)).start()
## states given one by one to unanalyzed code
from project.checkpointing import save_checkpoint
save_checkpoint(args.out, model.state_dict(), optimizer.state_dict())  # AMP401
## states given one by one with the scaler's
from project.checkpointing import save_checkpoint
save_checkpoint(args.out, model.state_dict(), optimizer.state_dict(), scaler.state_dict())
"""

#: Programs that train with the epoch above.
TRAINERS = """\
## an object that gives the state of its optimizer alone
class Engine:
    def __init__(self, amp, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda") if amp else None

    def backward_and_step(self, loss):
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()

    def state_dict(self):
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict()}  # AMP401
## an object that gives the state of its optimizer and forgets the scaler where there is one
class Engine:
    def __init__(self, amp, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda") if amp else None

    def backward_and_step(self, loss):
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()

    def state_dict(self):
        if self.scaler is None:
            return {"optimizer": self.optimizer.state_dict()}  # AMP401
        return {"amp": True, "optimizer": self.optimizer.state_dict()}
## an object that gives the states of both
class Engine:
    def __init__(self, amp, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda") if amp else None

    def backward_and_step(self, loss):
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()

    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict()} if self.scaler is None else {
            "scaler": self.scaler.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
## an object whose scaler is saved by whoever has it
class Engine:
    def __init__(self, amp, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda") if amp else None

    def backward_and_step(self, loss):
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()

    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict()}

def save(engine, path):
    torch.save({"engine": engine.state_dict(), "scaler": engine.scaler.state_dict()}, path)
## an optimizer that others step with their scaler
class Larc:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()

    def state_dict(self):
        return {"trust": self.trust, "optimizer": self.optimizer.state_dict()}

class Trainer:
    def __init__(self, model):
        self.optimizer = Larc(torch.optim.SGD(model.parameters(), lr=0.1))
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
## an optimizer that stands for another one and has no other state
class Wrapped:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state_dict(self):
        return self.optimizer.state_dict()
## literal in main
def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        torch.save({
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),  # AMP401
        }, args.out)
## literal with scaler
def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        torch.save({
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        }, args.out)
## built by key
def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        state = {}
        state["epoch"] = epoch
        state["model"] = model.state_dict()
        state["optim"] = optimizer.state_dict()  # AMP401
        torch.save(state, os.path.join(args.out, f"epoch{epoch}.pt"))
## built by key with scaler if amp
def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        state = {}
        state["epoch"] = epoch
        state["model"] = model.state_dict()
        state["optim"] = optimizer.state_dict()
        if args.amp:
            state["amp"] = scaler.state_dict()
        torch.save(state, os.path.join(args.out, f"epoch{epoch}.pt"))
## comprehension over self.state
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        torch.save({n: x.state_dict() for n, x in self.state.items()}, path)  # AMP401
## comprehension over self.state with scaler
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")
        self.state = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        torch.save({n: x.state_dict() for n, x in self.state.items()}, path)
## comprehension over unknown
class Trainer:
    def __init__(self, model, lr, state):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")
        self.state = state

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        others = {n: x.state_dict() for n, x in self.state.items()}
        torch.save({"optimizer": self.optimizer.state_dict(), **others}, path)
## helper takes the dict
def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        import shutil
        shutil.copyfile(filename, "model_best.pth.tar")


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler()
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        save_checkpoint({
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),  # AMP401
        }, False)
## helper takes the objects
def save(model, optimizer, epoch, path):
    torch.save({
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),  # AMP401
    }, path)


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        save(model, optimizer, epoch, args.path)
        if epoch % 10 == 0:
            save(model, optimizer, epoch, args.path + str(epoch))
## helper takes the objects and an optional scaler
def save(model, optimizer, epoch, path, scaler=None):
    state = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    torch.save(state, path)


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        save(model, optimizer, epoch, args.path, scaler)
## helper's optional scaler is never given
def save(model, optimizer, epoch, path, scaler=None):
    state = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),  # AMP401
    }
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    torch.save(state, path)


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        save(model, optimizer, epoch, args.path)
## function returns the dict
def get_state(model, optimizer, epoch):
    return {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}  # AMP401


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        torch.save(get_state(model, optimizer, epoch), args.path)
## method returns the dict
class Trainer:
    def __init__(self, model, loader, lr):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def run(self, epochs):
        for epoch in range(epochs):
            train_one_epoch(self.model, self.loader, self.optimizer, self.scaler)
            self.save(f"{epoch}.pt", epoch)

    def state_dict(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # AMP401
        }

    def save(self, path, epoch):
        state = self.state_dict()
        state["epoch"] = epoch
        torch.save(state, path)
## method returns the dict with scaler
class Trainer:
    def __init__(self, model, loader, lr):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def run(self, epochs):
        for epoch in range(epochs):
            train_one_epoch(self.model, self.loader, self.optimizer, self.scaler)
            self.save(f"{epoch}.pt", epoch)

    def state_dict(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def save(self, path, epoch):
        state = self.state_dict()
        state["epoch"] = epoch
        torch.save(state, path)
## nested helper writes
def write(state, path):
    tmp = path + ".tmp"
    torch.save(state, tmp)
    os.replace(tmp, path)


def save_on_master(*args, **kwargs):
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(*args, **kwargs)


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        if scaler:
            checkpoint["scaler"] = scaler.state_dict()
        save_on_master(checkpoint, os.path.join(args.output_dir, f"model_{epoch}.pth"))
        write(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))
## save_on_master without
def save_on_master(*args, **kwargs):
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(*args, **kwargs)


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),  # AMP401
            "epoch": epoch,
        }
        save_on_master(checkpoint, os.path.join(args.output_dir, f"model_{epoch}.pth"))
        save_on_master(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))
## function of the file that is given the scaler too
def save(path, model, optimizer, scaler):
    things = {"model": model, "optimizer": optimizer, "scaler": scaler}
    torch.save({k: v.state_dict() for k, v in things.items() if v is not None}, path)


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    save(args.path, model, optimizer, scaler)
## kwargs helper with scaler
def save(path, **things):
    torch.save({k: v.state_dict() for k, v in things.items()}, path)


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    save(args.path, model=model, optimizer=optimizer, scaler=scaler)
## kwargs helper without
def save(path, **things):
    torch.save({k: v.state_dict() for k, v in things.items()}, path)  # AMP401


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    save(args.path, model=model, optimizer=optimizer)
## loop over a dict of many objects with scaler
def main(args, loader, ema, scheduler, sampler):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    things = dict(model=model, ema=ema, optimizer=optimizer, scheduler=scheduler, sampler=sampler, scaler=scaler)
    state = {"epoch": 1}
    for name, thing in things.items():
        if thing is not None:
            state[name] = thing.state_dict()
    torch.save(state, args.path)
## names and getattr
class Trainer:
    names = ("model", "optimizer", "scaler")

    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        state = {}
        for name in self.names:
            state[name] = getattr(self, name).state_dict()
        torch.save(state, path)
## names and getattr beside the optimizer
class Trainer:
    def __init__(self, model, lr, names):
        self.model = model
        self.names = names
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        state = {"optimizer": self.optimizer.state_dict()}
        for name in self.names:
            state[name] = getattr(self, name).state_dict()
        torch.save(state, path)
## vars(self)
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        state = {"optimizer": self.optimizer.state_dict()}
        for name, value in vars(self).items():
            if hasattr(value, "state_dict"):
                state[name] = value.state_dict()
        torch.save(state, path)
## self.__dict__ comprehension
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def state_dict(self):
        return {k: v.state_dict() for k, v in self.__dict__.items() if hasattr(v, "state_dict")}

    def save(self, path):
        torch.save({"trainer": self.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
## reflection over lists
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")
        self._stateful = [self.model, self.optimizer]
        self.register(self.scaler)

    def register(self, *things):
        self._stateful.extend(things)

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        torch.save([t.state_dict() for t in self._stateful], path)
## whole objects pickled by class
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        torch.save(self.__dict__, path)
## asdict of a snapshot with scaler
from dataclasses import asdict, dataclass


@dataclass
class Snapshot:
    model: dict
    optimizer: dict
    scaler: dict
    epoch: int = 0


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    torch.save(asdict(Snapshot(model.state_dict(), optimizer.state_dict(), scaler.state_dict())), args.path)
## dataclass object saved
import dataclasses


@dataclasses.dataclass
class TrainState:
    model: dict
    optimizer: dict
    epoch: int = 0


def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    state = TrainState(
        model=model.state_dict(),
        optimizer=optimizer.state_dict(),  # AMP401
    )
    torch.save(dataclasses.asdict(state), args.path)
    torch.save(vars(state), args.path + ".copy")
## copied state dicts
def main(args, loader):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    best = None
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        best = {
            "model": copy.deepcopy(model.state_dict()),
            "optimizer": copy.deepcopy(optimizer.state_dict()),  # AMP401
        }
        torch.save(copy.deepcopy(best), args.path)
## distributed checkpoint of a Stateful
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        return {"model": model_state, "optim": optimizer_state}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])

def main(args, loader, model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    dcp.save({"app": AppState(model, optimizer), "scaler": scaler.state_dict()}, checkpoint_id=args.out)
## two writers
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save_last(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)  # AMP401

    def save_best(self, path, metric):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # AMP401
            "metric": metric,
        }, path)
## two writers, one right
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save_last(self, path):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }, path)

    def save_periodic(self, path, step):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # AMP401
            "step": step,
        }, path)
## scaler in a file of its own
def save_all(out, model, optimizer, scheduler, scaler):
    torch.save(model.state_dict(), os.path.join(out, "model.pt"))
    torch.save(optimizer.state_dict(), os.path.join(out, "optimizer.pt"))
    torch.save(scheduler.state_dict(), os.path.join(out, "scheduler.pt"))
    torch.save(scaler.state_dict(), os.path.join(out, "scaler.pt"))


def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    save_all(args.out, model, optimizer, scheduler, scaler)
## optimizer in a file of its own, no scaler
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))
        torch.save(optimizer.state_dict(), os.path.join(args.out, "optimizer.pt"))  # AMP401
## scaler in a file of its own in another method
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader, out):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)
        self.save_model(out)
        self.save_training_state(out)

    def save_model(self, out):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, out + "/model.pt")

    def save_training_state(self, out):
        torch.save({"rng": torch.get_rng_state(), "scaler": self.scaler.state_dict()}, out + "/state.pt")
## scaler in a file of its own only if scaler
def save_checkpoint(folder, model, optimizer, scaler=None):
    torch.save(model.state_dict(), folder / "weights.pt")
    torch.save({"optimizer": optimizer.state_dict()}, folder / "optim.pt")
    if scaler is not None:
        torch.save(scaler.state_dict(), folder / "scaler.pt")


def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda") if args.fp16 else None
    train_one_epoch(model, loader, optimizer, scaler)
    save_checkpoint(args.folder, model, optimizer, scaler)
## weights only
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    best = 0.0
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        accuracy = args.evaluate(model)
        if accuracy > best:
            best = accuracy
            torch.save({"state_dict": model.state_dict(), "epoch": epoch, "acc": best, "args": args}, "best.pth")
        torch.save(model, "model.pth")
## best exported beside full
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        ckpt = {"model": model.state_dict(), "opt": optimizer.state_dict(), "scaler": scaler.state_dict()}
        torch.save(ckpt, "last.pth")
        if args.best:
            torch.save(ckpt, "best.pth")
            torch.save(ckpt["model"], "best_weights.pth")
## conditional expression in the literal
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    train_one_epoch(model, loader, optimizer, scaler)
    torch.save({
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }, args.out)
## optimizer stripped before export
def strip_optimizer(path):
    x = torch.load(path, map_location="cpu")
    x["optimizer"] = None
    torch.save(x, path)


def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    ckpt = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    torch.save(ckpt, "last.pth")
    strip_optimizer("last.pth")
## scaler of another function
def save_checkpoint(path, model, optimizer, epoch):
    torch.save({
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),  # AMP401
        "epoch": epoch,
    }, path)


def train(model, optimizer, loader, args):
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)


def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train(model, optimizer, loader, args)
    save_checkpoint(args.out, model, optimizer, args.epochs)
## another function that trains without a scaler
def pretrain(model, loader, path):
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def finetune(model, loader, path):
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(model, loader, optimizer, scaler)
    torch.save({
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }, path)
## module level script
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
model = nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
loader = [(torch.randn(4, 8), torch.randint(2, (4,)))]
for epoch in range(args.epochs):
    train_one_epoch(model, loader, optimizer, scaler)
    torch.save({
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),  # AMP401
    }, "ckpt.pt")
## scaler literally disabled
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    train_one_epoch(model, loader, optimizer, scaler)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
## scaler enabled for float16 only
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda", enabled=(args.dtype == "float16"))
    train_one_epoch(model, loader, optimizer, scaler)
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),  # AMP401
        "config": vars(args),
    }
    torch.save(checkpoint, os.path.join(args.out, "ckpt.pt"))
## callback
class CheckpointCallback:
    def __init__(self, folder):
        self.folder = folder

    def on_epoch_end(self, trainer, epoch):
        torch.save({
            "epoch": epoch,
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),  # AMP401
        }, os.path.join(self.folder, f"{epoch}.pt"))


class Trainer:
    def __init__(self, model, callbacks):
        self.model = model
        self.callbacks = callbacks
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            train_one_epoch(self.model, loader, self.optimizer, self.scaler)
            for callback in self.callbacks:
                callback.on_epoch_end(self, epoch)


def main(model, loader):
    Trainer(model, [CheckpointCallback("out")]).fit(loader, 3)
## callback with scaler
class CheckpointCallback:
    def __init__(self, folder):
        self.folder = folder

    def on_epoch_end(self, trainer, epoch):
        torch.save({
            "epoch": epoch,
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": trainer.scaler.state_dict(),
        }, os.path.join(self.folder, f"{epoch}.pt"))


class Trainer:
    def __init__(self, model, callbacks):
        self.model = model
        self.callbacks = callbacks
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            train_one_epoch(self.model, loader, self.optimizer, self.scaler)
            for callback in self.callbacks:
                callback.on_epoch_end(self, epoch)


def main(model, loader):
    Trainer(model, [CheckpointCallback("out")]).fit(loader, 3)
## state held in a config object
from types import SimpleNamespace

def save(state, path):
    torch.save({
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),  # AMP401
        "step": state.step,
    }, path)


def main(args, loader):
    state = SimpleNamespace(step=0)
    state.model = nn.Linear(8, 2)
    state.optimizer = torch.optim.AdamW(state.model.parameters(), lr=args.lr)
    state.scaler = torch.amp.GradScaler("cuda")
    train_one_epoch(state.model, loader, state.optimizer, state.scaler)
    save(state, args.out)
## in memory snapshot for rollback
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        backup = {"model": copy.deepcopy(model.state_dict()), "optimizer": copy.deepcopy(optimizer.state_dict())}
        train_one_epoch(model, loader, optimizer, scaler)
        if args.diverged(model):
            model.load_state_dict(backup["model"])
            optimizer.load_state_dict(backup["optimizer"])
    torch.save(model.state_dict(), args.out)
## optimizer state moved to another optimizer
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    fused = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    fused.load_state_dict(optimizer.state_dict())
    train_one_epoch(model, loader, fused, scaler)
    torch.save(model.state_dict(), args.out)
## state given to unanalyzed code
from project.checkpointing import Saver

def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    saver = Saver(args.out, model=model, optimizer=optimizer, scaler=scaler)
    train_one_epoch(model, loader, optimizer, scaler)
    saver.save(epoch=1)
## test that saves
def test_roundtrip(tmp_path):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    train_one_epoch(model, [(torch.randn(4, 8), torch.zeros(4).long())], optimizer, scaler)
    saved = {"optimizer": optimizer.state_dict()}
    other = torch.optim.AdamW(model.parameters(), lr=1e-3)
    other.load_state_dict(saved["optimizer"])
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
## closure that saves
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")

    def save(name):
        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),  # AMP401
        }, os.path.join(args.out, name))

    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        save(f"{epoch}.pt")
    save("last.pt")
## signal handler that saves
import signal

def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")

    def on_signal(number, frame):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        torch.save(state, args.out)

    signal.signal(signal.SIGTERM, on_signal)
    train_one_epoch(model, loader, optimizer, scaler)
## saved but never loaded
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])  # AMP402
        start = checkpoint["epoch"] + 1
    for epoch in range(start, args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## saved and loaded
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## saved and loaded under a guard
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        if "scaler" in checkpoint:
            scaler.load_state_dict(checkpoint["scaler"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## weights loaded, nothing resumed
def main(args, loader):
    model = nn.Linear(8, 2)
    if args.pretrained:
        model.load_state_dict(torch.load(args.pretrained)["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## loaded in one of two resume paths
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
    elif args.auto_resume and os.path.exists(args.out):
        checkpoint = torch.load(args.out, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])  # AMP402
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## class that saves and does not load
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }, path)

    def load(self, path):
        checkpoint = torch.load(path, map_location="cpu")
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])  # AMP402
## class that loads by reflection
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }, path)

    def load(self, path):
        checkpoint = torch.load(path, map_location="cpu")
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        for name in ("model", "scaler"):
            getattr(self, name).load_state_dict(checkpoint[name])
## class that loads in separate methods
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }, path)

    def load_model(self, checkpoint):
        self.model.load_state_dict(checkpoint["model"])

    def load_optimizer(self, checkpoint):
        self.optimizer.load_state_dict(checkpoint["optimizer"])

    def load_scaler(self, checkpoint):
        self.scaler.load_state_dict(checkpoint["scaler"])
## loaded by an unknown helper
from project.checkpointing import restore

def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        optimizer.load_state_dict(checkpoint["optimizer"])
        restore(checkpoint, model=model, scaler=scaler)
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## loaded under another key
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])  # AMP402
        if "grad_scaler" in checkpoint:
            scaler.load_state_dict(checkpoint["grad_scaler"])
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## loaded under an old key as well
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        if "grad_scaler" in checkpoint:
            scaler.load_state_dict(checkpoint["grad_scaler"])
        elif "scaler" in checkpoint:
            scaler.load_state_dict(checkpoint["scaler"])
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## loaded in a comprehension of objects
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    things = {"model": model, "optimizer": optimizer, "scaler": scaler}
    if args.resume:
        checkpoint = torch.load(args.resume)
        for name, thing in things.items():
            thing.load_state_dict(checkpoint[name])
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)
        torch.save({name: thing.state_dict() for name, thing in things.items()}, args.out)
## optimizer handed on, scaler saved
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    fused = torch.optim.AdamW(model.parameters(), lr=args.lr)
    fused.load_state_dict(optimizer.state_dict())
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, fused, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## helper that loads, scaler optional and not given
def load_checkpoint(path, model, optimizer, scaler=None):
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])  # AMP402
    if scaler is not None:
        scaler.load_state_dict(checkpoint["scaler"])
    return checkpoint["epoch"]


def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    start = load_checkpoint(args.resume, model, optimizer) if args.resume else 0
    for epoch in range(start, args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## helper that loads, scaler given
def load_checkpoint(path, model, optimizer, scaler=None):
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    if scaler is not None:
        scaler.load_state_dict(checkpoint["scaler"])
    return checkpoint["epoch"]


def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    start = load_checkpoint(args.resume, model, optimizer, scaler) if args.resume else 0
    for epoch in range(start, args.epochs):
        train_one_epoch(model, loader, optimizer, scaler)

        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch,
        }, args.out)
## a hook of the base adds to the dict
from framework import BaseTrainer

class Trainer(BaseTrainer):
    def __init__(self, model, lr):
        super().__init__()
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.on_save_checkpoint(state)
        torch.save(state, path)
## super adds to the dict
from framework import BaseTrainer

class Trainer(BaseTrainer):
    def __init__(self, model, lr):
        super().__init__()
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        super().save(state, path)
## a test compares states
class TestTrainer:
    def test_states(self, wrapper, loader):
        model = nn.Linear(8, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        train_one_epoch(model, loader, optimizer, scaler)
        self.assertEqual(model.state_dict(), wrapper.model.state_dict())
        self.assertDictEqual(wrapper.state_dict(), {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
## metadata of a tracker
class Trainer:
    def __init__(self, model, tracker):
        self.model, self.tracker = model, tracker
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        train_one_epoch(self.model, loader, self.optimizer, self.scaler)

    def save(self, path, epoch):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # AMP401
        }
        torch.save(state, path)
        self.tracker.log_file(path, metadata={"epoch": epoch, "optimizer": self.optimizer.state_dict()})
"""

#: Programs that need only the imports.
WHOLE = """\
## asdict of a snapshot
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Snapshot:
    model_state: "OrderedDict[str, torch.Tensor]"
    optimizer_state: dict[str, Any]
    finished_epoch: int


class Trainer:
    def __init__(self, config, model, optimizer, loader):
        self.config, self.model, self.optimizer, self.loader = config, model, optimizer, loader
        self.use_amp = config.use_amp
        if config.use_amp:
            self.scaler = torch.cuda.amp.GradScaler()

    def _run_batch(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.use_amp):
            _, loss = self.model(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        if self.use_amp:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()

    def _save_snapshot(self, epoch):
        model = self.model
        raw_model = model.module if hasattr(model, "module") else model
        snapshot = Snapshot(
            model_state=raw_model.state_dict(),
            optimizer_state=self.optimizer.state_dict(),  # AMP401
            finished_epoch=epoch,
        )
        snapshot = asdict(snapshot)
        torch.save(snapshot, self.config.snapshot_path)

    def train(self):
        for epoch in range(self.config.max_epochs):
            for x, y in self.loader:
                self._run_batch(x, y)
            self._save_snapshot(epoch)
## accelerate save_state
from accelerate import Accelerator

def main(args, loader, model):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(args.out)
## accelerate save of weights and scaler by hand
from accelerate import Accelerator

class Trainer:
    def __init__(self, model, lr):
        self.accelerator = Accelerator(mixed_precision="fp16")
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.model, self.opt = self.accelerator.prepare(model, self.opt)
        self.step = 0

    def save(self, milestone):
        if not self.accelerator.is_local_main_process:
            return
        data = {
            "step": self.step,
            "model": self.accelerator.get_state_dict(self.model),
            "opt": self.opt.state_dict(),
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None,
        }
        torch.save(data, f"model-{milestone}.pt")

    def train(self, loader):
        for x in loader:
            loss = self.model(x)
            self.accelerator.backward(loss)
            self.opt.step()
            self.opt.zero_grad()
## fabric save
import lightning as L

def main(args, loader, model):
    fabric = L.Fabric(precision="16-mixed")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer = fabric.setup(model, optimizer)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    fabric.save(args.out, {"model": model, "optimizer": optimizer})
## deepspeed engine
import deepspeed

def main(args, loader, model):
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for x, y in loader:
        loss = F.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(args.out, client_state={"optimizer": optimizer.state_dict()})
## lightning module hooks
import lightning as L

class Net(L.LightningModule):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def on_save_checkpoint(self, checkpoint):
        checkpoint["optimizer"] = self.optimizers().state_dict()

trainer = L.Trainer(precision="16-mixed")
## several optimizers
class GAN:
    def __init__(self, G, D):
        self.G, self.D = G, D
        self.opt_g = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, real, z):
        with torch.autocast("cuda", dtype=torch.float16):
            loss_d = F.softplus(-self.D(real)).mean() + F.softplus(self.D(self.G(z).detach())).mean()
        self.opt_d.zero_grad()
        self.scaler.scale(loss_d).backward()
        self.scaler.step(self.opt_d)
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = F.softplus(-self.D(self.G(z))).mean()
        self.opt_g.zero_grad()
        self.scaler.scale(loss_g).backward()
        self.scaler.step(self.opt_g)
        self.scaler.update()

    def save(self, path):
        torch.save({
            "G": self.G.state_dict(),
            "D": self.D.state_dict(),
            "opt_g": self.opt_g.state_dict(),  # AMP401
            "opt_d": self.opt_d.state_dict(),
        }, path)
## two scalers, one saved
class GAN:
    def __init__(self, G, D):
        self.G, self.D = G, D
        self.opt_g = torch.optim.Adam(G.parameters(), 2e-4)
        self.opt_d = torch.optim.Adam(D.parameters(), 2e-4)
        self.scaler_g = torch.amp.GradScaler("cuda")
        self.scaler_d = torch.amp.GradScaler("cuda")

    def save(self, path):
        torch.save({
            "opt_g": self.opt_g.state_dict(),
            "opt_d": self.opt_d.state_dict(),
            "scaler_g": self.scaler_g.state_dict(),
            "scaler_d": self.scaler_d.state_dict(),
        }, path)

    def step(self, real, z):
        with torch.autocast("cuda", dtype=torch.float16):
            loss_d = F.softplus(-self.D(real)).mean() + F.softplus(self.D(self.G(z).detach())).mean()
        self.opt_d.zero_grad()
        self.scaler_d.scale(loss_d).backward()
        self.scaler_d.step(self.opt_d)
        self.scaler_d.update()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = F.softplus(-self.D(self.G(z))).mean()
        self.opt_g.zero_grad()
        self.scaler_g.scale(loss_g).backward()
        self.scaler_g.step(self.opt_g)
        self.scaler_g.update()
## a list of optimizers
def main(args, loader, models):
    optimizers = [torch.optim.Adam(m.parameters()) for m in models]
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = sum(F.cross_entropy(m(x), y) for m in models)
        for o in optimizers:
            o.zero_grad()
        scaler.scale(loss).backward()
        for o in optimizers:
            scaler.step(o)
        scaler.update()
    torch.save({
        "models": [m.state_dict() for m in models],
        "optimizers": [o.state_dict() for o in optimizers],  # AMP401
    }, args.out)
## scaler local to a method
class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def train(self, loader):
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(self.model(x), y)
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()

    def save(self, path):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # AMP401
        }, path)
## another class without a scaler
class AmpTrainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def save(self, path):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }, path)


class PlainTrainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
## scaler in a subclass, writer in the base
class Base:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def save(self, path):
        torch.save(self.state(), path)

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Amp(Base):
    def __init__(self, model):
        super().__init__(model)
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self):
        return {**super().state(), "scaler": self.scaler.state_dict()}


def main(model, loader):
    trainer = Amp(model)
    for x, y in loader:
        trainer.step(x, y)
    trainer.save("last.pt")
## a base class saves the optimizers that its subclass adds
class Base:
    def __init__(self, opt):
        self.opt = opt
        self.optimizers = []

    def optimizer_of(self, kind, params):
        if kind == "adam":
            return torch.optim.Adam(params)
        return torch.optim.SGD(params, lr=0.1)

    def save(self, epoch, path):
        state = {"epoch": epoch, "optimizers": []}
        for o in self.optimizers:
            state["optimizers"].append(o.state_dict())  # AMP401
        torch.save(state, path)

    def resume(self, state):
        for optimizer, each in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(each)


class Restorer(Base):
    def __init__(self, opt, net, critic):
        super().__init__(opt)
        self.net, self.critic = net, critic
        self.scaler = torch.amp.GradScaler("cuda")
        self.set_up()

    def set_up(self):
        self.optimizer = self.optimizer_of(self.opt["kind"], self.net.parameters())
        self.optimizers.append(self.optimizer)

    def train(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (self.net(x) - y).abs().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
## a base class saves two optimizers of its subclass, one of which is optional
class Base:
    def __init__(self, opt):
        self.opt = opt
        self.optimizers = []

    def optimizer_of(self, kind, params):
        if kind == "adam":
            return torch.optim.Adam(params)
        return torch.optim.SGD(params, lr=0.1)

    def save(self, epoch, path):
        state = {"epoch": epoch, "optimizers": []}
        for o in self.optimizers:
            state["optimizers"].append(o.state_dict())  # AMP401
        torch.save(state, path)

    def resume(self, state):
        for optimizer, each in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(each)


class Restorer(Base):
    def __init__(self, opt, net, critic):
        super().__init__(opt)
        self.net, self.critic = net, critic
        self.scaler = torch.amp.GradScaler("cuda")
        self.set_up()

    def set_up(self):
        self.optimizer = self.optimizer_of(self.opt["kind"], self.net.parameters())
        self.optimizers.append(self.optimizer)
        if self.critic is not None:
            self.critic_optimizer = self.optimizer_of(self.opt["kind"], self.critic.parameters())
            self.optimizers.append(self.critic_optimizer)

    def train(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (self.net(x) - y).abs().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
## a base class saves a list of what its subclass adds
class Base:
    def __init__(self, opt):
        self.opt = opt
        self.optimizers = []

    def optimizer_of(self, kind, params):
        if kind == "adam":
            return torch.optim.Adam(params)
        return torch.optim.SGD(params, lr=0.1)

    def save(self, epoch, path):
        torch.save({"optimizers": [o.state_dict() for o in self.optimizers]}, path)  # AMP401

    def resume(self, state):
        for optimizer, each in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(each)


class Restorer(Base):
    def __init__(self, opt, net, critic):
        super().__init__(opt)
        self.net, self.critic = net, critic
        self.scaler = torch.amp.GradScaler("cuda")
        self.set_up()

    def set_up(self):
        self.optimizer = self.optimizer_of(self.opt["kind"], self.net.parameters())
        self.optimizers.append(self.optimizer)
        if self.critic is not None:
            self.critic_optimizer = self.optimizer_of(self.opt["kind"], self.critic.parameters())
            self.optimizers.append(self.critic_optimizer)

    def train(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (self.net(x) - y).abs().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
## a base class saves the optimizers and the scaler of its subclass
class Base:
    def __init__(self, opt):
        self.opt = opt
        self.optimizers = []

    def optimizer_of(self, kind, params):
        if kind == "adam":
            return torch.optim.Adam(params)
        return torch.optim.SGD(params, lr=0.1)

    def save(self, epoch, path):
        state = {"epoch": epoch, "optimizers": []}
        for o in self.optimizers:
            state["optimizers"].append(o.state_dict())
        state["scaler"] = self.scaler.state_dict()
        torch.save(state, path)

    def resume(self, state):
        for optimizer, each in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(each)
        self.scaler.load_state_dict(state["scaler"])


class Restorer(Base):
    def __init__(self, opt, net, critic):
        super().__init__(opt)
        self.net, self.critic = net, critic
        self.scaler = torch.amp.GradScaler("cuda")
        self.set_up()

    def set_up(self):
        self.optimizer = self.optimizer_of(self.opt["kind"], self.net.parameters())
        self.optimizers.append(self.optimizer)
        if self.critic is not None:
            self.critic_optimizer = self.optimizer_of(self.opt["kind"], self.critic.parameters())
            self.optimizers.append(self.critic_optimizer)

    def train(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (self.net(x) - y).abs().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
## scaler in the base, writer in a subclass
class Base:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Runner(Base):
    def save(self, path):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # AMP401
        }, path)
## scaler under an odd name
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    amp = torch.cuda.amp.grad_scaler.GradScaler(growth_interval=100)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        amp.scale(loss).backward()
        amp.step(optimizer)
        amp.update()
    torch.save({"state_dict": model.state_dict(), "state_optimizer": optimizer.state_dict()}, args.out)  # AMP401
## scaler beside in a wrapper's state
class Wrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, loss):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}


def main(args, loader, model):
    wrapper = Wrapper(torch.optim.AdamW(model.parameters(), lr=args.lr))
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        wrapper.step(loss)
    torch.save({"model": model.state_dict(), "optimizer": wrapper.state_dict()}, args.out)
## a NativeScaler-like wrapper that is saved
class NativeScaler:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None):
        self._scaler.scale(loss).backward()
        if clip_grad is not None:
            self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict):
        self._scaler.load_state_dict(state_dict)


def main(args, loader, model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_scaler = NativeScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "x": loss_scaler.state_dict()}
    torch.save(state, args.out)
## a NativeScaler-like wrapper that is forgotten
class NativeScaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer):
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()


def main(args, loader, model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_scaler = NativeScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        loss_scaler(loss, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)  # AMP401
## a scaler from elsewhere
def main(args, loader, grad_scaler):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)  # AMP401
## the trainer of another file is given both
from engine import train_one_epoch

def main(args, loader, device):
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, loader, device, epoch, scaler=scaler)
        save_files = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),  # AMP401
            "epoch": epoch,
        }
        torch.save(save_files, f"model-{epoch}.pth")
## the trainer of another file is given both, saved where there is one
from engine import train_one_epoch

def main(args, loader, device):
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, loader, device, epoch, scaler=scaler)
        save_files = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        if args.amp:
            save_files["scaler"] = scaler.state_dict()
        torch.save(save_files, f"model-{epoch}.pth")
## a configuration beside the states
config_keys = [k for k, v in globals().items() if not k.startswith("_")]
config = {k: globals()[k] for k in config_keys}

def main(args, build, loader):
    model = build(args)
    optimizer = model.configure_optimizers(args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            logits, loss = model(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),  # AMP401
        "config": config,
        "args": dict(vars(args)),
        "fp16": args.fp16,
    }
    torch.save(checkpoint, "ckpt.pt")
## saved because of an error
def save(path, model, optimizer, scaler):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, path)


def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        try:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        except RuntimeError:
            save("bad.pt", model, optimizer, scaler)
            raise
    save("last.pt", model, optimizer, scaler)
## saved too early
def main(args, loader):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        try:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            torch.save({
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),  # AMP402
            }, args.out)
            scaler.update()
        except RuntimeError:
            print("out of memory")
"""

#: Programs of several files. Each file follows the line with its name.
FILES = """\
## a writer in another file
# utils.py
import torch

def save_checkpoint(model, optimizer, learning_rate, iteration, path):
    state_dict = model.module.state_dict() if hasattr(model, "module") else model.state_dict()
    torch.save({
        "model": state_dict,
        "iteration": iteration,
        "optimizer": optimizer.state_dict(),  # AMP401
        "learning_rate": learning_rate,
    }, path)
# train.py
import torch
from torch import nn
import utils

def run(loader, epochs):
    net_g, net_d = nn.Linear(8, 8), nn.Linear(8, 1)
    optim_g = torch.optim.AdamW(net_g.parameters())
    optim_d = torch.optim.AdamW(net_d.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for x in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss_d = net_d(net_g(x).detach()).square().mean()
            optim_d.zero_grad()
            scaler.scale(loss_d).backward()
            scaler.step(optim_d)
            with torch.autocast("cuda", dtype=torch.float16):
                loss_g = net_d(net_g(x)).mean()
            optim_g.zero_grad()
            scaler.scale(loss_g).backward()
            scaler.step(optim_g)
            scaler.update()
        utils.save_checkpoint(net_g, optim_g, 1e-3, epoch, f"G_{epoch}.pth")
        utils.save_checkpoint(net_d, optim_d, 1e-3, epoch, f"D_{epoch}.pth")
## a writer in another file that is given the scaler
# checkpoints.py
import torch

def save_checkpoint(path, model, optimizer, scaler=None):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    torch.save(state, path)
# train.py
import torch
from checkpoints import save_checkpoint

def main(model, loader, path):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    save_checkpoint(path, model, optimizer, scaler)
## the scaler's state beside, in a file of its own
# checkpoints.py
import torch

def save_checkpoint(path, model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
# train.py
import torch
from checkpoints import save_checkpoint

def main(model, loader, path):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    save_checkpoint(path, model, optimizer)
    torch.save(scaler.state_dict(), path + ".scaler")
## a writer that a trainer without a scaler uses, too
# checkpoints.py
import torch

def save_checkpoint(path, model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
# plain.py
import torch
from checkpoints import save_checkpoint

def main(model, loader, path):
    optimizer = torch.optim.AdamW(model.parameters())
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    save_checkpoint(path, model, optimizer)
## a base class that saves, in another file
# trainer.py
import torch

class Trainer:
    def __init__(self, model, folder):
        self.model, self.folder = model, folder
        self.optimizer = torch.optim.AdamW(model.parameters())

    def save(self, name):
        torch.save({
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # AMP401
        }, self.folder + name)
# amp_trainer.py
import torch
from trainer import Trainer

class AmpTrainer(Trainer):
    def __init__(self, model, folder):
        super().__init__(model, folder)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.save("last.pt")
## a base class in another file saves two optimizers of its subclass
# base.py
import torch

class Base:
    def __init__(self, opt):
        self.opt = opt
        self.optimizers = []

    def optimizer_of(self, kind, params):
        if kind == "adam":
            return torch.optim.Adam(params)
        return torch.optim.SGD(params, lr=0.1)

    def save(self, epoch, path):
        state = {"epoch": epoch, "optimizers": []}
        for o in self.optimizers:
            state["optimizers"].append(o.state_dict())  # AMP401
        torch.save(state, path)

    def resume(self, state):
        for optimizer, each in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(each)
# restorer.py
import torch
from base import Base

class Restorer(Base):
    def __init__(self, opt, net, critic):
        super().__init__(opt)
        self.net, self.critic = net, critic
        self.scaler = torch.amp.GradScaler("cuda")
        self.set_up()

    def set_up(self):
        self.optimizer = self.optimizer_of(self.opt["kind"], self.net.parameters())
        self.optimizers.append(self.optimizer)
        if self.critic is not None:
            self.critic_optimizer = self.optimizer_of(self.opt["kind"], self.critic.parameters())
            self.optimizers.append(self.critic_optimizer)

    def train(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (self.net(x) - y).abs().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
## a base class whose dict is extended, in another file
# trainer.py
import torch

class Trainer:
    def __init__(self, model, folder):
        self.model, self.folder = model, folder
        self.optimizer = torch.optim.AdamW(model.parameters())

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def save(self, name):
        torch.save(self.state_dict(), self.folder + name)
# amp_trainer.py
import torch
from trainer import Trainer

class AmpTrainer(Trainer):
    def __init__(self, model, folder):
        super().__init__(model, folder)
        self.scaler = torch.amp.GradScaler("cuda")

    def state_dict(self):
        return {**super().state_dict(), "scaler": self.scaler.state_dict()}

    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.save("last.pt")
## the epoch in another file makes the scaler
# engine.py
import torch

def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
# main.py
import torch
from engine import train

def main(model, loader, path):
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, loader)
    torch.save({
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),  # AMP401
    }, path)
## optimizers that a helper finds by their class
# tools.py
import torch

def optimizer_states(obj, path="", found=None):
    found = {} if found is None else found
    for name, value in vars(obj).items():
        if isinstance(value, torch.optim.Optimizer):
            found[path + name] = value.state_dict()
        elif hasattr(value, "__dict__"):
            optimizer_states(value, path + name + ".", found)
    return found
# agent.py
import torch
import tools

class Optimizer:
    def __init__(self, parameters):
        self.inner = torch.optim.Adam(parameters)
        self.scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss):
        self.inner.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.inner)
        self.scaler.update()

class Agent:
    def __init__(self, model):
        self.model = model
        self.optimizer = Optimizer(model.parameters())

    def train(self, loader):
        for x in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(x).square().mean()
            self.optimizer(loss)

def main(model, loader, path):
    agent = Agent(model)
    agent.train(loader)
    torch.save({"agent": model.state_dict(), "optimizers": tools.optimizer_states(agent)}, path)  # AMP401

## an optimizer of a factory, known by its use in the file that trains
# engine.py
import torch

def train_one_epoch(model, criterion, loader, optimizer, loss_scaler):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, parameters=model.parameters())
# utils.py
import torch

def save_on_master(*args, **kwargs):
    if torch.distributed.get_rank() == 0:
        torch.save(*args, **kwargs)
# main.py
from timm.optim import create_optimizer
from timm.utils import NativeScaler

import utils
from engine import train_one_epoch

def main(args, model, criterion, loader):
    optimizer = create_optimizer(args, model)
    loss_scaler = NativeScaler()
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, loader, optimizer, loss_scaler)
        utils.save_on_master({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),  # AMP401
            "epoch": epoch,
        }, args.output)

## a training that timm's scaler resumes
# engine.py
import torch

def train_one_epoch(model, criterion, loader, optimizer, loss_scaler):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, parameters=model.parameters())
# main.py
import torch
from timm.utils import NativeScaler

from engine import train_one_epoch

def main(args, model, criterion, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_scaler = NativeScaler()
    if args.resume:
        checkpoint = torch.load(args.resume)
        optimizer.load_state_dict(checkpoint["optimizer"])
        if "scaler" in checkpoint:
            loss_scaler.load_state_dict(checkpoint["scaler"])
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, loader, optimizer, loss_scaler)
        torch.save({
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": loss_scaler.state_dict(),
        }, args.output)
"""
