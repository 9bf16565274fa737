"""What one attention call takes inside a serving stack, part by part, and constants fitted to a user's own times."""

from iosim.studies.latency.calibration import Calibration, read_calibration
from iosim.studies.latency.latency import Latencies, Latency, Part

__all__ = ["Calibration", "Latencies", "Latency", "Part", "read_calibration"]
