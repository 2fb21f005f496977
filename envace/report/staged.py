"""Sections on the data: the world explained by one task, and the card of the staged rows.

Invariant: every number is the manifest's own; what it does not say has no row, and an unknown reason is shown
without a meaning. Nothing here was written by a model."""

from __future__ import annotations

from collections.abc import Mapping

from envace.config import flatten
from envace.data.faults import Reject
from envace.data.split import SPLITS
from envace.io.redact import Redactor
from envace.report import plots
from envace.report.manifest import Histogram, Manifest, StagedFile
from envace.report.study import Study
from envace.report.table import DASH, MINUS, Section, Table, captioned, count, short, table
from envace.types import JSON, Task

LOOKS_AT = {
    "assistant.tool_calls": "the calls",
    "assistant.content.user_visible_reply": "the reply",
    "assistant.content.thinking": "the thinking",
    "tool.content": "the responses (grounding)",
}
SPEAKERS = {"system": "instructions", "user": "user", "assistant": "agent", "tool": "world"}
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
NOT_PLOTTED = ("steps",)
ON_CARD = ("data.source", "data.uri", "data.revision")
WITHOUT_DESK = ("desk.",)
"""Parameters that shape nothing, by how they begin."""
WITH_DESK = tuple(f"data.{k}" for k in ("accept_changed", "held_", "licence", "patterns", "sha256", "split"))
FILES, TAGS = 24, 12
"""Shown at most."""
NAMES = {"desk": "generators of the project", "hub": "hub data set", "s3": "S3 prefix", "local": "folder"}


def world(study: Study) -> Section:
    """The world explained with one task: what the user says, what may be called, what is checked."""
    task, desk = study.results.example, study.params.data.source == "desk"
    title = "The desk, by one task" if desk else "The data, by one task"
    if task is None:
        return Section(id="world", title=title)
    return Section(
        id="world",
        title=title,
        lead=f"A task as it is staged ({task.id}). In training REHEARSE plays the world: it never sees the "
        "hidden state, only what is on record. In evaluation the world itself answers. The checklist is what "
        "a reward is made of; required items decide success.",
        tables=captioned(
            ("Tools on offer", _tools(task)),
            ("The true dialogue", _dialogue(task)),
            ("The checklist", _checklist(task)),
        ),
    )


def _tools(task: Task) -> Table | None:
    rows = []
    for tool in task.tools:
        function = tool.get("function", tool)
        takes = function.get("parameters", {}).get("properties", {})
        rows.append((f"{function.get('name')}({', '.join(takes)})", str(function.get("description", ""))))
    return table("tool | what it does", rows)


def _dialogue(task: Task) -> Table | None:
    """The reference dialogue, a line a message; calls as `name(argument=value)`."""
    rows = []
    for m in task.reference:
        said = [m.content] if m.content else []
        for c in m.calls:
            said.append(f"{c.name}({', '.join(f'{k}={short(v, 400)}' for k, v in c.named.items())})")
        rows.append((str(m.turn), SPEAKERS.get(m.role, m.role), " · ".join(said)))
    note = "Written by a script that knows the goal, with the true responses of the world."
    return table("turn | who | what", rows, note)


def _checklist(task: Task) -> Table | None:
    rows = []
    for turn, items in enumerate(task.checklist):
        for i in items:
            looks = LOOKS_AT.get(i.focus_on, i.focus_on)
            tail = (looks, f"{i.weight:.2f}", "yes" if i.required_for_next_turn else "no")
            rows.append((str(turn), i.id, i.question, i.pass_condition, *tail))
    note = "Weights of a turn sum to 1. A turn whose required item fails ends the episode."
    return table("turn | item | question | holds when | looks at | weight | required", rows, note)


# --- the card -----------------------------------------------------------------------------------------------


def data(study: Study) -> Section:
    m = study.results.manifest
    if m is None:
        return Section(id="data", title="Data")
    sizes = {name: h for name, h in m.statistics.items() if name in SIZES and h.used}
    return Section(
        id="data",
        title="Data",
        lead=_lead(m),
        plots=tuple(
            _histogram(name, sizes[name]) for name in SIZES if name in sizes and name not in NOT_PLOTTED
        ),
        tables=captioned(
            ("The source", _card(m)),
            ("Files of the source", _files(m)),
            ("What happened to the rows", _steps(m)),
            ("Why rows were left out", _rejects(m)),
            ("What was staged", _outputs(m)),
            ("How large the kept rows are", _how_large(sizes)),
            ("Parameters that shaped it", _shaped(m)),
        ),
    )


def _lead(m: Manifest) -> str:
    """One line on all rows, as far as the counts are known."""
    c, lead = m.counts, "What the manifest of the staged rows says."
    if c.read is not None and c.rejected is not None:
        kept = c.read - c.rejected if c.kept is None else c.kept
        lead = f"Of {count(c.read)} rows read, {count(kept)} are staged and {count(c.rejected)} left out. "
        lead += "Every row read is in one split or counted under one reason."
    if not c.steps and not m.statistics:
        lead += " The manifest names no steps and no sizes; run stage_data again to have them."
    if c.more_variants:
        lead += (
            f" {count(c.more_variants)} rows bring several variants of their checklist; the first is used."
        )
    return lead


def _histogram(name: str, h: Histogram) -> str:
    title, what = SIZES[name]
    return plots.histogram(f"data-{name}", title, [(h.label(k), h.counts[k]) for k in h.used], ylabel=what)


def _card(m: Manifest) -> Table | None:
    s, c = m.source, m.counts
    size = _bytes(sum(f.bytes or 0 for f in s.files))
    rows = {
        "kind": f"{s.kind} ({NAMES[s.kind]})" if s.kind in NAMES else s.kind,
        "address": Redactor().text(s.uri),
        "revision": s.revision,
        "licence": s.licence,
        "files": f"{count(len(s.files))}, {size}" if s.files else "",
        "rows by form": _listed(c.forms, len(c.forms)),
        "kept rows by tag": _listed(c.tags),
        "kept rows by licence": _listed(c.licences),
        "kept rows by file": _listed(c.sources),
    }
    return table("what | which", [row for row in rows.items() if row[1]])


def _files(m: Manifest) -> Table | None:
    files = m.source.files
    rows = [(f.name, _bytes(f.bytes), f.sha256 or DASH, f.version or f.etag or DASH) for f in files[:FILES]]
    more = len(files) - FILES
    note = f"And {count(more)} more, all named in data/staged/manifest.json." if more > 0 else ""
    return table("file | size | sha256 | version at the source", rows, note)


def _steps(m: Manifest) -> Table | None:
    """A line a step with the rows that are left, then a line a split."""
    rows, before = [], None
    for name in (s for s in STEPS if s in m.counts.steps):
        n = m.counts.steps[name]
        less = DASH if before is None else f"{MINUS}{count(before - n)}" if before > n else "0"
        rows.append((name, STEPS[name], count(n), less))
        before = n
    splits = [n.removesuffix(".parquet") for n, f in _made(m) if n.endswith(".parquet")] if rows else []
    rows += [(f"split {s}", "dealt to it", count(m.outputs[f"{s}.parquet"].rows), DASH) for s in splits]
    return table("step | meaning | rows | left out", rows)


def _made(m: Manifest) -> list[tuple[str, StagedFile]]:
    """What staging made: the splits in their order, then other files."""
    order = {f"{split}.parquet": k for k, split in enumerate(SPLITS)}
    return sorted(m.outputs.items(), key=lambda f: (not f[0].endswith(".parquet"), order.get(f[0], 99), f[0]))


def _rejects(m: Manifest) -> Table | None:
    """Reasons by how many rows they cost, then by how many they hold for."""
    cost, hits = m.counts.rejected_by_reason, m.counts.hits

    def share(n: int) -> str:
        return f"{100 * n / m.counts.read:.1f} %" if m.counts.read else DASH

    meaning = {r.value: text for r, text in MEANING.items()}
    found = sorted({*cost, *hits}, key=lambda r: (-cost.get(r, 0), -hits.get(r, 0), r))
    rows = [(r, meaning.get(r, ""), count(n := cost.get(r, 0)), share(n), count(hits.get(r))) for r in found]
    total = sum(cost.values())
    rows += [("all", "", count(total), share(total), DASH)] if rows else []
    note = (
        "Rows: by the first reason against them. Hits: rows for which the reason holds, first or not. "
        "data/staged/rejects.jsonl names each row, the field and what is wrong with it."
    )
    return table("reason | meaning | rows | of all read | hits", rows, note)


def _outputs(m: Manifest) -> Table | None:
    rows = [(name, count(f.rows), _bytes(f.bytes), f.sha256 or DASH) for name, f in _made(m)]
    return table("file | rows | size | sha256", rows)


def _how_large(sizes: Mapping[str, Histogram]) -> Table | None:
    rows = []
    for name, (label, what) in SIZES.items():
        if (h := sizes.get(name)) is not None:
            bins = (h.used[0], h.median, h.used[-1])
            rows.append((label, what, count(sum(h.counts)), *map(h.label, bins)))
    return table("number | of | counted | least | median | most", rows, "As the bins of the histograms tell.")


def _shaped(m: Manifest) -> Table | None:
    """What the rows depend on, beside the source."""
    idle = WITH_DESK if m.source.kind == "desk" else WITHOUT_DESK
    own = {k: v for k, v in flatten(m.params).items() if k not in ON_CARD and not k.startswith(idle)}
    rows = [(k, _value(v)) for k, v in own.items()]
    rows += [("length of a prompt", m.prompt_length)] if m.prompt_length else []
    return table("parameter | value", rows)


def _listed(counts: Mapping[str, int], most: int = TAGS) -> str:
    """`ok 109, look 56 and 30 more`, the largest first."""
    found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(f"{name} {count(n)}" for name, n in found[:most]) + more


def _value(value: JSON) -> str:
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
