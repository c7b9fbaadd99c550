#!/usr/bin/env python3
"""The best J that any policy could have reached on a logged day, exactly, by another method than prices.

    hindsight_optimum.py LOG_DIR [--ub UB] [--primal J] [--tolerance 0.001]

The program reports an upper bound UB, the least value of a dual function. This script solves the primal: it
assigns requests to contracts (or to the best auction entry, or to nothing) as a transport problem by
augmenting paths, one request at a time. The problem has no integrality gap, so the least dual value equals
this optimum; a reported UB must not be below it, nor above by more than --tolerance x (optimum + S), where
S = sum of penalty x owed; the J of any policy, such as the reported primal, must not be above it. Exit
codes: 0 consistent, 1 not, 2 unreadable input. Prints one JSON object.

Each contract takes `owed` impressions worth `penalty` more and up to `left` worth nothing more. Requests may
stay unfilled, so a forced impression can make the best causal policy a little worse than this optimum.
Contracts with a rate below 1 are refused: the draw is out of scope. About 1 ms a request with a dozen
contracts. Standard library only; independent of the program: written from the data formats.
"""

import argparse
import heapq
import json
import math
import sys

from rawlog import Log, fail

OUT = -1  # the best auction entry, or nothing at all


def optimum(values, outside, owed, left, penalty):
    """Most that assigning each request once can earn, S included.

    `values[i]` maps contract -> worth on request i; `outside[i]` is what the request earns otherwise. Adding
    requests one by one along a best augmenting path keeps the assignment optimal for those added so far.
    """
    contracts = range(len(owed))
    used = [0] * len(owed)
    at = [OUT] * len(values)
    # moves[j][k]: heap of (-gain, request) over requests at j that may go to k (or OUT); stale ones stay.
    moves = [{k: [] for k in (*contracts, OUT)} for _ in contracts]

    def place(i, j):
        at[i] = j
        if j != OUT:
            for k, worth in values[i].items():
                if k != j:
                    heapq.heappush(moves[j][k], (values[i][j] - worth, i))
            heapq.heappush(moves[j][OUT], (values[i][j] - outside[i], i))

    def best_move(j, k):
        heap = moves[j][k]
        while heap and at[heap[0][1]] != j:
            heapq.heappop(heap)
        return (-heap[0][0], heap[0][1]) if heap else None

    total = 0.0
    for i, worths in enumerate(values):
        # Longest path from request i; no positive cycle exists, so len(contracts) rounds are enough.
        gain = dict(worths)
        back = {j: None for j in worths}
        edges = {}
        frontier = set(gain)
        for _ in contracts:
            changed = set()
            for j in frontier:
                for k in contracts:
                    if k == j:
                        continue
                    if (j, k) not in edges:
                        edges[j, k] = best_move(j, k)
                    move = edges[j, k]
                    if move and gain[j] + move[0] > gain.get(k, -math.inf) + 1e-12:
                        gain[k] = gain[j] + move[0]
                        back[k] = (j, move[1])
                        changed.add(k)
            frontier = changed
            if not frontier:
                break
        best, end = outside[i], None
        for j, g in gain.items():
            if used[j] < left[j]:
                end_gain = g + (penalty[j] if used[j] < owed[j] else 0.0)
                if end_gain > best + 1e-12:
                    best, end = end_gain, (j, None)
            move = best_move(j, OUT)
            if move and g + move[0] > best + 1e-12:
                best, end = g + move[0], (j, move[1])
        total += best
        if end is None:
            continue
        j, leaving = end
        if leaving is None:
            used[j] += 1
        else:
            place(leaving, OUT)
        while back[j] is not None:
            before, moved = back[j]
            place(moved, j)
            j = before
        place(i, j)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log_dir")
    parser.add_argument("--ub", type=float)
    parser.add_argument("--primal", type=float, metavar="J")
    parser.add_argument("--tolerance", type=float, default=0.001)
    args = parser.parse_args()

    log = Log(args.log_dir)
    if any(c.rate < 1 for c in log.contracts.values()):
        fail("a contract has a rate below 1, whose draw this script does not make")
    contracts = list(log.contracts.values())
    index = {c.ad_id: j for j, c in enumerate(contracts)}
    values, outside = [], []
    for request in log.requests:
        worth, best = {}, 0.0
        for ad_id, (kind, ecpm, pctr, filtered) in request["queue"].items():
            if filtered:
                continue
            if kind == "A":
                best = max(best, ecpm / 1000)
            elif log.contracts[ad_id].matches(request):
                worth[index[ad_id]] = log.contracts[ad_id].click_value * pctr
        values.append(worth)
        outside.append(best)
    stake = math.fsum(c.penalty * c.owed for c in contracts)
    columns = ([getattr(c, name) for c in contracts] for name in ("owed", "left", "penalty"))
    reached = optimum(values, outside, *columns)
    j = reached - stake
    print(json.dumps({"optimum": j, "stake": stake, "requests": len(values), "quarantined": log.quarantined}))

    wrong = []
    slack = 1e-6 * max(1.0, reached)
    if args.ub is not None and not j - slack <= args.ub <= j + args.tolerance * reached + slack:
        wrong.append(f"UB {args.ub} is not within [optimum, optimum + {args.tolerance} x (optimum + S)]")
    if args.primal is not None and args.primal > j + slack:
        wrong.append(f"J {args.primal} is above the optimum {j}")
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
