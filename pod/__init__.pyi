# What `import pod` offers, for type checkers: __init__.py loads it only when it is asked for.
from pod.attention import build as build
from pod.attention import hybrid_attention as hybrid_attention
from pod.attention import plan as plan
from pod.attention import workspace as workspace
from pod.batch import HybridBatch as HybridBatch
from pod.hardware import GPUS as GPUS
from pod.hardware import gpu as gpu
from pod.kernels import mode as mode
from pod.lab.doctor import badge as badge
