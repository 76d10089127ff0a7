"""The judge, its references, benchmarks against peers, and the sandbox for generated code."""
