# No AMP209: where DeepSpeed does not train, accelerate has no plugin of it, so what is clipped is stepped.
from accelerate import Accelerator, DistributedType


def train(args, model, loader, optimizer):
    accelerator = Accelerator(mixed_precision=args.mixed_precision, gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients and accelerator.distributed_type != DistributedType.DEEPSPEED:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            if accelerator.state.deepspeed_plugin is None:
                optimizer.step()
                optimizer.zero_grad()
