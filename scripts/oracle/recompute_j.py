#!/usr/bin/env python3
"""Recomputes the total benefit J of a decisions file from a log directory's raw text.

    recompute_j.py LOG_DIR DECISIONS_TSV [--rate-seed S] [--expect J]

DECISIONS_TSV has the columns request_id, ad_id, type, one row per request that is not quarantined (`0` and
`-` where nothing may be shown), plain, .gz or .zst. Prints one JSON object with J, unfilled, and the
contract and auction impressions. Decisions are replayed in time order, with true delivery counts, and every
one is checked: what is shown is in the queue under that type, unfiltered, and, for a contract, in flight,
targeted and below its cap; what stays unfilled had nothing that may be shown. Exit codes: 0 consistent, 1 a
violation (the first 20 are printed) or J further from --expect than 1e-6 relative, 2 unreadable input.

Out of scope, and therefore lenient: the draw by `rate`. A contract with a rate below 1 is accepted wherever
it is shown, and is no reason why a request had to be filled; --rate-seed is only repeated in the output, as
a label. Contracts that `env.complete_queues` adds to queues count as violations, since the log lacks them.
Standard library only; independent of the program: written from the data formats.
"""

import argparse
import json
import math
import sys

from rawlog import Log, table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log_dir")
    parser.add_argument("decisions")
    parser.add_argument("--rate-seed", type=int)
    parser.add_argument("--expect", type=float, metavar="J")
    args = parser.parse_args()

    log = Log(args.log_dir)
    violations = []
    decisions = {}
    for line, row in table(args.decisions):
        try:
            request_id, shown = int(row["request_id"]), (int(row["ad_id"]), row["type"])
        except (KeyError, ValueError):
            violations.append(f"{args.decisions}:{line}: not a row of request_id, ad_id, type")
            continue
        if request_id in decisions:
            violations.append(f"request {request_id}: decided twice")
        decisions[request_id] = shown
    for request_id in decisions.keys() - {r["id"] for r in log.requests}:
        violations.append(f"request {request_id}: decided, but not a usable request of the log")

    delivered = dict.fromkeys(log.contracts, 0)
    auction, clicks = [], []
    contract_impressions = auction_impressions = unfilled = 0
    for request in log.requests:
        where = f"request {request['id']}"
        if request["id"] not in decisions:
            violations.append(f"{where}: no decision")
            continue

        def why_not(ad_id):
            """Why an entry of the queue may not be shown now; None if it may."""
            kind, _, _, filtered = request["queue"][ad_id]
            if filtered:
                return "is filtered"
            if kind == "A":
                return None
            contract = log.contracts[ad_id]
            if not contract.matches(request):
                return "is out of flight or not targeted here"
            return None if delivered[ad_id] < contract.left else "is at its cap"

        ad_id, kind = decisions[request["id"]]
        if (ad_id, kind) == (0, "-"):
            unfilled += 1
            could = [
                a for a, e in request["queue"].items()
                if why_not(a) is None and (e[0] == "A" or log.contracts[a].rate == 1)
            ]
            if could:
                violations.append(f"{where}: unfilled, but ad {could[0]} may be shown")
            continue
        entry = request["queue"].get(ad_id)
        if entry is None or entry[0] != kind:
            violations.append(f"{where}: ad {ad_id} of type {kind} is not in the queue")
            continue
        reason = why_not(ad_id)
        if reason is not None:
            violations.append(f"{where}: ad {ad_id} {reason}")
        if kind == "A":
            auction_impressions += 1
            auction.append(entry[1] / 1000)
        else:
            contract_impressions += 1
            delivered[ad_id] += 1
            clicks.append(log.contracts[ad_id].click_value * entry[2])

    missing = {a: max(0, c.owed - delivered[a]) for a, c in log.contracts.items()}
    penalties = [log.contracts[a].penalty * n for a, n in missing.items()]
    owed = sum(c.owed for c in log.contracts.values())
    j = math.fsum(auction + clicks + [-p for p in penalties])
    result = {
        "j": j,
        "auction_revenue": math.fsum(auction),
        "click_value": math.fsum(clicks),
        "penalties": math.fsum(penalties),
        "shortage_rate": sum(missing.values()) / owed if owed else 0,
        "contract_impressions": contract_impressions,
        "auction_impressions": auction_impressions,
        "unfilled": unfilled,
        "quarantined": log.quarantined,
        "violations": len(violations),
        "rate_draws": "not checked" if any(c.rate < 1 for c in log.contracts.values()) else "none needed",
    }
    if args.rate_seed is not None:
        result["rate_seed"] = args.rate_seed
    print(json.dumps(result))
    for violation in violations[:20]:
        print(violation, file=sys.stderr)
    if len(violations) > 20:
        print(f"and {len(violations) - 20} more", file=sys.stderr)
    wrong = args.expect is not None and not math.isclose(j, args.expect, rel_tol=1e-6, abs_tol=1e-9)
    if wrong:
        print(f"J is {j}, not {args.expect}", file=sys.stderr)
    sys.exit(1 if violations or wrong else 0)


if __name__ == "__main__":
    main()
