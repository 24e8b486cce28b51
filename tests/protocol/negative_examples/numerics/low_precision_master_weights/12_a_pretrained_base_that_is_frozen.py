# a pretrained base that is frozen, or quantised, and trained through adapters in float32

import torch
from transformers import AutoModel, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model

base = AutoModel.from_pretrained("base", torch_dtype=torch.bfloat16)
base.requires_grad_(False)
base.add_adapter(LoraConfig())
optimizer = torch.optim.AdamW([p for p in base.parameters() if p.requires_grad], lr=1e-4)
quantised = AutoModel.from_pretrained("base", load_in_4bit=True, torch_dtype=torch.float16)
model = get_peft_model(quantised, LoraConfig())
Trainer(model=model, args=TrainingArguments("out", fp16=True)).train()


def train(loader):
    for x in loader:
        optimizer.zero_grad()
        base(x).mean().backward()
        optimizer.step()
