"""Systems and policies against each other in the same worlds."""
