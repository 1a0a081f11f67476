"""The rival of ``bench_step.py --torch``: a nanoGPT-style step in PyTorch, one step per line on stdin.

    python -m venv rival && rival/bin/pip install torch numpy

Same shapes, same block as ours (RMS norms, rotary positions, gated MLP), scaled dot-product attention, fused AdamW,
clipping at norm 1. Eager, one thread. Prints the process CPU milliseconds of each step; the first line is the version.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(1)


class Block(torch.nn.Module):
    """Attention and a gated MLP, each behind an RMS norm."""

    def __init__(self, embed, heads, mlp):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = torch.nn.RMSNorm(embed, eps=1e-5), torch.nn.RMSNorm(embed, eps=1e-5)
        self.qkv = torch.nn.Linear(embed, 3 * embed, bias=False)
        self.out = torch.nn.Linear(embed, embed, bias=False)
        self.gate_up = torch.nn.Linear(embed, 2 * mlp, bias=False)
        self.down = torch.nn.Linear(mlp, embed, bias=False)

    def forward(self, x, cos, sin):
        batch, length, embed = x.shape
        parts = self.qkv(self.n1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        half = q.shape[-1] // 2

        def turn(t):
            return t * cos + torch.cat([t[..., half:], t[..., :half]], -1) * sin

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, embed))
        gate, up = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(torch.nn.Module):
    """Embedding, blocks, norm, head; returns the mean next-token loss."""

    def __init__(self, shape):
        super().__init__()
        self.table = torch.nn.Embedding(shape["vocab"], shape["embed"])
        blocks = [Block(shape["embed"], shape["heads"], shape["mlp"]) for _ in range(shape["layers"])]
        self.blocks = torch.nn.ModuleList(blocks)
        self.norm = torch.nn.RMSNorm(shape["embed"], eps=1e-5)
        self.head = torch.nn.Linear(shape["embed"], shape["vocab"], bias=False)
        size = shape["embed"] // shape["heads"]
        angle = torch.arange(shape["length"])[:, None] * 10_000.0 ** -(torch.arange(0, size, 2) / size)
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], -1))

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def main():
    shape = json.loads(sys.argv[1])
    torch.manual_seed(0)
    model = Model(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, shape["vocab"], (shape["batch"], shape["length"]))
    print(torch.__version__, flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        loss = model(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        print(1e3 * (time.process_time() - start), flush=True)


if __name__ == "__main__":
    main()
