"""KV on its way: a request's transfers, the lines that they share, room at their targets, and when one is given up."""
