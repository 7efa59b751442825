"""What all suites share: how subjects are checked and measured, and how results are stored and drawn."""
