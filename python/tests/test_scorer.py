"""The binding decides what the command decides, and refuses what it refuses.

    ADMIX=target/release/admix python -m unittest discover python/tests

Needs the built program and the installed module; a synthetic world and its plan are made with the former.
"""

import copy
import json
import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import admix

PROGRAM = os.environ.get("ADMIX", "target/release/admix")
WORLD = """\
requests = 1500
queue = 8
regions = 4
slots = 2
users = 500
auction_ads = 60
contracts = 7
contracts_per_queue = 2.5
compress = "none"
cap_slack = 0.3
delivered0_share = 0.15
rate = 0.8
boost_share = 0.2
filter_share = 0.2
part_day_share = 0.5
"""
POLICIES = ["baseline:receding-horizon", "baseline:pid", "baseline:theta-lottery"]


def run(*arguments, **options):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")
    return done.stdout


def queue(text):
    """A queue of track_log as objects."""
    names = ["ad_id", "type", "ecpm", "pctr", "filter", "boost"]
    kinds = [int, str, float, float, int, float]
    return [{n: kind(v) for n, kind, v in zip(names, kinds, entry.split(","))} for entry in text.split(";")]


def read_requests(path):
    header, *lines = path.read_text().splitlines()
    names = header.split("\t")
    for line in lines:
        row = dict(zip(names, line.split("\t")))
        request = {n: int(row[n]) for n in ["request_id", "ts_ms", "slot_id", "region", "gender", "age"]}
        yield {**request, "queue": queue(row["queue"])}


class Binding(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = Path(cls.folder.name)
        (root / "world.toml").write_text(WORLD)
        run("data", "synth", "--config", root / "world.toml", "--out", root / "days", "--days", 2)
        cls.plan = root / "plan.json"
        run("plan", root / "days/day-0", "--out", cls.plan)
        cls.day = root / "days/day-1"
        cls.files = {name: cls.day / file for name, file in
                     [("control", "control.tsv"), ("inventory", "inventory.tsv"), ("day", "day.toml")]}
        cls.requests = list(read_requests(cls.day / "track_log.tsv"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def scorer(self, policy="baseline:receding-horizon", **options):
        return admix.Scorer(policy, plan=self.plan, **self.files, **options)

    def assert_same(self, decision, expected):
        self.assertEqual(decision.request_id, expected["request_id"])
        self.assertEqual(decision.chosen or 0, expected["chosen"])
        scores = {score["ad_id"]: score["score"] for score in expected["scores"]}
        self.assertEqual(decision.scores.keys(), scores.keys())
        for ad_id, score in scores.items():
            self.assertAlmostEqual(decision.scores[ad_id], score, delta=1e-5 * max(1.0, abs(score)))

    def test_it_decides_what_the_command_decides(self):
        text = "".join(json.dumps(request) + "\n" for request in self.requests)
        for policy in POLICIES:
            files = [word for name, path in self.files.items() for word in (f"--{name}", path)]
            out = run("score", "--format", "jsonl", "--policy", policy, "--plan", self.plan, *files, "--rate-seed", 3,
                      "--feedback-delay", 120, input=text)
            expected = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(len(expected), len(self.requests))
            scorer = self.scorer(policy, rate_seed=3, feedback_delay_s=120.0)
            half = len(self.requests) // 2
            decisions = [scorer.decide(request) for request in self.requests[:half]]
            decisions += scorer.decide_many(self.requests[half:])
            contracts = scorer.deliveries()
            for decision, answer in zip(decisions, expected):
                self.assert_same(decision, answer)
                self.assertEqual(decision.is_contract, decision.chosen in contracts)
            shown = [decision.chosen for decision in decisions if decision.is_contract]
            self.assertEqual(sum(delivered for delivered, _ in contracts.values()), len(shown))
            self.assertGreater(len(shown), 50)

    def test_a_restored_scorer_goes_on(self):
        first, half = self.scorer(), len(self.requests) // 2
        first.decide_many(self.requests[:half])
        state = first.save()
        second = self.scorer()
        self.assertTrue(second.restore(state))
        self.assertEqual(second.time_ms, self.requests[half - 1]["ts_ms"])
        for request in self.requests[half:]:
            ours, theirs = first.decide(request), second.decide(request)
            self.assertEqual((ours.chosen, ours.scores), (theirs.chosen, theirs.scores))
        self.assertFalse(self.scorer("baseline:pid").restore(state), "another policy takes over the counts alone")
        for damaged in [state[:-1], b"", state + b"x"]:
            with self.assertRaises(ValueError):
                self.scorer().restore(damaged)

    def test_a_probe_and_a_stateless_scorer_move_nothing(self):
        scorer, request = self.scorer(), self.requests[0]
        before = scorer.save()
        probed = scorer.probe(request)
        self.assertEqual(scorer.save(), before)
        self.assertEqual(scorer.decide(request).scores, probed.scores)
        frozen = self.scorer(stateless=True)
        self.assertEqual(frozen.decide(request).scores, frozen.decide(request).scores)
        self.assertEqual(sum(delivered for delivered, _ in frozen.deliveries().values()), 0)

    def test_exposures_confirm_and_correct(self):
        scorer = self.scorer("baseline:contract-first", confirm_within_s=3600.0)
        request, decision = next((r, d) for r in self.requests for d in [scorer.decide(r)] if d.is_contract)
        self.assertEqual(scorer.deliveries()[decision.chosen], (1.0, 0.0))
        self.assertTrue(scorer.confirm(request["request_id"], decision.chosen, request["ts_ms"]))
        self.assertFalse(scorer.confirm(request["request_id"], decision.chosen, request["ts_ms"]))
        self.assertEqual(scorer.deliveries()[decision.chosen], (1.0, 1.0))
        late = self.scorer()
        self.assertEqual(late.begin_with({decision.chosen: 5, 987654321: 1}), [987654321])
        self.assertEqual(late.deliveries()[decision.chosen], (5.0, 5.0))

    def test_what_breaks_a_rule_is_a_value_error_and_moves_nothing(self):
        scorer = self.scorer()
        before = scorer.save()
        good = self.requests[0]

        def broken(change):
            request = copy.deepcopy(good)
            change(request)
            return request

        for request in [
            {}, [], None, "text",
            broken(lambda r: r.pop("queue")),
            broken(lambda r: r.update(ts_ms=r["ts_ms"] + 86_400_000)),
            broken(lambda r: r.update(gender=7)),
            broken(lambda r: r.update(request_id=-1)),
            broken(lambda r: r["queue"][0].update(ecpm=float("nan"))),
            broken(lambda r: r["queue"][0].update(ecpm=float("inf"))),
            broken(lambda r: r["queue"][0].update(type="X")),
            broken(lambda r: r["queue"].append(dict(r["queue"][0]))),
            broken(lambda r: r["queue"].append({**r["queue"][0], "ad_id": 987654321, "type": "C"})),
            broken(lambda r: r.update(queue=[])),
        ]:
            for ask in [scorer.decide, scorer.probe, lambda r: scorer.decide_many([good, r])]:
                with self.assertRaises((ValueError, TypeError), msg=repr(request)):
                    ask(request)
        self.assertEqual(scorer.save(), before)
        for options in [{"policy": "baseline:none"}, {"policy": "missing"}, {"feedback_delay_s": -1.0}]:
            with self.assertRaises(ValueError):
                self.scorer(**options)

    def test_threads_take_turns(self):
        scorer, parts = self.scorer("baseline:contract-first"), [self.requests[i::4] for i in range(4)]
        shown = []
        threads = [threading.Thread(target=lambda p=p: shown.extend(scorer.decide_many(p))) for p in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        delivered = sum(delivered for delivered, _ in scorer.deliveries().values())
        self.assertEqual(delivered, sum(decision.is_contract for decision in shown))
        self.assertEqual(len(shown), len(self.requests))


if __name__ == "__main__":
    unittest.main()
