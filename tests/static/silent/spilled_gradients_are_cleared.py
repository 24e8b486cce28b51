# No AMP304: what a critic's loss leaves in the generator, which steps at every fifth iteration, is thrown away on purpose.
from accelerate import Accelerator

from models import Pair


class Trainer:
    def __init__(self, args, optimizers, loader):
        accelerator = Accelerator(gradient_accumulation_steps=args.accumulation, mixed_precision="fp16")
        self.accelerator = accelerator
        self.pair = Pair(args)
        self.opt_generator, self.opt_critic = optimizers
        self.every, self.loader, self.step = args.every, loader, 0

    def iterate(self):
        generates = self.step % self.every == 0
        losses = self.pair(next(self.loader), generates=generates)
        if generates:
            self.pair.backward_of_generator(self.accelerator, losses)
            self.opt_generator.step()
            self.opt_generator.zero_grad()
            self.opt_critic.zero_grad()
        self.accelerator.backward(losses["critic"])
        self.opt_critic.step()
        self.opt_critic.zero_grad()
        self.opt_generator.zero_grad()

    def train(self, steps):
        while self.step < steps:
            self.iterate()
            self.step += 1
