# entered on an ExitStack

from contextlib import ExitStack


def predict(model, inputs, use_amp):
    with ExitStack() as stack:
        if use_amp:
            stack.enter_context(torch.autocast("cuda", dtype=torch.float16))
        return model(inputs)
