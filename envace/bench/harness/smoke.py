"""Does a built harness import, without a network, and what does it consist of?

Flows in: an environment's interpreter and module names. Flows out: name -> version of all it holds.
Invariant: the harness is imported in a process of its own with an empty network where the system allows that,
so that an import which needs the web fails here and not in an evaluation."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from envace.bench.harness import isolate
from envace.bench.harness.spec import Say
from envace.errors import EnvironmentUnready, StageFailed
from envace.io import children

DEADLINE_S = 600.0  # importing litellm takes half a minute on a busy laptop
SCRIPT = """
import importlib, json, sys
from importlib.metadata import distributions
for name in sys.argv[2:]:
    importlib.import_module(name)
with open(sys.argv[1], "w") as f:
    json.dump({d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"]}, f)
"""


def smoke(python: Path, modules: Sequence[str], log: Path, say: Say, what: str) -> dict[str, str]:
    """Import every module. Raises EnvironmentUnready naming what did not import."""
    with tempfile.TemporaryDirectory(prefix="ea-") as home:
        found = Path(home, "versions.json")
        env = {
            "HOME": home,
            "TMPDIR": home,
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "PYTHONNOUSERSITE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        how = {"wrap": isolate.wrap(), "isolated": True} if isolate.wrap() else {}
        try:
            children.call(
                [str(python), "-c", SCRIPT, str(found), *modules],
                what=f"import of {what}",
                log=log,
                cwd=Path(home),
                deadline_s=DEADLINE_S,
                say=say,
                env=env,
                **how,
            )
        except StageFailed as e:
            raise EnvironmentUnready(f"{e}: the lock of {what} does not fit it") from None
        return json.loads(found.read_text())
