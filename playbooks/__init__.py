"""The itemized playbook."""
