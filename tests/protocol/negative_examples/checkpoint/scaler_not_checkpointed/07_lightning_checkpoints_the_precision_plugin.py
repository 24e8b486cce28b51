# Lightning checkpoints the precision plugin, and with it the scaler

import lightning as L

def main(module, data, path):
    trainer = L.Trainer(precision="16-mixed")
    trainer.fit(module, data)
    trainer.save_checkpoint(path)
