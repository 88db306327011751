"""Reading, checking and resolving topology files."""
