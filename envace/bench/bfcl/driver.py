"""Runs one category of BFCL in the harness's own Python: `python -I driver.py <job folder>/job.json`.

Flows in: job.json; the served model's address and key in OPENAI_BASE_URL and OPENAI_API_KEY. Flows out, in
the job's folder: root/result and root/score as BFCL writes them, requests.jsonl (a line a request),
driver.json (what became of each phase).
Invariant: BFCL's own command line does the asking and the scoring; added are the model's registration under a
fixed name, and that a run which is taken up again asks anew what the infrastructure failed. Nothing of the
project is imported; failures.py and answers.py are loaded by their paths.
"""

import importlib.metadata
import json
import os
import runpy
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
failures = SimpleNamespace(**runpy.run_path(str(HERE / "failures.py")))
answers = SimpleNamespace(**runpy.run_path(str(HERE.parent / "harness" / "answers.py")))
NAME = "served"  # without "_", which BFCL takes for "/" when it looks a result folder up
PHASES = ("generate", "evaluate")


def main(path: Path) -> int:
    """Ask, then score; 1 when either phase broke."""
    job, folder = json.loads(path.read_text(encoding="utf-8")), path.resolve().parent
    root = folder / "root"
    root.mkdir(exist_ok=True)
    (folder / "driver.json").unlink(missing_ok=True)  # of an interrupted run
    os.environ["BFCL_PROJECT_ROOT"] = str(root)  # read when bfcl_eval is first imported
    forget_failures(root / "result" / NAME)
    register(job, folder / "requests.jsonl")
    report = {"versions": {p: importlib.metadata.version(p) for p in ("bfcl-eval", "openai")}}
    for phase in job.get("phases", PHASES):
        began = time.time()
        report[phase] = outcome(phase, job, root)
        report[f"{phase}_seconds"] = round(time.time() - began, 2)
    (folder / "driver.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return int(any(report[phase] != "ok" for phase in job.get("phases", PHASES)))


def forget_failures(results):
    """Drop the rows without an answer because of the infrastructure: BFCL keeps whatever has a row.

    A memory scenario whose chain of conversations is not whole goes altogether, with what it had remembered,
    since each conversation builds on the one before.
    """
    for file in sorted(results.rglob("BFCL_v4_*_result.json")):
        rows = answers.read_rows(file)
        write_rows(
            file, [r for r in rows if not (failures.failed(r) and failures.cause(r["result"])[0] == "infra")]
        )
    for file in sorted(results.rglob("BFCL_v4_memory_*_result.json")):
        name = file.name.removeprefix("BFCL_v4_").removesuffix("_result.json").removesuffix("_prereq")
        forget_broken_chains(file.parent, name)


def forget_broken_chains(folder, category):
    """Rows and snapshots of every scenario that lacks one of its conversations."""
    from bfcl_eval.utils import load_dataset_entry

    chains = {}  # scenario -> the ids of its conversations
    for entry in load_dataset_entry(category):
        if "_prereq_" in entry["id"]:
            chains.setdefault(entry["scenario"], set()).add(entry["id"])
    before, asked = (folder / f"BFCL_v4_{category}{part}_result.json" for part in ("_prereq", ""))
    there = {row["id"] for row in answers.read_rows(before)}
    broken = {scenario for scenario, ids in chains.items() if not ids <= there}
    for path in (before, asked):
        write_rows(path, [r for r in answers.read_rows(path) if r["id"].split("-")[1] not in broken])
    for scenario in broken:
        for snapshot in (folder / "memory_snapshot").rglob(f"*{scenario}*.json"):
            snapshot.unlink()


def write_rows(file, rows):
    """Replace the file; no file where there is no row, as BFCL divides by their number."""
    if not rows:
        file.unlink(missing_ok=True)
        return
    scratch = file.with_suffix(".partial")
    scratch.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shutil.move(scratch, file)


def outcome(phase, job, root):
    """ "ok", or what broke: BFCL's exit status says nothing about its samples."""
    try:
        {"generate": generate, "evaluate": evaluate}[phase](job, root)
    except (Exception, SystemExit) as e:  # a harness that calls sys.exit has failed too
        print(f"{phase} failed: {type(e).__name__}: {e}", flush=True)
        return f"{type(e).__name__}: {e}"[:500]
    return "ok"


def generate(job, root):
    """Ask the model what the job lists; BFCL takes a part of a category from a file of ids."""
    options = ["--temperature", str(job["temperature"]), "--num-threads", str(job["threads"])]
    if job["ids"]:
        listed = {job["category"]: job["ids"]}
        (root / "test_case_ids_to_generate.json").write_text(json.dumps(listed), encoding="utf-8")
        options += ["--run-ids"]
    command("generate", job, "--exclude-state-log", *options)


def evaluate(job, root):
    """Score the rows that are there; whether all are is checked by the reader of these files."""
    try:
        command("evaluate", job, "--partial-eval")
    except Exception as e:
        # The scores are written before the table of latencies, which cannot be made from a single row.
        scored = any((root / "score" / NAME).rglob(f"BFCL_v4_{job['category']}_score.json"))
        if not (scored and type(e).__name__ == "StatisticsError"):
            raise


def command(name, job, *options):
    """BFCL's own command line."""
    from bfcl_eval.__main__ import cli

    cli([name, "--model", NAME, "--test-category", job["category"], *options], standalone_mode=False)


def register(job, requests):
    """The served model joins BFCL's table of models."""
    from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig

    said = {"model_name": job["model"], "display_name": NAME, "url": "", "org": "", "license": ""}
    MODEL_CONFIG_MAPPING[NAME] = ModelConfig(
        **said, model_handler=handler(job, requests), is_fc_model=True, underscore_to_dot=True
    )


def handler(job, requests):
    """BFCL's handler of OpenAI-compatible chat completions with what ours must differ in.

    `requests` gets one line per request, since BFCL keeps no finish reasons.
    """
    import openai
    from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler

    lock = threading.Lock()

    def note(**line):
        with lock:
            answers.append_row(requests, line)

    class Served(OpenAICompletionsHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.model_name_underline_replaced = NAME  # becomes part of Python names that BFCL evaluates

        def _build_client_kwargs(self):
            # BFCL itself repeats a refused request for ever; the client stops after `retries`.
            bounds = {"timeout": job["timeout_s"], "max_retries": job["retries"]}
            return super()._build_client_kwargs() | bounds

        def _pre_query_processing_FC(self, inference_data, test_entry):
            inference_data["entry"] = test_entry["id"]
            return super()._pre_query_processing_FC(inference_data, test_entry)

        def _query_FC(self, inference_data):
            request = {"model": self.model_name, "messages": inference_data["message"], **job["request"]}
            request["temperature"] = self.temperature
            if inference_data["tools"]:
                request["tools"] = inference_data["tools"]
            inference_data["inference_input_log"] = {"message": repr(request["messages"])}
            began = time.time()
            try:
                response = fitting(self.client.chat.completions.create, request, openai.BadRequestError)
            except openai.OpenAIError as e:
                note(id=inference_data["entry"], error=type(e).__name__)
                if isinstance(e, openai.BadRequestError) and not sound(request["messages"]):
                    raise RuntimeError(f"{failures.MALFORMED}: {e}") from e
                raise
            seconds, usage, choice = time.time() - began, response.usage, response.choices[0]
            note(
                id=inference_data["entry"],
                finish=choice.finish_reason,
                calls=len(choice.message.tool_calls or ()),
                input=usage.prompt_tokens if usage else 0,
                output=usage.completion_tokens if usage else 0,
                seconds=round(seconds, 3),
            )
            return response, seconds

        def _parse_query_response_FC(self, api_response):
            message, usage = api_response.choices[0].message, api_response.usage
            said, thinking = spoken(message)
            calls = said.get("tool_calls", [])
            asked = [{c["function"]["name"]: c["function"]["arguments"]} for c in calls]
            return {
                "model_responses": asked or said["content"],
                "model_responses_message_for_chat_history": said,
                "tool_call_ids": [c["id"] for c in calls],
                "reasoning_content": thinking,
                "input_token": usage.prompt_tokens if usage else 0,
                "output_token": usage.completion_tokens if usage else 0,
            }

    return Served


def fitting(create, request, refused):
    """The reply to a request; where its prompt fits and the tokens asked for do not, fewer are asked for."""
    while True:
        try:
            return create(**request)
        except refused as e:
            if not (fewer := answers.fewer(str(e), request.get("max_tokens", 0))):
                raise
            request = {**request, "max_tokens": fewer}


def spoken(message):
    """The message as history repeats it, and its thinking, which is never part of an answer: the agentic
    categories look for words in the answer, and thinking would supply them."""
    content, thinking = message.content or "", ""
    if "</think>" in content:
        thinking, content = content.rsplit("</think>", 1)
    elif content.lstrip().startswith("<think>"):  # cut off while it was thinking
        thinking, content = content, ""
    said = {"role": "assistant", "content": content.strip()}
    for field in ("reasoning_content", "reasoning"):  # as servers name it; the template decides what is kept
        if value := getattr(message, field, None):
            said[field] = thinking = value
    for n, c in enumerate(message.tool_calls or ()):
        function = {"name": c.function.name, "arguments": c.function.arguments}
        call = {"id": c.id or f"call_{n}", "type": "function", "function": function}
        said.setdefault("tool_calls", []).append(call)
    return said, thinking


def sound(messages):
    """Whether every call of the history has a JSON object for arguments."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    try:
        return all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
    except (TypeError, ValueError):
        return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
