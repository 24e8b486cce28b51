# apex unscales where the block ends, and its master parameters are clipped

from apex import amp
from torch.nn.utils import clip_grad_norm_

def train(model, optimizer, loader, loss_fn):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
