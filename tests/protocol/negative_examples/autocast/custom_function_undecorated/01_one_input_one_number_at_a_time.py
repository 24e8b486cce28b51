# one input, one number at a time

class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result


with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(Exponential.apply(model(inputs)), targets)
loss.backward()
