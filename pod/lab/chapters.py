"""The walk: all chapters in order."""

from dataclasses import dataclass
from pathlib import Path

from pod.files import ROOT

FOLDER = ROOT / "notebooks"
SPELLED = {"sm": "SM", "pod": "POD", "gpu": "GPU", "hopper": "Hopper"}


@dataclass(frozen=True)
class Chapter:
    """One question and one sitting. `name` is the stem of its notebook, and begins with a number; where a chapter takes
    several sittings, with a letter for each: 17a, 17b. `minutes` to read it and `more` for its exercises are what
    pod/lab/minutes.py counts."""

    name: str
    minutes: int
    more: int
    question: str

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def label(self) -> str:
        return self.name.partition("_")[0]

    @property
    def words(self) -> str:
        return " ".join(SPELLED.get(word, word) for word in self.name.split("_")[1:])

    @property
    def title(self) -> str:
        return f"{self.label} {self.words}"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.ipynb"


PARTS: dict[str, tuple[Chapter, ...]] = {
    "The pieces": (
        Chapter("00_start_here", 20, 20, "Why does the chat stutter?"),
        Chapter("01_online_softmax", 35, 20, "Can a softmax be computed in pieces, in any order?"),
        Chapter("02_tiling", 35, 20, "Why tiles, and which?"),
        Chapter("03_two_phases", 35, 20, "Why is prefill hungry for FLOPs and decode for bytes?"),
        Chapter("04_first_kernels", 35, 55, "What does one thread do, and who waits for whom?"),
    ),
    "One kernel for both": (
        Chapter("05_waves", 30, 20, "Why does one more request slow decode by a quarter?"),
        Chapter("06_concurrent_execution", 35, 25, "Which of CUDA's ways runs two operations at once?"),
        Chapter("07_sm_aware_scheduling", 40, 20, "How does a CTA find out where it is and choose?"),
        Chapter("08a_pod_kernel", 40, 15, "What do tensor cores wait for?"),
        Chapter("08b_both_in_one", 45, 20, "How does one kernel serve prefill and decode?"),
        Chapter("08c_why_trust_it", 30, 15, "Why should anyone trust it?"),
    ),
    "Does it work?": (
        Chapter("09_attention_results", 45, 20, "Does it work?"),
        Chapter("10_gpu_model", 45, 20, "Can we predict a GPU we do not have?"),
        Chapter("11a_lean_attention", 30, 15, "How should a few long decodes fill 132 SMs?"),
        Chapter("11b_what_it_gains", 35, 15, "What do equal ranges gain, over whom, and when do they not pay?"),
    ),
    "The server around it": (
        Chapter("12_continuous_batching", 45, 35, "Who may run in this iteration, and where does its KV live?"),
        Chapter("13_chunked_prefill", 45, 25, "How does the long prompt stop blocking the chat?"),
        Chapter("14a_serving_engine", 30, 15, "Can I read a whole engine?"),
        Chapter("14b_what_it_costs", 35, 15, "What does an engine cost beside its kernels?"),
        Chapter("15a_end_to_end", 40, 15, "What does the user feel?"),
        Chapter("15b_trusting_a_simulator", 30, 15, "When may a simulator be believed?"),
        Chapter("15c_planning_a_fleet", 25, 15, "How many GPUs does a promise take?"),
        Chapter("16a_profiling_an_engine", 30, 15, "Why is the memory only half used?"),
        Chapter("16b_the_sampler", 30, 15, "Where did the other half of the time go?"),
    ),
    "Beyond the paper": (
        Chapter("17a_pod_on_hopper", 35, 15, "On today's GPU, how does one CTA hold two kernels?"),
        Chapter("17b_sharing_an_sm", 25, 20, "What do two kernels in one SM take from each other?"),
        Chapter("17c_what_it_reaches", 40, 15, "What does it reach, and what is left?"),
        Chapter("17d_what_is_in_the_way", 35, 15, "What is still in the way?"),
    ),
    "The last roof": (Chapter("18_joules", 40, 20, "What is a joule spent on?"),),
}
CHAPTERS: tuple[Chapter, ...] = tuple(chapter for part in PARTS.values() for chapter in part)


def markdown(folder: str = "") -> str:
    """All chapters as a table of links; `folder` is the way there."""
    rows = ["| | chapter | its question | minutes to read | for exercises |", "|---|---|---|--:|--:|"]
    for part, chapters in PARTS.items():
        for i, c in enumerate(chapters):
            link = f"[{c.title}]({folder}{c.path.name})"
            rows.append(f"| {part if i == 0 else ''} | {link} | {c.question} | {c.minutes} | {c.more} |")
    return "\n".join(rows)
