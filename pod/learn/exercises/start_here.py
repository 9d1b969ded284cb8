"""Predictions of chapter "start here"; it has nothing to write."""

from __future__ import annotations

from pod.learn.questions import Question

CHAPTER = "start_here"
EXERCISES = ()
QUESTIONS = {
    "longest-silence": Question(
        CHAPTER,
        "The server reads the whole prompt at once, then goes on with the chats. For how long do the 80 see no new "
        "token?",
        {
            "about 50 ms": "That is two iterations. The prompt has 150 times as many new tokens as all chats together.",
            "about 150 ms": "Prefill is efficient, but 12,288 tokens go through all 32 layers before anybody else's "
            "turn comes.",
            "over half a second": "589 ms on this model of the GPU: 563 for the prompt, and 27 for the iteration that "
            "brings the next tokens.",
        },
        "over half a second",
    ),
    "arithmetic-and-bytes": Question(
        CHAPTER,
        "The chunk has 1,024 new tokens, the chats only 80. Which of the two has more arithmetic in attention, and "
        "which moves more bytes?",
        {
            "the chunk has more of both": "More arithmetic, yes. But its 1,024 tokens share one set of keys and "
            "values.",
            "the chunk computes more, the chats move more": "18 times the arithmetic on one side, 32 times the bytes "
            "on the other.",
            "the chats have more of both": "They do move more. But each of them computes for a single token.",
        },
        "the chunk computes more, the chats move more",
    ),
    "most-that-overlap-gives": Question(
        CHAPTER,
        "How much faster can running the two at the same time make attention, at the very best?",
        {
            "1.3 times": "For many batches, yes. The best batch is one whose parts take equally long.",
            "2 times": "For equal parts, a + a becomes a. For unequal parts it is less, as the longer part remains.",
            "without limit": "The longer part still has to be done: nothing about it becomes faster.",
        },
        "2 times",
    ),
}
