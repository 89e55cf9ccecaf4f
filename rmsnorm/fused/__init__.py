"""The Triton kernels, their tiles, plans and launches. Nothing outside imports Triton."""
