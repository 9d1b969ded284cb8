"""`python -m pod trace`: run a batch once, draw which CTA ran where and when, and write it for ui.perfetto.dev."""

import io
import json
from pathlib import Path

from pod import files
from pod.batch import HybridBatch
from pod.kernels.trace import bars, both_share, chrome, frame, held_both
from pod.schedule.binding import POLICIES
from pod.schedule.decide import METHODS

TOY = HybridBatch.of(512, 1024, decodes=24, decode_context=512, num_q_heads=4, num_kv_heads=2, head_dim=64)
TOY_SMS = 4


def record(batch: HybridBatch, device: str = "cpu", **choice):
    """Run a batch once and return its trace as a table. `choice`: arguments of pod.plan that say how."""
    import pod

    plan = pod.plan(batch, device=device, **choice)
    q, k, v, block_table = batch.tensors(device=device)
    if device != "cpu":
        pod.hybrid_attention(q, k, v, plan, block_table, causal=batch.causal, trace=True)  # the first launch loads code
    _, rows = pod.hybrid_attention(q, k, v, plan, block_table, causal=batch.causal, trace=True)
    return frame(rows)


# ---------------------------------------------------------------- python -m pod trace


def configure(parser) -> None:
    parser.add_argument("--method", choices=METHODS, default="pod")
    parser.add_argument("--policy", choices=POLICIES, help="of method pod (default proportional)")
    parser.add_argument("--ctas", type=int, choices=(2, 4), default=2, help="CTAs an SM (default 2)")
    parser.add_argument("--batch", choices=("toy", "C0", "C1", "C2"), help="default: C0 on a GPU, else toy")
    parser.add_argument("--sms", type=int, help=f"SMs of the emulated machine (default {TOY_SMS})")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder (default figures)")


def run(args) -> int:
    files.need("matplotlib", "pandas", extra="notebooks")
    import matplotlib

    from pod import kernels
    from pod.batch import TABLE1

    matplotlib.use("Agg")
    on_gpu = kernels.mode().name == "gpu"
    if kernels.mode().name == "recorded":
        raise ValueError(f"no trace can be taken here: {kernels.mode().reason}")
    if args.policy and args.method != "pod":
        raise ValueError(f"--policy: got {args.policy!r}, allowed beside --method pod")
    policy = {"policy": args.policy or "proportional"} if args.method == "pod" else {}
    name = args.batch or ("C0" if on_gpu else "toy")
    if name != "toy" and not on_gpu:
        raise ValueError(f"--batch: got {name!r}, allowed without a GPU is 'toy': the emulator would take hours")
    if on_gpu and args.sms is not None:
        raise ValueError(f"--sms: got {args.sms}, allowed without a GPU: a card has the SMs that it has")
    batch, out = TOY if name == "toy" else TABLE1[name], files.ready(args.out)
    with kernels.machine(TOY_SMS if args.sms is None else args.sms):
        device = "cuda" if on_gpu else "cpu"
        table = record(batch, device, method=args.method, ctas_per_sm=args.ctas, **policy)
    _write(table, out / f"trace-{args.method}-{name}", f"{args.method}, {name}")
    sms = table.sm.nunique()
    both = f"SMs that held both: {held_both(table)} of {sms}, {sms * both_share(table):.1f} at a time on average"
    print(f"{len(table)} CTAs on {sms} SMs in {table.end.max():.1f} us; {both}")
    return 0


def _write(table, path: Path, title: str) -> None:
    from pod.lab.show import gantt

    picture = io.BytesIO()
    gantt(bars(table), unit="µs", title=title).figure.savefig(picture, format="png")
    files.replace(path.with_suffix(".png"), picture.getvalue())
    files.replace(path.with_suffix(".json"), json.dumps(chrome(table)))
    print(f"wrote {path}.png and {path}.json (open the latter at https://ui.perfetto.dev)")
