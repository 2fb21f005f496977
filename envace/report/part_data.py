"""The data set's card: where the rows came from, what happened to them, how large they are.

Flows in: the manifest as `Staged`. Flows out: one section.
Invariant: every number is the manifest's own; what it does not say has no row, and an unknown reason is shown
without a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

from envace.data.faults import Reject
from envace.data.split import SPLITS
from envace.report import plots
from envace.report.bins import Bins
from envace.report.results import Results, Staged, StagedFile
from envace.report.section import NOTHING, Section, captioned
from envace.report.table import DASH, Table, count, table

STEPS = {
    "read": "rows of the source",
    "without_faults": "pass every check",
    "one_an_id": "one row an id",
    "distinct": "one row a dialogue with its tools",
    "selected": "kept by data.select",
}
MEANING = {
    Reject.BAD_JSON: "no JSON object",
    Reject.BAD_TEXT: "text that no UTF-8 file can hold",
    Reject.MISSING_FIELD: "a field is missing",
    Reject.WRONG_TYPE: "a field of another type",
    Reject.BAD_TOOLS: "the tools are no list of function schemas",
    Reject.DUPLICATE_TOOL: "two tools of one name",
    Reject.LOOSE_TOOL: "a tool that the published loader refuses (data.strict_tool_schema)",
    Reject.ROLE_ORDER: "messages in an order no dialogue has",
    Reject.RESULT_COUNT: "calls and tool messages do not pair up",
    Reject.UNKNOWN_TOOL: "the reference calls a tool that is not offered",
    Reject.BAD_ARGUMENTS: "a reference call breaks its tool's schema",
    Reject.RESULT_NOT_JSON: "a tool's response is not JSON",
    Reject.RESPONSE_TAG: "an assistant writes a tool response",
    Reject.BAD_THINKING: "a think tag misplaced, open or repeated",
    Reject.NO_THINKING: "an assistant message without thoughts (data.require_thinking)",
    Reject.EMPTY_CONTENT: "a message says nothing and calls nothing",
    Reject.PREFIX_MISMATCH: "the prompt is not the start of the reference dialogue",
    Reject.NO_CHECKLIST: "a raw row: python -m envace.data annotate gives it a checklist",
    Reject.BAD_CHECKLIST: "the checklist cannot be read",
    Reject.BAD_WEIGHTS: "a turn's weights do not sum to 1",
    Reject.BAD_RULE: "an item's rule cannot be read",
    Reject.TURN_COUNT: "more checklist turns than user messages",
    Reject.BAD_EXTENSION: "world or records cannot be read",
    Reject.PROMPT_TOO_LONG: "the first prompt exceeds data.max_first_prompt_tokens",
    Reject.DUPLICATE_ID: "another row of this id is kept",
    Reject.DUPLICATE_CONTENT: "another row has the same dialogue and tools",
    Reject.NOT_SELECTED: "a good row that data.select thins out",
}
SIZES = {  # kind of number -> what it counts, what is counted
    "turns": ("user messages", "rows"),
    "steps": ("assistant messages", "rows"),
    "calls": ("tool calls", "rows"),
    "tools": ("tools offered", "rows"),
    "tokens": ("tokens of the first prompt", "rows"),
    "items": ("checklist items", "rows"),
    "weights": ("weight of a checklist item", "items"),
}
PLOTTED = ("turns", "calls", "tools", "tokens", "items", "weights")
ON_CARD = ("data.source", "data.uri", "data.revision")
WITHOUT_DESK = ("desk.",)  # parameters that shape nothing, by how they begin
WITH_DESK = tuple(f"data.{k}" for k in ("accept_changed", "held_", "licence", "patterns", "sha256", "split"))
FILES, TAGS = 24, 12  # shown at most
NAMES = {"desk": "generators of the project", "hub": "hub data set", "s3": "S3 prefix", "local": "folder"}


def data(results: Results) -> Section:
    """The section on the staged rows; without a manifest it says that there is none."""
    s = results.staged
    if s is None:
        return Section(id="data", title="Data", lead=NOTHING)
    sizes = {name: Bins(h.edges, h.counts) for name, h in s.sizes.items() if name in SIZES}
    return Section(
        id="data",
        title="Data",
        lead=lead(s),
        points=points(s),
        plots=_plots(sizes),
        tables=captioned(
            ("The source", card(s)),
            ("Files of the source", files(s)),
            ("What happened to the rows", steps(s)),
            ("Why rows were left out", rejects(s)),
            ("What was staged", outputs(s)),
            ("How large the kept rows are", how_large(sizes)),
            ("Parameters that shaped it", shaped(s)),
        ),
    )


def lead(s: Staged) -> str:
    """One line on all rows, as far as the counts are known."""
    if not {"read", "rejected"} <= s.totals.keys():
        return "What the manifest of the staged rows says."
    read, rejected = s.totals["read"], s.totals["rejected"]
    return (
        f"Of {count(read)} rows read, {count(s.totals.get('kept', read - rejected))} are staged and "
        f"{count(rejected)} left out. "
        "Every row read is in one split or counted under one reason."
    )


def points(s: Staged) -> tuple[str, ...]:
    found = []
    if not s.steps and not s.sizes:
        found.append("The manifest names no steps and no sizes; run stage_data again to have them.")
    if more := s.totals.get("more_variants"):
        found.append(f"{count(more)} rows bring more than one variant of their checklist; the first is used.")
    return tuple(found)


def card(s: Staged) -> Table | None:
    total = sum(f.bytes or 0 for f in s.files)
    rows = [
        ("kind", f"{s.kind} ({NAMES[s.kind]})" if s.kind in NAMES else s.kind),
        ("address", s.uri),
        ("revision", s.revision),
        ("licence", s.licence),
        ("files", f"{count(len(s.files))}, {_bytes(total)}" if s.files else ""),
        ("rows by form", _listed(s.forms)),
        ("kept rows by tag", _listed(s.tags, TAGS)),
        ("kept rows by licence", _listed(s.licences, TAGS)),
        ("kept rows by file", _listed(s.sources, TAGS)),
    ]
    return table(("what", "which"), [row for row in rows if row[1]])


def files(s: Staged) -> Table | None:
    rows = [(f.name, _bytes(f.bytes), f.sha256 or DASH, f.version or DASH) for f in s.files[:FILES]]
    more = len(s.files) - FILES
    note = f"And {count(more)} more, all named in data/staged/manifest.json." if more > 0 else ""
    return table(("file", "size", "sha256", "version at the source"), rows, note=note)


def steps(s: Staged) -> Table | None:
    """A line a step with the rows that are left, then a line a split."""
    known = [(name, s.steps[name]) for name in STEPS if name in s.steps]
    rows = [
        (name, STEPS[name], count(n), _less(before[1] - n) if before else DASH)
        for (name, n), before in zip(known, [None, *known])
    ]
    if rows:
        rows += [(f"split {split}", "dealt to it", count(f.rows), DASH) for split, f in _splits(s).items()]
    return table(("step", "meaning", "rows", "left out"), rows)


def _splits(s: Staged) -> dict[str, StagedFile]:
    """Split -> its file, in the order of staging."""
    found = {f.name.removesuffix(".parquet"): f for f in s.outputs if f.name.endswith(".parquet")}
    return {name: found[name] for name in (*SPLITS, *sorted(found.keys() - set(SPLITS))) if name in found}


def rejects(s: Staged) -> Table | None:
    """Reasons by how many rows they cost, then by how many they hold for."""
    found = sorted({*s.reasons, *s.hits}, key=lambda r: (-s.reasons.get(r, 0), -s.hits.get(r, 0), r))
    read = s.totals.get("read")
    rows = [
        (
            r,
            MEANING.get(r, ""),
            count(s.reasons.get(r, 0)),
            _share(s.reasons.get(r, 0), read),
            count(s.hits.get(r)),
        )
        for r in found
    ]
    if rows:
        total = sum(s.reasons.values())
        rows.append(("all", "", count(total), _share(total, read), DASH))
    return table(
        ("reason", "meaning", "rows", "of all read", "hits"),
        rows,
        note="Rows: by the first reason against them. Hits: rows for which the reason holds, first or not. "
        "data/staged/rejects.jsonl names each row, the field and what is wrong with it.",
    )


def outputs(s: Staged) -> Table | None:
    made = dict.fromkeys((*_splits(s).values(), *s.outputs))  # the splits first
    rows = [(f.name, count(f.rows), _bytes(f.bytes), f.sha256 or DASH) for f in made]
    return table(("file", "rows", "size", "sha256"), rows)


def how_large(sizes: Mapping[str, Bins]) -> Table | None:
    rows = [
        (label, what, count(b.total), b.label(b.first), b.label(b.median), b.label(b.last))
        for name, (label, what) in SIZES.items()
        if (b := sizes.get(name)) is not None and b.total
    ]
    return table(
        ("number", "of", "counted", "least", "median", "most"),
        rows,
        note="As the bins of the histograms tell.",
    )


def shaped(s: Staged) -> Table | None:
    """What the rows depend on, beside the source."""
    idle = WITH_DESK if s.kind == "desk" else WITHOUT_DESK
    rows = [(k, _value(v)) for k, v in s.params.items() if k not in ON_CARD and not k.startswith(idle)]
    rows += [("length of a prompt", s.prompt_length)] if s.prompt_length else []
    return table(("parameter", "value"), rows)


def _plots(sizes: Mapping[str, Bins]) -> tuple[str, ...]:
    found = []
    for name in PLOTTED:
        if (b := sizes.get(name)) is not None and b.total:
            title, what = SIZES[name]
            found.append(plots.histogram(f"data-{name}", title, b.shown, ylabel=what, edges=b.ticks))
    return tuple(found)


def _listed(counts: Mapping[str, int], most: int = 0) -> str:
    """`ok 109, look 56 and 30 more`, the largest first."""
    found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = found[:most] if most else found
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return ", ".join(f"{name} {count(n)}" for name, n in shown) + more


def _less(n: int) -> str:
    return f"\u2212{count(n)}" if n else "0"


def _share(n: int, of: int | None) -> str:
    return f"{100 * n / of:.1f} %" if of else DASH


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return DASH if value in ("", None, {}) else str(value)


def _bytes(n: int | None) -> str:
    """`67.9 kB`."""
    if n is None:
        return DASH
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"
