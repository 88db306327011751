"""Random small worlds in which everything breaks: what clients got is compared, token for token, with the one right
answer.
"""
