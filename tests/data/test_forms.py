"""Three forms of one row become one; JSON text is read strictly; odd containers are tolerated."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cm2_rows import TOOL, foreign_row

from envace.config import parse
from envace.data import jsontext
from envace.data.check import check_row
from envace.data.faults import Reject
from envace.data.row_forms import FormKind, read_form
from envace.data.schema import task_from_row
from envace.data.stage import stage
from envace.data.store import read_tasks


def forms_of(row):
    """The annotated and the raw form of a finished row."""
    extra = row["extra_info"]
    raw = {
        "uuid": row["uuid"],
        "license": "cc-by-4.0",
        "messages": extra["messages"],
        "metadata": json.dumps({"tools": json.loads(extra["tools"])}),
    }
    lists = extra["interaction_kwargs"]["checklist_list"]
    annotated = {
        "uuid": row["uuid"],
        "messages": extra["messages"],
        "tools": json.loads(extra["tools"]),
        "checklists": lists,
    }
    return annotated, raw


def test_every_form_has_the_same_parts():
    finished = foreign_row()
    annotated, raw = forms_of(finished)
    a, b, c = map(read_form, (finished, annotated, raw))
    assert (a.kind, b.kind, c.kind) == (FormKind.FINISHED, FormKind.ANNOTATED, FormKind.RAW)
    assert a.messages == b.messages == c.messages and a.tools == b.tools == c.tools == [TOOL]
    assert a.prefix == b.prefix == c.prefix and a.checklist == b.checklist and c.checklist is None


def test_annotated_and_finished_rows_are_stored_alike():
    finished = foreign_row()
    del finished["data_source"]
    annotated, _ = forms_of(finished)
    assert task_from_row(annotated) == task_from_row(finished)
    as_text = annotated | {
        "tools": json.dumps(annotated["tools"]),
        "checklists": json.dumps(annotated["checklists"]),
    }
    assert task_from_row(as_text) == task_from_row(finished)


def test_a_raw_row_is_told_how_to_get_a_checklist():
    fault, *more = check_row(forms_of(foreign_row())[1])
    assert not more and fault.reason is Reject.NO_CHECKLIST and "envace.data annotate" in fault.message


def test_faults_name_the_field_as_the_file_has_it():
    annotated, raw = forms_of(foreign_row())
    annotated["checklists"][0][0][0]["weight"] = 0.5
    raw["messages"][2]["content"] = "?"
    assert [f.field for f in check_row(annotated)] == ["messages[2].content", "checklists[0][0]"]
    assert [f.field for f in check_row(raw)] == ["checklists", "messages[2].content"]
    raw["metadata"] = '{"tools": '
    assert ("metadata", Reject.BAD_TOOLS) in [(f.field, f.reason) for f in check_row(raw)]


@pytest.mark.parametrize(
    "row", [None, [], 3, {}, {"messages": 4, "tools": {}}, {"metadata": "[1]"}, {"checklists": 1}]
)
def test_no_row_is_too_odd_to_be_read(row):
    assert check_row(row)
    read_form(row)


def test_parquet_written_by_inference_is_read(tmp_path):
    """Empty lists of no type, nulls for absent keys, tools as structs: what a converter without a schema
    leaves."""
    rows = [forms_of(foreign_row(f"u-{k}"))[0] for k in range(4)]
    for row in rows:
        row["tools"] = [
            TOOL,
            {
                "type": "function",
                "function": {
                    **TOOL["function"],
                    "name": "get_wind",
                    "parameters": {
                        "type": "object",
                        "properties": {"knots": {"type": "integer"}},
                        "required": [],
                    },
                },
            },
        ]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in/a.parquet")
    finished = [foreign_row(f"v-{k}") for k in range(4)]
    table = pa.Table.from_pylist(
        [{k: row[k] for k in ("uuid", "messages", "data_source", "extra_info")} for row in finished]
    )
    assert table.schema.field("messages").type.value_type.field("tool_calls").type.value_type == pa.null()
    pq.write_table(table, tmp_path / "in/b.parquet")
    params = parse({"data": {"source": "local", "uri": str(tmp_path / "in")}})
    counts = stage(params, tmp_path / "out")["counts"]
    assert counts["kept"] == 8 and counts["forms"] == {"annotated": 4, "finished": 4}
    tasks = [t for name in ("train", "held") for t in read_tasks(tmp_path / f"out/{name}.parquet")]
    [task] = [t for t in tasks if t.id == "u-0"]
    assert list(task.tools[0]["function"]["parameters"]["properties"]) == ["port"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "[1,]",
        "{} {}",
        "1e999",
        "'a'",
        "[" * 5000,
        b"\xff",
        '"\t"',
        "\ufeff1",
        '"\\ud800"',
        '{"a": 1, "\\u0061": 2}',
    ],
)
def test_what_is_not_json_is_refused_with_words(text):
    with pytest.raises(ValueError) as e:
        jsontext.read(text)
    assert str(e.value)
