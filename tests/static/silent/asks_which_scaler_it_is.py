# A scaler has what all scalers have: what is done with one that lacks it is never run.
import torch


def train(model, loader, optimizer, max_norm, native):
    loss_scaler = "none"
    if native:
        loss_scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        with torch.autocast("cuda"):
            loss = model(batch)
        optimizer.zero_grad()
        if loss_scaler != "none":
            if hasattr(loss_scaler, "scale"):
                loss_scaler.scale(loss).backward()
                loss_scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                loss_scaler.step(optimizer)
                loss_scaler.update()
            else:
                loss_scaler.scale_loss(loss).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                loss_scaler.step(optimizer)
                loss_scaler.update()
        else:
            loss.backward()
            optimizer.step()
