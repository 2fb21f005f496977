"""A fetch or a staging in a process of its own, for killing: `fetch_kit.py fetch|stage PAUSE_S OUT STATE
JSON`."""

import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def start(folder, **data):
    """Begin a fetch; returns the process."""
    return _start("fetch", 1.0, folder, "", data)


def start_staging(out, state, pause_s=3.0, **data):
    """Begin to stage, with patience for a store that has to be started again."""
    return _start("stage", pause_s, out, state, data)


def _start(what, pause_s, out, state, data):
    command = [sys.executable, __file__, what, str(pause_s), str(out), str(state), json.dumps(data)]
    return subprocess.Popen(
        command, cwd=HERE.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_until(process, ready, seconds=90):
    """Fails when it never comes to that, or the process ends before."""
    stop = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < stop
        time.sleep(0.02)


def kill_when(process, ready):
    """SIGKILL once `ready()` holds."""
    wait_until(process, ready)
    process.kill()
    process.communicate()


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    from hub_kit import params

    from envace.data import fetch
    from envace.data.stage import stage
    from envace.errors import boundary

    what, pause_s, out, state, data = sys.argv[1:]
    fetch.PAUSE_S = float(pause_s)
    with boundary("data"):
        if what == "fetch":
            fetch.fetch(params(**json.loads(data)), Path(out))
        else:
            stage(params(**json.loads(data)), Path(out), state=Path(state))
