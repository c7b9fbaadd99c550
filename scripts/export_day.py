#!/usr/bin/env python3
"""Writes a log directory from three CSV exports: export_day.py REQUESTS CANDIDATES CONTRACTS OUT_DIR

Put the names of your own columns in the quotes. Money comes in yuan and goes out in fen. Prices per 1,000 impressions stay
per 1,000; penalties become per impression. The track log is Parquet where pyarrow is installed, else TSV.
"""
import csv, datetime, pathlib, sys

NEEDED = object()
ID = "is not a whole number; hash texts: int(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), 16) >> 11"
TIME = "is not a time with its UTC offset, such as 2026-01-05T07:30:00+08:00; add the offset, or replace(tzinfo=..) in the script"

def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            yield {**row, "": f"{path}, line {reader.line_num}"}

def cell(row, column, convert, why, empty=NEEDED):
    """Returns a converted cell; `empty` is the value of an empty one. Ends with place, column and remedy where it cannot."""
    text = row.get(column)
    if text is None:
        sys.exit(f"{row['']}: there is no column `{column}`; put the name of yours into the script")
    if text == "" and empty is not NEEDED:
        return empty
    try:
        return convert(text)
    except ValueError:
        sys.exit(f"{row['']}, column `{column}`: `{text}` {why}")

def number(row, column, empty=NEEDED):
    return cell(row, column, float, "is not a number", empty)

def whole(row, column, empty=NEEDED):
    return cell(row, column, int, ID, empty)

def time_of(text):
    time = datetime.datetime.fromisoformat(text)
    if time.utcoffset() is None:
        raise ValueError
    return time

def write(path, table):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, table[0], delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)

requests, candidates, contracts, out = sys.argv[1:4] + [pathlib.Path(sys.argv[4])]
queues, day, start = {}, [], None
for c in rows(candidates):
    entry = {"ad_id": whole(c, "ad"), "type": "C" if c["deal"] == "guaranteed" else "A",
             "ecpm": round(100 * number(c, "cpm_yuan"), 6), "pctr": number(c, "p_click"), "filter": whole(c, "blocked", 0)}
    queues.setdefault(c["request"], []).append(entry)
for r in rows(requests):
    time = cell(r, "time", time_of, TIME)
    start = min(start or time, time)
    if r["request"] in queues:  # a request without candidates cannot be replayed
        day.append({"request_id": whole(r, "request"), "ts_ms": round(time.timestamp() * 1000), "slot_id": whole(r, "placement"),
                    "region": whole(r, "region", 0), "gender": {"m": 1, "f": 2}.get(r["sex"], 0), "age": whole(r, "age_band", 0),
                    "user_id": whole(r, "user", None), "queue": queues[r["request"]]})
if not day:
    sys.exit(f"no request of {requests} has a candidate in {candidates}; the column `request` joins them")
if all(r["user_id"] is None for r in day):  # a Parquet column has a type, which empty cells do not tell
    day = [{key: value for key, value in r.items() if key != "user_id"} for r in day]
out.mkdir(parents=True, exist_ok=True)
control = [{"ad_id": whole(c, "ad"), "required": whole(c, "impressions"),
            "targeting": "region:" + c["regions"] if c["regions"] else "",  # empty: everywhere
            "penalty": 100 * number(c, "penalty_yuan_per_1000") / 1000,
            "click_value": 100 * number(c, "click_yuan")} for c in rows(contracts)]
if not control:
    sys.exit(f"{contracts} has no contract")
write(out / "control.tsv", control)
offset = int(start.utcoffset().total_seconds() // 60)
(out / "day.toml").write_text(f'date = "{start.date()}"\nutc_offset_minutes = {offset}\n')
try:
    import pyarrow, pyarrow.parquet
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(day), out / "track_log.parquet", compression="zstd")
except ImportError:
    write(out / "track_log.tsv", [{**r, "queue": ";".join(",".join(map(str, e.values())) for e in r["queue"])} for r in day])
