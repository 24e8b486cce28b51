# the cache is cleared between the write and the next forward

def evaluate_with_average(model, average, inputs):
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        before = model(inputs)
        model.load_state_dict(average.state_dict())
        torch.clear_autocast_cache()
        return before, model(inputs)
