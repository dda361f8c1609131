"""lightly's cosine warm-up, which hands ``verbose`` on to torch's LambdaLR."""

import torch
from lightly.utils.scheduler import CosineWarmupScheduler

optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
scheduler = CosineWarmupScheduler(optimizer, warmup_epochs=2, max_epochs=6)
rates = []
for _ in range(6):
    rates.append(optimizer.param_groups[0]["lr"])
    optimizer.step()
    scheduler.step()
assert rates[:2] == [0.5, 1.0], rates
assert sorted(rates[1:], reverse=True) == rates[1:], rates
