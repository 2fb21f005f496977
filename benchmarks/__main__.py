"""`python -m benchmarks`: all of them, one after another, each in a process of its own.

Flows in: names (all where none is given) and a folder. Flows out: what each prints, `<name>.json` in the folder,
`summary.json` with how each ended and which bars were reached, and `summary.md`, a table of all ratios.
Invariant: a benchmark whose peer is not installed is skipped with its reason; one that fails fails the command, after
the others have run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import bars
from benchmarks.table import write_json
from envace.errors import EnvironmentUnready, StageFailed, boundary

# name -> arguments of a quick look
ALL: dict[str, tuple[str, ...]] = {
    "advantage": ("--rows", "640", "--rounds", "3"),
    "batch": ("--episodes", "8", "--rounds", "2"),
    "merging": ("--turns", "20", "--episodes", "2", "--rounds", "2"),
    "packing": ("--rows", "160", "--rounds", "2"),
    "prompts": ("--turns", "8", "--rounds", "3"),
    "parser": ("--messages", "40", "--rounds", "3"),
    "scheduling": ("--groups", "3", "--seed", "0", "--rounds", "1"),
    "staging": ("--rows", "120", "--rounds", "2"),
    "sampling": ("--groups", "2", "--members", "2", "--rounds", "1"),
}
PACKAGES = ("verl", "torch", "transformers", "tokenizers", "numpy", "dashscope")
UNREADY = EnvironmentUnready.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """`Ran(name="parser", outcome="skipped", detail="the peer is not installed: ...", seconds=1.2)`"""

    name: str
    outcome: str  # ok | skipped | failed
    detail: str
    seconds: float


def run(name: str, more: Sequence[str], out: Path) -> Ran:
    """One benchmark; what it prints is shown as it comes."""
    began = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", *more, "--out", str(out / f"{name}.json")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    last = (done.stderr.strip().splitlines() or [""])[-1].removeprefix(f"benchmarks.{name}: ")
    outcome = {0: "ok", UNREADY: "skipped"}.get(done.returncode, "failed")
    return Ran(
        name=name, outcome=outcome, detail="" if outcome == "ok" else last, seconds=time.monotonic() - began
    )


def run_all(names: Sequence[str], quick: bool, out: Path) -> list[Ran]:
    """Raises StageFailed when one fails."""
    out.mkdir(parents=True, exist_ok=True)
    ran = []
    for name in names:
        print(f"\n== {name}", flush=True)
        ran.append(run(name, ALL[name] if quick else (), out))
        if ran[-1].outcome != "ok":
            print(f"{ran[-1].outcome}: {ran[-1].detail}", flush=True)
    print("\n" + "\n".join(f"{r.name:12} {r.outcome:8} {r.seconds:7.1f} s  {r.detail}" for r in ran))
    summarise(ran, out)
    if failed := [r.name for r in ran if r.outcome == "failed"]:
        raise StageFailed(f"{', '.join(failed)} failed; what they said stands above")
    return ran


def summarise(ran: Sequence[Ran], out: Path) -> None:
    """All ratios of this run, with what made them, as JSON and as a table."""
    found = bars.measured(out, {r.name: r.outcome == "ok" for r in ran})
    whole = {
        "ran": [asdict(r) for r in ran], "bars": [asdict(f) for f in found if f.bar is not None],
        "beside": [asdict(f) for f in found if f.bar is None and f.ratio is not None],
    }  # fmt: skip
    versions = write_json(out / "summary.json", whole, PACKAGES, {})
    made_by = ", ".join(f"{name} {version}" for name, version in versions.items())
    (out / "summary.md").write_text(f"{bars.table(found)}\n\n{made_by}.\n", encoding="utf-8")
    print("\n" + (out / "summary.md").read_text(encoding="utf-8"))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the speed comparisons with named peers."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    cli.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; all where none is given")
    cli.add_argument("--quick", action="store_true", help="tiny sizes: that they run, not what they find")
    cli.add_argument("--out", type=Path, default=Path(".state/benchmarks"), help="folder for the numbers")
    cli.add_argument("--page", type=Path, help="put the table into this document, as docs/speed.md has it")
    args = cli.parse_args(argv)
    if unknown := [name for name in args.names if name not in ALL]:
        cli.error(f"no benchmark is called {unknown[0]}; there are {', '.join(ALL)}")
    with boundary("benchmarks"):
        run_all(args.names or list(ALL), args.quick, args.out)
        if args.page:
            bars.into(args.page, (args.out / "summary.md").read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    sys.exit(main())
