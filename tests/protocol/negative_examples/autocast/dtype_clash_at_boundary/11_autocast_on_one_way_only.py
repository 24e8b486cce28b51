# autocast on one way only

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
if use_amp:
    with torch.autocast("cuda", dtype=torch.float16):
        outputs = head(body(inputs))
else:
    outputs = head(body(inputs))
