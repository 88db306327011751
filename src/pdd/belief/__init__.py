"""What a router believes: of links, prefixes, workers, conversations and traffic. Pure: time enters as a value.

A belief is never asked about anything that must be true: a wrong one costs time, not an answer.
"""
