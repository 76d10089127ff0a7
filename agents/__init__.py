"""Language-model backends, intent, the planner and the two-phase schedule writer."""
