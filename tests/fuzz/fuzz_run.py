"""`make fuzz`: coverage-guided fuzzing of what reads model output.

Flows in: names of targets and seconds. Flows out: how many texts each tried; for a broken promise the promise
and the file that breaks it, and exit status 1. Invariant: a corpus starts with the published case tables and
with what was found before (`found.json`), and grows in `.state/fuzz`, out of git. Each target runs in a
process of its own."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "chat"), str(ROOT)]

import cases_kit  # noqa: E402
from fuzz_targets import MODES, TARGETS, bytes_of  # noqa: E402

from envace.errors import EnvironmentUnready, StageFailed, boundary  # noqa: E402

STORE = ROOT / ".state/fuzz"
LONGEST = 4096  # bytes of one text
SLOWEST_S = 10  # one text that takes longer is a finding


def texts() -> list[str]:
    """Every published case, and what fuzzing found."""
    cases = [case for name in ("calls", "results") for case in cases_kit.load(name)]
    found = json.loads((HERE / "found.json").read_text(encoding="utf-8"))
    return [cases_kit.spell(case["written"]) for case in (*cases, *found)]


def seeds() -> list[bytes]:
    """Each text in both ways of reading thoughts."""
    return [bytes_of(text, mode) for text in texts() for mode in MODES]


def write_seeds(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for data in seeds():
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data[:LONGEST])


def fuzz(name: str, seconds: int, store: Path = STORE) -> str:
    """What the fuzzer says at its end. Raises StageFailed with the broken promise."""
    folder = store / name
    write_seeds(folder / "seeds")
    (folder / "corpus").mkdir(exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        f"-timeout={SLOWEST_S}",
        "-print_final_stats=1",
    ]
    options += [f"-dict={HERE / 'words.dict'}", f"-artifact_prefix={folder}/", "-verbosity=1"]
    command = [
        sys.executable,
        str(HERE / "fuzz_child.py"),
        name,
        *options,
        str(folder / "corpus"),
        str(folder / "seeds"),
    ]
    log = folder / "log"
    with log.open("w") as out:
        status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT).returncode
    said = log.read_text(errors="replace")
    if status:
        raise StageFailed(told(name, said, log))
    units = re.search(r"number_of_executed_units: (\d+)", said)
    return (
        f"{name}: {int(units[1]):,} texts in {seconds} s, nothing broken" if units else f"{name}: see {log}"
    )


def told(name: str, said: str, log: Path) -> str:
    """The last exception of a log, and how to see it again."""
    broken = re.findall(r"^(?:[\w.]*(?:Error|Exception)\b.*|.*ERROR: libFuzzer: .*)$", said, re.M)
    kept = re.findall(r"Test unit written to (\S+)", said)
    again = f"; again: python tests/fuzz/fuzz_run.py {name} --replay {kept[-1]}" if kept else ""
    return f"{name}: {broken[0] if broken else 'the fuzzer failed'}{again}; log: {log}"


def main(argv: Sequence[str] | None = None) -> None:
    """Fuzz the parsers of model output."""
    cli = argparse.ArgumentParser(prog="make fuzz", description=main.__doc__)
    cli.add_argument(
        "names", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all where none is given"
    )
    cli.add_argument("--seconds", type=int, default=120, help="of each target")
    cli.add_argument("--replay", type=Path, help="only read this file, without the fuzzer")
    args = cli.parse_args(argv)
    if unknown := [name for name in args.names if name not in TARGETS]:
        cli.error(f"no target is called {unknown[0]}; there are {', '.join(TARGETS)}")
    names = args.names or list(TARGETS)
    if args.replay:
        for name in names:
            TARGETS[name](args.replay.read_bytes())
        return
    with boundary("fuzz"):
        if find_spec("atheris") is None:
            raise EnvironmentUnready("the package atheris is not installed: use `make fuzz`")
        for name in names:
            print(fuzz(name, args.seconds), flush=True)


if __name__ == "__main__":
    sys.exit(main())
