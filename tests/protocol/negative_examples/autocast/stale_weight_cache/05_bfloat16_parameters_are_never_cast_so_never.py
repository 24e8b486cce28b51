# bfloat16 parameters are never cast, so never cached

model = Decoder(config).to(torch.bfloat16)
average = Decoder(config).to(torch.bfloat16)


@torch.no_grad()
def compare(inputs):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        before = model(inputs)
        model.load_state_dict(average.state_dict())
        return before, model(inputs)
