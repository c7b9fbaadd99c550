#!/usr/bin/env python3
"""Writes a log directory from three CSV exports: export_day.py REQUESTS CANDIDATES CONTRACTS OUT_DIR

Put the names of your own columns in the quotes. Money comes in yuan and goes out in fen. Prices per 1,000 impressions stay
per 1,000; penalties become per impression. The track log is Parquet where pyarrow is installed, else TSV.
"""
import csv, datetime, pathlib, sys

def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)

def write(path, table):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, table[0], delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)

requests, candidates, contracts, out = sys.argv[1:4] + [pathlib.Path(sys.argv[4])]
queues, day, start = {}, [], None
for c in rows(candidates):
    entry = {"ad_id": int(c["ad"]), "type": "C" if c["deal"] == "guaranteed" else "A",
             "ecpm": round(100 * float(c["cpm_yuan"]), 6), "pctr": float(c["p_click"]), "filter": int(c["blocked"])}
    queues.setdefault(c["request"], []).append(entry)
for r in rows(requests):
    time = datetime.datetime.fromisoformat(r["time"])  # with its offset: 2026-01-05T07:30:00+08:00
    start = min(start or time, time)
    if r["request"] in queues:  # a request without candidates cannot be replayed
        day.append({"request_id": int(r["request"]), "ts_ms": round(time.timestamp() * 1000), "slot_id": int(r["placement"]),
                    "region": int(r["region"]), "gender": {"m": 1, "f": 2}.get(r["sex"], 0), "age": int(r["age_band"] or 0),
                    "user_id": int(r["user"]), "queue": queues[r["request"]]})
out.mkdir(parents=True, exist_ok=True)
write(out / "control.tsv", [{"ad_id": c["ad"], "required": c["impressions"], "targeting": "region:" + c["regions"],
                             "penalty": 100 * float(c["penalty_yuan_per_1000"]) / 1000,
                             "click_value": 100 * float(c["click_yuan"])} for c in rows(contracts)])
offset = int(start.utcoffset().total_seconds() // 60)
(out / "day.toml").write_text(f'date = "{start.date()}"\nutc_offset_minutes = {offset}\n')
try:
    import pyarrow, pyarrow.parquet
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(day), out / "track_log.parquet", compression="zstd")
except ImportError:
    write(out / "track_log.tsv", [{**r, "queue": ";".join(",".join(map(str, e.values())) for e in r["queue"])} for r in day])
