"""SpecEval: judges generated code against its spec, mechanically and from outside the process that runs it."""
