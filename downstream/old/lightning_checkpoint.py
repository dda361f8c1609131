"""Lightning's load_from_checkpoint of a module whose hyperparameters are an argparse.Namespace."""

import tempfile
from argparse import Namespace
from pathlib import Path

import pytorch_lightning as pl
import torch


class Model(pl.LightningModule):
    def __init__(self, args: Namespace) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(args.width, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


with tempfile.TemporaryDirectory() as folder:
    trainer = pl.Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    model = Model(Namespace(width=3))
    trainer.fit(model, torch.utils.data.DataLoader(torch.ones(4, 3)))
    path = Path(folder) / "model.ckpt"
    trainer.save_checkpoint(path)
    again = Model.load_from_checkpoint(path)
    assert again.hparams.args.width == 3
    assert torch.equal(again.layer.weight, model.layer.weight)
