"""torchtitan's SelectiveAC and its FSDP2 on a small MoE, on the CPU.

    python examples/torchtitan_sac.py             # one process: its FSDP does not take gloo on more
    python examples/torchtitan_sac.py --no-shim   # torch 2.13 and newer: the crash

torchtitan's own models are made for GPUs; its checkpointing and its FSDP take any decoder laid
out as theirs. Here the experts of a checkpointed layer are an FSDP unit of their own, and the
replay dies without the shim `sac_profiler`.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import torchcompat

if "--no-shim" not in sys.argv:
    torchcompat.apply_all()

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder

WIDTH, VOCABULARY, EXPERTS = 32, 64, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, EXPERTS * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.silu(self.experts(x)).unflatten(-1, (EXPERTS, WIDTH))
        return x + (self.router(x).softmax(-1).unsqueeze(-1) * out).sum(-2)


class Decoder(nn.Module):
    enable_weight_tying = False

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): Layer() for i in range(3)})
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.lm_head(self.norm(x))


dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
torch.manual_seed(0)
model = Decoder()
SelectiveAC.Config(force_recompute_mm_shapes_by_fqns=["router"]).build().apply(model)
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
for layer in model.layers.values():
    fully_shard(layer.experts, mesh=mesh)
apply_fsdp_to_decoder(model, mesh, torch.float32, torch.float32, pp_enabled=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens = torch.arange(8 * 17).view(8, 17) * 3 % VOCABULARY
for step in range(10):
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}  loss {loss.item():.4f}")
dist.destroy_process_group()
