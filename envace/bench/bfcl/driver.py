"""Runs one category of BFCL in the harness's own Python: `python -I driver.py <job folder>/job.json`.

Flows in: job.json (what to ask), the served model's address and key in OPENAI_BASE_URL and OPENAI_API_KEY. Flows
out, in the job's folder: root/result and root/score as BFCL writes them, requests.jsonl with one line a request,
driver.json with what became of each phase.
Invariant: BFCL's own command line does the asking and the scoring; what is added is the model's registration
under a fixed name. Nothing of the project is imported; failures.py, resume.py and answers.py are loaded by their paths.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

NAME = "served"  # without "_", which BFCL takes for "/" when it looks a result folder up
PHASES = ("generate", "evaluate")


def main(path: Path) -> int:
    job, folder = json.loads(path.read_text(encoding="utf-8")), path.resolve().parent
    root = folder / "root"
    root.mkdir(exist_ok=True)
    (folder / "driver.json").unlink(missing_ok=True)  # of an interrupted run
    os.environ["BFCL_PROJECT_ROOT"] = str(root)  # read when bfcl_eval is first imported
    resume.forget_failures(root / "result" / NAME, lost)
    register(job, Requests(folder / "requests.jsonl"))
    report = {"versions": {p: importlib.metadata.version(p) for p in ("bfcl-eval", "openai")}}
    for phase in job.get("phases", PHASES):
        began = time.time()
        report[phase] = outcome(phase, job, root)
        report[f"{phase}_seconds"] = round(time.time() - began, 2)
    (folder / "driver.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return int(any(report[phase] != "ok" for phase in job.get("phases", PHASES)))


def lost(row):
    """Whether the infrastructure, not the agent, is why a row holds no answer."""
    return failures.failed(row) and failures.cause(row["result"])[0] == "infra"


def outcome(phase, job, root):
    """ "ok", or what broke: BFCL's exit status says nothing about its samples."""
    try:
        {"generate": generate, "evaluate": evaluate}[phase](job, root)
    except (Exception, SystemExit) as e:  # a harness that calls sys.exit has failed too
        print(f"{phase} failed: {type(e).__name__}: {e}", flush=True)
        return f"{type(e).__name__}: {e}"[:500]
    return "ok"


def generate(job, root):
    options = ["--temperature", str(job["temperature"]), "--num-threads", str(job["threads"])]
    if job["ids"]:  # a part of the category: BFCL takes the ids from this file and ignores the category
        listed = {job["category"]: job["ids"]}
        (root / "test_case_ids_to_generate.json").write_text(json.dumps(listed), encoding="utf-8")
        options += ["--run-ids"]
    command("generate", job, "--exclude-state-log", *options)


def evaluate(job, root):
    # Rows that are absent would otherwise stop the scoring of those that are there; completeness is checked by
    # the reader of these files.
    try:
        command("evaluate", job, "--partial-eval")
    except Exception as e:
        # The scores are written before the table of latencies, which cannot be made from a single row.
        scored = any((root / "score" / NAME).rglob(f"BFCL_v4_{job['category']}_score.json"))
        if not (scored and type(e).__name__ == "StatisticsError"):
            raise


def command(name, job, *options):
    from bfcl_eval.__main__ import cli

    cli([name, "--model", NAME, "--test-category", job["category"], *options], standalone_mode=False)


class Requests:
    """One line a request: BFCL keeps no finish reasons."""

    def __init__(self, path):
        self.file, self.lock = path.open("a", encoding="utf-8"), threading.Lock()

    def add(self, **line):
        with self.lock:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def register(job, requests):
    """The served model joins BFCL's table of models."""
    from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig

    MODEL_CONFIG_MAPPING[NAME] = ModelConfig(
        model_name=job["model"], display_name=NAME, url="", org="", license="",
        model_handler=handler(job, requests), is_fc_model=True, underscore_to_dot=True,
    )  # fmt: skip


def handler(job, requests):
    """BFCL's handler of OpenAI-compatible chat completions with what ours must differ in."""
    import openai
    from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler

    class Served(OpenAICompletionsHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.model_name_underline_replaced = NAME  # becomes part of Python names that BFCL evaluates

        def _build_client_kwargs(self):
            # BFCL itself repeats a refused request for ever; the client stops after `retries`.
            return {
                **super()._build_client_kwargs(),
                "timeout": job["timeout_s"],
                "max_retries": job["retries"],
            }

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
                requests.add(id=inference_data["entry"], error=type(e).__name__)
                if isinstance(e, openai.BadRequestError) and not sound(request["messages"]):
                    raise RuntimeError(f"{failures.MALFORMED}: {e}") from e
                raise
            seconds = time.time() - began
            usage, choice = response.usage, response.choices[0]
            requests.add(
                id=inference_data["entry"], finish=choice.finish_reason, calls=len(choice.message.tool_calls or ()),
                input=usage.prompt_tokens if usage else 0, output=usage.completion_tokens if usage else 0,
                seconds=round(seconds, 3),
            )  # fmt: skip
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
    """The reply to a request; where its prompt fits and the tokens it asks for do not, fewer are asked for."""
    while True:
        try:
            return create(**request)
        except refused as e:
            if not (fewer := answers.fewer(str(e), request.get("max_tokens", 0))):
                raise
            request = {**request, "max_tokens": fewer}


def spoken(message):
    """The message as history repeats it, and its thinking. Thinking is never part of an answer: the agentic
    categories look for words in the answer, which thinking would supply."""
    content, thinking = message.content or "", ""
    if "</think>" in content:
        thinking, content = content.rsplit("</think>", 1)
    elif content.lstrip().startswith("<think>"):  # cut off while it was thinking
        thinking, content = content, ""
    said = {"role": "assistant", "content": content.strip()}
    for field in (
        "reasoning_content",
        "reasoning",
    ):  # where a server puts it; its template decides what is kept
        if value := getattr(message, field, None):
            said[field] = thinking = value
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": c.id or f"call_{n}",
                "type": "function",
                "function": {"name": c.function.name, "arguments": c.function.arguments},
            }
            for n, c in enumerate(message.tool_calls)
        ]
    return said, thinking


def sound(messages):
    """Whether every call of the history has a JSON object for arguments."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            try:
                if not isinstance(json.loads(call["function"]["arguments"]), dict):
                    return False
            except (TypeError, ValueError):
                return False
    return True


def load(path):
    spec = importlib.util.spec_from_file_location(f"envace_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).resolve().parent
failures, resume = load(HERE / "failures.py"), load(HERE / "resume.py")
answers = load(HERE.parent / "harness" / "answers.py")

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
