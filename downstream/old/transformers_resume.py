"""A training with transformers' Trainer, resumed: its random states hold a numpy array."""

import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


def trainer(folder: str, steps: int) -> Trainer:
    arguments = TrainingArguments(
        folder, max_steps=steps, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    return Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(3)}] * 64)


with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 2).train()
    resumed = trainer(folder, 4)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
