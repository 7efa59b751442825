"""What a loader measures of itself while it runs: when each batch passed each stage, and what its workers used."""
