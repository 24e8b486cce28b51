# mmengine's wrapper updates

from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader):
    wrapper = AmpOptimWrapper(optimizer=optimizer, clip_grad=dict(max_norm=1.0))
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.update_params(loss)
