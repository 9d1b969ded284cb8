"""An answer as it grows: the same text however the bytes come, and nothing of a stop string is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.serving.text import Text


def shown(answer: bytes, cuts: list[int], stops: list[str]) -> list[str]:
    """What is let out piece by piece; nothing is fed any more once it has stopped."""
    text, out = Text(stops), []
    ends = sorted({min(cut, len(answer)) for cut in cuts} | {0, len(answer)})
    for begin, end in zip(ends, ends[1:], strict=False):
        out.append(text.add(answer[begin:end], last=end == len(answer)))
        if text.stopped:
            break
    return out


def up_to_the_first(answer: str, stops: list[str]) -> str:
    """The definition, letter by letter: the first prefix that ends with a stop string, without it."""
    for end in range(1, len(answer) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if answer[:end].endswith(stop):
                return answer[: end - len(stop)]
    return answer


@given(st.text("abé🙂", max_size=14), st.lists(st.integers(0, 40), max_size=9),
       st.lists(st.text("abé🙂", min_size=1, max_size=4), max_size=4))  # fmt: skip
def test_no_border_changes_the_text_and_no_stop_string_is_begun(answer, cuts, stops):
    pieces = shown(answer.encode(), cuts, stops)
    assert "".join(pieces) == up_to_the_first(answer, stops)


def test_a_stop_string_over_three_tokens_is_held_back_from_its_first_letter():
    assert shown(b"one END two", [5, 6], ["END"]) == ["one ", "", ""]
    assert shown(b"one ENTER", [5, 6], ["END"]) == ["one ", "", "ENTER"], "and let out when it is none after all"
    assert shown(b"wait EN", [5], ["END"]) == ["wait ", "EN"], "or when nothing follows"


def test_the_stop_string_that_is_complete_first_ends_the_text():
    for cuts in ([], [1], [2], [3], [1, 2, 3]):
        assert "".join(shown(b"abcd", cuts, ["abcd", "bc"])) == "a"


def test_a_letter_in_two_tokens_comes_out_once_it_is_whole():
    assert shown("né".encode(), [2], []) == ["n", "é"]
    assert shown("né".encode()[:-1], [2], []) == ["n\ufffd"], "half a letter at the end is said to be one"


@pytest.mark.parametrize("stops", [[], ["x"]])
def test_every_byte_of_a_broken_text_is_shown(stops):
    high = bytes(range(128, 256))
    assert "".join(shown(high, list(range(128)), stops)) == high.decode(errors="replace")
