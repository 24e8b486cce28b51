# A scaler for each of two networks: the update of one has nothing to do with gradients of the other.
import torch


class Trainer:
    def __init__(self, net, critic):
        self.net, self.critic = net, critic
        self.optim = torch.optim.SGD(net.parameters(), lr=0.1)
        self.critic_optim = torch.optim.SGD(critic.parameters(), lr=0.1)
        self.scaler, self.critic_scaler = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")

    def train_step(self, data, k):
        for _ in range(k):
            with torch.autocast("cuda"):
                loss = self.net(next(data), only=True)
            self.scaler.scale(loss / k).backward()
        self.scaler.step(self.optim)
        self.scaler.update()
        self.optim.zero_grad()
        for _ in range(k):
            with torch.autocast("cuda"):
                loss = self.net(next(data), critic=True)
            self.critic_scaler.scale(loss / k).backward()
        self.critic_scaler.step(self.critic_optim)
        self.critic_scaler.update()
        self.critic_optim.zero_grad()
