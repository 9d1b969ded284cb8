"""The kernels: `build` makes libraries of their sources, `launch` runs a plan on a device, and each family has a small
module of its own. Importing them builds nothing."""

from pod.kernels.build import BuildError, Mode, machine, mode, operator

__all__ = ["BuildError", "Mode", "machine", "mode", "operator"]
