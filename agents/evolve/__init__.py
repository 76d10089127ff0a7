"""Evolution: schedules (the inner population), prompts (the outer one), the run and its journal."""
