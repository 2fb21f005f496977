"""How far a model's verdicts and labels agree with a person's: exact agreement and Cohen's kappa for the
filter and for each field of items, both with 95 % intervals.

Items are matched by row, turn and id, never by order; what one side alone has is counted, not compared. A row
of the hand-labelled file is either an annotated row a person corrected, or {"uuid": "u-1", "accept": true,
"items": [{"turn": 0, "id": "C0", "focus_on": "...", "required_for_next_turn": true, "weight": 0.5,
"dependence": [], "verdict": true}]} with any of these. `accept` says whether the dialogue is free of errors,
which is what the filter decides. A `verdict` says whether the item is right: met by the recorded dialogue and
fit to grade others by; an annotated item claims that it is, unless it has a `verdict` of its own."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from envace.data.annotate.call_plan import FILTERED
from envace.data.annotate.kappa import Pairs, compare
from envace.data.readers import READERS, RawRow
from envace.errors import DataError
from envace.types import JSON

WEIGHT = "weight"
FIELDS = ("verdict", "focus_on", "required_for_next_turn", "dependence", WEIGHT)
WORDS = ("accepts", "rejects")
RESAMPLES = 2000
LabelledItems = dict[tuple[int, str], dict[str, str | float]]
"""(turn, id) -> the fields of an item, as they are compared."""
Labelled = dict[str, tuple[LabelledItems, bool | None]]
"""Row -> its items, and whether it is accepted; None where nothing is said of that."""


def agreement(
    hand: Path, annotated: Path, seed: int = 7, resamples: int = RESAMPLES, rejected: Path | None = None
) -> dict[str, JSON]:
    """Compare two files; `rejected` (beside `annotated` where it is not given) holds what the filter left
    out. Raises DataError when one cannot be read or nothing can be compared."""
    by_hand, by_model = _read(hand), _read(annotated)
    rejected = rejected or annotated.with_name("rejected.jsonl")
    decided = dict.fromkeys(by_model, "accepts")
    for raw in _rows(rejected, named=False) if rejected.is_file() else ():
        if raw.row.get("reason") == FILTERED:  # what a rule rejected was never shown to the model
            decided[raw.row["uuid"]] = "rejects"
    said = {u: "accepts" if ok else "rejects" for u, (_, ok) in by_hand.items() if ok is not None}
    both: Pairs = {uuid: [(word, decided[uuid])] for uuid, word in said.items() if uuid in decided}
    counts = Counter(pair for [pair] in both.values())
    filtered = {
        **(compare(both, seed, resamples) if both else {"rows": 0}),
        **{
            f"hand_{a}_model_{b}": counts[a, b]
            for a in ("accepts", "rejects")
            for b in ("accepts", "rejects")
        },
        "not_decided_by_model": len(said) - len(both),
    }
    labels = _labels(by_hand, by_model, seed, resamples)
    if not labels["fields"] and not both:
        raise DataError(
            f"{hand} and {annotated} share no item to compare; check that uuid, turn and id are those of "
            f"{annotated.name}"
        )
    return {**labels, "filter": filtered}


def _labels(by_hand: Labelled, by_model: Labelled, seed: int, resamples: int) -> dict[str, JSON]:
    """Each field of the items that both have."""
    shared = sorted(uuid for uuid, (items, _) in by_hand.items() if items and uuid in by_model)
    pairs: dict[str, Pairs] = {name: defaultdict(list) for name in FIELDS}
    only_hand = only_model = 0
    for uuid in shared:
        mine, theirs = by_hand[uuid][0], by_model[uuid][0]
        only_hand, only_model = only_hand + len(mine.keys() - theirs), only_model + len(theirs.keys() - mine)
        for at in sorted(mine.keys() & theirs.keys()):
            for name in (name for name in FIELDS if name in mine[at]):
                other = theirs[at][name] if name in theirs[at] else _value({}, name)
                pairs[name][uuid].append((mine[at][name], other))
    return {
        "rows": {"hand": len(by_hand), "annotated": len(by_model), "compared": len(shared)},
        "items_only_by_hand": only_hand,
        "items_only_by_model": only_model,
        "fields": {
            name: compare(rows, seed, resamples, numbers=name == WEIGHT)
            for name, rows in pairs.items()
            if rows
        },
    }


def _read(path: Path) -> Labelled:
    """What a file says of its rows."""
    found: Labelled = {}
    for raw in _rows(path, named=True):
        row, items = raw.row, list[tuple[int, dict[str, JSON]]]()
        try:
            if not isinstance(row.get("accept", True), bool):
                raise TypeError
            if "items" in row:
                items = [(item["turn"], item) for item in row["items"]]
            elif "checklists" in row or "accept" not in row:
                turns = enumerate(row["checklists"][0])
                items = [(t, {"verdict": True, **item}) for t, turn in turns for item in turn]
            fields = {
                (turn, item["id"]): {name: _value(item, name) for name in FIELDS if name in item}
                for turn, item in items
            }
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            raise DataError(
                f"{raw.where} has neither accept (true or false), nor items with turn and id, nor "
                "checklists; correct it"
            ) from None
        found[row["uuid"]] = fields, row.get("accept")
    return found


def _rows(path: Path, named: bool) -> Iterator[RawRow]:
    """Rows of a file, those without an id left out unless all must be `named`."""
    if path.suffix not in READERS or not path.is_file():
        raise DataError(f"{path} cannot be read; name a file that ends in {', '.join(sorted(READERS))}")
    for raw in READERS[path.suffix](path, path.name):
        if raw.fault is None and isinstance(raw.row.get("uuid"), str):
            yield raw
        elif named:
            why = raw.fault.message if raw.fault else "it has no uuid"
            raise DataError(f"{raw.where} is no labelled row: {why}; correct it")


def _value(item: dict[str, JSON], name: str) -> str | float:
    """A field as it is compared; what an item leaves out counts as empty, its verdict as true."""
    if name == WEIGHT:
        return float(item.get(name) or 0.0)
    value = item.get(name, True) if name == "verdict" else item.get(name)
    return json.dumps(sorted(value or ()) if name == "dependence" else value)


def agreement_text(found: dict[str, JSON]) -> str:
    """The table for people."""

    def number(field: dict[str, JSON], name: str) -> str:
        value, low, high = field[name], field[f"{name}_low"], field[f"{name}_high"]
        if value is None:
            return "not defined"
        return f"{value:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")

    def line(name: str, field: dict[str, JSON]) -> str:
        note = field["kappa_note"].replace("_", " ")
        kappa = number(field, "kappa") + (f" ({note})" if note else "")
        if note == "numbers":
            kappa = f"apart by {number(field, 'distance')} on average"
        return f"{name:<24}{field['items']:>5}  {number(field, 'exact'):<22}{kappa}"

    r, f = found["rows"], found["filter"]
    out = [
        f"{r['compared']} rows compared ({r['hand']} by hand, {r['annotated']} annotated); items without a "
        f"match: {found['items_only_by_hand']} by hand, {found['items_only_by_model']} by the model",
        f"{'':<24}{'n':>5}  {'exact':<22}kappa",
    ]
    if f["rows"]:
        out += [
            line("filter (rows)", f),
            f"  the model rejects {f['hand_accepts_model_rejects']} rows the person accepts, and accepts "
            f"{f['hand_rejects_model_accepts']} the person rejects; {f['not_decided_by_model']} it did not "
            "decide",
        ]
    return "\n".join(out + [line(name, field) for name, field in found["fields"].items()])
