# another library's autocast

from transformer_engine.pytorch import fp8_autocast as autocast

with autocast(enabled=True, fp8_recipe=recipe):
    output = model(inputs)
