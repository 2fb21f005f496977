"""Tasks and rows in parquet, with one explicit schema for every shard.

Flows in: tasks or CM2 rows. Flows out: a parquet file, byte-identical for equal rows and library versions;
and back. Invariant: a file is whole or absent; a file that is absent, corrupt or of another schema is one
DataError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from envace.data.row_forms import Row
from envace.data.schema import KEYS_OF_ORIGIN, row_from_task, task_from_row
from envace.errors import DataError
from envace.io.files import replacing
from envace.types import Task

GROUP = 512  # rows of a row group
TEXT = pa.string()
CALL = pa.struct({"id": TEXT, "type": TEXT, "function": pa.struct({"name": TEXT, "arguments": TEXT})})
MESSAGE = pa.struct({"role": TEXT, "content": TEXT, "tool_calls": pa.list_(CALL)})
EVIDENCE = pa.struct({"turn": pa.int64(), "step": pa.int64(), "from": TEXT, "snippet": TEXT})
ITEM = pa.struct(
    {
        "id": TEXT,
        "evidence": pa.list_(EVIDENCE),
        "focus_on": TEXT,
        "question": TEXT,
        "pass_condition": TEXT,
        "failure_examples": pa.list_(TEXT),
        "required_for_next_turn": pa.bool_(),
        "dependence": pa.list_(TEXT),
        "weight": pa.float64(),
        "extra_info": pa.struct({"rule": TEXT}),
    }
)
EXTRA = pa.struct(
    {
        "messages": pa.list_(MESSAGE),
        "tools": TEXT,
        "interaction_kwargs": pa.struct({"name": TEXT, "checklist_list": pa.list_(pa.list_(pa.list_(ITEM)))}),
        "need_tools_kwargs": pa.bool_(),
        "original_index": TEXT,
        "world": TEXT,
        "records": TEXT,
        "tags": pa.list_(TEXT),
        **dict.fromkeys(KEYS_OF_ORIGIN, TEXT),
    }
)
SCHEMA = pa.schema({"uuid": TEXT, "messages": pa.list_(MESSAGE), "data_source": TEXT, "extra_info": EXTRA})


def write_tasks(path: Path | str, tasks: Sequence[Task]) -> None:
    """Write tasks as CM2 rows."""
    write_rows(path, [row_from_task(t) for t in tasks])


def read_tasks(path: Path | str) -> list[Task]:
    """Tasks of a parquet file of CM2 rows. Raises DataError naming file, row and field."""
    tasks = []
    for k, row in enumerate(read_rows(path)):
        try:
            tasks.append(task_from_row(row))
        except DataError as e:
            raise DataError(f"{path}, row {k}: {e}") from None
    return tasks


def write_rows(path: Path | str, rows: Iterable[Row]) -> None:
    """Write CM2 rows, a group in memory at a time; fields outside the schema are left out.

    Raises DataError when a row does not fit.
    """
    with replacing(Path(path)) as part, pq.ParquetWriter(part, SCHEMA, compression="zstd") as file:
        rows = iter(rows)
        while group := list(islice(rows, GROUP)):
            try:
                table = pa.Table.from_pylist(group, schema=SCHEMA)
            except (pa.ArrowException, UnicodeEncodeError) as e:
                raise DataError(f"{path}: a row does not fit the schema: {e}") from e
            file.write_table(table, row_group_size=GROUP)


def read_rows(path: Path | str) -> list[Row]:
    """All rows of a parquet file."""
    return list(iter_rows(path))


def count_rows(path: Path | str) -> int:
    """Rows a parquet file states. Raises DataError when the file cannot be read."""
    with _opened(path) as file:
        return file.metadata.num_rows


def iter_rows(path: Path | str) -> Iterator[Row]:
    """Rows of a parquet file, a batch in memory at a time. Raises DataError when the file cannot be read."""
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=GROUP):
            yield from batch.to_pylist(maps_as_pydicts="strict")


@contextmanager
def _opened(path: Path | str) -> Iterator[pq.ParquetFile]:
    if not Path(path).is_file():
        raise DataError(f"{path} does not exist")
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, KeyError, OSError) as e:
        raise DataError(f"{path} is not a readable parquet file: {e}") from e
