"""Models as files: where weights and text sides lie, how they are read, and how a model is written for
other engines.
"""
