"""The training step, and what surrounds it: precision, accumulation, averages, memory, evaluation."""
