"""Where FinMCP-Bench's rows are: the hub's pinned revision, or files of one's own.

`python -m envace.bench.finmcp.data` fetches them beforehand. Invariant: the hub's files are those of one
commit with the checksums named here; they are kept below the state folder and never copied into the project
(their licence, CC-BY-NC-SA-4.0, does not allow it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from envace.bench.harness.planning import check_one_of, read_options
from envace.bench.harness.spec import HarnessEnv
from envace.config import Params, parse
from envace.data.fetch import fetch, place
from envace.data.source_files import SourceRecord
from envace.errors import UserError, boundary
from envace.types import JSON

HUB = "DianJin/FinMCP-Bench"
REVISION = "fa3ffa6939ee29eb78576cfe0d31888de6085202"
SUMS = {"test/benchmark_multi_tool.json": "6276cfd4907fe46baaca49cea136b7df7c98cbc5bddf1675a4134f8657ce0b4e"}
ENDINGS = (".json", ".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinMcpOptions:
    """`bench.options.finmcp`."""

    uri: str = HUB  # id of the hub, or a file or folder of one's own
    revision: str = REVISION  # of the hub
    patterns: tuple[str, ...] = ("test/*",)
    sha256: dict[str, str] = field(default_factory=lambda: dict(SUMS))  # file of the hub -> checksum
    mode: str = "replay"  # replay | live
    mcp_url: str = ""  # live: the tool server; "{key}" in it is replaced by the key
    mcp_transport: str = "sse"  # live: sse | http (streamable)
    mcp_key_env: str = ""  # live: variable that holds the tool server's key
    mcp_timeout_s: float = 60.0  # live: for one call
    tools: str = ""  # file with tool schemas; empty: the server's own, or mined from the gold calls
    max_calls: int = 20  # tool calls in one user turn
    template_kwargs: bool = True  # tell the agent's chat template whether to think
    tasks: tuple[str, ...] = ()  # ids, of every subset; empty is all (then `limit` applies)
    parallel: int = 1  # jobs beside each other (the harness runner's)

    @classmethod
    def of(cls, options: dict[str, JSON]) -> FinMcpOptions:
        """Raises UserError for an option that does not exist or a value that cannot be used."""
        made = read_options("finmcp", cls, options)
        check_one_of("finmcp", "mode", made.mode, ("replay", "live"))
        check_one_of("finmcp", "mcp_transport", made.mcp_transport, ("sse", "http"))
        if made.live and not made.mcp_url:
            other = "name one, or set mode: replay (not official)"
            raise UserError(f"finmcp: mode live needs mcp_url, the address of a tool server; {other}")
        return made

    @property
    def live(self) -> bool:
        return self.mode == "live"

    @property
    def is_local(self) -> bool:
        return Path(self.uri).exists() or self.uri.endswith(ENDINGS) or self.uri.startswith((".", "/"))


def lacking(env: HarnessEnv) -> list[str]:
    """What `make harnesses` says of rows that are not here; they belong to no environment."""
    own = FinMcpOptions()
    params = _params(own.uri, own.revision, own.patterns, {})
    get = "`python -m envace.bench.finmcp.data` fetches them from the hub (once, or at the first run)"
    return (
        []
        if SourceRecord.read(place(params)).complete
        else [
            f"the rows ({HUB}, {REVISION[:8]}) are not here yet: {get}, or name files of your own by "
            "bench.options.finmcp.uri"
        ]
    )


def files(options: FinMcpOptions) -> list[Path]:
    """The files with the rows; the hub's are fetched where they are not here yet. Raises DataError,
    UserError.
    """
    if not options.is_local:
        return list(_fetched(options.uri, options.revision, options.patterns, tuple(options.sha256.items())))
    path = Path(options.uri)
    found = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [p.resolve() for p in found if p.is_file() and p.suffix in ENDINGS]
    if not found:
        raise UserError(f"finmcp: options.uri {str(path)!r} holds no file ending in {' or '.join(ENDINGS)}")
    return found


@cache  # planning, parsing and scoring ask for the same files
def _fetched(
    uri: str, revision: str, patterns: tuple[str, ...], sums: tuple[tuple[str, str], ...]
) -> tuple[Path, ...]:
    other = (uri, revision) != (HUB, REVISION)  # our pin's checksums are not asked of other data
    params = _params(uri, revision, patterns, {} if dict(sums) == SUMS and other else dict(sums))
    fetched = fetch(params, place(params))
    return tuple(fetched.folder / f.name for f in fetched.files if f.name.endswith(ENDINGS))


def _params(uri: str, revision: str, patterns: Sequence[str], sums: Mapping[str, str]) -> Params:
    """As if these rows were the data of a pipeline, which fetches and keeps them."""
    asked = {"source": "hub", "uri": uri, "revision": revision, "patterns": list(patterns)}
    return parse({"data": asked | ({"sha256": dict(sums)} if sums else {}), "tts": {"points": []}})


if __name__ == "__main__":
    with boundary("finmcp"):
        print("\n".join(map(str, files(FinMcpOptions()))))
