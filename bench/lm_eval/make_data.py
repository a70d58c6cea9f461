"""Writes python_session.jsonl: Python expressions, what they evaluate to, and three wrong answers.

    python bench/lm_eval/make_data.py

The right answers are computed, not written down.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

QUESTIONS = [
    ("len([4, 5, 6])", "2", "4", "6"),
    ("sorted([3, 1, 2])", "[3, 1, 2]", "[3, 2, 1]", "[1, 3, 2]"),
    ("'abc'.upper()", "'abc'", "'Abc'", "'CBA'"),
    ("'hello'[1]", "'h'", "'l'", "'o'"),
    ("'hello'[-1]", "'h'", "'e'", "'l'"),
    ("[1, 2] + [3]", "[1, 2, [3]]", "6", "[4, 5]"),
    ("max(3, 9, 4)", "3", "4", "16"),
    ("min([7, 2, 5])", "7", "5", "14"),
    ("sum([1, 2, 3, 4])", "4", "24", "9"),
    ("7 // 2", "3.5", "4", "1"),
    ("7 % 4", "1", "1.75", "28"),
    ("2 ** 5", "10", "25", "64"),
    ("10 / 4", "2", "3", "40"),
    ("not True", "True", "None", "0"),
    ("3 == 3.0", "False", "3", "None"),
    ("'a' in 'cat'", "False", "1", "'a'"),
    ("'x' * 3", "'x3'", "'x'", "3"),
    ("list(range(4))", "[1, 2, 3, 4]", "[0, 1, 2, 3, 4]", "[4]"),
    ("list(range(2, 8, 2))", "[2, 8, 2]", "[2, 4, 6, 8]", "[2, 3, 4, 5, 6, 7]"),
    ("'a,b,c'.split(',')", "['a,b,c']", "['a', ',', 'b', ',', 'c']", "('a', 'b', 'c')"),
    ("'-'.join(['a', 'b'])", "'ab'", "['a-b']", "'-a-b'"),
    ("' hi '.strip()", "' hi'", "'hi '", "' hi '"),
    ("'banana'.count('a')", "2", "6", "1"),
    ("'banana'.find('n')", "3", "1", "-1"),
    ("'banana'.replace('a', 'o')", "'bonana'", "'banana'", "'bononb'"),
    ("{'a': 1, 'b': 2}['b']", "1", "'b'", "{'b': 2}"),
    ("len({'a': 1, 'b': 2})", "1", "4", "3"),
    ("{'a': 1}.get('z', 0)", "1", "None", "'z'"),
    ("sorted({2, 2, 1})", "[1, 2, 2]", "[2, 1]", "{1, 2}"),
    ("[x * x for x in [1, 2, 3]]", "[1, 2, 3]", "[2, 4, 6]", "14"),
    ("[x for x in range(6) if x % 2]", "[0, 2, 4]", "[1, 3]", "[0, 1, 2, 3, 4, 5]"),
    ("[1, 2, 3][::-1]", "[1, 2, 3]", "[3, 1, 2]", "3"),
    ("[1, 2, 3, 4][1:3]", "[1, 2, 3]", "[2, 3, 4]", "[1, 2]"),
    ("[1, 2, 3].index(3)", "3", "1", "0"),
    ("tuple([1, 2])", "[1, 2]", "{1, 2}", "(1,)"),
    ("int('42') + 1", "'421'", "42", "421"),
    ("str(4) + '2'", "6", "42", "'6'"),
    ("bool([])", "True", "None", "[]"),
    ("bool('no')", "False", "'no'", "None"),
    ("abs(-5)", "-5", "0", "4"),
    ("round(2.7)", "2", "2.7", "2.0"),
    ("divmod(9, 4)", "(1, 2)", "2.25", "(4, 9)"),
    ("type(1.5).__name__", "'int'", "float", "'double'"),
    ("isinstance(3, str)", "True", "'int'", "None"),
    ("ord('a')", "1", "65", "'a'"),
    ("chr(66)", "'b'", "'66'", "'A'"),
    ("any([0, '', 5])", "False", "5", "None"),
    ("all([1, 2, 0])", "True", "0", "3"),
    ("list(zip([1, 2], 'ab'))", "[1, 'a', 2, 'b']", "[(1, 2), ('a', 'b')]", "['1a', '2b']"),
    ("list(enumerate('ab'))", "['a', 'b']", "[(1, 'a'), (2, 'b')]", "[0, 1]"),
    ("list(map(len, ['ab', 'c']))", "3", "['ab', 'c']", "[1, 2]"),
    ("f'{3 + 4}'", "7", "'3 + 4'", "'{7}'"),
    ("'Hello World'.lower()", "'Hello world'", "'HELLO WORLD'", "'hello_world'"),
    ("'abc' < 'abd'", "False", "-1", "'abc'"),
    ("[1, 2] * 2", "[2, 4]", "[[1, 2], [1, 2]]", "[1, 2, 2]"),
    ("None is None", "None", "False", "0"),
    ("0.1 + 0.2 == 0.3", "True", "0.3", "None"),
    ("'python'.startswith('py')", "False", "'py'", "0"),
    ("'python'.endswith('py')", "True", "'on'", "-1"),
    ("set('aab') == {'a', 'b'}", "False", "{'a', 'b'}", "3"),
]


def main() -> None:
    """Write the file beside this one."""
    rng = random.Random(1)
    rows = []
    for expression, *wrong in QUESTIONS:
        value = repr(eval(expression))
        choices = [value, *wrong]
        assert len(set(choices)) == 4, expression
        rng.shuffle(choices)
        row = {"expression": expression, "value": value, "choices": choices}
        rows.append(json.dumps({**row, "answer": choices.index(value)}) + "\n")
    Path(__file__).with_name("python_session.jsonl").write_text("".join(rows), "utf-8")


if __name__ == "__main__":
    main()
