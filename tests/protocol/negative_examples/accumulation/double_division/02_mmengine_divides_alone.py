# mmengine divides alone

from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader):
    wrapper = AmpOptimWrapper(optimizer=optimizer, accumulative_counts=4)
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.update_params(loss)
