# l1 and BCE with logits promote too

with torch.autocast("cuda", dtype=torch.float16):
    logits, offsets = detector(images)
loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
loss = loss + nn.functional.l1_loss(offsets, boxes)
scaler.scale(loss).backward()
