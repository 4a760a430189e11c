"""What a training script imports: standard library only, Python 3.8 or newer, copyable as one file.

from gpuwatch.training import Heartbeat
"""

from .heartbeat import Heartbeat

__all__ = ["Heartbeat"]
