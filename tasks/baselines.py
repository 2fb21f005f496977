"""Policies of somebody else to compare with: `bench.baselines` -> `models/<name>/` with a card alone."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.io.files import publish, write_json
from envace.policy.card import write_pointer
from envace.types import PolicyRef
from tasks.run import Run

ASKED = ("context", "tool_parser", "reasoning_parser", "thinking", "extra_body")  # a baseline's own settings


@task(cache_policy=NO_CACHE)
def write_baseline(run: Run, name: str, out: Path) -> PolicyRef:
    """The card of `bench.baselines.<name>`: a hub model at its commit, or a server and its model."""
    base = run.params.bench.baselines[name]
    ref = PolicyRef(kind="hub", uri=base.uri, revision=base.revision, name=name)
    if base.base_url:
        ref = PolicyRef(kind="endpoint", uri=run.redactor.text(base.base_url), revision=base.model, name=name)
    with publish(out) as scratch:
        ref = write_pointer(scratch, ref)
        write_json(scratch / "asked.json", {k: getattr(base, k) for k in ASKED})  # scores follow a change
    run.say(f"baseline {name}: {ref.uri} {ref.revision}")
    return ref
