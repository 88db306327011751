"""Asking the router one thing, and showing who computed which token."""
