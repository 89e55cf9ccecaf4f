"""Proof that the suite can fail: planted faults, and what notices each. A tool of the checkout, not of the wheel.

The package knows the judged files by name and text alone; what runs them runs in a child process.
"""
