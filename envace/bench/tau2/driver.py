"""Runs tau²'s own command line. Executed by the harness's interpreter (`python -P driver.py job.json`), never
imported by us.

Flows in: a job file (arguments of `tau2 run`, one list per run; endpoints; where results go). Flows out: what
tau² writes, and errors.jsonl for the fork, which keeps no cause of a failed dialogue.
Invariant: tau²'s agent, user simulator, environment and graders are untouched. Set from outside are the
judge's model and address (constants in tau²), the key of each request (so that none stands in the arguments
that tau² copies into its results), and an answer to its question whether to resume.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

ANSWERS = Path(__file__).resolve().parents[1] / "harness" / "answers.py"
answers = SimpleNamespace(**runpy.run_path(str(ANSWERS)))


def main(file):
    """Every run of the job, going on from what an interrupted one left."""
    job = json.loads(Path(file).read_text())
    results = Path(job["results"])
    keep_earlier(results, job["fork"])
    import tau2.cli

    give_keys(job["routes"], job["concurrency"])
    place_judge(job["judge"])
    if job["fork"]:
        from tau2.utils.display import ConsoleDisplay

        note_errors(results.with_name("errors.jsonl"))
        # the fork has no --auto-resume and asks on the terminal
        ConsoleDisplay.console.input = lambda *args, **kwargs: "y"
    for argv in job["runs"]:
        sys.argv = ["tau2", *argv]
        tau2.cli.main()


def keep_earlier(results, fork):
    """Resuming draws a failed dialogue again, one that only its judge or user failed too; what it left first
    stays on file: an agent's failure counts from there.
    """
    if not results.exists():
        return
    earlier = results.with_name(f"before-{len(list(results.parent.glob('before-*.json'))) + 1}.json")
    results.replace(earlier)
    try:
        kept = json.loads(earlier.read_text())
    except ValueError:
        return  # cut off while the fork wrote it: the run starts over
    note = results.parents[1] / "again.json"
    lost = answers.owed_again(note)
    kept["simulations"] = [
        s
        for s in kept["simulations"]
        if (str(s["task_id"]), s.get("trial") or 0) not in lost
        and not (fork and s.get("skipped"))  # upstream drops its failed rows itself
    ]
    partial = results.with_name("partial.json")
    partial.write_text(json.dumps(kept))
    partial.replace(results)
    note.unlink(missing_ok=True)


def give_keys(routes, concurrency):
    """Each request gets the key of its role from the environment; one to any other server is refused.

    Where the prompt fits into the context and the tokens asked for do not, fewer are asked for.
    """
    import httpx
    import litellm
    import tau2.utils.llm_utils as llm

    plain = llm.completion
    variables = {(r["model"], r["api_base"]): r["variable"] for r in routes}

    def completion(*args, **kwargs):
        if "mock_response" in kwargs:
            return plain(*args, **kwargs)
        where = (kwargs.get("model"), kwargs.get("api_base"))
        if where not in variables:
            nobody = f"no endpoint was given for model {where[0]}"
            raise RuntimeError(f"{nobody}: its role is not part of this evaluation")
        kwargs["api_key"] = os.environ.get(variables[where]) or "EMPTY"
        while True:
            try:
                return plain(*args, **kwargs)
            except litellm.BadRequestError as e:
                if not (fewer := answers.fewer(str(e), kwargs.get("max_tokens") or 0)):
                    raise
                kwargs["max_tokens"] = fewer

    llm.completion = completion
    if getattr(litellm, "client_session", None) is not None:  # tau² caps it at 10 connections
        room = max(10, 2 * concurrency)
        litellm.client_session = httpx.Client(limits=httpx.Limits(max_connections=room))


def place_judge(judge):
    """tau² names its judge in a constant that modules copy when they are imported."""
    for module in [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == "tau2"]:
        if hasattr(module, "DEFAULT_LLM_NL_ASSERTIONS"):
            module.DEFAULT_LLM_NL_ASSERTIONS = judge["model"]
            module.DEFAULT_LLM_NL_ASSERTIONS_ARGS = judge["args"]


def note_errors(file):
    """The fork replaces a failed dialogue by a row without its cause: write the cause down as it passes."""
    import tau2.run

    plain = tau2.run.run_task

    def run_task(*args, **kwargs):
        try:
            return plain(*args, **kwargs)
        except Exception as error:
            said = {"task_id": kwargs["task"].id, "seed": kwargs["seed"], "error_type": type(error).__name__}
            answers.append_row(file, said | {"error": str(error), "error_traceback": traceback.format_exc()})
            raise

    tau2.run.run_task = run_task


if __name__ == "__main__":
    main(sys.argv[1])
