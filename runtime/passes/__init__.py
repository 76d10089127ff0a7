"""Lowering passes: in each module `run(dag)` rewrites the DAG and `ensures(dag)` asserts what it promises."""
