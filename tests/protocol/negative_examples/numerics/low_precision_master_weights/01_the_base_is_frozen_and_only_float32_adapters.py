# the base is frozen and only float32 adapters are trained

model = AutoModelForCausalLM.from_pretrained(name).to(torch.bfloat16)
for p in model.parameters():
    p.requires_grad_(False)
adapters = nn.ModuleList(Adapter(layer) for layer in model.model.layers)
optimizer = torch.optim.AdamW(adapters.parameters(), lr=1e-4)
for batch in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = run(model, adapters, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
