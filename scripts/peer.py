"""What `bench` and `gpu-check` share: running the program, and finding and running the PyTorch peer.

The peer is a script of its own that needs only torch: it measures the same update (critic on all contracts with the quantile Huber loss,
target critic at segment ends, critic after display, actor; Adam, clipping, averaging) in updates per second. It is called with
`--device --threads --batch --contracts --eligible --hidden --features --quantiles --segment --seconds [--loss closed|plain] [--compile]` and
prints one line of JSON with the key `updates_per_s`. Which form is faster depends on shape and machine; whoever claims a ratio claims it to the best.
"""
import json
import os
import shutil
import subprocess
import sys


class Missing(Exception):
    """Something that has to be there is not; the text says what to do."""


def admix(binary, arguments, timeout=900):
    """Runs `admix ARGUMENTS --json` and returns what it prints."""
    command = [binary, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


class Peer:
    """The PyTorch peer; `Missing` where it or torch is not there."""

    def __init__(self, script, python):
        if not script:
            raise Missing("no PyTorch peer given: name its script with --peer FILE or ADMIX_BENCH_PEER")
        if not os.path.isfile(script):
            raise Missing(f"no PyTorch peer at {script}: name its script with --peer FILE or ADMIX_BENCH_PEER")
        python = shutil.which(python)
        probe = [python or "", "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"]
        found = subprocess.run(probe, capture_output=True, text=True) if python else None
        if found is None or found.returncode != 0:
            raise Missing("no Python with torch: name one with --python PROGRAM or ADMIX_BENCH_PYTHON, or `pip install torch`")
        self.script, self.python, self.requests = script, python, 1
        self.version, self.cuda = found.stdout.split()

    # The forms in which a careful user would write the update.
    FORMS = {"closed loss, eager": ["--loss", "closed"], "plain loss, compiled": ["--loss", "plain", "--compile"]}

    def best(self, device, threads, shape, seconds):
        """Updates per second of the fastest form of a shape, and that form's name. A form that fails is left out, and said so."""
        rates = {}
        for form, options in self.FORMS.items():
            try:
                rates[form] = self.rate(device, threads, shape, seconds, options)
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                print(f"PyTorch, {form}: {why}", file=sys.stderr)
        if not rates:
            raise RuntimeError("no form of the peer ran")
        form = max(rates, key=rates.get)
        return rates[form], form

    def with_requests(self, requests):
        """The peer of steps that hold several requests, which lies beside this file."""
        other = Peer(os.path.join(os.path.dirname(os.path.abspath(__file__)), "steps_peer.py"), self.python)
        other.requests = requests
        return other

    def rate(self, device, threads, shape, seconds, options=()):
        """Updates per second of a shape as `admix bench learner --json` reports it; `options` name the peer's form."""
        command = [self.python, self.script, "--device", device, "--threads", str(threads), "--seconds", str(seconds)]
        names = {"batch": "batch", "contracts": "contracts", "eligible": "eligible", "hidden": "hidden", "inputs": "features", "quantiles": "quantiles"}
        for name, option in names.items():
            command += [f"--{option}", str(shape[name])]
        command += [*options, *(["--requests", str(self.requests)] if self.requests > 1 else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"the peer failed: {done.stderr.strip()[-1000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])["updates_per_s"]


def add_arguments(parser):
    """Arguments that both scripts take."""
    parser.add_argument("binary", nargs="?", default="target/release/admix", help="the release binary (default: target/release/admix)")
    parser.add_argument("--peer", default=os.environ.get("ADMIX_BENCH_PEER"), help="script of the PyTorch peer (default: $ADMIX_BENCH_PEER)")
    parser.add_argument("--python", default=os.environ.get("ADMIX_BENCH_PYTHON", sys.executable), help="Python with torch (default: $ADMIX_BENCH_PYTHON, else the one that runs this)")


def binary_of(arguments, parser):
    """The binary's path, or the end with a message."""
    path = os.path.abspath(arguments.binary)
    if not os.access(path, os.X_OK):
        parser.error(f"no program at {path}: build it with `cargo build --release`, or name it as the first argument")
    return path
