"""Common parts of measurements: the machine's facts, rounds that notice noise, rows to verify."""
