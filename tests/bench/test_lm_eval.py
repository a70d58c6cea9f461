"""bench/lm_eval: the questions of our own evaluation tasks."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "bench/lm_eval"


def test_the_right_answers_are_right_and_the_others_wrong() -> None:
    rows = [json.loads(line) for line in (FOLDER / "python_session.jsonl").open(encoding="utf-8")]
    assert len(rows) >= 50
    assert len({row["expression"] for row in rows}) == len(rows)
    for row in rows:
        assert repr(eval(row["expression"])) == row["value"]
        assert row["choices"][row["answer"]] == row["value"]
        assert len(set(row["choices"])) == 4
