#!/usr/bin/env python3
"""Updates per second of a PyTorch learner whose steps hold several requests, or that leaves out rows with nothing to learn.

The first is the peer of the default shape, the second (--masked 0.2) of steps of one request with as many contracts as eligible ones.

The update is the one of `admix bench learner --requests-per-step M`: B steps in segments of S, N contracts with F features each. The
critic on all rows [B, N, F] (quantile Huber loss against given returns, spread by the target critic at the segments' ends), the critic
on the rows after a display [B, N, F], the actor on [B, N, F]; its outputs are shared by the M requests of a step, each of which
chooses between K of the contracts and its best auction ad by a softmax of bids (expected policy gradient). Adam on both networks, gradients
clipped by their norm, the target critic moved towards the critic, the actor averaged. Batches are prepared before the clock starts.
With --masked a share of the rows may not be shown; they are left out of all passes, and their places prepared with the batch.

    python scripts/steps_peer.py --threads 2 --batch 512 --contracts 30 --eligible 8 --requests 30 --hidden 64
    python scripts/steps_peer.py --threads 2 --batch 512 --contracts 8 --eligible 8 --requests 1 --hidden 256 --masked 0.2

Needs torch alone. Prints one line of JSON with the key `updates_per_s`. --loss closed has the loss's gradient written out, plain is for
--compile.
"""
import argparse
import copy
import json
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--segment", type=int, default=64)
parser.add_argument("--contracts", type=int, default=30)
parser.add_argument("--eligible", type=int, default=8)
parser.add_argument("--requests", type=int, default=30)
parser.add_argument("--masked", type=float, default=0.0)
parser.add_argument("--features", type=int, default=32)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--quantiles", type=int, default=16)
parser.add_argument("--seconds", type=float, default=5.0)
parser.add_argument("--loss", choices=["closed", "plain"], default="closed")
parser.add_argument("--compile", action="store_true")
a = parser.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
device = torch.device(a.device)
if device.type == "cuda":
    torch.set_float32_matmul_precision("high")
B, N, K, M, F, Q = a.batch, a.contracts, a.eligible, a.requests, a.features, a.quantiles
segments = max(1, B // a.segment)


def network(hidden, outputs):
    layers = [nn.Linear(F, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers).to(device)


# The critic is half as wide as the actor, as in the default configuration.
actor, critic = network(a.hidden, 1), network(a.hidden // 2, Q)
averaged, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
fused = {"fused": True} if device.type == "cuda" else {}
actor_adam = torch.optim.Adam(actor.parameters(), 1e-4, **fused)
critic_adam = torch.optim.Adam(critic.parameters(), 1e-3, **fused)
midpoints = ((torch.arange(Q, device=device) + 0.5) / Q).view(1, Q, 1)


def uniform(*shape):
    return torch.rand(*shape, device=device)


def plain_loss(target, z, kappa):
    u = target.unsqueeze(1) - z.unsqueeze(2)
    huber = torch.where(u.abs() < kappa, 0.5 * u * u / kappa, u.abs() - 0.5 * kappa)
    return ((midpoints - (u.detach() < 0).float()).abs() * huber).mean()


class ClosedLoss(torch.autograd.Function):
    """The same loss with its gradient, in one pass over [rows, Q, Q] that keeps [rows, Q]."""

    @staticmethod
    def forward(ctx, target, z, kappa):
        u = target.unsqueeze(1) - z.unsqueeze(2)
        clipped = (u / kappa).clamp_(-1, 1)
        slope = torch.where(u < 0, 1 - midpoints, midpoints).mul_(clipped)
        ctx.save_for_backward(slope.sum(2).mul_(-1.0 / u.numel()))
        return slope.mul_(u.sub_(clipped.mul_(0.5 * kappa))).mean()

    @staticmethod
    def backward(ctx, gradient):
        return None, ctx.saved_tensors[0] * gradient, None


quantile_loss = ClosedLoss.apply if a.loss == "closed" and not a.compile else plain_loss


def batch():
    chosen = uniform(B, M, N).argsort(2)[:, :, :K].contiguous()
    if a.masked > 0:
        shown = uniform(B, N) >= a.masked
        places = shown.view(-1).nonzero().squeeze(1)
        may_show = shown.unsqueeze(1).expand(B, M, N).gather(2, chosen)
        rows = len(places)
    else:
        places, may_show, rows = None, uniform(B, M, K) < 0.8, B * N
    return (uniform(rows, F), uniform(segments, N, F), uniform(rows, F), uniform(rows, F), uniform(B, N), chosen,
            uniform(B, M, K), uniform(B, M, 1), may_show, places)


def of_all(values, places):
    """[B, N] from the values of the rows that are there."""
    return (values if places is None else values.new_zeros(B * N).index_copy(0, places, values)).view(B, N)


def losses(now, last, after, rows, returns, chosen, gain, auction, may_show, places):
    z = critic(now)
    with torch.no_grad():
        spread = target_critic(last)
        spread = (spread - spread.mean(2, keepdim=True)).repeat_interleave(B // segments, 0)
        target = (returns.unsqueeze(2) + spread).view(B * N, Q)
        target = target if places is None else target[places]
        change = of_all(critic(after).mean(1) - z.detach().mean(1), places)
        flat = chosen.view(B, M * K)
        advantage = gain + change.gather(1, flat).view(B, M, K)
    critic_loss = quantile_loss(target, z, 0.2)
    bids = torch.sigmoid(of_all(actor(rows).squeeze(1), places)).gather(1, flat).view(B, M, K).masked_fill(~may_show, -1e9)
    weights = torch.softmax(torch.cat([auction, bids], 2) / 0.1, 2)
    return critic_loss, -(weights[:, :, 1:] * advantage.masked_fill(~may_show, 0)).sum(2).mean()


@torch.no_grad()
def move(network, towards, rate):
    torch._foreach_lerp_(list(network.parameters()), list(towards.parameters()), rate)


compute = torch.compile(losses, mode="reduce-overhead") if a.compile else losses
batches = [batch() for _ in range(4)]


def update(i):
    critic_loss, actor_loss = compute(*batches[i % len(batches)])
    critic_adam.zero_grad(set_to_none=True)
    actor_adam.zero_grad(set_to_none=True)
    (critic_loss + actor_loss).backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
    nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
    critic_adam.step()
    actor_adam.step()
    move(target_critic, critic, 0.1)
    move(averaged, actor, 0.01)


def wait():
    if device.type == "cuda":
        torch.cuda.synchronize()


for i in range(10):
    update(i)
wait()
begun, updates = time.perf_counter(), 0
while time.perf_counter() - begun < a.seconds:
    for _ in range(5):
        update(updates)
        updates += 1
    wait()
seconds = time.perf_counter() - begun
print(json.dumps({"peer": "pytorch", "torch": torch.__version__, "device": a.device, "threads": a.threads, "compile": a.compile,
                  "updates_per_s": round(updates / seconds, 2)}))
