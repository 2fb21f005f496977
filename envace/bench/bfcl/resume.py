"""What a run that is taken up again forgets before BFCL goes on: BFCL keeps whatever has a row, failures too.

Flows in: the result folder of an interrupted or failed run. Flows out: the same folder with only what need not be
asked again.
Invariant: an answer is kept as it is. A memory scenario whose chain of conversations is not whole goes altogether,
with what it had remembered, since each conversation builds on the one before. Standard library only, and BFCL where
there are memory results: the driver loads this file by its path.
"""

import json
import shutil


def forget_failures(results, again):
    """Drop the rows for which `again(row)` is true."""
    for file in sorted(results.rglob("BFCL_v4_*_result.json")) if results.is_dir() else ():
        write_rows(file, [row for row in readable(file) if not again(row)])
    for file in sorted(results.rglob("BFCL_v4_memory_*_result.json")) if results.is_dir() else ():
        forget_broken_chains(file.parent, category_of(file))


def category_of(file):
    """`BFCL_v4_memory_kv_prereq_result.json` -> `memory_kv`."""
    return file.name.removeprefix("BFCL_v4_").removesuffix("_result.json").removesuffix("_prereq")


def forget_broken_chains(folder, category):
    before, asked = (folder / f"BFCL_v4_{category}{part}_result.json" for part in ("_prereq", ""))
    there = {row["id"] for row in readable(before)}
    broken = {scenario for scenario, ids in chains(category).items() if not ids <= there}
    for path in (before, asked):
        write_rows(path, [row for row in readable(path) if row["id"].split("-")[1] not in broken])
    for scenario in broken:
        for snapshot in (folder / "memory_snapshot").rglob(f"*{scenario}*.json"):
            snapshot.unlink()


def chains(category):
    """Scenario -> the ids of its conversations."""
    from bfcl_eval.utils import load_dataset_entry

    owed = {}
    for entry in load_dataset_entry(category):
        if "_prereq_" in entry["id"]:
            owed.setdefault(entry["scenario"], set()).add(entry["id"])
    return owed


def readable(file):
    """Rows that were written whole; none of a file that is not there."""
    rows = []
    for line in file.read_text(encoding="utf-8").split("\n") if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def write_rows(file, rows):
    if not rows:  # BFCL divides by the number of rows
        file.unlink(missing_ok=True)
        return
    scratch = file.with_suffix(".partial")
    scratch.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shutil.move(scratch, file)
