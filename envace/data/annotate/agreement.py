"""How far a model's verdicts and labels agree with a person's.

Flows in: a file labelled by hand, an annotated one, and the rows that the filter rejected. Flows out: for the
filter and for each field of items the exact agreement and Cohen's kappa, both with 95 % intervals. Invariant:
items are matched by row, turn and id, never by order; what one side alone has is counted, not compared.

A row of the hand-labelled file is either an annotated row a person corrected, or {"uuid": "u-1", "accept":
true, "items": [{"turn": 0, "id": "C0", "focus_on": "...", "required_for_next_turn": true, "weight": 0.5,
"dependence": [], "verdict": true}]} with any of these. `accept` says whether the dialogue is free of errors,
which is what the filter decides. A `verdict` says whether the item is right: met by the recorded dialogue and
fit to grade others by; an annotated item claims that it is, unless it has a `verdict` of its own."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envace.data.annotate.kappa import compare, compare_numbers
from envace.data.readers import READERS, RawRow
from envace.errors import DataError
from envace.types import JSON

WEIGHT = "weight"
FIELDS = ("verdict", "focus_on", "required_for_next_turn", "dependence", WEIGHT)
FILTERED = "llm_filter"  # the reason of a row that a filter pass rejected
RESAMPLES = 2000
Items = dict[tuple[int, str], dict[str, JSON]]  # (turn, id) -> item


@dataclass(frozen=True, slots=True)
class Labelled:
    """One side's word on a row."""

    items: Items = field(default_factory=dict)
    accept: bool | None = None  # None: says nothing of it


def agreement(
    hand: Path, annotated: Path, seed: int = 7, resamples: int = RESAMPLES, rejected: Path | None = None
) -> dict[str, JSON]:
    """Compare two files; `rejected` (beside `annotated` where it is not given) holds what the filter left
    out.

    Raises DataError when one cannot be read or nothing can be compared.
    """
    by_hand = _read(hand)
    by_model = {uuid: Labelled(row.items, True) for uuid, row in _read(annotated).items()}
    rejected = rejected or annotated.with_name("rejected.jsonl")
    refused = _refused(rejected) if rejected.is_file() else set()
    found = {
        **_filter(by_hand, by_model, refused, seed, resamples),
        **_labels(by_hand, by_model, seed, resamples),
    }
    if not found["fields"] and not found["filter"]["rows"]:
        raise DataError(
            f"{hand} and {annotated} share no item to compare; check that uuid, turn and id are those of "
            f"{annotated.name}"
        )
    return found


def _filter(
    by_hand: dict[str, Labelled], by_model: dict[str, Labelled], refused: set[str], seed: int, resamples: int
) -> dict[str, JSON]:
    """Whether the same rows were accepted. A row the model did not decide on is counted."""
    decided = dict.fromkeys(by_model, True) | dict.fromkeys(refused, False)
    asked = {uuid: row.accept for uuid, row in by_hand.items() if row.accept is not None}
    pairs = {uuid: (mine, decided[uuid]) for uuid, mine in asked.items() if uuid in decided}
    words = {(a, b): f"hand_{_word(a)}_model_{_word(b)}" for a in (True, False) for b in (True, False)}
    counts = Counter(words[pair] for pair in pairs.values())
    values = {uuid: [(_word(a), _word(b))] for uuid, (a, b) in pairs.items()}
    compared = compare(values, seed, resamples) if values else {"rows": 0}
    table = {word: counts[word] for word in words.values()}
    return {"filter": {**compared, **table, "not_decided_by_model": len(asked) - len(pairs)}}


def _word(accept: bool) -> str:
    return "accepts" if accept else "rejects"


def _labels(
    by_hand: dict[str, Labelled], by_model: dict[str, Labelled], seed: int, resamples: int
) -> dict[str, JSON]:
    labelled = {uuid for uuid, row in by_hand.items() if row.items}
    shared = sorted(labelled & by_model.keys())
    pairs: dict[str, dict[str, list[Any]]] = {f: defaultdict(list) for f in FIELDS}
    only: Counter[str] = Counter()
    for uuid in shared:
        mine, theirs = by_hand[uuid].items, by_model[uuid].items
        only.update(hand=len(mine.keys() - theirs.keys()), model=len(theirs.keys() - mine.keys()))
        for spot in sorted(mine.keys() & theirs.keys()):
            for name in FIELDS:
                if name in mine[spot]:
                    pairs[name][uuid].append((_value(mine[spot], name), _value(theirs[spot], name)))
    return {
        "rows": {"hand": len(by_hand), "annotated": len(by_model), "compared": len(shared)},
        "items_only_by_hand": only["hand"],
        "items_only_by_model": only["model"],
        "fields": {
            name: (compare_numbers if name == WEIGHT else compare)(rows, seed, resamples)
            for name, rows in pairs.items()
            if rows
        },
    }


def _value(item: dict[str, JSON], name: str) -> Any:
    if name == WEIGHT:
        return float(item.get(name) or 0.0)
    value = item.get(name, True) if name == "verdict" else item.get(name)
    return json.dumps(sorted(value or ()) if name == "dependence" else value)


def _read(path: Path) -> dict[str, Labelled]:
    return {raw.row["uuid"]: Labelled(_checked(raw), raw.row.get("accept")) for raw in _rows(path)}


def _refused(path: Path) -> set[str]:
    """The rows a filter pass rejected; those a rule rejected were never shown to the model."""
    return {raw.row["uuid"] for raw in _rows(path, False) if raw.row.get("reason") == FILTERED}


def _rows(path: Path, named: bool = True) -> Iterator[RawRow]:
    """Rows of a file, those without an id left out unless all must be `named`."""
    if path.suffix not in READERS or not path.is_file():
        raise DataError(f"{path} cannot be read; name a file that ends in {', '.join(sorted(READERS))}")
    for raw in READERS[path.suffix](path, path.name):
        fine = raw.fault is None and isinstance(raw.row.get("uuid"), str)
        if not fine and named:
            why = raw.fault.message if raw.fault else "it has no uuid"
            raise DataError(f"{raw.where} is no labelled row: {why}; correct it")
        if fine:
            yield raw


def _checked(raw: RawRow) -> Items:
    row = raw.row
    try:
        if not isinstance(row.get("accept", True), bool):
            raise TypeError
        if "accept" in row and "items" not in row and "checklists" not in row:
            return {}
        return dict(_items(row))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        raise DataError(
            f"{raw.where} has neither accept (true or false), nor items with turn and id, nor checklists; "
            "correct it"
        ) from None


def _items(row: dict[str, Any]) -> Iterator[tuple[tuple[int, str], dict[str, JSON]]]:
    if "items" in row:
        turns = [(item["turn"], item) for item in row["items"]]
    else:
        turns = [
            (t, {"verdict": True, **item}) for t, items in enumerate(row["checklists"][0]) for item in items
        ]
    for turn, item in turns:
        kept = {name: item[name] for name in FIELDS if name in item}
        (
            float(kept.get(WEIGHT) or 0.0),
            sorted(kept.get("dependence") or ()),
        )  # raises here, where the place is known
        yield (turn, item["id"]), kept


def text(found: dict[str, JSON]) -> str:
    """The table for people."""
    r = found["rows"]
    out = [
        f"{r['compared']} rows compared ({r['hand']} by hand, {r['annotated']} annotated); items without a "
        "match: "
        f"{found['items_only_by_hand']} by hand, {found['items_only_by_model']} by the model",
        f"{'':<24}{'n':>5}  {'exact':<22}kappa",
    ]
    if (f := found["filter"])["rows"]:
        out.append(_line("filter (rows)", f))
        out.append(
            f"  the model rejects {f['hand_accepts_model_rejects']} rows the person accepts, and accepts "
            f"{f['hand_rejects_model_accepts']} the person rejects; {f['not_decided_by_model']} it did not "
            "decide"
        )
    out += [_line(name, f) for name, f in found["fields"].items()]
    return "\n".join(out)


def _line(name: str, f: dict[str, JSON]) -> str:
    kappa = _said(f["kappa"], f["kappa_low"], f["kappa_high"])
    note = f["kappa_note"].replace("_", " ")
    if note == "numbers":
        kappa, note = f"apart by {_said(f['distance'], f['distance_low'], f['distance_high'])} on average", ""
    return f"{name:<24}{f['items']:>5}  {_said(f['exact'], f['exact_low'], f['exact_high']):<22}{kappa}" + (
        f" ({note})" if note else ""
    )


def _said(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None else "")
