# a model that is loaded in float16 for inference, beside one that is trained

import torch
from transformers import AutoModel

teacher = AutoModel.from_pretrained("teacher", torch_dtype=torch.float16).to("cuda").eval()
student = AutoModel.from_pretrained("student")
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)


def train(loader, loss_fn):
    for x in loader:
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        loss_fn(student(x), target).backward()
        optimizer.step()
