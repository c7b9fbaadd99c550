"""Reads a log directory from its raw text, for the oracles beside this file.

Written from the data formats alone, so that it can disagree with the program. Python 3, standard library
only; `.zst` files go through the `zstd` command. A bad `control` row ends the run; a bad `track_log` row
is quarantined, with the reasons that the formats name. Parquet is not read.
"""

import datetime
import gzip
import io
import math
import os
import shutil
import subprocess
import sys

DAY_MS = 86_400_000


class Bad(Exception):
    """A row that cannot be used; the text is the reason."""


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def open_text(path):
    if path.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape", newline="\n")
    if path.endswith(".zst"):
        if shutil.which("zstd") is None:
            fail(f"{path}: the zstd command is needed to read it, and is not there")
        done = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=False)
        if done.returncode != 0:
            fail(f"{path}: {done.stderr.decode(errors='replace').strip()}")
        return io.StringIO(done.stdout.decode("utf-8", errors="surrogateescape"), newline="\n")
    return open(path, encoding="utf-8", errors="surrogateescape", newline="\n")


def table(path):
    """Yields (line number, {column: text}) for each row; a row of another width is {} with its text."""
    try:
        with open_text(path) as lines:
            header = next(lines, "").rstrip("\r\n").split("\t")
            for number, line in enumerate(lines, 2):
                cells = line.rstrip("\r\n").split("\t")
                yield number, dict(zip(header, cells)) if len(cells) == len(header) else {}
    except (OSError, EOFError) as e:
        fail(f"{path}: {e}")


def find(directory, name):
    found = [p for p in (os.path.join(directory, name + end) for end in ("", ".gz", ".zst")) if os.path.exists(p)]
    if len(found) != 1:
        fail(f"{directory}: expected one of {name}, {name}.gz, {name}.zst, found {len(found)}")
    return found[0]


def whole(text, high=2**64 - 1):
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or int(text) > high:
        raise Bad("not a whole number in range")
    return int(text)


def real(text, low, high):
    try:
        value = float(text)
    except ValueError:
        raise Bad("not a number") from None
    if not (math.isfinite(value) and low <= value <= high):
        raise Bad("out of range")
    return value


def midnight_ms(directory, first_ts):
    """Start of the log's day: by day.toml, else the UTC day of the first row."""
    path = os.path.join(directory, "day.toml")
    if not os.path.exists(path):
        return first_ts // DAY_MS * DAY_MS
    values = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.split("#")[0]
            if "=" in line:
                key, value = line.split("=", 1)
                values[key.strip()] = value.strip().strip('"')
    if "date" not in values:
        fail(f"{path}: no date")
    days = (datetime.date.fromisoformat(values["date"]) - datetime.date(1970, 1, 1)).days
    return days * DAY_MS - int(values.get("utc_offset_minutes", "0")) * 60_000


class Contract:
    """One control row, empty cells filled in."""

    def __init__(self, row, midnight):
        def cell(name, default, parse):
            text = row.get(name, "").strip()
            return default if text == "" else parse(text)

        def time(name, default):
            value = cell(name, default, whole)
            return value + midnight if value < DAY_MS and row.get(name, "").strip() else value

        self.ad_id = whole(row["ad_id"])
        self.required = whole(row["required"])
        self.cap = cell("cap", self.required, whole)
        self.delivered0 = cell("delivered0", 0, whole)
        self.start = time("start_ms", midnight)
        self.end = time("end_ms", midnight + DAY_MS)
        self.rate = cell("rate", 1.0, lambda t: real(t, 0, 1))
        self.penalty = real(row["penalty"], 0, math.inf)
        self.click_value = real(row["click_value"], 0, math.inf)
        self.wants = {}
        for part in filter(None, (p.strip() for p in row.get("targeting", "").split("|"))):
            name, _, values = part.partition(":")
            if name not in ("region", "gender", "age", "slot"):
                raise Bad(f"unknown targeting {name}")
            self.wants[name] = {whole(v) for v in values.split(",")}
        if not (0 < self.required <= self.cap and self.delivered0 <= self.cap):
            raise Bad("required, cap and delivered0 contradict each other")
        self.owed = max(0, self.required - self.delivered0)
        self.left = max(0, self.cap - self.delivered0)

    def matches(self, request):
        return self.start <= request["ts"] < self.end and all(request[k] in v for k, v in self.wants.items())


class Log:
    """Contracts by id and usable requests in replay order, each with its queue as tuples."""

    def __init__(self, directory):
        track = find(directory, "track_log.tsv")
        rows = list(table(track))
        first = 0
        for _, row in rows:
            if row.get("ts_ms", "").isdigit():
                first = int(row["ts_ms"])
                break
        midnight = midnight_ms(directory, first)
        self.contracts = {}
        control = find(directory, "control.tsv")
        for line, row in table(control):
            try:
                contract = Contract(row, midnight)
            except (Bad, KeyError) as e:
                fail(f"{control}:{line}: {e}")
            if contract.ad_id in self.contracts:
                fail(f"{control}:{line}: ad {contract.ad_id} twice")
            self.contracts[contract.ad_id] = contract
        self.requests = []
        self.quarantined = 0
        seen = set()
        for line, row in rows:
            try:
                request = self.request(row, midnight)
                if request["id"] in seen:
                    raise Bad("request_id twice")
            except Bad as e:
                self.quarantined += 1
                print(f"quarantined {track}:{line}: {e}", file=sys.stderr)
            except KeyError as e:
                if row:
                    fail(f"{track}: no column {e}")
                self.quarantined += 1
                print(f"quarantined {track}:{line}: wrong number of columns", file=sys.stderr)
            else:
                seen.add(request["id"])
                self.requests.append(request)
        self.requests.sort(key=lambda r: r["ts"])

    def request(self, row, midnight):
        u32 = 2**32 - 1
        request = {
            "id": whole(row["request_id"]),
            "ts": whole(row["ts_ms"]),
            "slot": whole(row["slot_id"], u32),
            "region": whole(row["region"], u32),
            "gender": whole(row["gender"], 2),
            "age": whole(row["age"], 9),
        }
        if not midnight <= request["ts"] < midnight + DAY_MS:
            raise Bad("ts_ms outside the day")
        entries = row["queue"].split(";")
        if len(entries) > 512:
            raise Bad("queue too long")
        queue = {}
        for entry in entries:
            parts = entry.split(",")
            if len(parts) not in (5, 6):
                raise Bad("a queue entry has neither 5 nor 6 parts")
            ad_id = whole(parts[0])
            if ad_id in queue:
                raise Bad("an ad twice in the queue")
            if parts[1] not in ("C", "A"):
                raise Bad("a type that is neither C nor A")
            if parts[1] == "C" and ad_id not in self.contracts:
                raise Bad("unknown_contract")
            ecpm, pctr = real(parts[2], 0, 1e7), real(parts[3], 0, 1)
            filtered = whole(parts[4]) != 0
            if len(parts) == 6:
                real(parts[5], 0.1, 10)
            queue[ad_id] = (parts[1], ecpm, pctr, filtered)
        request["queue"] = queue
        return request
