#!/usr/bin/env python3
"""Expert parallelism by a plain all-to-all: each rank has some of a layer's experts in FP8, and tokens' rows go to the ranks
that have theirs.

    torchrun --nproc_per_node 2 examples/expert_parallel.py                  # on the GPUs of one machine, or on its CPU

A program copies expert_parallel() and changes how rows cross, for a dispatcher such as DeepEP. experts_mlp() takes rows that have
arrived like tokens of one expert each, in any order: its casts gather them, and its last sum brings them back.
"""

from __future__ import annotations

import os
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist
from ingot.torch import LinearOptions, experts_mlp


MOST = 512  # experts of a rank


class Exchange(torch.autograd.Function):
    """Rows to other ranks: sends[r] to rank r, receives[r] from it; their gradients the other way."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, sends: List[int], receives: List[int], group: Any) -> torch.Tensor:
        ctx.back = receives, sends, group
        found = rows.new_empty(sum(receives), rows.shape[1])
        dist.all_to_all_single(found, rows.contiguous(), receives, sends, group=group)
        return found

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        return Exchange.apply(grad, *ctx.back), None, None, None


def check_ranks(experts: List[int], without: List[int]) -> None:
    """Of each rank the number of experts that it was called with, and of choices that are no expert: all ranks raise the same."""
    ranks, number = len(experts), experts[0]
    if any(each != number for each in experts):
        raise ValueError(f"experts: are {experts} on {ranks} ranks: give all of them the same number")
    if number % ranks != 0 or number // ranks > MOST:
        raise ValueError(f"experts: are {number}, which {ranks} ranks do not divide evenly, into at most {MOST} each")
    wrong = [rank for rank, count in enumerate(without) if count]
    if wrong:
        raise ValueError(f"index: each must be an expert, from 0 to {number - 1}, and some of ranks {wrong} are not")


def expert_parallel(
    hidden: torch.Tensor,
    index: torch.Tensor,
    router_weights: torch.Tensor,
    experts: int,
    of_rank: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    group: Optional[Any] = None,
) -> torch.Tensor:
    """The sum of a token's experts, (tokens, H), in hidden's dtype. index and router_weights: (tokens, chosen); a rank may have no
    tokens. experts: of all ranks, each of which has as many: all give the same number. of_rank(rows, expert): this rank's experts, of rows (M, H) that belong
    to expert (M,), from 0 on."""
    ranks = dist.get_world_size(group)
    local, chosen = min(experts // ranks, MOST), index.shape[1]
    by_expert = index.reshape(-1).argsort(stable=True)
    # First those of -1 and below, last those from `experts` on. Without a look at the values, as torch.bincount() has one.
    places = index.reshape(-1).clamp(-1, experts) + 1
    of_each = torch.zeros(experts + 2, dtype=torch.int64, device=index.device).scatter_add_(0, places, torch.ones_like(places))
    counts = of_each[1 : ranks * local + 1].view(ranks, local)
    # As wide for any number of experts, and exchanged before anything is refused: ranks that disagree all learn of it here.
    sent = torch.nn.functional.pad(counts, (2, MOST - local))
    sent[:, 0], sent[:, 1] = experts, of_each[0] + of_each[experts + 1 :].sum()
    found = torch.empty_like(sent)
    dist.all_to_all_single(found, sent, group=group)
    theirs = found[:, 2 : 2 + local]  # what each rank sends to this one, by expert
    sizes = torch.stack([counts.sum(1), theirs.sum(1), found[:, 0], found[:, 1]])
    sends, receives, numbers, without = sizes.tolist()  # the host waits here alone
    check_ranks(numbers, without)
    rows = Exchange.apply(hidden[by_expert // chosen], sends, receives, group)
    # They come by ranks, and by experts from each rank.
    expert = torch.arange(local, device=rows.device).repeat(ranks).repeat_interleave(theirs.reshape(-1), output_size=rows.shape[0])
    mine = Exchange.apply(of_rank(rows, expert), receives, sends, group)
    of_tokens = torch.empty_like(mine).index_copy(0, by_expert, mine).view(*index.shape, mine.shape[1])
    return (of_tokens * router_weights[..., None]).sum(1).to(hidden.dtype)


def float8_experts(gate_up: torch.Tensor, down: torch.Tensor, options: LinearOptions, fast_math: bool = False) -> Callable:
    """A rank's gated MLPs in FP8. gate_up: (its experts, 2 * intermediate, H); down: (its experts, H, intermediate)."""

    def of_rank(rows: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        ones = rows.new_ones(rows.shape[0], 1)  # the router's weights are the token's rank's
        return experts_mlp(rows, expert[:, None], ones, gate_up, down, options, fast_math=fast_math)

    return of_rank


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    hidden_size, intermediate, experts, chosen = 128, 256, 4 * ranks, 2
    tokens = 64  # of this rank; others may have more, or none
    torch.manual_seed(rank)
    weight = lambda *shape: torch.nn.Parameter(torch.randn(*shape, device=device) / shape[-1] ** 0.5)
    gate_up, down = weight(experts // ranks, 2 * intermediate, hidden_size), weight(experts // ranks, hidden_size, intermediate)
    of_rank = float8_experts(gate_up, down, LinearOptions("rowwise", name="experts"))
    optimizer = torch.optim.AdamW([gate_up, down], lr=1e-2)
    x = torch.randn(tokens, hidden_size, device=device)
    weights, index = torch.rand(tokens, experts, device=device).topk(chosen)
    of_all = torch.tensor(x.numel(), device=device)
    dist.all_reduce(of_all)
    for step in range(10):
        # A rank's part of the mean over all ranks' tokens, of which it has some or none.
        loss = (expert_parallel(x, index, weights, experts, of_rank) - x).square().sum() / of_all
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach()
        dist.all_reduce(whole)
        if rank == 0:
            print(f"step {step} loss {whole.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
