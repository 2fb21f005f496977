"""Stages and the flow that chains them: one file a stage, run as `python -m flows.<stage>`.

Flows in: params.yaml and the outputs of earlier stages. Flows out: the outputs dvc.yaml names.
Invariant: whatever the tools keep goes under `.state/` of the project; nothing is sent to their makers. The
variables below are set before Prefect, MLflow, Ray or vLLM are imported, and only where the user set none.
"""

import os
from pathlib import Path

from tasks.run import state_dir

DEFAULTS = {
    "PREFECT_HOME": str(state_dir(Path.cwd()) / "prefect"),
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # the first start migrates a database
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal gets our own lines; the UI keeps all
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "DVC_NO_ANALYTICS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",  # stages say themselves how far they are
    "OMP_WAIT_POLICY": "PASSIVE",  # idle threads that spin make a busy machine five times slower
}
for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
