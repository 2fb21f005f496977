"""What a run would take, told before anything is paid.

Calls are an upper bound, since nobody knows who will be rejected; tokens are estimates and say so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from envace.data.annotate.call_plan import CallPlan
from envace.data.annotate.raw_rows import RawRows

CHARACTERS_PER_TOKEN = 3.5
"""Of English prose mixed with JSON."""
WRITTEN = {"none": 200, "minimal": 300, "low": 600, "medium": 1800, "high": 5000}
"""Tokens a reply by effort, thought included."""
WRITTEN_PER_TURN = 900
"""Of checklists, beside that."""


@dataclass
class Preview:
    """Rows, the calls they may take at most, and estimated tokens."""

    settled: Counter[str] = field(default_factory=Counter)
    """Rows that need no call, by outcome."""
    rows: int = 0
    """Rows that need calls."""
    calls: int = 0
    tokens_read: int = 0
    tokens_written: int = 0


def preview(plan: CallPlan, rows: RawRows) -> Preview:
    """Go through all samples once; nothing is asked."""
    found, order = Preview(), (*plan.options.pass_names, plan.options.label_name)
    for sample in rows.samples:
        at = plan.state(sample)
        ask = plan.next_ask(at)
        if ask is None:
            found.settled[at.outcome] += 1
            continue
        found.rows += 1
        for name in order[order.index(ask.call) :] if ask.call in order else (ask.call,):
            kind, effort = name.split(":")[:2]
            asked = plan.prompts.question("filter" if kind == "filter" else "label", sample, effort)
            found.calls += 1
            found.tokens_read += round(sum(len(m["content"]) for m in asked.messages) / CHARACTERS_PER_TOKEN)
            found.tokens_written += WRITTEN[effort] + (kind != "filter") * WRITTEN_PER_TURN * sample.turns
    return found


def preview_text(found: Preview, rows: RawRows, plan: CallPlan) -> str:
    """For people, a line a fact."""

    def counted(reasons: dict[str, int]) -> str:
        return ", ".join(f"{n:,} {reason}" for reason, n in sorted(reasons.items(), key=lambda x: -x[1]))

    o, left_out, hits = plan.options, rows.reasons(), dict(sorted(rows.hits.items()))
    passed, drawn = len(rows.rows) - sum(left_out.values()), len(rows.samples)
    out = [f"rows: {len(rows.rows):,} read, {passed:,} pass the rules"]
    out[0] += f", {drawn:,} of them drawn (--limit)" if drawn < passed else ""
    out[0] += f"; left out: {counted(left_out)}" if left_out else ""
    if hits != left_out:
        out.append(f"faults, of which a row may have several: {counted(hits)}")
    if plan.journal.skipped:
        out.append(f"journal: {plan.journal.skipped:,} damaged lines left out; their calls are made again")
    if found.settled:
        known = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(found.settled.items()))
        out.append(f"settled by the journal: {known}")
    if not found.calls:
        return "\n".join([*out, "calls: none are open"])
    passes = "1 filter pass" if len(o.efforts) == 1 else f"{len(o.efforts)} filter passes"
    cost = "unknown without --price-in and --price-out"
    if (usd := o.usd(found.tokens_read, found.tokens_written)) is not None:
        prices = f"{o.price_in:g} read and {o.price_out:g} written a million tokens"
        cost = f"at most about {usd:,.2f} USD, at {prices}"
    out += [
        f"calls: at most {found.calls:,} for {found.rows:,} rows ({passes}, one label each; a rejection "
        "saves a row's later calls, a faulty label costs one repair)",
        f"tokens: about {found.tokens_read:,} read and {found.tokens_written:,} written (estimated)",
        f"cost: {cost}",
    ]
    return "\n".join(out)
